"""One connection to a Redis on an event loop.

redis-py makes the connection; its transport then gets a protocol of ours, for the reasons that ``link`` gives. Replies are handed over as they
arrive, without a future for each.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

import hiredis
import redis.asyncio.connection
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sluicegate.errors import StoreError
from sluicegate.stores.redis.faults import check_handshake
from sluicegate.stores.redis.link import NOTHING, connection_options, new_reader, no_redis, packed
from sluicegate.stores.redis.settings import RedisSettings

__all__ = ["AsyncLink", "Receiver"]


class Receiver(Protocol):
    """Whom a connection belongs to."""

    def received(self, link: AsyncLink, replies: list[Any]) -> None:
        """Replies came, in the order of the commands; an error is a ReplyError."""
        ...

    def lost(self, link: AsyncLink, error: OSError) -> None:
        """The connection was closed by the other side; called once, and not after ``close``."""
        ...


def _kind(settings: RedisSettings) -> Any:
    if settings.path is not None:
        return redis.asyncio.connection.UnixDomainSocketConnection
    return redis.asyncio.connection.SSLConnection if settings.tls else redis.asyncio.connection.Connection


class AsyncLink(asyncio.Protocol):
    """A connection that is signed in. ``closed``: nothing more is sent or received."""

    def __init__(self, receiver: Receiver) -> None:
        self.closed = False
        self._receiver = receiver
        self._reader = new_reader()
        self._transport: asyncio.Transport
        self._stream: object

    @classmethod
    async def connect(cls, settings: RedisSettings, timeout_s: float, receiver: Receiver) -> AsyncLink:
        """Connect and sign in within ``timeout_s``. Raises StoreError."""
        connection = _kind(settings)(
            **connection_options(settings),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            async with asyncio.timeout(timeout_s):
                await connection.connect()
                link = cls(receiver)
                link._take_over(connection)
                await link._sign_in(settings)
        except (redis.exceptions.RedisError, OSError) as error:
            # A TimeoutError is an OSError too.
            what = str(error) or "no answer in time"
            raise StoreError(f"no connection to Redis at {settings.address}: {what}") from None
        return link

    def _take_over(self, connection: Any) -> None:
        writer = cast("asyncio.StreamWriter", connection._writer)
        self._transport = cast("asyncio.Transport", writer.transport)
        self._transport.set_protocol(self)
        # The stream closes its transport when it is collected, so it lives as long as this.
        self._stream = writer
        connection._reader = connection._writer = None
        self._transport.resume_reading()

    async def _sign_in(self, settings: RedisSettings) -> None:
        commands = settings.handshake()
        if not commands:
            return
        receiver, waiting = self._receiver, _SigningIn(len(commands))
        self._receiver = waiting
        try:
            self.write([packed(commands)])
            check_handshake(await waiting.done, settings.address)
        except BaseException:
            self.close()
            raise
        self._receiver = receiver

    def write(self, commands: list[bytes]) -> None:
        """Send whole commands, packed; their replies are received in this order."""
        self._transport.write(b"".join(commands))

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        reader = self._reader
        reader.feed(data)
        replies = []
        try:
            while (reply := reader.gets()) is not NOTHING:
                replies.append(reply)
        except hiredis.ProtocolError as error:
            self.close()
            self._receiver.lost(self, no_redis(error))
            return
        if replies:
            self._receiver.received(self, replies)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self._receiver.lost(self, ConnectionResetError(str(exc) if exc else "closed by the server"))

    def close(self) -> None:
        """Close the connection at once; nothing more is sent."""
        self.closed = True
        self._transport.abort()


class _SigningIn:
    """Receives the replies to the first commands."""

    def __init__(self, wanted: int) -> None:
        self.done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._wanted = wanted
        self._found: list[Any] = []

    def received(self, link: AsyncLink, replies: list[Any]) -> None:  # noqa: ARG002
        self._found += replies
        if len(self._found) >= self._wanted and not self.done.done():
            self.done.set_result(self._found)

    def lost(self, link: AsyncLink, error: OSError) -> None:  # noqa: ARG002
        if not self.done.done():
            self.done.set_exception(error)
