"""Requests that a leaky bucket holds, in a thread or on an event loop: bounded in number, never spun, held once for each decision."""

from __future__ import annotations

import asyncio
import threading

from sluicegate.bounds import WSGI_HELD_MAX
from sluicegate.clock import US_PER_S
from sluicegate.doors.refusals import too_many_held
from sluicegate.doors.web.door import Asked
from sluicegate.doors.web.request import RequestLimits
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.decision import Decision

__all__ = ["Holder"]


class Holder:
    """Decides, and lets a request wait where a rule says so. ``held_max`` may wait at once; the next ones are refused.

    Raises ConfigurationError for what is no number of requests; 0 lets none wait.
    """

    __slots__ = ("_held", "_lock", "held_max")

    def __init__(self, held_max: int = WSGI_HELD_MAX) -> None:
        if type(held_max) is not int or held_max < 0:
            raise ConfigurationError(f"held_max: want a whole number >= 0, got {held_max!r:.64}")
        self.held_max = held_max
        self._held = 0
        self._lock = threading.Lock()

    def admit(self, limits: RequestLimits, asked: Asked, *, may_wait: bool = True) -> Decision:
        """Decide what is asked, in a thread. Where too many wait the request is refused; its slot in the queue may be lost.

        ``may_wait`` False: it is refused where it would have to wait at all.
        """
        decision = limits.decide(*asked)
        if not (decision.delay_us and limits.is_first_wait(decision)):
            return decision
        if not (may_wait and self.take()):
            refused = limits.replace(asked.owner, too_many_held(decision))
            limits.refund()
            return refused
        try:
            threading.Event().wait(decision.delay_us / US_PER_S)
        finally:
            self.give_back()
        return decision

    async def hold(self, limits: RequestLimits, asked: Asked, decision: Decision) -> Decision:
        """Let a request wait on an event loop, as ``decision`` about what was asked says; where too many wait it is refused."""
        if not limits.is_first_wait(decision):
            return decision
        if await self.wait(decision.delay_us):
            return decision
        refused = limits.replace(asked.owner, too_many_held(decision))
        await limits.arefund()
        return refused

    async def wait(self, delay_us: int) -> bool:
        """Wait on an event loop; False, and at once, where as many wait as may."""
        if not self.take():
            return False
        try:
            await asyncio.sleep(delay_us / US_PER_S)
        finally:
            self.give_back()
        return True

    def take(self) -> bool:
        """Whether one more may wait; who is told True calls ``give_back`` afterwards."""
        with self._lock:
            if self._held >= self.held_max:
                return False
            self._held += 1
            return True

    def give_back(self) -> None:
        """One waits no longer."""
        with self._lock:
            self._held -= 1
