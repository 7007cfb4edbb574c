"""Connections to a Redis, one caller at a time.

redis-py makes the connection (addresses, Unix sockets, TLS); the socket is then used directly, because a decision has *one*
deadline for everything it sends and receives, and because nothing may be sent twice: a library that repeats a command after a
lost reply would charge twice.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from sluicegate.bounds import REDIS_READ_BYTES
from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import ConfigurationError, MissingExtra, StoreError
from sluicegate.stores.redis.faults import check_handshake
from sluicegate.stores.redis.riders import Words
from sluicegate.stores.redis.settings import RedisSettings

try:
    import hiredis
    import redis.connection
    import redis.exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError:
    raise MissingExtra("redis", "a Redis store") from None

__all__ = [
    "NOTHING",
    "Link",
    "Reader",
    "ReplyError",
    "check_authorities",
    "connection_options",
    "new_reader",
    "no_redis",
    "packed",
]

_pack: Final[Callable[[Words], bytes]] = cast("Any", hiredis.pack_command)

_LAST_LOOK_S = 0.000_5
"""How long a socket is waited for where the deadline has passed: what arrived meanwhile is taken, nothing else."""


class Reader(Protocol):
    """What is used of a hiredis reader."""

    def feed(self, data: bytes | bytearray | memoryview, offset: int = 0, length: int = -1, /) -> None: ...
    def gets(self) -> Any: ...


class ReplyError(Exception):
    """An error reply, as the reader returns it."""


NOTHING: Final = object()
"""What a reader gives where the next reply is not complete."""


def new_reader() -> Reader:
    """A parser of replies: errors come as ReplyError objects, what is incomplete as ``NOTHING``."""
    return cast("Reader", hiredis.Reader(replyError=ReplyError, notEnoughData=NOTHING))


def check_authorities(settings: RedisSettings) -> None:
    """Raise ConfigurationError where the file of certificates to trust cannot be used: no connection would ever be made."""
    if settings.ca_certs is None:
        return
    try:
        ssl.create_default_context(cafile=settings.ca_certs)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"store: ca_certs: cannot use {settings.ca_certs!r}: {error.args[-1]}") from None


def connection_options(settings: RedisSettings) -> dict[str, Any]:
    """What the connection classes of redis-py take, without timeouts; their retries are off."""
    # With these it sends nothing of its own; ``RedisSettings.handshake`` says what is sent first.
    options: dict[str, Any] = {"protocol": 2, "driver_info": None}
    if settings.path is not None:
        return {**options, "path": settings.path}
    options |= {"host": settings.host, "port": settings.port}
    if settings.tls:
        options |= {"ssl_ca_certs": settings.ca_certs, "ssl_check_hostname": True}
    return options


def _kind(settings: RedisSettings) -> Any:
    if settings.path is not None:
        return redis.connection.UnixDomainSocketConnection
    return redis.connection.SSLConnection if settings.tls else redis.connection.Connection


class Link:
    """One connection. ``idle_since_us``: monotonic time at which it was last given back.

    ``broken``: an exchange did not end, so the next reply would belong to it.
    """

    __slots__ = ("__weakref__", "_buffer", "_reader", "_sock", "broken", "idle_since_us")

    def __init__(self, settings: RedisSettings, deadline_us: int, clock: Clock) -> None:
        """Connect until the monotonic ``deadline_us``; a name lookup has no timeout of its own. Raises StoreError."""
        timeout_s = max((deadline_us - clock.monotonic_us()) / US_PER_S, _LAST_LOOK_S)
        connection = _kind(settings)(
            **connection_options(settings),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            connection.connect()
        except (redis.exceptions.RedisError, OSError, ValueError) as error:
            # What redis-py does not wrap: a name that cannot be encoded is a ValueError.
            raise StoreError(f"no connection to Redis at {settings.address}: {error}") from None
        # The socket is ours from here on; the connection object would close it with itself.
        self._sock = cast("socket.socket", connection._sock)
        connection._sock = None
        self._reader = new_reader()
        self._buffer = bytearray(REDIS_READ_BYTES)
        self.idle_since_us = 0
        self.broken = False
        commands = settings.handshake()
        if commands:
            try:
                replies = self.exchange(packed(commands), len(commands), deadline_us, clock)
                check_handshake(replies, settings.address)
            except OSError as error:
                self.close()
                what = str(error) or "no answer in time"
                raise StoreError(f"no connection to Redis at {settings.address}: {what}") from None
            except StoreError:
                self.close()
                raise

    def send(self, data: bytes, deadline_us: int, clock: Clock) -> None:
        """Send ``data``, whole commands, until the monotonic ``deadline_us``. Raises OSError; the link is broken until ``receive`` ends."""
        self.broken = True
        self._sock.settimeout(max((deadline_us - clock.monotonic_us()) / US_PER_S, _LAST_LOOK_S))
        self._sock.sendall(data)

    def receive(self, found: list[Any], replies: int, deadline_us: int, clock: Clock) -> None:
        """Add replies to ``found`` until it has so many, until the monotonic ``deadline_us``.

        Raises OSError (TimeoutError included); what came before is in ``found`` then. Where the deadline has passed when the
        socket is looked at, what has arrived is still taken: a late process does not make a late store.
        """
        sock, reader, buffer = self._sock, self._reader, self._buffer
        late = False
        while True:
            try:
                while (reply := reader.gets()) is not NOTHING:
                    found.append(reply)
                    if len(found) == replies:
                        self.broken = False
                        return
            except hiredis.ProtocolError as error:
                raise no_redis(error) from None
            if late:
                raise TimeoutError
            left_us = deadline_us - clock.monotonic_us()
            late = left_us <= 0
            sock.settimeout(max(left_us / US_PER_S, _LAST_LOOK_S))
            length = sock.recv_into(buffer)
            if not length:
                raise ConnectionResetError("closed by the server")
            reader.feed(buffer, 0, length)

    def exchange(self, data: bytes, replies: int, deadline_us: int, clock: Clock) -> list[Any]:
        """``send`` and ``receive``."""
        found: list[Any] = []
        self.send(data, deadline_us, clock)
        self.receive(found, replies, deadline_us, clock)
        return found

    def is_quiet(self) -> bool:
        """Whether the idle connection is still open: a closed one can be read from, and so can one with stray data."""
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        if not poller.poll(0):
            return True
        # Over TLS what has come may be the tickets that follow a handshake, which are read with the next reply and are no data.
        self._sock.settimeout(0)
        try:
            self._sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        """Close the socket; nothing is sent."""
        self._sock.close()


def no_redis(error: Exception) -> OSError:
    """The error of a connection on which something comes that no Redis says."""
    return ConnectionResetError(f"what comes is no reply of a Redis: {error}")


def packed(commands: Sequence[Words]) -> bytes:
    """Commands as they go over the wire."""
    return b"".join(map(_pack, commands))
