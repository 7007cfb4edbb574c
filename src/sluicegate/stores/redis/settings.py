"""From a store URL to what a connection needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from sluicegate.bounds import (
    PORT_MAX,
    REDIS_KEY_SECRET_BYTES_MAX,
    REDIS_KEY_SECRET_BYTES_MIN,
    REDIS_TIMEOUT_MS,
    REDIS_TIMEOUT_MS_MAX,
    UNIX_PATH_BYTES_MAX,
)
from sluicegate.errors import ConfigurationError

__all__ = ["SCHEMES", "RedisSettings"]

SCHEMES = ("redis", "rediss", "redis+unix")
_HOST = "127.0.0.1"
_PORT = 6_379
_PARAMETERS = ("ca_certs", "db", "key_secret", "keys", "timeout_ms")


@dataclass(frozen=True, slots=True)
class RedisSettings:
    """Where a Redis is and how it is used. ``repr`` shows neither password nor secret.

    ``path``: a Unix socket, else ``host`` and ``port``. ``timeout_ms``: one decision, connecting included. ``plain_keys``:
    subjects stand readable in keys. ``key_secret``: None lets the store make one.
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

    @classmethod
    def from_url(cls, url: str) -> RedisSettings:
        """Read ``redis://[user:password@]host[:port][/db]``, ``rediss://...`` (TLS) or ``redis+unix:///path/of.sock``.

        Parameters: ``timeout_ms``, ``db``, ``keys=plain|digest``, ``key_secret`` (at least 16 bytes), and of ``rediss``
        ``ca_certs``, a file. Raises ConfigurationError, which never shows user, password or secret.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            # Of an address or a port out of range: the message says what, and quotes no more than that.
            raise ConfigurationError(f"store: not a URL ({_without_userinfo(error, url)})") from None
        if parts.scheme not in SCHEMES:
            raise ConfigurationError(f"store: want {', '.join(f'{scheme}://' for scheme in SCHEMES)}")
        if parts.fragment:
            raise ConfigurationError("store: a URL of Redis takes no fragment (write # in a password as %23)")
        given = _parameters(parts)
        host, path, db = parts.hostname or _HOST, None, given.get("db", "")
        if parts.scheme == "redis+unix":
            path = _socket_path(parts)
        elif parts.path.strip("/"):
            if db:
                raise ConfigurationError("store: db is given twice, in the path and as a parameter")
            db = parts.path.strip("/")
        if port is not None and not 1 <= port <= PORT_MAX:
            raise ConfigurationError(f"store: port: want 1 to {PORT_MAX}, got {port}")
        tls = parts.scheme == "rediss"
        if "ca_certs" in given and not tls:
            raise ConfigurationError("store: ca_certs is for rediss:// only")
        return cls(
            host=unquote(host),
            port=_PORT if port is None else port,
            path=path,
            db=_number("db", db or "0", 0, 1_000_000),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=tls,
            ca_certs=given.get("ca_certs"),
            timeout_ms=_number("timeout_ms", given.get("timeout_ms", str(REDIS_TIMEOUT_MS)), 1, REDIS_TIMEOUT_MS_MAX),
            plain_keys=_plain(given.get("keys", "digest")),
            key_secret=_secret(given.get("key_secret")),
        )

    @property
    def address(self) -> str:
        """For messages: host and port, or the socket's path."""
        if self.path is not None:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def handshake(self) -> list[tuple[bytes | str | int, ...]]:
        """The commands that come first on a connection; each answers OK."""
        commands: list[tuple[bytes | str | int, ...]] = []
        if self.password is not None:
            commands.append((b"AUTH", self.username, self.password) if self.username else (b"AUTH", self.password))
        if self.db:
            commands.append((b"SELECT", self.db))
        return commands


def _without_userinfo(error: ValueError, url: str) -> str:
    return "its address cannot be read" if "@" in url else str(error)


def _parameters(parts: SplitResult) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise ConfigurationError(f"store: Redis has no parameter {name!r:.40}, only {', '.join(_PARAMETERS)}")
        if name in given:
            raise ConfigurationError(f"store: {name} is given twice")
        given[name] = value
    return given


def _socket_path(parts: SplitResult) -> str:
    path = unquote(parts.path)
    if parts.netloc.rpartition("@")[2] or not path.startswith("/") or len(path) == 1:
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


def _secret(text: str | None) -> bytes | None:
    if text is None:
        return None
    secret = text.encode("utf-8", "surrogateescape")
    if not REDIS_KEY_SECRET_BYTES_MIN <= len(secret) <= REDIS_KEY_SECRET_BYTES_MAX:
        raise ConfigurationError(
            f"store: key_secret: want {REDIS_KEY_SECRET_BYTES_MIN} to {REDIS_KEY_SECRET_BYTES_MAX} bytes, got {len(secret)}"
        )
    return secret
