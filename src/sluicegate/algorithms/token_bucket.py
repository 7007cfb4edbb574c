"""Token bucket, decided by the generic cell rate algorithm (GCRA) in exact integers.

A bucket holds ``capacity`` tokens and gains ``tokens`` of them every ``period_us``, evenly. Instead of a level and a
time of last refill, its state is one number: the *theoretical arrival time* (TAT), the moment at which the bucket will
be full again. A charge moves it later by the time its tokens take to come back; a charge fits while the TAT stays
within one full drain of now. The two forms are equivalent; this one needs no refill step and drops no fraction.

Units. One token takes ``period_us / tokens`` microseconds, which is rarely whole (7/minute), so the TAT counts units of
``1 / tokens`` microseconds: there a token is exactly ``period_us`` units and a full drain ``capacity * period_us``.
``tokens`` and ``period_us`` are reduced by their common divisor first, so most rates have ``tokens == 1`` and units of
a microsecond. A store without big integers keeps the same number as ``split`` gives it: whole microseconds and a
remainder below ``tokens``.

Source: ITU-T I.371 and ATM Forum Traffic Management 4.0, "virtual scheduling" form of GCRA(T, tau), with
T = period / tokens and tau = (capacity - 1) * T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from sluicegate.algorithms import _bucket
from sluicegate.algorithms.spec import OnChange, Spec, State
from sluicegate.algorithms.verdict import ALLOWED, DENIED, NEVER_FITS, Brief, Verdict, new_verdict
from sluicegate.bounds import CLOCK_BEHIND_US_MAX

__all__ = ["TokenBucket"]


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """At most ``capacity`` at once, and ``tokens`` per ``period_us`` in the long run.

    Admits, in any interval of D microseconds, at most ``capacity + floor(rate * (D - 1))`` tokens: times are whole
    microseconds, so first and last differ by at most D - 1. ``tokens`` and ``period_us`` are kept reduced, so
    ``TokenBucket(5, 60, 60_000_000) == TokenBucket(5, 1, 1_000_000)``. ValueError names a number out of range.

    State: the TAT as one int, in units of 1/``tokens`` microseconds. Rounding is against the caller: ``remaining``
    down, waits up to the next whole microsecond. A TAT more than a full drain ahead was written before the clock went
    back: by up to ``bounds.CLOCK_BEHIND_US_MAX`` the bucket is empty until the clock has caught up, by more it counts as
    drained now.
    """

    algorithm: ClassVar[str] = "token_bucket"

    capacity: int
    tokens: int
    period_us: int
    window_us: int = field(init=False, repr=False, compare=False)
    _drain: int = field(init=False, repr=False, compare=False)
    _ahead: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tokens, period_us, window_us = _bucket.reduced(self.capacity, self.tokens, self.period_us)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "period_us", period_us)
        object.__setattr__(self, "window_us", window_us)
        object.__setattr__(self, "_drain", self.capacity * period_us)
        object.__setattr__(self, "_ahead", self.capacity * period_us + CLOCK_BEHIND_US_MAX * tokens)

    @property
    def shape(self) -> str:
        """Always the same: no number of a bucket starts a new counter."""
        return _bucket.SHAPE

    def admit(self, state: int | None, now_us: int, cost: int) -> int | None:
        """The TAT after the charge, or None when it does not fit now."""
        tokens = self.tokens
        now = now_us if tokens == 1 else now_us * tokens
        if state is None or state <= now:
            need = cost * self.period_us
            return now + need if need <= self._drain else None
        # A TAT written before the clock went back is more than a full drain ahead, and refused by the same comparison.
        tat = state + cost * self.period_us
        return tat if tat <= now + self._drain else None

    def unit_admit(self) -> Callable[[int, int], int | None]:
        """See ``UnitSpec``. Cells are read faster than attributes, and nothing is multiplied."""
        tokens, need, drain = self.tokens, self.period_us, self._drain

        def admit_whole(state: int, now_us: int) -> int | None:
            if state <= now_us:
                return now_us + need
            tat = state + need
            return tat if tat <= now_us + drain else None

        def admit(state: int, now_us: int) -> int | None:
            now = now_us * tokens
            if state <= now:
                return now + need
            tat = state + need
            return tat if tat <= now + drain else None

        return admit_whole if tokens == 1 else admit

    def _used(self, state: int, now_us: int) -> int:
        """Units until the bucket is full; more than a drain only while the clock is catching up."""
        used = state - now_us * self.tokens
        if used < 0:
            return 0
        return used if used <= self._ahead else self._drain

    def verdict(self, state: int | None, now_us: int, cost: int, admitted: bool) -> Verdict:
        """``reset_after_us`` of a pass is the time until the bucket is full again."""
        tokens, period_us, drain = self.tokens, self.period_us, self._drain
        used = 0
        if state is not None:
            # ``_used`` in place, and no division by 1: both are on the path of every described decision.
            used = state - (now_us if tokens == 1 else now_us * tokens)
            if used < 0:
                used = 0
            elif used > self._ahead:
                used = drain
        remaining = (drain - used) // period_us if used < drain else 0
        if admitted:
            return new_verdict((ALLOWED, remaining, 0, used if tokens == 1 else -(-used // tokens), 0))
        if cost > self.capacity:
            return new_verdict((NEVER_FITS, remaining, None, 0, 0))
        missing = used + cost * period_us - drain
        wait_us = missing if tokens == 1 else -(-missing // tokens)
        return new_verdict((DENIED, remaining, wait_us, wait_us, 0))

    def admit_column(self, states: list[State | None], slots: Iterable[int], cost: int, now_us: int) -> list[Brief]:
        """See ``ColumnSpec``. ``admit``, ``clamp`` of what was refused, and the numbers of ``verdict``, written out."""
        tokens, period_us, drain = self.tokens, self.period_us, self._drain
        now = now_us * tokens
        full = now + drain
        need = cost * period_us
        fits = need <= drain
        ahead = now + self._ahead
        briefs: list[Brief] = []
        append = briefs.append
        for slot in slots:
            state = states[slot]
            tat = now + need if state is None or state < now else state + need
            if tat <= full:
                states[slot] = tat
                # Division by 1 is not free: these numbers have more than one digit inside.
                append((True, (full - tat) // period_us, tat - now if tokens == 1 else -((now - tat) // tokens)))
                continue
            if state is not None and state > ahead:
                states[slot] = full
                tat = full + need
            left = full + need - tat
            remaining = left // period_us if left >= period_us else 0
            wait_us = None if not fits else tat - full if tokens == 1 else -((full - tat) // tokens)
            append((False, remaining, wait_us))
        return briefs

    def clamp(self, state: int, now_us: int) -> int:
        """The TAT, or one full drain from now where it was written before the clock was set back."""
        now = now_us * self.tokens
        return state if state <= now + self._ahead else now + self._drain

    def expires_us(self, state: int) -> int:
        """When the bucket is full again."""
        return -(-state // self.tokens)

    def charge_refused(self, state: int | None, now_us: int, cost: int) -> int:
        """The TAT after a refused charge that counts; at most one full drain. A cost that never fits counts nothing."""
        now = now_us * self.tokens
        if cost > self.capacity:
            return now if state is None else state
        used = 0 if state is None else self._used(state, now_us)
        return now + max(min(used + cost * self.period_us, self._drain), used)

    def refund(self, state: int, now_us: int, cost: int, charged_us: int) -> int:
        """Gives back ``cost`` less what the rate has given back since the charge."""
        due = cost * self.period_us - max(now_us - charged_us, 0) * self.tokens
        return self.clamp(state, now_us) - due if due > 0 and state > now_us * self.tokens else state

    def grant(self, state: int, now_us: int, tokens: int) -> tuple[int, int]:
        """See ``Spec``. A bucket that holds a fraction of a token beside what is used is full after a grant of it all."""
        used = self.clamp(state, now_us) - now_us * self.tokens
        left, given = _bucket.granted(used, self.period_us, min(tokens, self.capacity))
        return (now_us * self.tokens + left, given) if given else (state, 0)

    def carry(self, old: Spec, state: int, now_us: int, how: OnChange) -> int | None:
        """Tokens used stay used (``keep``), or their share of the capacity (``scale``); rounded up to a unit."""
        if not isinstance(old, TokenBucket):
            return None
        used = _bucket.carried(
            min(old._used(state, now_us), old._drain),
            old=(old.period_us, old._drain),
            new=(self.period_us, self._drain),
            how=how,
        )
        return now_us * self.tokens + used if used else None

    def most_admitted(self, interval_us: int) -> int:
        """``capacity + floor(rate * (interval_us - 1))``; 0 of an empty interval."""
        return _bucket.most_admitted(self.capacity, self.tokens, self.period_us, interval_us)

    def state_bytes(self) -> int:
        """One int of up to four 30-bit digits."""
        return _bucket.state_bytes(self.tokens)

    def split(self, state: int) -> tuple[int, int]:
        """The TAT as (whole microseconds, remainder in 1/``tokens`` microseconds), each below 2^53."""
        return divmod(state, self.tokens)

    def join(self, whole_us: int, remainder: int) -> int:
        """The inverse of ``split``; ValueError for a remainder not within 0..``tokens`` - 1."""
        if not 0 <= remainder < self.tokens:
            raise ValueError(f"remainder: must be within 0..{self.tokens - 1}, got {remainder}")
        return whole_us * self.tokens + remainder
