"""What the scripts are told of a counter: the numbers of its spec in the form that Lua computes with.

The scripts only add and compare a bucket's times, so its drain and costs are divided here, by Python's big integers, into whole
microseconds and a remainder in units of 1/``tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, OnChange, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import State
from sluicegate.clock import US_PER_MS
from sluicegate.errors import ConfigurationError
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import redis_frame

__all__ = ["CounterForm", "Definition"]

Definition: TypeAlias = list[object]
"""One counter for the scripts; ``scripts/frame.lua`` says what its items are."""

_CHANGE = {OnChange.KEEP: 0, OnChange.SCALE: 1, OnChange.RESET: 2}
_BAN, _TOKEN, _LEAKY, _FIXED, _ESTIMATE, _STRICT, _LOG = range(7)
_NO_STATE = 1


class CounterForm:
    """A counter as the scripts see it. Made once per counter and kept.

    ``head`` and ``tail`` stand around the subject in its key. ``hold_ms``: added to times to live that are given here.
    """

    __slots__ = ("_calendar", "_definition", "_period_us", "_tokens", "capacity", "code", "counter", "head", "tail")

    def __init__(self, counter: Counter, hold_ms: int = 0) -> None:
        spec = counter.spec
        self.counter = counter
        self.capacity = spec.capacity
        self.head, self.tail = redis_frame(counter.prefix)
        self._tokens = self._period_us = 0
        self._calendar: FixedWindow | None = None
        self.code, numbers, own = self._describe(hold_ms)
        texts = "/".join(map(str, numbers))
        flags = [int(counter.shadow), int(counter.denied_counts), _CHANGE[counter.on_change]]
        self._definition: Definition = [self.code, f"{texts}|", *flags, spec.capacity, *own]

    def _describe(self, hold_ms: int) -> tuple[int, list[int], list[object]]:
        """(algorithm, numbers that a state was written under, numbers of the algorithm)."""
        spec = self.counter.spec
        if isinstance(spec, TokenBucket | LeakyBucket):
            leaky = isinstance(spec, LeakyBucket)
            tokens, period_us = spec.tokens, spec.period_us
            self._tokens, self._period_us = tokens, period_us
            drain = spec.capacity * period_us
            numbers = [spec.capacity, tokens, period_us]
            patience = drain
            if isinstance(spec, LeakyBucket):
                numbers += [spec.max_delay_us, int(spec.nodelay)]
                patience = drain if spec.nodelay else min(spec.max_delay_us * tokens, drain)
            drain_us, drain_rem = divmod(drain, tokens)
            ttl_ms = -(-2 * (drain_us + 1) // US_PER_MS) + hold_ms
            own = [tokens, period_us, drain_us, drain_rem, *divmod(patience, tokens), len(numbers), str(ttl_ms)]
            return (_LEAKY if leaky else _TOKEN), numbers, own
        if isinstance(spec, FixedWindow):
            if spec.unit is not None:
                self._calendar = spec
                return _FIXED, [spec.limit], [spec.window_us, -1]
            return _FIXED, [spec.limit], [spec.window_us, spec.bounds_us(0)[0] % spec.window_us]
        if isinstance(spec, SlidingWindow):
            if spec.sub_windows is None:
                return _ESTIMATE, [spec.limit], [spec.window_us]
            return _STRICT, [spec.limit], [-(-spec.window_us // spec.sub_windows), spec.sub_windows]
        if isinstance(spec, SlidingLog):
            return _LOG, [spec.limit], [spec.window_us]
        if isinstance(spec, Ban):
            return _BAN, [0], []
        raise ConfigurationError(
            f"algorithm: the Redis store does not know {spec.algorithm!r} (rule {self.counter.name!r})"
        )

    def definition(self, now_us: int) -> Definition:
        """The definition; of a calendar window with the starts of the windows around ``now_us``."""
        spec = self._calendar
        if spec is None:
            return self._definition
        start_us, end_us = spec.bounds_us(now_us)
        starts_us = [spec.bounds_us(start_us - 1)[0], start_us, end_us]
        for _ in range(2):
            starts_us.append(spec.bounds_us(starts_us[-1])[1])
        return [*self._definition, starts_us]

    def cost(self, cost: int) -> tuple[int, int]:
        """A cost as (whole microseconds, remainder) of a bucket; (-1, 0) above the capacity; (0, 0) of a window."""
        if cost > self.capacity:
            return -1, 0
        if not self._tokens:
            return 0, 0
        return divmod(cost * self._period_us, self._tokens)

    def state(self, shown: Sequence[int]) -> State | None:
        """The state a script's answer to a charge shows, as the algorithm has it; ``shown[0]`` is not part of it.

        Of a sliding log it holds the total and the one time that describes the answer, not the whole log.
        """
        if len(shown) == _NO_STATE:
            return None
        code = self.code
        if code == _TOKEN:
            return shown[1] * self._tokens + shown[2]
        if code == _LEAKY:
            return shown[1] * self._tokens + shown[2], shown[3]
        if code == _LOG and len(shown) > 2:
            return shown[1], shown[2], shown[1]
        return tuple(shown[1:])
