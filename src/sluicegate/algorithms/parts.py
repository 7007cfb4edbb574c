"""A limit in parts: the numbers of sub-counters that together are one counter, and never more than it.

Capacities and limits are whole numbers that add up to the whole; the first parts have one more where they do not divide. The rate of
each bucket is the whole's divided by the number of parts, as an exact rational number, so the rates add up too.
"""

from __future__ import annotations

from dataclasses import replace

from sluicegate.algorithms.fixed_window import FixedWindow
from sluicegate.algorithms.sliding_log import SlidingLog
from sluicegate.algorithms.sliding_window import SlidingWindow
from sluicegate.algorithms.spec import Spec
from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.bounds import SPLIT_PART_TOKENS_MIN, SPLIT_PARTS_MAX

__all__ = ["parts_of"]


def parts_of(spec: Spec, most: int = SPLIT_PARTS_MAX, tokens_min: int = SPLIT_PART_TOKENS_MIN) -> tuple[Spec, ...]:
    """The specs of the parts, ``most`` of them or as many as have ``tokens_min`` tokens each; of what cannot be split, itself alone.

    A leaky bucket, a ban, and a limit below twice ``tokens_min`` cannot, nor a rate so slow that its part is no rate of a bucket. The same
    numbers give the same parts in every process.
    """
    count = min(most, spec.capacity // tokens_min)
    while count >= 2:
        try:
            return tuple([_part(spec, count, place) for place in range(count)])
        except ValueError:
            count //= 2
        except TypeError:
            break
    return (spec,)


def _part(spec: Spec, count: int, place: int) -> Spec:
    size = spec.capacity // count + (place < spec.capacity % count)
    if isinstance(spec, TokenBucket):
        return TokenBucket(size, spec.tokens, spec.period_us * count)
    if isinstance(spec, FixedWindow | SlidingWindow | SlidingLog):
        return replace(spec, limit=size)
    raise TypeError(f"a {spec.algorithm} has no parts")
