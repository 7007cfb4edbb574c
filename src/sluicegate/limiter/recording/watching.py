"""All that is asked of watched counters, so that somebody else can see whether more was admitted than the limit allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sluicegate.algorithms import LeakyBucket, TokenBucket
from sluicegate.bounds import ADMISSIONS_TOLD_MAX, WATCHED_BITS
from sluicegate.events import ASK, RESET, Admission, Watching
from sluicegate.stores.base import Counter

__all__ = ["Ask", "WatchBook"]

_BITS = 32 - WATCHED_BITS
_CALM_TAKES = 60


class Ask(NamedTuple):
    """One ask of one counter; see ``events.Admission``."""

    counter: Counter
    subject: str
    at_us: int
    cost: int
    allowed: bool
    fits: bool
    version: int
    degraded: bool
    kind: str = ASK


class WatchBook:
    """Asks of counters whose digest is below ``limit``. Its owner holds a lock.

    At the bound it goes up a level, which halves the counters, and forgets the asks of those that it watches no more: never is one half told.
    """

    __slots__ = ("_asks", "_calm", "_claimed", "_resets", "dropped", "level")

    def __init__(self) -> None:
        self._asks: list[tuple[int, Ask]] = []
        self._calm = self._claimed = 0
        self._resets: list[int] = []
        self.level = 0
        self.dropped = 0

    @property
    def limit(self) -> int:
        """Digests below this are watched; 0: none."""
        return 1 << _BITS >> self.level

    def ask(self, digest: int, ask: Ask) -> None:
        """A counter was asked."""
        level = _BITS - digest.bit_length()
        if level < self.level:
            return
        self._asks.append((level, ask))
        while len(self._asks) > ADMISSIONS_TOLD_MAX:
            self.level += 1
            before = len(self._asks)
            self._asks = [kept for kept in self._asks if kept[0] >= self.level]
            self.dropped += before - len(self._asks)

    def reset_all(self, at_us: int) -> None:
        """Any counter may have been changed by hand."""
        # Of several between two takes the first and the last tell enough.
        self._resets[1:] = [at_us]

    def take(self, name_of: Callable[[str], str]) -> tuple[list[Admission], Watching]:
        """What was asked since the last take, and who was watched all the while."""
        asks, self._asks = self._asks, []
        told = Watching(max(self.level, self._claimed))
        self._claimed = 0
        self._calm = self._calm + 1 if len(asks) * 3 < ADMISSIONS_TOLD_MAX else 0
        if self._calm >= _CALM_TAKES and self.level:
            # Decisions under way may not have been noted, so the next interval does not claim those that come now.
            self._calm, self._claimed = 0, self.level
            self.level -= 1
        resets, self._resets = self._resets, []
        found = [_admission(ask, level, name_of) for level, ask in asks]
        return [*found, *(_any_counter(at_us) for at_us in resets)], told


def _admission(ask: Ask, level: int, name_of: Callable[[str], str]) -> Admission:
    spec = ask.counter.spec
    tokens, period_us = (spec.tokens, spec.period_us) if isinstance(spec, TokenBucket | LeakyBucket) else (0, 0)
    return Admission(
        rule=ask.counter.name,
        subject=name_of(ask.subject),
        algorithm=spec.algorithm,
        capacity=spec.capacity,
        tokens=tokens,
        period_us=period_us,
        window_us=spec.window_us,
        at_us=ask.at_us,
        cost=ask.cost,
        allowed=ask.allowed,
        fits=ask.fits,
        version=ask.version,
        shadow=ask.counter.shadow,
        degraded=ask.degraded,
        level=level,
        kind=ask.kind,
    )


def _any_counter(at_us: int) -> Admission:
    return Admission("", "", "", 0, 0, 0, 0, max(0, at_us), 0, allowed=False, level=32, kind=RESET)
