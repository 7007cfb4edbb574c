"""Leaky bucket as a queue: it admits a request and says how long to hold it.

Where a token bucket lets a burst through at once, this one spreads it: each token occupies the outlet for
``period_us / tokens`` microseconds, requests queue for it in order, and a decision carries ``delay_us``, the time
until the request's slot starts. State is the time at which the queue runs empty, in the token bucket's units of
1/``tokens`` microseconds, and the time of the last charge, which a refund is checked against.

Sources: "leaky bucket as a queue" (Turner 1986; Tanenbaum, Computer Networks); the observable behaviour is that of
nginx ``limit_req`` with ``burst``, and with ``nodelay``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import ClassVar

from sluicegate.algorithms import _bucket
from sluicegate.algorithms._fields import check_integer
from sluicegate.algorithms.spec import OnChange, Spec
from sluicegate.algorithms.verdict import ALLOWED, DENIED, NEVER_FITS, Verdict, new_verdict
from sluicegate.bounds import CLOCK_BEHIND_US_MAX, DELAY_US_MAX, NOW_US_MAX

__all__ = ["LeakyBucket"]


@dataclass(frozen=True, slots=True)
class LeakyBucket:
    """Spaces the *starts* of requests by cost / rate, if each is held for its ``delay_us``.

    At most ``capacity`` tokens are in the queue, the one in service included. A request that would wait longer than
    ``max_delay_us`` (0: may not wait at all) is refused. ``nodelay``: nothing is held, ``delay_us`` is 0 and
    ``max_delay_us`` does not matter; the queue only counts, and admissions are bounded as a token bucket's.

    Admits, in any interval of D microseconds, at most ``capacity + floor(rate * (D - 1))`` tokens. A delay is rounded
    up to the microsecond, so two starts may be closer than the exact spacing by less than one; the error does not add
    up. Shape, reduction and ranges are the token bucket's. State: (time the queue is empty, mark of the last charge);
    the mark is its store time, or ``~time`` once the charge can no longer be told apart or given back. A queue longer
    than its capacity was written before the clock went back and is read as the token bucket's TAT.
    """

    algorithm: ClassVar[str] = "leaky_bucket"

    capacity: int
    tokens: int
    period_us: int
    max_delay_us: int = 1_000_000
    nodelay: bool = False
    window_us: int = field(init=False, repr=False, compare=False)
    _drain: int = field(init=False, repr=False, compare=False)
    _ahead: int = field(init=False, repr=False, compare=False)
    # The longest queue, in units, that a request may find before it.
    _patience: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokens, period_us, window_us = _bucket.reduced(self.capacity, self.tokens, self.period_us)
        check_integer("max_delay_us", self.max_delay_us, 0, DELAY_US_MAX)
        drain = self.capacity * period_us
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "period_us", period_us)
        object.__setattr__(self, "window_us", window_us)
        object.__setattr__(self, "_drain", drain)
        object.__setattr__(self, "_ahead", drain + CLOCK_BEHIND_US_MAX * tokens)
        object.__setattr__(self, "_patience", drain if self.nodelay else min(self.max_delay_us * tokens, drain))

    @property
    def shape(self) -> str:
        """Always the same: no number of a bucket starts a new counter."""
        return _bucket.SHAPE

    def admit(self, state: tuple[int, int] | None, now_us: int, cost: int) -> tuple[int, int] | None:
        """The queue after this request joined it, or None when it is too long for it now."""
        now = now_us * self.tokens
        if state is None:
            empty = now + cost * self.period_us
            return (empty, now_us) if empty <= now + self._drain else None
        empty, mark = state
        if empty < now:
            empty = now
        elif empty > now + self._patience:
            return None
        empty += cost * self.period_us
        return (empty, _marked(mark, now_us)) if empty <= now + self._drain else None

    def _queue(self, state: tuple[int, int] | None, now_us: int) -> int:
        """Units of time the outlet is taken from now on; more than a drain only while the clock is catching up."""
        if state is None:
            return 0
        queue = state[0] - now_us * self.tokens
        return max(queue, 0) if queue <= self._ahead else self._drain

    def verdict(self, state: tuple[int, int] | None, now_us: int, cost: int, admitted: bool) -> Verdict:
        """``reset_after_us`` of a pass is the time until the queue is empty; a peek (cost 0) has no delay."""
        tokens, period_us, drain, patience = self.tokens, self.period_us, self._drain, self._patience
        queue = self._queue(state, now_us)
        # Single tokens: as many as fit the capacity, and one more than find a queue they may still join.
        remaining = min((drain - queue) // period_us, (patience - queue) // period_us + 1) if queue <= patience else 0
        if admitted:
            before = max(queue - cost * period_us, 0) if cost and not self.nodelay else 0
            return new_verdict((ALLOWED, remaining, 0, -(-queue // tokens), -(-before // tokens)))
        if cost > self.capacity:
            return new_verdict((NEVER_FITS, remaining, None, 0, 0))
        wait_us = -((min(patience, drain - cost * period_us) - queue) // tokens)
        return new_verdict((DENIED, remaining, wait_us, wait_us, 0))

    def clamp(self, state: tuple[int, int], now_us: int) -> tuple[int, int]:
        """The queue, or a full one from now where it was written before the clock was set back."""
        now = now_us * self.tokens
        return state if state[0] <= now + self._ahead else (now + self._drain, _spent(state[1]))

    def expires_us(self, state: tuple[int, int]) -> int:
        """When the queue is empty."""
        return -(-state[0] // self.tokens)

    def charge_refused(self, state: tuple[int, int] | None, now_us: int, cost: int) -> tuple[int, int]:
        """The queue after a refused charge that counts, at most full. A cost that never fits counts nothing."""
        now = now_us * self.tokens
        if cost > self.capacity:
            return (now, ~now_us) if state is None else state
        mark = ~now_us if state is None else _spent(_marked(state[1], now_us))
        queue = self._queue(state, now_us)
        return now + max(min(queue + cost * self.period_us, self._drain), queue), mark

    def refund(self, state: tuple[int, int], now_us: int, cost: int, charged_us: int) -> tuple[int, int]:
        """Gives the slot back only while it is the last, so that no slot is given to two requests."""
        empty, mark = state
        if mark != charged_us or empty <= now_us * self.tokens:
            return state
        return empty - cost * self.period_us, ~mark

    def grant(self, state: tuple[int, int], now_us: int, tokens: int) -> tuple[tuple[int, int], int]:
        """See ``Spec``. The queue is shorter by so much, and no earlier charge can be refunded.

        Requests that are held already keep the starts they were told, so that those let in by a grant start beside them.
        """
        empty, mark = self.clamp(state, now_us)
        left, given = _bucket.granted(empty - now_us * self.tokens, self.period_us, min(tokens, self.capacity))
        return ((now_us * self.tokens + left, _spent(mark)), given) if given else (state, 0)

    def carry(self, old: Spec, state: tuple[int, int], now_us: int, how: OnChange) -> tuple[int, int] | None:
        """Tokens in the queue stay (``keep``), or their share of the capacity does (``scale``).

        Requests already held keep the starts they were told; new ones queue at the new rate.
        """
        if not isinstance(old, LeakyBucket):
            return None
        queue = _bucket.carried(
            min(old._queue(state, now_us), old._drain),
            old=(old.period_us, old._drain),
            new=(self.period_us, self._drain),
            how=how,
        )
        return (now_us * self.tokens + queue, _spent(state[1])) if queue else None

    def most_admitted(self, interval_us: int) -> int:
        """``capacity + floor(rate * (interval_us - 1))``: admissions; their starts are spread by the delays."""
        return _bucket.most_admitted(self.capacity, self.tokens, self.period_us, interval_us)

    def state_bytes(self) -> int:
        """A pair of a bucket's int and a time."""
        return sys.getsizeof((0, 0)) + _bucket.state_bytes(self.tokens) + sys.getsizeof(NOW_US_MAX)


def _spent(mark: int) -> int:
    """The mark without the right to a refund."""
    return mark if mark < 0 else ~mark


def _marked(mark: int, now_us: int) -> int:
    """The mark of a charge at ``now_us``: its time, if no earlier charge had that time or a later one."""
    latest_us = ~mark if mark < 0 else mark
    return now_us if now_us > latest_us else ~latest_us
