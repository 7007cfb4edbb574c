"""The connections that threads share, of one server.

A caller that finds no connection idle has one made by a thread of its own, and waits for it no longer than its deadline: the
connection is used by whoever needs one when it is ready. So a handshake that takes longer than a deadline ends nevertheless.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakSet

from sluicegate.bounds import REDIS_CONNECTIONS_MAX, REDIS_IDLE_CHECK_US
from sluicegate.clock import US_PER_S
from sluicegate.errors import StoreError
from sluicegate.stores.locks import Locked
from sluicegate.stores.redis.background import start_thread
from sluicegate.stores.redis.link import Link

if TYPE_CHECKING:
    from sluicegate.stores.redis.node import Node

__all__ = ["Links"]


class _Waiter:
    """A caller that waits: its lock is released when ``link`` or ``error`` is there."""

    __slots__ = ("error", "link", "served")

    def __init__(self) -> None:
        self.link: Link | None = None
        self.error: StoreError | None = None
        self.served = threading.Lock()
        self.served.acquire()


class Links(Locked):
    """At most ``REDIS_CONNECTIONS_MAX`` connections of one process: made when needed, kept for the next caller.

    The one used last is used next. Safe from any thread; a forked child makes its own.
    """

    __slots__ = ("_connecting", "_idle", "_node", "_open", "_waiters", "closed")

    def __init__(self, node: Node) -> None:
        self._node = node
        self._idle: list[Link] = []
        self.closed = False
        super().__init__()

    def _renew_lock(self) -> None:
        # In a forked child the connections are the parent's: closing our copy of the sockets sends nothing.
        super()._renew_lock()
        while self._idle:
            self._idle.pop().close()
        self._waiters: deque[_Waiter] = deque()
        self._open: WeakSet[Link] = WeakSet()
        """Those idle or in use. One that a caller lost, because a signal handler raised as it was given, leaves by itself."""
        self._connecting = 0

    @property
    def has_idle(self) -> bool:
        """Whether ``take`` would probably not wait."""
        return bool(self._idle)

    def take(self, deadline_us: int) -> Link:
        """An open connection. Raises StoreError where none is had until the monotonic ``deadline_us``."""
        idle, clock = self._idle, self._node.clock
        while True:
            try:
                link = idle.pop()
            except IndexError:
                return self._wait(deadline_us)
            if clock.monotonic_us() - link.idle_since_us < REDIS_IDLE_CHECK_US or link.is_quiet():
                return link
            self._discard(link)

    def give(self, link: Link) -> None:
        """Give back what ``take`` gave; a broken connection is closed."""
        closed = self.closed
        if link.broken or closed:
            self._discard(link)
            return
        link.idle_since_us = self._node.clock.monotonic_us()
        self._idle.append(link)
        # Whoever begins to wait looks at the idle ones after it is in line, so one of the two sees the other; so does who closes.
        if self._waiters:
            self._serve_idle()
        if self.closed:
            self.close_idle()

    def adopt(self, link: Link) -> None:
        """Take in a connection that was made elsewhere."""
        with self._lock:
            self._open.add(link)
        self.give(link)

    def close(self) -> None:
        """Close all that are idle; those in use are closed when they are given back. Whoever waits is told."""
        with self._lock:
            self.closed = True
            while self._waiters:
                self._tell(self._closed_error())
        self.close_idle()

    def close_idle(self) -> None:
        """Close all that are idle; new ones are made when needed."""
        while True:
            try:
                self._discard(self._idle.pop())
            except IndexError:
                return

    def _wait(self, deadline_us: int) -> Link:
        waiter = _Waiter()
        try:
            self._get_in_line(waiter)
            left_us = deadline_us - self._node.clock.monotonic_us()
            waiter.served.acquire(timeout=max(left_us / US_PER_S, 0))
        except BaseException:
            self._leave(waiter)
            raise
        with self._lock:
            if waiter.link is not None:
                return waiter.link
            if waiter.error is not None:
                raise waiter.error
            self._waiters.remove(waiter)
            full = len(self._open) >= REDIS_CONNECTIONS_MAX and not self._connecting
        if full:
            raise StoreError(f"all {REDIS_CONNECTIONS_MAX} connections to Redis at {self._node.address} are in use")
        raise StoreError(f"no connection to Redis at {self._node.address} in time")

    def _get_in_line(self, waiter: _Waiter) -> None:
        with self._lock:
            if self.closed:
                raise self._closed_error()
            self._waiters.append(waiter)
            self._make_more()
            self._serve_idle()

    def _leave(self, waiter: _Waiter) -> None:
        """A caller is interrupted while it waits: what it was given is another's."""
        with self._lock:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        if waiter.link is not None:
            self.give(waiter.link)

    def _closed_error(self) -> StoreError:
        # Of a server that left its cluster, too: another one has what it had.
        return StoreError(f"the connections to Redis at {self._node.address} are closed")

    def _serve_idle(self) -> None:
        with self._lock:
            while self._waiters and self._idle:
                waiter = self._waiters.popleft()
                waiter.link = self._idle.pop()
                waiter.served.release()

    def _make_more(self) -> None:
        """Have as many connections made as callers wait. The lock is held."""
        while self._connecting < len(self._waiters) and self._connecting + len(self._open) < REDIS_CONNECTIONS_MAX:
            self._connecting += 1
            start_thread("connect", self._connect, self._no_thread)

    def _no_thread(self) -> None:
        self._made(StoreError(f"there is no thread to connect to Redis at {self._node.address}"))

    def _connect(self) -> None:
        node = self._node
        began_us = node.clock.monotonic_us()
        made: Link | StoreError = StoreError(f"no connection to Redis at {node.address}")
        try:
            made = node.connect(began_us + node.connect_us)
        except StoreError as error:
            made = error
            node.failed(began_us, str(error))
        finally:
            self._made(made)

    def _made(self, made: Link | StoreError) -> None:
        with self._lock:
            self._connecting -= 1
            if isinstance(made, StoreError):
                if self._waiters:
                    self._tell(made)
                return
            self._open.add(made)
        self.give(made)

    def _tell(self, error: StoreError) -> None:
        """Have the caller that waits longest fail. The lock is held."""
        waiter = self._waiters.popleft()
        waiter.error = error
        waiter.served.release()

    def _discard(self, link: Link) -> None:
        link.close()
        with self._lock:
            self._open.discard(link)
            self._make_more()
