"""Some decisions as they were: for samples, and for who asks most.

A look keeps the decision; it is described when it is taken, which is not on a request's path. How many decisions stand behind a look is
drawn beforehand, at random between 1 and twice the mean, so that no regular pattern of requests can hide from it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from sluicegate.bounds import LOOKS_KEPT_MAX, LOOKS_PER_S_MAX, REFUSALS_TOLD_MAX
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.plan import Plan
from sluicegate.stores.base import Answer

__all__ = ["Look", "Looks", "allowed_looks", "refused_looks"]

_LCG, _LCG_STEP, _LCG_MASK = 6364136223846793005, 1442695040888963407, 2**64 - 1


class Look(NamedTuple):
    """A decision, and how many like it stand behind it."""

    decision: Decision
    weight: int
    at_us: int


class Looks:
    """Decisions of one sort that were looked at and not taken yet. Safe from any thread; under threads its draws may be off by a few.

    ``every``: one decision in so many is looked at, on the mean. ``missed``: looks that found no room.
    """

    __slots__ = ("_budget", "_draws", "_kept", "_now_us", "_spent", "every", "missed")

    def __init__(self, now_us: Callable[[], int], budget: int) -> None:
        self._now_us = now_us
        self._budget = budget
        self._kept: deque[Look] = deque()
        self._draws = 1
        self._spent = 0
        self.every = 1
        self.missed = 0

    def look(self, plan: Plan, answer: Answer | None, decision: Decision | None = None) -> int:
        """Look at a decision (None: an allowed one); how many are to be passed over before the next."""
        if len(self._kept) < LOOKS_KEPT_MAX:
            at_us = self._now_us() if answer is None else answer.now_us
            # A refusal is false, so it is not enough to ask for ``decision``.
            seen = Decision(True, plan, answer) if decision is None else decision
            self._kept.append(Look(seen, self.every, at_us))
        else:
            self.missed += 1
        self._spent += 1
        if self._spent >= self._budget:
            # More than was foreseen: what this costs grows with the logarithm of the traffic.
            self._spent //= 2
            self.every *= 2
        return self.skip()

    def skip(self) -> int:
        """How many decisions to pass over: 0 to twice ``every``, less two."""
        if self.every == 1:
            return 0
        self._draws = draws = (self._draws * _LCG + _LCG_STEP) & _LCG_MASK
        return (draws >> 33) % (2 * self.every - 1)

    def take(self, every: int) -> tuple[list[Look], int]:
        """The looks since the last call, and how many were missed; from now on one decision in ``every`` is looked at."""
        kept = self._kept
        found = [kept.popleft() for _ in range(len(kept))]
        missed, self.missed = self.missed, 0
        self.every = max(1, every)
        self._spent = 0
        return found, missed


def allowed_looks(now_us: Callable[[], int]) -> Looks:
    """Of what is allowed, and of the rare that is neither allowed nor refused by a rule."""
    return Looks(now_us, LOOKS_PER_S_MAX)


def refused_looks(now_us: Callable[[], int]) -> Looks:
    """Of refusals: all up to as many as are told."""
    return Looks(now_us, REFUSALS_TOLD_MAX)
