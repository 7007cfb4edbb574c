"""Units of a counter: the whole of each is cut into ``REGION_UNITS`` numbered ones, and a region's part is a set of them.

A set is one integer, a bit for each unit, so that what belongs to whom is a matter of single units: two regions have a unit in common, or they
do not. Tokens of a capacity stand on units at equal distances, so sets that have no unit in common have no token in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import REGION_UNITS

__all__ = ["ALL", "apportioned", "first_of", "mask_of", "part_of", "ranges_of", "tokens_of"]

ALL = (1 << REGION_UNITS) - 1
"""The set of all units."""


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """The ranges (first, end) of a set, in order."""
    at = 0
    while mask:
        gap = (mask & -mask).bit_length() - 1
        mask >>= gap
        length = (~mask & (mask + 1)).bit_length() - 1
        at += gap
        yield at, at + length
        mask >>= length
        at += length


def ranges_of(mask: int) -> list[int]:
    """The set as first and end of each of its ranges, in order."""
    return [edge for run in _runs(mask) for edge in run]


def mask_of(ranges: Sequence[int]) -> int:
    """The set of these ranges; ValueError where they are not in order or not within the units."""
    mask, before = 0, -1
    for first, end in zip(ranges[::2], ranges[1::2], strict=True):
        if not before < first < end <= REGION_UNITS:
            raise ValueError(f"units: {first} to {end} are no range after {before}")
        mask |= (1 << end) - (1 << first)
        before = end
    return mask


def first_of(mask: int, count: int) -> int:
    """The first ``count`` units of a set, or all where it has fewer."""
    found = 0
    for first, end in _runs(mask):
        if count <= 0:
            break
        end = min(end, first + count)
        found |= (1 << end) - (1 << first)
        count -= end - first
    return found


def apportioned(weights: Iterable[int]) -> list[int]:
    """One set of neighbouring units for each weight, all units together, as near to the weights as whole units come (largest remainders first)."""
    given = list(weights)
    whole = sum(given)
    counts = [REGION_UNITS * weight // whole for weight in given]
    by_rest = sorted(range(len(given)), key=lambda place: (-(REGION_UNITS * given[place] % whole), place))
    for place in by_rest[: REGION_UNITS - sum(counts)]:
        counts[place] += 1
    found, at = [], 0
    for count in counts:
        found.append(((1 << count) - 1) << at)
        at += count
    return found


def tokens_of(mask: int, capacity: int) -> int:
    """The tokens of a capacity that stand on these units: token k of C in the middle of its part, at (2k + 1) / 2C of the line."""

    def below(edge: int) -> int:
        return (2 * capacity * edge + REGION_UNITS - 1) // (2 * REGION_UNITS)

    return sum(below(end) - below(first) for first, end in _runs(mask))


def part_of(spec: Spec, mask: int) -> Spec:
    """The numbers of these units: the tokens that stand on them, and of a bucket's rate exactly their share.

    Where no token stands on them, or their rate is slower than any a bucket can have: a ban. Parts of sets without a common unit add up to no
    more than the whole, and those of all units to the whole.
    """
    size = tokens_of(mask, spec.capacity)
    if mask == ALL or isinstance(spec, Ban):
        return spec
    if size == 0:
        return Ban()
    try:
        if isinstance(spec, TokenBucket):
            return TokenBucket(size, spec.tokens * mask.bit_count(), spec.period_us * REGION_UNITS)
        if isinstance(spec, LeakyBucket):
            tokens, period_us = spec.tokens * mask.bit_count(), spec.period_us * REGION_UNITS
            return LeakyBucket(size, tokens, period_us, spec.max_delay_us, spec.nodelay)
        assert isinstance(spec, FixedWindow | SlidingWindow | SlidingLog)
        return replace(spec, limit=size)
    except ValueError:
        return Ban()
