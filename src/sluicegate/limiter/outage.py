"""What is remembered of a time in which the store failed.

One object per limiter. ``active`` is False until a store call fails, and all that a limiter does about outages hangs
on it, so that one whose store never fails pays for reading a flag.

An outage begins with a failed call. It is over when the store has answered and did not fail for ``FALLBACK_GAP_US``
after its last failure: a store that comes and goes is one outage, not many.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sluicegate.bounds import FALLBACK_COUNTERS_MAX, FALLBACK_GAP_US, FALLBACK_HANDOVER_US_MAX, FALLBACK_OWED_US_MAX
from sluicegate.clock import Clock
from sluicegate.errors import StoreError
from sluicegate.stores.locks import Locked

__all__ = ["Outage", "Touched"]


class Touched(msgspec.Struct, gc=False):
    """A counter that was charged in this process instead of the store.

    ``owed``: tokens admitted that the store has not been charged. ``until_us``: monotonic time at which this is
    forgotten. ``back``: the store has answered for it since, so that ``until_us`` is the end of its hand-over.
    """

    owed: int
    until_us: int
    back: bool = False


class Outage(Locked):
    """Times of failures, and the counters that were charged here meanwhile. Safe from any thread.

    At most ``FALLBACK_COUNTERS_MAX`` counters are remembered; beyond that the oldest is forgotten, counted in
    ``forgotten``. Times are the clock's monotonic ones.
    """

    __slots__ = (
        "_answered",
        "_clock",
        "_error",
        "_failed_us",
        "_failing_us",
        "_nodes",
        "_touched",
        "active",
        "forgotten",
        "since_us",
        "told",
    )

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._touched: dict[str, Touched] = {}
        self._error = ""
        self._failed_us = 0
        self._failing_us = 0
        self._answered = True
        self._nodes = 1
        self.active = False
        self.since_us = 0
        self.forgotten = 0
        self.told: tuple[Callable[[StoreError | None], None], ...] = ()
        """Called after each failure with the error, and with None by the first answer after one."""

    def __len__(self) -> int:
        return len(self._touched)

    @property
    def failing_since_us(self) -> int | None:
        """When the outage under way began; None where there is none, or the last call was answered."""
        return self.since_us if self.active and not self._answered else None

    @property
    def failing_error(self) -> str | None:
        """What the last failed call said; None where ``failing_since_us`` is."""
        return None if self.failing_since_us is None else self._error

    def failing_us(self) -> int:
        """Time since the first failure that no answer came after."""
        return self._clock.monotonic_us() - self._failing_us

    def failed(self, error: StoreError) -> None:
        """A call of the store failed."""
        with self._lock:
            self._error = str(error)
            now_us = self._clock.monotonic_us()
            if not self.active or (self._answered and now_us - self._failed_us > FALLBACK_GAP_US):
                self.since_us = now_us
                self._nodes = 1
            if self._answered:
                self._failing_us = now_us
            self.active = True
            self._answered = False
            self._failed_us = now_us
        for told in self.told:
            told(error)

    def answered(self) -> None:
        """A call of the store was answered. To be told while ``active`` only."""
        with self._lock:
            now_us = self._clock.monotonic_us()
            back, self._answered = not self._answered, True
            self._tidy(now_us)
            if not self._touched and now_us - self._failed_us > FALLBACK_GAP_US:
                self.active = False
        for told in self.told if back else ():
            told(None)

    def nodes(self, known: int) -> int:
        """The number of nodes to divide by: the most that was known since the outage began.

        Nodes make themselves known through the store, so while it is away fewer of them prove nothing.
        """
        with self._lock:
            self._nodes = max(self._nodes, known)
            return self._nodes

    def touch(self, key: str, cost: int) -> None:
        """``cost`` was admitted by this process alone for the counter ``key``."""
        with self._lock:
            # The same entry is changed: requests under way hold it, and what it owes must be asked for once.
            entry = self._touched.pop(key, None) or Touched(0, 0)
            entry.owed += cost
            entry.until_us = self._clock.monotonic_us() + FALLBACK_OWED_US_MAX
            entry.back = False
            self._touched[key] = entry
            if len(self._touched) > FALLBACK_COUNTERS_MAX:
                del self._touched[next(iter(self._touched))]
                self.forgotten += 1

    def find(self, key: str) -> Touched | None:
        """What is remembered of a counter."""
        entry = self._touched.get(key)
        if entry is not None and entry.until_us <= self._clock.monotonic_us():
            with self._lock:
                if self._touched.get(key) is entry and entry.until_us <= self._clock.monotonic_us():
                    del self._touched[key]
            return None
        return entry

    def settle(self, entry: Touched) -> int:
        """What is owed, which the store is about to be charged. Whether or not it comes to that, it is not charged again."""
        with self._lock:
            owed, entry.owed = entry.owed, 0
        return owed

    def returned(self, entry: Touched, drain_us: int) -> None:
        """The store has answered for this counter, which takes ``drain_us`` to fill: its hand-over begins, or goes on."""
        with self._lock:
            if not entry.back:
                entry.back = True
                entry.until_us = self._clock.monotonic_us() + min(drain_us, FALLBACK_HANDOVER_US_MAX)

    def forget(self, key: str) -> None:
        """This counter was reset."""
        with self._lock:
            self._touched.pop(key, None)

    def forget_all(self) -> None:
        """All were."""
        with self._lock:
            self._touched.clear()

    def _tidy(self, now_us: int) -> None:
        """Forget what has had its time, the first entries only: each call removes at most two."""
        for _ in range(2):
            key = next(iter(self._touched), None)
            if key is None or self._touched[key].until_us > now_us:
                return
            del self._touched[key]
