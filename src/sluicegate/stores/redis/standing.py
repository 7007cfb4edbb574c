"""Counters that stand by their own numbers, as the scripts show them: the numbers are read with the state."""

from __future__ import annotations

from dataclasses import replace
from struct import Struct

from sluicegate.algorithms import FixedWindow, SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import State
from sluicegate.bounds import REDIS_FORMS_MEMO_MAX
from sluicegate.stores.base import Counter
from sluicegate.stores.redis.records import ESTIMATE, FIXED, STRICT, TOKEN, Record

__all__ = ["Standing"]

_BYTE = 32
_bucket = Struct("<IBIBIHB").unpack_from
_limit = Struct("<IB").unpack_from


class Standing:
    """Reads such counters, and remembers the counter of each set of numbers. Safe from any thread."""

    __slots__ = ("_counters",)

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str, tuple[int, ...]], tuple[Counter, Record]] = {}

    def read(self, counter: Counter, reply: bytes, at: int) -> tuple[Counter, State, int]:
        """(the counter with its own numbers, its state, where the record ends)."""
        spec = counter.spec
        if isinstance(spec, TokenBucket):
            capacity, capacity_high, tokens, tokens_high, period, period_middle, period_high = _bucket(reply, at)
            numbers: tuple[int, ...] = (
                capacity + (capacity_high << _BYTE),
                tokens + (tokens_high << _BYTE),
                period + (period_middle << _BYTE) + (period_high << 48),
            )
        else:
            low, high = _limit(reply, at)
            numbers = (low + (high << _BYTE),)
        known = counter.prefix, counter.spec.shape, numbers
        found = self._counters.get(known)
        if found is None:
            if len(self._counters) >= REDIS_FORMS_MEMO_MAX:
                self._counters.clear()
            found = self._counters[known] = _with(counter, numbers)
        own, (size, read) = found
        return own, read(reply, at), at + size


def _with(counter: Counter, numbers: tuple[int, ...]) -> tuple[Counter, Record]:
    spec = counter.spec
    if isinstance(spec, TokenBucket):
        bucket = TokenBucket(*numbers)
        return counter._replace(spec=bucket), Record.of(TOKEN, bucket.tokens, None)
    assert isinstance(spec, FixedWindow | SlidingWindow)
    after = replace(spec, limit=numbers[0])
    if isinstance(after, FixedWindow):
        return counter._replace(spec=after), Record.of(FIXED, 0, None)
    parts = after.sub_windows
    return counter._replace(spec=after), Record.of(ESTIMATE if parts is None else STRICT, 0, parts)
