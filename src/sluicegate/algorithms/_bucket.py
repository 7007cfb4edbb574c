"""Arithmetic that the token bucket and the leaky bucket share.

Amounts are in the bucket's own unit, 1/``tokens`` microseconds: one token is ``period_us`` units.
"""

from __future__ import annotations

import sys
from math import gcd
from typing import Final

from sluicegate.algorithms._fields import check_capacity, check_integer
from sluicegate.algorithms.spec import OnChange
from sluicegate.bounds import DRAIN_US_MAX, NOW_US_MAX, PERIOD_US_MAX, TOKENS_MAX

__all__ = ["SHAPE", "carried", "granted", "most_admitted", "reduced", "state_bytes"]

SHAPE: Final = "-"
"""A bucket has no window: its counter survives a change of every number."""


def reduced(capacity: int, tokens: int, period_us: int) -> tuple[int, int, int]:
    """(``tokens``, ``period_us``, time of a full drain), the first two without a common divisor.

    ValueError names what is out of range; the ranges hold for the reduced numbers.
    """
    check_capacity("capacity", capacity)
    for name, value in (("tokens", tokens), ("period_us", period_us)):
        if type(value) is not int or value < 1:
            raise ValueError(f"{name}: must be an integer >= 1, got {value!r}")
    divisor = gcd(tokens, period_us)
    tokens = check_integer("tokens", tokens // divisor, 1, TOKENS_MAX)
    period_us = check_integer("period_us", period_us // divisor, 1, PERIOD_US_MAX)
    window_us = -(-capacity * period_us // tokens)
    if window_us > DRAIN_US_MAX:
        raise ValueError(
            f"capacity: {capacity} tokens at {tokens} per {period_us} us take {window_us} us to come back, "
            f"more than {DRAIN_US_MAX}"
        )
    return tokens, period_us, window_us


def carried(used: int, *, old: tuple[int, int], new: tuple[int, int], how: OnChange) -> int:
    """``used`` units under ``old`` as units under ``new``, both (units of one token, units of a full drain).

    Rounded up, so a change never gives a fraction away, and at most one full new drain.
    """
    if how is OnChange.RESET:
        return 0
    part = 0 if how is OnChange.KEEP else 1
    return min(-(-used * new[part] // old[part]), new[1])


def granted(used: int, period_us: int, tokens: int) -> tuple[int, int]:
    """(units still used, tokens given back) of ``used`` units after a grant of ``tokens``; a part of a token counts as one."""
    if used <= 0:
        return 0, 0
    given = min(tokens, -(-used // period_us))
    return max(used - given * period_us, 0), given


def most_admitted(capacity: int, tokens: int, period_us: int, interval_us: int) -> int:
    """What a bucket admits at most in ``[s, s + interval_us)``: first and last hit differ by ``interval_us - 1``.

    Reached by a caller who asks all the time, if a microsecond's refill fits beside a fraction of a token:
    ``tokens <= (capacity - 1) * period_us``.
    """
    return capacity + (interval_us - 1) * tokens // period_us if interval_us > 0 else 0


def state_bytes(tokens: int) -> int:
    """The size of the largest TAT as a Python int."""
    return sys.getsizeof((NOW_US_MAX + DRAIN_US_MAX) * tokens)
