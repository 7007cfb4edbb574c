"""The connection on which a process hears news."""

from __future__ import annotations

import select
import socket
import ssl
from typing import Final

import hiredis

from sluicegate.bounds import REDIS_NEWS_BYTES_MAX
from sluicegate.errors import StoreError
from sluicegate.stores.redis.faults import fault_of
from sluicegate.stores.redis.link import NOTHING, Link, ReplyError, no_redis, packed
from sluicegate.stores.redis.node import Node

__all__ = ["NewsLink", "Waker"]

_MESSAGE_PARTS: Final = 3
"""``message``, the channel, what is said."""


class Waker:
    """Ends the waiting of another thread. ``close`` belongs to the thread that waits."""

    __slots__ = ("_end", "_other")

    def __init__(self) -> None:
        self._end, self._other = socket.socketpair()
        self._other.setblocking(False)

    def fileno(self) -> int:
        """What can be read from when it is time to look."""
        return self._end.fileno()

    def wake(self) -> None:
        """Have the other thread look, for good: it is said once."""
        try:
            self._other.send(b"\0")
        except OSError:
            # It has been told so often that nothing more fits, or it has ended.
            return

    def wait(self, timeout_ms: int) -> None:
        """Wait until woken, ``timeout_ms`` at most."""
        poller = select.poll()
        poller.register(self._end, select.POLLIN)
        poller.poll(timeout_ms)

    def close(self) -> None:
        self._end.close()
        self._other.close()


class NewsLink(Link):
    """A connection that is subscribed to a channel of a server. ``heard_us``: monotonic time of the last sign of life."""

    __slots__ = ("_clock", "_unread", "address", "heard_us")

    def __init__(self, node: Node, channel: bytes, deadline_us: int) -> None:
        """Connect and subscribe until the monotonic ``deadline_us``. Raises StoreError."""
        self.address = node.address
        self._clock = clock = node.clock
        self._unread = 0
        super().__init__(node.settings, deadline_us, clock)
        try:
            self._subscribe(channel, deadline_us)
        except OSError as error:
            self.close()
            raise StoreError(f"Redis at {self.address} is lost ({error})") from None
        except StoreError:
            self.close()
            raise
        self._sock.settimeout(0)
        self.heard_us = clock.monotonic_us()

    def _subscribe(self, channel: bytes, deadline_us: int) -> None:
        (reply,) = self.exchange(packed([(b"SUBSCRIBE", channel)]), 1, deadline_us, self._clock)
        if isinstance(reply, ReplyError):
            raise fault_of(str(reply), self.address)
        if not (isinstance(reply, list) and reply[:2] == [b"subscribe", channel]):
            raise StoreError(f"Redis at {self.address} does not subscribe")

    def listen(self, waker: Waker, timeout_ms: int) -> list[bytes]:
        """The messages that have come, after ``timeout_ms`` at the latest, or when woken. Raises OSError where the connection has ended.

        What is heard beyond messages is only a sign of life.
        """
        found = self._complete()
        if not found and self._comes(waker, timeout_ms):
            try:
                length = self._sock.recv_into(self._buffer)
            except (BlockingIOError, ssl.SSLWantReadError):
                return found
            if not length:
                raise ConnectionResetError("closed by the server")
            self.heard_us = self._clock.monotonic_us()
            self._unread += length
            self._reader.feed(self._buffer, 0, length)
            found = self._complete()
        if self._unread > REDIS_NEWS_BYTES_MAX:
            raise ConnectionAbortedError(f"a message longer than {REDIS_NEWS_BYTES_MAX} bytes")
        return found

    def ask_for_life(self) -> None:
        """Send what the server answers at once. Raises OSError."""
        self._sock.sendall(packed([(b"PING",)]))

    def _comes(self, waker: Waker, timeout_ms: int) -> bool:
        """Wait for data; whether there is some."""
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        poller.register(waker, select.POLLIN)
        return any(number == self._sock.fileno() for number, _ in poller.poll(timeout_ms))

    def _complete(self) -> list[bytes]:
        found = []
        try:
            while (reply := self._reader.gets()) is not NOTHING:
                self._unread = 0
                if isinstance(reply, list) and len(reply) == _MESSAGE_PARTS and reply[0] == b"message":
                    found.append(reply[-1])
        except hiredis.ProtocolError as error:
            raise no_redis(error) from None
        return found
