"""What the scripts are told of a charge: the numbers of its counter's spec in the form that Lua computes with.

The scripts only add and compare a bucket's times, so its drain and costs are divided here, by Python's big integers, into whole
microseconds and a remainder in units of 1/``tokens``.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, OnChange, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.bounds import REDIS_COSTS_MEMO_MAX, REDIS_ROW_MAX
from sluicegate.clock import US_PER_MS
from sluicegate.errors import ConfigurationError
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import redis_frame
from sluicegate.stores.redis.layout import PLAIN_LAYOUT, Layout, placing
from sluicegate.stores.redis.records import BAN, ESTIMATE, FIXED, LEAKY, LOG, STRICT, TOKEN, Record

__all__ = ["CounterForm", "row", "row_of_bytes"]

_CHANGE = {OnChange.KEEP: 0, OnChange.SCALE: 1, OnChange.RESET: 2}
_STARTS = 5  # what scripts/place.lua is told of a calendar
_STANDING = 3
_ARRAY_15 = 15  # values of an array that has its length in its first byte
_SHORT_LOG = (
    160  # the limit up to which a log is read and written whole, 2 KB: less work than its ends in several commands
)
_encode = msgspec.msgpack.Encoder().encode


def row_of_bytes(values: Sequence[int | bytes]) -> bytes:
    """``row`` with strings of bytes, in the form of texts: Redis' reader knows no other."""
    return b"".join([_encode(value) if isinstance(value, int) else _text_head(len(value)) + value for value in values])


def _text_head(size: int) -> bytes:
    if size < 32:
        return bytes([0xA0 | size])
    return bytes([0xD9, size]) if size < 256 else bytes([0xDA, *size.to_bytes(2, "big")])


def row(values: Sequence[int | str]) -> bytes:
    """Values one after the other in MessagePack, without the array around them: Lua makes a table of the right size of those.

    More than ``REDIS_ROW_MAX`` values keep their array.
    """
    count = len(values)
    if count > REDIS_ROW_MAX:
        return _encode(values)
    return _encode(values)[1 if count <= _ARRAY_15 else 3 :]


class CounterForm:
    """A counter as the scripts see it. Made once per counter and kept.

    ``head`` and ``tail`` stand around the subject in its key. ``record`` reads what a script shows of it. ``calendar``: its windows
    are those of a calendar. ``long``: a log whose text may be long. ``hold_ms``: added to times to live. ``packed``: in the packed layout it is kept in
    hashes, and its key is made of ``frame`` and the places of a subject.
    """

    __slots__ = (
        "_capacity", "_charges", "_flags", "_own", "_period_us", "_placing", "_starts_us", "_tokens", "_ttl_ms",
        "calendar", "code", "counter", "frame", "head", "long", "old", "packed", "record", "tail",
    )  # fmt: skip

    def __init__(
        self, counter: Counter, hold_ms: int = 0, layout: Layout = PLAIN_LAYOUT, moving_from: Layout | None = None
    ) -> None:
        spec = counter.spec
        self.counter = counter
        self.head, self.tail = redis_frame(counter.prefix)
        self.calendar: FixedWindow | None = spec if isinstance(spec, FixedWindow) and spec.unit is not None else None
        self._starts_us: list[int] = []
        self._tokens = self._period_us = 0
        self._capacity = spec.capacity
        self.code, ttl_us, self._own = self._describe()
        self.long = self.code == LOG and spec.capacity > _SHORT_LOG
        self._ttl_ms = str(-(-ttl_us // US_PER_MS) + hold_ms)
        self._flags = (
            int(counter.shadow),
            int(counter.denied_counts and not counter.shadow),
            _STANDING if counter.standing else _CHANGE[counter.on_change],
        )
        self.record = Record.of(self.code, self._tokens, spec.sub_windows if isinstance(spec, SlidingWindow) else None)
        self._charges: dict[int, bytes] = {}
        self._placing = b""
        self.packed = False
        """Whether its place in this layout is a field; ``old``: in the layout before."""
        self.old = False
        if layout.packed or moving_from is not None:
            hashed, numbers = placing(counter, layout, moving_from)
            self._placing = row_of_bytes(numbers)
            self.packed = hashed and layout.packed
            self.old = hashed and moving_from is not None and moving_from.packed
        # A name that is no text is found out when its key is sent, where it fails alone.
        self.frame = self.head.encode("utf-8", "surrogatepass"), f"{self.tail}:".encode("utf-8", "surrogatepass")

    def _describe(self) -> tuple[int, int, list[int | str]]:
        """(algorithm, usual time to live, numbers of the algorithm)."""
        spec = self.counter.spec
        if isinstance(spec, TokenBucket | LeakyBucket):
            self._tokens, self._period_us = spec.tokens, spec.period_us
            drain = spec.capacity * spec.period_us
            drain_us, drain_rem = divmod(drain, spec.tokens)
            own: list[int | str] = [spec.tokens, spec.period_us, drain_us, drain_rem]
            return (TOKEN if isinstance(spec, TokenBucket) else LEAKY), 2 * (drain_us + 1), own
        if isinstance(spec, FixedWindow):
            origin_us = -1 if spec.unit is not None else spec.bounds_us(0)[0] % spec.window_us
            return FIXED, 2 * spec.window_us, [spec.window_us, origin_us]
        if isinstance(spec, SlidingWindow):
            if spec.sub_windows is None:
                return ESTIMATE, 2 * spec.window_us, [spec.window_us]
            length_us, kept = -(-spec.window_us // spec.sub_windows), spec.sub_windows
            return STRICT, 2 * length_us * kept, [length_us, kept, "<I5I7I8" + "I5" * (kept + 1)]
        if isinstance(spec, SlidingLog):
            return LOG, 2 * spec.window_us, [spec.window_us]
        if isinstance(spec, Ban):
            return BAN, 0, []
        raise ConfigurationError(
            f"algorithm: the Redis store does not know {spec.algorithm!r} (rule {self.counter.name!r})"
        )

    def charge(self, cost: int, guess_us: int) -> bytes:
        """The form of a charge; ``scripts/frame.lua`` says what its items are.

        Of a calendar window it holds the starts of the windows around ``guess_us``.
        """
        charge = self._charges.get(cost)
        if charge is None:
            if len(self._charges) >= REDIS_COSTS_MEMO_MAX:
                self._charges.clear()
            charge = self._charges[cost] = row(self._numbers(cost))
        if self.calendar is not None:
            charge += row(self._starts_around(guess_us))
        return charge + self._placing if self._placing else charge

    def _numbers(self, cost: int) -> list[int | str]:
        capacity, spec = self._capacity, self.counter.spec
        usual = int(self.code != BAN and not (self.long or self.counter.standing) and 1 <= cost <= capacity)
        shadow, denied, change = self._flags
        denied = int(denied and cost <= capacity)
        numbers: list[int | str] = [self.code, usual, shadow, denied, change, capacity, cost, self._ttl_ms, *self._own]
        if isinstance(spec, TokenBucket | LeakyBucket):
            numbers += divmod(cost * spec.period_us, spec.tokens) if cost <= capacity else (-1, 0)
        if isinstance(spec, LeakyBucket):
            drain = capacity * spec.period_us
            patience = drain if spec.nodelay else min(spec.max_delay_us * spec.tokens, drain)
            numbers += [*divmod(patience, spec.tokens), spec.max_delay_us, int(spec.nodelay)]
        if self._placing:
            # Where the numbers of its place begin, as Lua counts; negative where it is not the usual case.
            place = len(numbers) + 1 + (0 if self.calendar is None else _STARTS)
            numbers[1] = place if usual else -place
        return numbers

    def _starts_around(self, now_us: int) -> list[int]:
        """The starts of five calendar windows in a row, the second of which holds ``now_us``."""
        spec, starts_us = self.calendar, self._starts_us
        assert spec is not None
        if not starts_us or not starts_us[1] <= now_us < starts_us[2]:
            start_us, end_us = spec.bounds_us(now_us)
            starts_us = [spec.bounds_us(start_us - 1)[0], start_us, end_us]
            for _ in range(2):
                starts_us.append(spec.bounds_us(starts_us[-1])[1])
            self._starts_us = starts_us
        return starts_us
