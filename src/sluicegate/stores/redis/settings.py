"""From a store URL to what a connection needs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, unquote

from sluicegate.bounds import (
    FLEET_NODES_MAX,
    REDIS_KEY_SECRET_BYTES_MAX,
    REDIS_KEY_SECRET_BYTES_MIN,
    REDIS_TIMEOUT_MS,
    REDIS_TIMEOUT_MS_MAX,
    UNIX_PATH_BYTES_MAX,
)
from sluicegate.errors import ConfigurationError
from sluicegate.stores.redis.addresses import Address, UrlParts, split_url
from sluicegate.stores.redis.layout import PLAIN_LAYOUT, Layout, layout_of

__all__ = ["SCHEMES", "RedisSettings"]

_KINDS = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "redis+unix": ("unix", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
}
"""What a scheme means: the kind of store, and whether it speaks TLS."""

SCHEMES = (*_KINDS, *(scheme.replace("redis", "valkey", 1) for scheme in _KINDS))
"""Every scheme of a Redis store. Valkey is the same store under its own name: ``valkeys://`` is ``rediss://``."""

_HOST = "127.0.0.1"
_PORT = 6_379
_SENTINEL_PORT = 26_379
_PARAMETERS = (
    "ca_certs", "db", "expected_clients", "key_secret", "keys", "layout", "moving_from", "moving_from_clients", "nodes", "timeout_ms",
)  # fmt: skip
_OF_SENTINEL = ("sentinel_password", "sentinel_username")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Where a Redis is and how it is used. ``repr`` shows neither password nor secret.

    ``path``: a Unix socket, else ``host`` and ``port``. ``seeds``: of a cluster, the servers that are asked which others there
    are; with ``service``, the Sentinels that are asked where the master of that name is; empty for one server. ``host`` and
    ``port`` are the first seed then. ``sentinel_username`` and ``sentinel_password``: of the Sentinels, which have users of their
    own. ``timeout_ms``: one decision, connecting included. ``plain_keys``: subjects stand readable in keys. ``key_secret``: None
    lets the store make one. ``nodes_min``: the least number of processes (>= 1) that a limit is divided by while the store is
    down. ``layout``: how counters are laid out. ``moving_from``: the layout before, where counters that are not found are looked for, and taken
    from; None for nowhere.
    """

    host: str = _HOST
    port: int = _PORT
    path: str | None = None
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca_certs: str | None = None
    timeout_ms: int = REDIS_TIMEOUT_MS
    plain_keys: bool = False
    key_secret: bytes | None = field(default=None, repr=False)
    seeds: tuple[Address, ...] = ()
    service: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    nodes_min: int = 1
    layout: Layout = PLAIN_LAYOUT
    moving_from: Layout | None = None

    @classmethod
    def from_url(cls, url: str) -> RedisSettings:
        """Read a store's URL; ``valkey`` may stand for ``redis`` in every scheme.

        ``redis://[user:password@]host[:port][/db]``, ``rediss://...`` (TLS), ``redis+unix:///path/of.sock``,
        ``redis+cluster://[user:password@]host[:port][,host[:port]...]`` (and ``rediss+cluster``),
        ``redis+sentinel://[user:password@]host[:port][,...]/service[/db]`` (and ``rediss+sentinel``).

        Parameters: ``timeout_ms``, ``db``, ``keys=plain|digest``, ``key_secret`` (at least 16 bytes), ``nodes`` (at least so many
        processes share the limits), ``layout=plain|packed`` with ``expected_clients`` for packed, ``moving_from=plain|packed`` with
        ``moving_from_clients`` for packed, of TLS ``ca_certs``, a file, of Sentinel ``sentinel_username`` and ``sentinel_password``.
        Raises ConfigurationError, which never shows user, password or secret.
        """
        scheme = url.partition("://")[0].lower().replace("valkey", "redis", 1)
        if scheme not in _KINDS:
            raise ConfigurationError(f"store: want {', '.join(f'{name}://' for name in _KINDS)}")
        kind, tls = _KINDS[scheme]
        parts = split_url(url, _SENTINEL_PORT if kind == "sentinel" else _PORT)
        given = _parameters(parts, kind)
        if "ca_certs" in given and not tls:
            raise ConfigurationError("store: ca_certs is for TLS (rediss://...) only")
        path, service, db = _place(parts, kind, given)
        layout, moving_from = _layouts(kind, given)
        first = parts.addresses[0] if parts.addresses else Address(_HOST, _PORT)
        return cls(
            host=first.host,
            port=first.port,
            path=path,
            db=db,
            username=parts.username,
            password=parts.password,
            tls=tls,
            ca_certs=given.get("ca_certs"),
            timeout_ms=_number("timeout_ms", given.get("timeout_ms", str(REDIS_TIMEOUT_MS)), 1, REDIS_TIMEOUT_MS_MAX),
            plain_keys=_plain(given.get("keys", "digest")),
            key_secret=_secret(given.get("key_secret")),
            seeds=parts.addresses if kind in ("cluster", "sentinel") else (),
            service=service,
            sentinel_username=given.get("sentinel_username"),
            sentinel_password=given.get("sentinel_password"),
            nodes_min=_number("nodes", given.get("nodes", "1"), 1, FLEET_NODES_MAX),
            layout=layout,
            moving_from=moving_from,
        )

    @property
    def is_cluster(self) -> bool:
        """Whether the servers are a cluster: counters of different clients may be on different servers."""
        return bool(self.seeds) and self.service is None

    @property
    def address(self) -> str:
        """For messages: host and port, the socket's path, or the hosts that are asked first and the service."""
        if self.path is not None:
            return self.path
        if not self.seeds:
            return str(Address(self.host, self.port))
        hosts = ",".join(map(str, self.seeds))
        return hosts if self.service is None else f"{hosts}/{self.service}"

    def at(self, address: Address) -> RedisSettings:
        """The settings of one server of these: of a cluster, or the master that a Sentinel named."""
        return replace(self, host=address.host, port=address.port, seeds=(), service=None)

    def of_sentinel(self, address: Address) -> RedisSettings:
        """The settings of one Sentinel, which has no databases and users of its own."""
        return replace(self.at(address), db=0, username=self.sentinel_username, password=self.sentinel_password)

    def handshake(self) -> list[tuple[bytes | str, ...]]:
        """The commands that come first on a connection; each answers OK."""
        commands: list[tuple[bytes | str, ...]] = []
        if self.password is not None:
            commands.append((b"AUTH", self.username, self.password) if self.username else (b"AUTH", self.password))
        if self.db:
            commands.append((b"SELECT", str(self.db)))
        return commands


def _parameters(parts: UrlParts, kind: str) -> dict[str, str]:
    known = (*_PARAMETERS, *(_OF_SENTINEL if kind == "sentinel" else ()))
    given: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            # A question mark in a password that was not escaped brings a part of it here.
            shown = "such parameter" if "@" in parts.query else f"parameter {name!r:.40}"
            raise ConfigurationError(f"store: Redis has no {shown}, only {', '.join(known)}")
        if name in given:
            raise ConfigurationError(f"store: {name} is given twice")
        given[name] = value
    return given


def _place(parts: UrlParts, kind: str, given: dict[str, str]) -> tuple[str | None, str | None, int]:
    """(path of a socket, name of a service, database): what the URL's path says, by the kind of store."""
    if kind == "unix":
        return _socket_path(parts), None, _number("db", given.get("db") or "0", 0, 1_000_000)
    if "@" in parts.path:
        raise ConfigurationError("store: write / in a user or password as %2F")
    if kind in ("cluster", "sentinel") and not parts.addresses:
        raise ConfigurationError(f"store: host: redis+{kind}:// needs at least one")
    if kind == "single" and len(parts.addresses) > 1:
        raise ConfigurationError("store: host: redis:// takes one; several are redis+cluster:// or redis+sentinel://")
    service, path = None, parts.path.strip("/")
    if kind == "sentinel":
        service, _, path = path.partition("/")
        service = unquote(service)
        if not service:
            raise ConfigurationError(
                "store: redis+sentinel:// needs the name of the service, as redis+sentinel://host/main"
            )
    if path and given.get("db"):
        raise ConfigurationError("store: db is given twice, in the path and as a parameter")
    db = _number("db", path or given.get("db") or "0", 0, 1_000_000)
    if kind == "cluster" and db:
        raise ConfigurationError(f"store: db: a cluster has only database 0, got {db}")
    return None, service, db


def _socket_path(parts: UrlParts) -> str:
    path = unquote(parts.path)
    if parts.addresses or len(path) <= 1 or "\0" in path:
        raise ConfigurationError(
            "store: redis+unix:// takes the absolute path of a socket, as redis+unix:///run/redis.sock"
        )
    if len(path.encode()) > UNIX_PATH_BYTES_MAX:
        raise ConfigurationError(f"store: the path of a socket has at most {UNIX_PATH_BYTES_MAX} bytes")
    return path


def _number(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdecimal() and low <= int(text[:20]) <= high):
        raise ConfigurationError(f"store: {name}: want a whole number from {low} to {high}, got {text[:20]!r}")
    return int(text)


def _plain(text: str) -> bool:
    if text not in ("digest", "plain"):
        raise ConfigurationError(f"store: keys: want digest or plain, got {text[:20]!r}")
    return text == "plain"


def _layouts(kind: str, given: dict[str, str]) -> tuple[Layout, Layout | None]:
    """The layout, and the one before it."""
    layout = layout_of("layout", given.get("layout", "plain"), given.get("expected_clients"))
    moving_from = None
    if "moving_from" in given:
        moving_from = layout_of("moving_from", given["moving_from"], given.get("moving_from_clients"))
        if kind == "cluster":
            raise ConfigurationError(
                "store: moving_from is for one server: on a cluster the counters of the two layouts are on different servers"
            )
        if moving_from == layout:
            raise ConfigurationError("store: moving_from: this is the layout already")
    elif "moving_from_clients" in given:
        raise ConfigurationError("store: moving_from_clients is for moving_from=packed only")
    if (layout.packed or (moving_from is not None and moving_from.packed)) and _plain(given.get("keys", "digest")):
        raise ConfigurationError("store: keys=plain is for layout=plain only: the fields of a hash are digests")
    return layout, moving_from


def _secret(text: str | None) -> bytes | None:
    if text is None:
        return None
    secret = text.encode("utf-8", "surrogateescape")
    if not REDIS_KEY_SECRET_BYTES_MIN <= len(secret) <= REDIS_KEY_SECRET_BYTES_MAX:
        raise ConfigurationError(
            f"store: key_secret: want {REDIS_KEY_SECRET_BYTES_MIN} to {REDIS_KEY_SECRET_BYTES_MAX} bytes, got {len(secret)}"
        )
    return secret
