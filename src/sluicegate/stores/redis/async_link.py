"""Connections to a Redis for coroutines, one caller at a time.

redis-py makes the connection; its transport then gets a protocol of ours, for the reasons that ``link`` gives. A reply wakes its caller by one future.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import redis.asyncio.connection
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sluicegate.bounds import REDIS_CONNECTIONS_MAX
from sluicegate.errors import StoreError
from sluicegate.stores.redis.faults import check_handshake
from sluicegate.stores.redis.link import NOTHING, connection_options, new_reader, packed
from sluicegate.stores.redis.settings import RedisSettings
from sluicegate.stores.redis.stats import RedisStats

__all__ = ["AsyncLink", "AsyncLinks"]

_LEAST_S = 0.001
"""The shortest timeout for connecting: one that has passed already would be none for redis-py."""


def _kind(settings: RedisSettings) -> Any:
    if settings.path is not None:
        return redis.asyncio.connection.UnixDomainSocketConnection
    return redis.asyncio.connection.SSLConnection if settings.tls else redis.asyncio.connection.Connection


class AsyncLink(asyncio.Protocol):
    """One connection. ``broken``: it is closed, or an exchange did not end, so the next reply would belong to it."""

    def __init__(self) -> None:
        self.broken = False
        self._reader = new_reader()
        self._found: list[Any] = []
        self._wanted = 0
        self._waiter: asyncio.Future[list[Any]] | None = None
        self._transport: asyncio.Transport
        self._stream: object

    @classmethod
    async def connect(cls, settings: RedisSettings, deadline_s: float) -> AsyncLink:
        """Connect until the loop's time ``deadline_s``. Raises StoreError."""
        timeout_s = max(deadline_s - asyncio.get_running_loop().time(), _LEAST_S)
        connection = _kind(settings)(
            **connection_options(settings),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        try:
            await asyncio.wait_for(connection.connect(), timeout_s)
        except (redis.exceptions.RedisError, TimeoutError) as error:
            what = str(error) or "no answer in time"
            raise StoreError(f"no connection to Redis at {settings.address}: {what}") from None
        link = cls()
        writer = cast("asyncio.StreamWriter", connection._writer)
        link._transport = cast("asyncio.Transport", writer.transport)
        link._transport.set_protocol(link)
        # The stream closes its transport when it is collected, so it lives as long as this.
        link._stream = writer
        connection._reader = connection._writer = None
        link._transport.resume_reading()
        commands = settings.handshake()
        if commands:
            try:
                check_handshake(await link.exchange(packed(commands), len(commands), deadline_s), settings.address)
            except OSError as error:
                link.close()
                what = str(error) or "no answer in time"
                raise StoreError(f"no connection to Redis at {settings.address}: {what}") from None
            except BaseException:
                link.close()
                raise
        return link

    def is_open(self) -> bool:
        """Whether another exchange may be tried."""
        return not (self.broken or self._transport.is_closing())

    async def exchange(self, data: bytes, replies: int, deadline_s: float) -> list[Any]:
        """Send ``data``, whole commands, and wait for so many replies until the loop's time ``deadline_s``.

        Raises OSError (TimeoutError included), and the link is broken then, as it is where the caller is cancelled. A loop
        that is late looks at the socket once more before it gives up.
        """
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        self.broken = True
        self._found, self._wanted = [], replies
        self._transport.write(data)
        # A callback runs before what its round of the loop reads; the second one after the round in between.
        timer = loop.call_at(deadline_s, loop.call_soon, loop.call_soon, self._expire)
        try:
            found: list[Any] = await waiter
        finally:
            timer.cancel()
            self._waiter = None
        self.broken = False
        return found

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not NOTHING:
            self._found.append(reply)
        waiter = self._waiter
        if waiter is None:
            # Nobody asked: whatever this is, the next caller must not take it for a reply.
            self.close()
        elif not waiter.done() and len(self._found) >= self._wanted:
            waiter.set_result(self._found)

    def connection_lost(self, exc: Exception | None) -> None:
        self.broken = True
        self._fail(ConnectionResetError(str(exc) if exc else "closed by the server"))

    def _expire(self) -> None:
        self._fail(TimeoutError())

    def _fail(self, error: OSError) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def close(self) -> None:
        """Close the connection at once; nothing more is sent."""
        self.broken = True
        self._transport.abort()


class AsyncLinks:
    """The connections of one event loop; see ``link.Links``."""

    def __init__(self, settings: RedisSettings, stats: RedisStats) -> None:
        self._settings = settings
        self._stats = stats
        self._idle: list[AsyncLink] = []
        self._free = asyncio.Semaphore(REDIS_CONNECTIONS_MAX)
        self.closed = False

    async def take(self, deadline_s: float) -> AsyncLink:
        """An open connection. Raises StoreError where none is had in time."""
        loop = asyncio.get_running_loop()
        if self._free.locked():
            try:
                await asyncio.wait_for(self._free.acquire(), max(deadline_s - loop.time(), 0))
            except TimeoutError:
                raise StoreError(f"all {REDIS_CONNECTIONS_MAX} connections to Redis are in use") from None
        else:
            await self._free.acquire()
        try:
            while self._idle:
                link = self._idle.pop()
                if link.is_open():
                    return link
            self._stats.connects += 1
            return await AsyncLink.connect(self._settings, deadline_s)
        except BaseException:
            self._free.release()
            raise

    def give(self, link: AsyncLink) -> None:
        """Give back what ``take`` gave; a broken connection is closed."""
        if self.closed or not link.is_open():
            link.close()
        else:
            self._idle.append(link)
        self._free.release()

    def close(self) -> None:
        """Close all that are idle; those in use are closed when they are given back."""
        self.closed = True
        while self._idle:
            self._idle.pop().close()
