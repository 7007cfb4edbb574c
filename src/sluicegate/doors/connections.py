"""The live connections of one door: who is there, what has run out of time, and leaving politely.

Timeouts are coarse on purpose. A timer per request costs more than the request; instead each connection carries one
deadline and a single sweep over all of them, a few times a second, expires those that have passed. ``now_s`` is the
loop's time at the last sweep, so setting a deadline reads no clock: timeouts are late by at most one interval.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol

from sluicegate.bounds import DRAIN_GRACE_S, SWEEP_INTERVAL_S

__all__ = ["NEVER_S", "Connection", "Connections"]

NEVER_S = float("inf")
"""A deadline that does not pass."""


class Connection(Protocol):
    """What the registry asks of a connection. All methods are called on the loop's thread and must not raise."""

    deadline_s: float
    """The loop time after which ``expire`` is called; ``NEVER_S`` for none."""

    def expire(self) -> None:
        """The deadline has passed: answer, close, or set a later deadline. Called again each sweep until then."""
        ...

    def drain(self) -> None:
        """Finish what is in flight, tell the peer that this is the last answer, then close; idle: close now."""
        ...

    def abort(self) -> None:
        """Close at once, losing what is in flight."""
        ...


class Connections:
    """The registry. A connection adds itself when it is made and removes itself when it is lost.

    ``draining``: no further request is wanted; a connection that arrives late (from the accept queue) should answer
    one request and close. ``on_tick`` runs at each sweep and when the first connection arrives, for state that only
    has to be right to the second (a ``Date`` header). ``more`` says after a sweep whether there is something left to do
    although nobody is connected; without it the sweep sleeps then.
    """

    def __init__(
        self,
        *,
        interval_s: float = SWEEP_INTERVAL_S,
        on_tick: Callable[[], None] | None = None,
        more: Callable[[], bool] | None = None,
    ) -> None:
        self.now_s = 0.0
        self.draining = False
        self.opened = 0
        """Connections ever added."""
        self._interval_s = interval_s
        self._on_tick = on_tick
        self._more = more
        self._live: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._empty: asyncio.Event | None = None

    def __len__(self) -> int:
        return len(self._live)

    def add(self, connection: Connection) -> None:
        """Register; the sweep runs as long as anybody is here. ``now_s`` is current afterwards."""
        self.opened += 1
        self._live.add(connection)
        if self._timer is None:
            self._tick()
        else:
            self.now_s = asyncio.get_running_loop().time()

    def discard(self, connection: Connection) -> None:
        """Forget a connection that is lost; unknown ones are ignored."""
        self._live.discard(connection)
        if not self._live and self._empty is not None:
            self._empty.set()

    async def drain(self, timeout_s: float) -> int:
        """Let every connection finish; after ``timeout_s`` seconds abort the rest. Returns how many were aborted.

        For the first ``DRAIN_GRACE_S`` connections without a request stay open: one may be on its way already. The caller has
        closed its listeners before. Returns once nobody is left.
        """
        self.draining = True
        self._empty = asyncio.Event()
        grace_s = min(DRAIN_GRACE_S, timeout_s)
        if not await self._emptied(grace_s):
            for connection in tuple(self._live):
                connection.drain()
            await self._emptied(timeout_s - grace_s)
        left = tuple(self._live)
        for connection in left:
            connection.abort()
        self._live.difference_update(left)
        self._stop()
        return len(left)

    async def _emptied(self, timeout_s: float) -> bool:
        """Wait until nobody is left, or for ``timeout_s``; whether nobody is."""
        if self._live and self._empty is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()
        return not self._live

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        self.now_s = now_s = loop.time()
        if self._on_tick is not None:
            self._on_tick()
        for connection in tuple(self._live):
            if connection.deadline_s <= now_s:
                connection.expire()
        go_on = self._live or (self._more is not None and self._more())
        self._timer = loop.call_later(self._interval_s, self._tick) if go_on else None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
