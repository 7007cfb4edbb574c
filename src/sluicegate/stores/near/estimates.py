"""Counters that are admitted by chance while they are hot: no call of the store, and none of a lease, per request.

Every ``ESTIMATE_REFRESH_US`` a process adds what it was offered to a sum that all share, and learns the sum: a hidden counter beside the
counter itself, a fixed window with a limit that nobody reaches. Two sums and the times at which the store gave them are the rate that is offered
to the whole fleet. A request is admitted with the probability rate of the limit / rate offered (1 where less is offered). With the sum goes what
was admitted, which is charged to the counter itself whether it refuses or not; so the counter knows what was used for whoever asks it.

A request that other rules refuse is not offered to this one. A request is drawn before the others are asked, so of those that were drawn no, the
part counts as offered that would have passed the others, as found among those that were drawn yes.

Admitted too much, where R is the rate of the limit per second, N the number of processes and T the age of a figure (at most the refresh
and one call; ``ESTIMATE_TRUST_US`` without an answer, after which there is no figure and the store or the failure policy decides):

- At steady load none on the average; by chance, in an interval in which k are admitted, about sqrt(k) more or less.
- A load that jumps is admitted by the old figure for at most T and by a mixed one for another: but a process admits at most twice its share
  of R at any time, and in each refresh once more the share of 1 / ``ESTIMATE_BURST_DIVISOR`` second and one request. So a jump by any factor
  admits at most 2 * R * T + R / 10 + 2 * N requests more than the limit, apart from chance. For any load and any time D not much above
  2.5 * R * D + N * (D / refresh + 1); a load that moves between processes at the same time is counted in both for a refresh.
- At the start, and where a process is new, there is no figure, and the counter is decided exactly; so is it by processes in which it is not
  hot, whose admissions the others do not see before the counter does: at most ``hot_per_s`` for each.
- The capacity of a bucket is not used: bursts are not saved up while a counter is hot. Back to exact, it goes on from what was used.

Refused too much: after a load that fell, for T, as long as the old figure holds.

Pure: no clock, no lock, no I/O. ``draw()`` gives a random number of 32 bits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from sluicegate.algorithms.fixed_window import FixedWindow
from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.algorithms.verdict import ALLOWED, DENIED, LocalVerdict, new_local_verdict
from sluicegate.bounds import (
    CAPACITY_MAX,
    ESTIMATE_BURST_DIVISOR,
    ESTIMATE_REFRESH_US,
    ESTIMATE_SAMPLES,
    ESTIMATE_TRUST_US,
    ESTIMATES_IN_PROCESS_MAX,
)
from sluicegate.clock import US_PER_S
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter, Request, Store
from sluicegate.stores.keys import beside_prefix

__all__ = ["Estimate", "Estimates", "Sum", "exchange"]

_SURE: Final = 1 << 32
_OFFERED: Final = FixedWindow(CAPACITY_MAX, 3_600 * US_PER_S)


class Sum(NamedTuple):
    """What the store knows: ``offered`` to the fleet until ``store_us``, in the window of the hidden counter. ``own``: of this process, ever."""

    store_us: int
    offered: int
    own: int


class Estimate:
    """One counter that is estimated here. Costs are those of this refresh: ``yes`` drawn, ``passed`` of them by all rules, ``no`` drawn.

    ``exact``: offered while there was no figure. ``admitted``: what the counter was not told of.
    """

    __slots__ = (
        "_cap_den", "_cap_num", "_counts", "_draw", "_remaining", "_slack", "_sums", "_threshold", "admitted", "busy", "counter", "due_us",
        "exact", "figure_us", "key", "no", "offered_by", "own", "passed", "rate", "spent", "subject", "told", "yes",
    )  # fmt: skip

    def __init__(self, counter: Counter, subject: str, draw: Callable[[], int], now_us: int) -> None:
        self.counter = counter._replace(precision=Precision.EXACT)
        self.told = self.counter._replace(denied_counts=True)
        spec = counter.spec
        prefix = beside_prefix(counter.prefix, _OFFERED.algorithm, _OFFERED.shape, "offered")
        self.offered_by = Counter(counter.name, _OFFERED, prefix)
        self.subject = subject
        self.key = counter.prefix + subject
        self.rate = (spec.tokens, spec.period_us) if isinstance(spec, TokenBucket) else (spec.capacity, spec.window_us)
        self.due_us = now_us
        self.busy = False
        self.figure_us: int | None = None
        self.yes = self.passed = self.no = self.exact = self.admitted = self.own = self.spent = 0
        self._draw = draw
        self._sums: deque[Sum] = deque(maxlen=ESTIMATE_SAMPLES)
        self._threshold = self._remaining = self._slack = self._cap_num = 0
        self._cap_den = 1

    # ------------------------------------------------------------------ requests

    def admit(self, cost: int, now_us: int) -> bool | None:
        """Draw for ``cost`` tokens; None: there is no figure, or it never fits, and the store decides."""
        figure_us = self.figure_us
        if figure_us is None or now_us - figure_us > ESTIMATE_TRUST_US or cost > self.counter.spec.capacity:
            return None
        if self._threshold != _SURE and self._draw() >= self._threshold:
            self.no += cost
            return False
        if (self.spent + 1 - self._slack) * self._cap_den > self._cap_num * (now_us - figure_us):
            # Twice the share of this process is spent: the load has jumped, and the next figure will say so.
            self.no += cost
            return False
        self.spent += cost
        self.yes += cost
        return True

    def conclude(self, cost: int, *, passed: bool) -> None:
        """What became of a request for which ``admit`` said yes: whether all its other rules passed it too."""
        if passed:
            self.passed += cost
            self.admitted += cost
        else:
            self.spent -= cost

    def asked(self, cost: int) -> None:
        """The store decides a request of this counter that no other rule refused."""
        self.exact += cost

    def verdict(self, cost: int, *, admitted: bool) -> LocalVerdict:
        """An estimate. ``remaining``: what the limit admits in a second beyond what is offered. A refusal waits until the rate has made room for its cost."""
        tokens, period_us = self.rate
        if admitted:
            return new_local_verdict((ALLOWED, self._remaining, 0, US_PER_S, 0))
        wait_us = max(-(-cost * period_us // tokens), ESTIMATE_REFRESH_US)
        return new_local_verdict((DENIED, 0, wait_us, wait_us, 0))

    # ------------------------------------------------------------------ the figure

    @property
    def offered(self) -> int:
        """Tokens offered since the last report that would have been passed by the other rules of their requests."""
        refused = self.no * self.passed // self.yes if self.yes else self.no
        return self.exact + self.passed + refused

    def take(self) -> tuple[int, int]:
        """(offered, admitted) since the last report, at least one offered so that there is something to charge; both begin anew."""
        found = max(self.offered, 1), self.admitted
        self.yes = self.passed = self.no = self.exact = self.admitted = 0
        return found

    def failed(self, offered: int, admitted: int) -> None:
        """A report was perhaps not made: it is made again with the next one."""
        self.exact += offered
        self.admitted += admitted

    def learn(self, offered: int, store_us: int, total: int, sent_us: int) -> None:
        """The store's sum, after ``offered`` of this process were added to it by what was sent at ``sent_us``."""
        self.own += offered
        sums = self._sums
        if sums and not (0 < store_us - sums[0].store_us < 2 * ESTIMATE_TRUST_US and total >= sums[0].offered):
            # Another window, a clock that was set, or too long a pause: there are no sums to compare with.
            sums.clear()
        sums.appendleft(Sum(store_us, total, self.own))
        if len(sums) > 1:
            self._compare(sums[1], sums[-1], sums[0])
            self.figure_us = sent_us

    def _compare(self, last: Sum, first: Sum, now: Sum) -> None:
        """The figure: offered since the first sum, or since the last one where that is much more: a jump is believed at once."""
        since = first
        newest, longest = now.offered - last.offered, now.offered - first.offered
        if 2 * newest * (now.store_us - first.store_us) > 3 * longest * (now.store_us - last.store_us):
            since = last
        passed_us, offered, own = now.store_us - since.store_us, now.offered - since.offered, now.own - since.own
        tokens, period_us = self.rate
        fits = tokens * passed_us
        needs = period_us * max(offered, 1)
        self._threshold = min(_SURE, fits * _SURE // needs)
        self._remaining = max(fits - needs, 0) * US_PER_S // (period_us * passed_us)
        share = min(own, offered)
        self._cap_num, self._cap_den = 2 * tokens * share, needs
        self._slack = 1 + tokens * US_PER_S * share // (ESTIMATE_BURST_DIVISOR * needs)
        self.spent = 0


class Estimates:
    """The estimated counters of one process, at most ``ESTIMATES_IN_PROCESS_MAX``."""

    __slots__ = ("_draw", "_estimates", "find")

    def __init__(self, draw: Callable[[], int]) -> None:
        self._draw = draw
        self._estimates: dict[str, Estimate] = {}
        self.find = self._estimates.get

    def promote(self, counter: Counter, subject: str, now_us: int) -> bool:
        """A counter is hot: estimate it. False where there are too many."""
        key = counter.prefix + subject
        known = self._estimates.get(key)
        if known is None or known.counter.spec != counter.spec:
            if known is None and len(self._estimates) >= ESTIMATES_IN_PROCESS_MAX:
                return False
            self._estimates[key] = Estimate(counter, subject, self._draw, now_us)
        return True

    def forget(self, key: str) -> Estimate | None:
        """A counter is cold, or has other numbers: it is decided exactly from now on. What is left to be told of it, if anything."""
        return self._estimates.pop(key, None)

    def all(self) -> list[Estimate]:
        """Every counter that is estimated."""
        return list(self._estimates.values())

    def clear(self) -> None:
        """Know nothing, as a new process does."""
        self._estimates.clear()

    def due(self, now_us: int) -> list[Estimate]:
        """The counters that are to be reported now; they are busy until ``done``."""
        found = [one for one in self._estimates.values() if not one.busy and now_us >= one.due_us]
        for one in found:
            one.busy = True
        return found

    @property
    def next_due_us(self) -> int | None:
        """When ``due`` has something to say; None while nothing is estimated."""
        return min([one.due_us for one in self._estimates.values() if not one.busy], default=None)

    @staticmethod
    def done(one: Estimate, now_us: int) -> None:
        """A report was made, or has failed."""
        one.busy = False
        one.due_us = max(one.due_us + ESTIMATE_REFRESH_US, now_us)


def exchange(store: Store, one: Estimate, offered: int, admitted: int) -> tuple[int, int]:
    """Report, and learn the sum: (the store's time, the sum). Raises StoreError: perhaps nothing was done."""
    requests: list[Request] = [[(one.offered_by, one.subject, offered)]]
    if admitted:
        requests.append([(one.told, one.subject, min(admitted, one.counter.spec.capacity))])
    answer = store.decide(requests)[0]
    verdict = answer.verdicts()[0]
    if verdict.outcome is not ALLOWED:
        raise StoreError(f"the sum of what was offered to {one.counter.name} is at its bound")
    return answer.now_us, CAPACITY_MAX - verdict.remaining
