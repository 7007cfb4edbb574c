r"""The parts of a log line that need a second look: escapes, request lines and clients.

Web servers escape what a client sends before they log it: nginx writes ``\x22`` for a quotation mark, a backslash or a
byte that is not printable ASCII, Apache ``\"``, ``\\``, ``\n``, ``\t`` and ``\xhh``.
"""

from __future__ import annotations

import re
from hashlib import sha256
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from sluicegate.replaying.bad_line import BadLine
from sluicegate.rules.identity.addresses import canonical_ip

__all__ = ["ABSENT", "Client", "RequestLine", "client_of", "request_line", "target_of", "unescaped"]

ABSENT: Final = frozenset(("-", ""))
"""What servers write where they have nothing to say."""

_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"}
_REQUEST = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S.*?)(?: +HTTP/[0-9](?:\.[0-9])?)? *", re.ASCII | re.DOTALL)
_ABSOLUTE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)", re.ASCII)
_HOST_NAME = re.compile(r"(?=[^:/]*[A-Za-z])[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})", re.ASCII)
_UNIX: Final = "unix:"

# Addresses in 100::/8 are reserved by the IETF and given to nobody (RFC 4291, RFC 6666 uses one /64 of them), so a host
# name that is hashed into them meets no real address and no network that a rule may name.
_NAME_PREFIX: Final = 0x01
_NAME_BYTES: Final = 7


class RequestLine(NamedTuple):
    """What a request line says; None: not known."""

    method: str | None = None
    path: str | None = None
    host: str | None = None


class Client(NamedTuple):
    """Who sent a request. ``ip``: the fact; None where the log does not say. ``name``: the host name it stands for, else None."""

    ip: str | None
    name: str | None = None


def unescaped(text: str) -> str:
    """``text`` as the client sent it; bytes that are not UTF-8 become lone surrogates."""
    if "\\" not in text:
        return text
    parts: list[bytes] = []
    position = 0
    for escape in _ESCAPE.finditer(text):
        parts.append(text[position : escape.start()].encode("utf-8", "surrogateescape"))
        code, letter = escape.groups()
        parts.append(
            bytes((int(code, 16),)) if code else _ESCAPED.get(letter, letter).encode("utf-8", "surrogateescape")
        )
        position = escape.end()
    parts.append(text[position:].encode("utf-8", "surrogateescape"))
    return b"".join(parts).decode("utf-8", "surrogateescape")


def request_line(text: str) -> RequestLine:
    """``GET /path HTTP/1.1``, in either form of a target. What is no request line (``-``, TLS on a plain port) tells nothing."""
    found = _REQUEST.fullmatch(text)
    return RequestLine() if found is None else target_of(found[1], found[2])


def target_of(method: str | None, target: str) -> RequestLine:
    """A request by its method and target: a path, ``*``, a URL or, for CONNECT, ``host:port``."""
    if target.startswith("/") or target == "*":
        return RequestLine(method, target.partition("?")[0])
    absolute = _ABSOLUTE.match(target)
    if absolute is not None:
        path = target[absolute.end() :].partition("?")[0]
        return RequestLine(method, path or "/", absolute[1].rpartition("@")[2] or None)
    if method == "CONNECT":
        return RequestLine(method, None, target)
    return RequestLine()


def client_of(text: str) -> Client:
    """The client of a line: an address in any spelling, or a host name where the server looked it up.

    A host name is one client like an address. Rules want addresses, so it gets one of its own, from a range that nobody has.
    Raises BadLine for what is neither.
    """
    if text in ABSENT or text.startswith(_UNIX):
        return Client(None)
    try:
        canonical_ip(text)
    except ValueError:
        if not _HOST_NAME.fullmatch(text):
            raise BadLine(f"no client: {ascii(text)[:64]} is neither an address nor a host name") from None
        name = text.lower().removesuffix(".")
        digest = sha256(name.encode("ascii")).digest()[:_NAME_BYTES]
        return Client(str(IPv6Address(bytes((_NAME_PREFIX,)) + digest + bytes(8))), name)
    return Client(text)
