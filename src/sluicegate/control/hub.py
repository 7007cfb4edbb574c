"""Where the service stands, in memory, and who waits for it to change.

The numbers come from changes made here and from looking into the database, in any order. Within one life of the database they
only grow, so the larger of two is the newer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from sluicegate.bounds import REVISIONS_REMEMBERED
from sluicegate.clock import Clock
from sluicegate.rules.feed import Revisions

__all__ = ["Hub"]


class Hub:
    """The newest revisions known. Used on one event loop."""

    def __init__(self, clock: Clock) -> None:
        self.latest = Revisions()
        self.observers: list[Callable[[Revisions], None]] = []
        """Called on the loop when they change; must not raise."""
        self._clock = clock
        self._waiting: set[asyncio.Future[None]] = set()
        self._history: deque[tuple[Revisions, int]] = deque(maxlen=REVISIONS_REMEMBERED)

    def tell(self, revisions: Revisions) -> None:
        """Take notice of revisions that were read, or made; wake who waits where they are newer."""
        merged = _newest(self.latest, revisions)
        if merged == self.latest:
            return
        self.latest = merged
        self._history.append((merged, self._clock.now_us()))
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)
        for observer in self.observers:
            observer(merged)

    async def changed(self, etag: str, timeout_s: float) -> Revisions:
        """The newest as soon as their etag is not this one, at the latest after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.latest.etag == etag:
                    future = asyncio.get_running_loop().create_future()
                    self._waiting.add(future)
                    try:
                        await future
                    finally:
                        self._waiting.discard(future)
        except TimeoutError:
            pass
        return self.latest

    def behind_us(self, applied: Revisions) -> int:
        """For how long who has ``applied`` lacks something; 0: nothing. Of what changed before this process began, since then."""
        if _newest(applied, self.latest) == applied:
            return 0
        since_us = self._clock.now_us()
        for revisions, at_us in reversed(self._history):
            if _newest(applied, revisions) == applied:
                break
            since_us = at_us
        return max(1, self._clock.now_us() - since_us)


def _newest(known: Revisions, told: Revisions) -> Revisions:
    if known.incarnation != told.incarnation:
        return told
    return Revisions(
        known.incarnation,
        max(known.ruleset, told.ruleset),
        max(known.overlay, told.overlay),
        max(known.lists, told.lists),
        max(known.subjects, told.subjects),
        max(known.epoch, told.epoch),
    )
