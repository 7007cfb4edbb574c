"""Where servers are: hosts and ports, and the URLs that name them.

The URL is taken apart here and not by the standard library, which refuses a list of hosts with IPv6 addresses in it.
"""

from __future__ import annotations

from ipaddress import IPv6Address
from typing import NamedTuple
from urllib.parse import unquote

from sluicegate.bounds import PORT_MAX, REDIS_SEEDS_MAX
from sluicegate.errors import ConfigurationError

__all__ = ["Address", "UrlParts", "split_url"]

_ESCAPES = "characters with a meaning in URLs are written %XX in user and password"


class Address(NamedTuple):
    """A host (name, IPv4 or IPv6 address without brackets) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UrlParts(NamedTuple):
    """A URL taken apart. ``addresses``: empty where no host is named. ``path`` and ``query`` are as written."""

    scheme: str
    username: str | None
    password: str | None
    addresses: tuple[Address, ...]
    path: str
    query: str


def split_url(url: str, port: int) -> UrlParts:
    """Take ``scheme://[user[:password]@][host[:port][,...]][/path][?query]`` apart; ``port`` is meant where none is given.

    Raises ConfigurationError, which shows nothing that could be a part of user or password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ConfigurationError("store: not a URL, want scheme://host")
    rest, hash_sign, _ = rest.partition("#")
    if hash_sign:
        raise ConfigurationError("store: a URL of Redis takes no fragment (write # in a password as %23)")
    before, _, query = rest.partition("?")
    netloc, slash, path = before.partition("/")
    userinfo, at, hosts = netloc.rpartition("@")
    username, _, password = userinfo.partition(":") if at else ("", "", "")
    addresses = tuple(dict.fromkeys(_address(text, port) for text in hosts.split(","))) if hosts else ()
    if len(addresses) > REDIS_SEEDS_MAX:
        raise ConfigurationError(f"store: want at most {REDIS_SEEDS_MAX} hosts, got {len(addresses)}")
    return UrlParts(
        scheme=scheme.lower(),
        username=unquote(username) or None,
        password=unquote(password) or None,
        addresses=addresses,
        path=slash + path,
        query=query,
    )


def _address(text: str, port: int) -> Address:
    # Where an escape was forgotten a part of the password stands here, so the text is never shown.
    if text.startswith("["):
        host, bracket, after = text[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise ConfigurationError(f"store: host: cannot be read; {_ESCAPES}, an IPv6 address in brackets")
        try:
            IPv6Address(host)
        except ValueError:
            raise ConfigurationError("store: host: what stands in brackets is no IPv6 address") from None
        return Address(host, _port(after[1:], port))
    host, _, after = text.partition(":")
    if ":" in after:
        raise ConfigurationError(f"store: host: cannot be read; {_ESCAPES}, an IPv6 address in brackets")
    host = unquote(host)
    if not host or not host.isprintable() or " " in host:
        raise ConfigurationError("store: host: a name or an address is missing")
    try:
        # As the system's resolver is asked: no part between two dots is empty or longer than 63 bytes.
        host.encode("idna")
    except UnicodeError:
        raise ConfigurationError("store: host: what stands there can be no name") from None
    return Address(host, _port(after, port))


def _port(text: str, default: int) -> int:
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= PORT_MAX):
        raise ConfigurationError(f"store: port: want 1 to {PORT_MAX}; {_ESCAPES}")
    return int(text)
