"""Which counters of a near store are hot, and what follows: leases for those that may have them, else parts or chance."""

from __future__ import annotations

from collections.abc import Callable

from sluicegate.algorithms.precision import Precision
from sluicegate.stores.base import Charge, Counter
from sluicegate.stores.locks import Locked
from sluicegate.stores.near.heat import Heat
from sluicegate.stores.near.hot import HotStore
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings

__all__ = ["Warmth"]


class Warmth:
    """Watches the calls of counters that are not leased or split from the first. A ``Chore`` of the keeper while anything is hot.

    All but the methods of a ``Chore`` are called under the lock of ``owner``.
    """

    def __init__(
        self, owner: Locked, settings: NearSettings, leases: Leases, hot: HotStore, now_us: Callable[[], int]
    ) -> None:
        self._owner = owner
        self._settings = settings
        self._heat = Heat(settings, now_us())
        self._leases = leases
        self._hot = hot
        self._now_us = now_us
        # What had been used of each promoted counter when its window began.
        self._used: dict[str, int] = {}
        self._promoted: set[str] = set()

    @property
    def promoted(self) -> int:
        """Counters that are hot now."""
        return len(self._promoted)

    def saw(self, charge: Charge, key: str, now_us: int) -> None:
        """The store is asked about a charge of a counter that could be decided otherwise once it is hot."""
        heat = self._heat
        heat.saw(key, now_us)
        if now_us >= heat.due_us:
            self._step(now_us)
        if key in heat and (key not in self._promoted or self._has_left(charge[0], key)):
            self._promote(charge, key, now_us)

    def _has_left(self, counter: Counter, key: str) -> bool:
        """Whether it was idle for a moment in which others took its place among the leased."""
        return counter.precision is Precision.AUTO and self._leases.used(key) is None

    def forked(self) -> None:
        """In a child nothing is hot yet."""
        self._heat = Heat(self._settings, self._now_us())
        self._used.clear()
        self._promoted.clear()

    def due_us(self) -> int | None:
        """While anything is hot, the end of the window: whoever is decided here asks nobody any more."""
        return self._heat.due_us if self._promoted else None

    def run(self) -> None:
        """End the window."""
        with self._owner._lock:
            self._step(self._now_us())

    def _promote(self, charge: Charge, key: str, now_us: int) -> None:
        counter, subject, _ = charge
        self._used.pop(key, None)
        if counter.precision is Precision.AUTO:
            promoted = self._leases.promote(counter, subject, now_us)
        else:
            promoted = self._hot.promote(counter, subject, now_us)
        if promoted:
            self._promoted.add(key)
        else:
            # It cannot be leased or split; it may be tried again when it is found hot again.
            self._heat.forget(key)
            self._promoted.discard(key)

    def _step(self, now_us: int) -> None:
        for key in self._promoted:
            used = self._leases.used(key)
            if used is not None:
                self._heat.saw_many(key, used - self._used.get(key, 0))
                self._used[key] = used
        _, cold = self._heat.step(now_us)
        for key in cold:
            self._promoted.discard(key)
            self._used.pop(key, None)
            self._leases.retire(key)
            self._hot.retire(key, now_us)
