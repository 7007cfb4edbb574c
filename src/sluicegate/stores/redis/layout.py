"""How counters are laid out in a Redis: each under a key of its own, or those of many clients in one hash.

In the packed layout a hash holds one rule's counters of about a hundred clients, for one epoch. Redis keeps so small a hash as one piece of
memory (a listpack), so a client costs his digest, his state and four bytes. ``scripts/places.lua`` says where a counter is and what a
value looks like; here is what the scripts are told of it.

A client's bucket and the field are parts of one keyed digest: 8 bytes name him among the hundred of his bucket, and others choose the bucket. Two of n
clients of a rule share a counter with a probability of about n * 50 / 2**64: 3 in 10**11 for 10 million. They
would be limited as one, so less is admitted, never more; without the key secret nobody can look for such a pair.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sluicegate.algorithms import FixedWindow, LeakyBucket, Precision, SlidingWindow, TokenBucket
from sluicegate.bounds import (
    CLOCK_BEHIND_US_MAX,
    REDIS_EXPECTED_CLIENTS_MAX,
    REDIS_HASH_CLIENTS,
    REDIS_HASH_VALUE_BYTES_MAX,
)
from sluicegate.clock import US_PER_S
from sluicegate.errors import ConfigurationError
from sluicegate.stores.base import Counter

__all__ = ["EPOCHS_S", "PLAIN_LAYOUT", "Layout", "epoch_s", "layout_of", "placing"]

EPOCHS_S: Final = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
"""The lengths an epoch may have: 17 minutes to 116 days."""

_TIME_BYTES: Final = dict(zip(EPOCHS_S, (4, 5, 5, 6, 6), strict=True))
"""What holds four epochs in microseconds."""

assert all(4 * seconds * US_PER_S < 256**size for seconds, size in _TIME_BYTES.items())

_LONGER_CALENDAR: Final = (
    6,
    5,
)  # a calendar window against its nominal length: 31 days against 30, 25 hours against 24
_HEAD_BYTES: Final = {TokenBucket: (5, 5, 7), LeakyBucket: (5, 5, 7, 6, 1), FixedWindow: (5,), SlidingWindow: (5,)}
"""The numbers of a quota in a plain text."""


class Layout(NamedTuple):
    """``buckets``: how many hashes a rule has in an epoch; 0 for a key of its own for each counter."""

    buckets: int

    @property
    def packed(self) -> bool:
        return self.buckets > 0

    @property
    def tag(self) -> str:
        """What stands before a bucket's number: format and number of buckets, so that counters of another size are other counters."""
        return f"p1/{self.buckets}/"


PLAIN_LAYOUT: Final = Layout(0)


def layout_of(name: str, value: str, expected_clients: str | None) -> Layout:
    """The layout that a URL's parameter ``name`` (``layout`` or ``moving_from``) says. Raises ConfigurationError."""
    clients = "expected_clients" if name == "layout" else f"{name}_clients"
    if value not in ("plain", "packed"):
        raise ConfigurationError(f"store: {name}: want plain or packed, got {value[:20]!r}")
    if value == "plain":
        if expected_clients is not None:
            raise ConfigurationError(f"store: {clients} is for {name}=packed only")
        return PLAIN_LAYOUT
    text = expected_clients or ""
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:20]) <= REDIS_EXPECTED_CLIENTS_MAX):
        got = "which is missing" if expected_clients is None else f"got {text[:20]!r}"
        raise ConfigurationError(
            f"store: {name}=packed needs {clients}, a whole number from 1 to {REDIS_EXPECTED_CLIENTS_MAX}, {got}"
        )
    return Layout(-(-int(text) // REDIS_HASH_CLIENTS))


def placing(counter: Counter, layout: Layout, before: Layout | None) -> tuple[bool, list[int | bytes]]:
    """(whether its algorithm can be in a hash, d[p] to d[p + 9] of ``scripts/places.lua``). ``before``: the layout before ``layout``."""
    spec = counter.spec
    seconds = epoch_s(counter)
    old = 0 if before is None else 2 if before.packed else 1
    if not isinstance(spec, TokenBucket | LeakyBucket | FixedWindow | SlidingWindow):
        return False, [0, 0, b"", b"", b"", 0, 1, min(old, 1), 0, 0]
    numbers = _numbers(spec)
    full = _HEAD_BYTES[type(spec)]
    sizes = [max(1, -(-number.bit_length() // 8)) for number in numbers]
    digits = 0
    for size in sizes:
        digits = 8 * digits + size
    head = digits.to_bytes(2, "little") + _joined(numbers, sizes)
    time = _TIME_BYTES.get(seconds, 0)
    rest = _rest_sizes(spec, time, sizes)
    size = len(head) + sum(rest)
    fits = seconds and size <= REDIS_HASH_VALUE_BYTES_MAX
    form = b"<c%d" % len(head) + b"".join([b"I%d" % each for each in rest]) if fits else b""
    # Leases stand beside or behind a counter; a long value would make the whole hash a large one.
    apart = not layout.packed or not form or counter.precision is Precision.LEASED or counter.standing
    return True, [seconds, 256**time - 1, head, _joined(numbers, full), form, size, int(apart), old, 0, 0]


def epoch_s(counter: Counter) -> int:
    """The shortest epoch in which no state is older than one before it while it matters; 0 where none is long enough."""
    spec = counter.spec
    if isinstance(spec, TokenBucket | LeakyBucket):
        needed_us = spec.capacity * spec.period_us // spec.tokens + 1
    elif isinstance(spec, SlidingWindow):
        needed_us = 2 * spec.window_us
        if spec.sub_windows is not None:
            needed_us = -(-spec.window_us // spec.sub_windows) * (spec.sub_windows + 1)
    elif isinstance(spec, FixedWindow) and spec.unit is not None:
        more, less = _LONGER_CALENDAR
        needed_us = spec.window_us * more // less
    else:
        needed_us = spec.window_us
    # A clock that went back a little makes states last that much longer.
    needed_us += CLOCK_BEHIND_US_MAX
    return next((seconds for seconds in EPOCHS_S if needed_us <= seconds * US_PER_S), 0)


def _numbers(spec: TokenBucket | LeakyBucket | FixedWindow | SlidingWindow) -> list[int]:
    if isinstance(spec, TokenBucket):
        return [spec.capacity, spec.tokens, spec.period_us]
    if isinstance(spec, LeakyBucket):
        return [spec.capacity, spec.tokens, spec.period_us, spec.max_delay_us, int(spec.nodelay)]
    return [spec.capacity]


def _rest_sizes(
    spec: TokenBucket | LeakyBucket | FixedWindow | SlidingWindow, time: int, sizes: list[int]
) -> list[int]:
    """Bytes of birth, time, counts or remainder, and of a leaky bucket the time of its last charge."""
    if isinstance(spec, TokenBucket):
        return [time, time, sizes[1]]
    if isinstance(spec, LeakyBucket):
        return [time, time, sizes[1], time + 1]
    if isinstance(spec, FixedWindow):
        return [time, time, sizes[0]]
    return [time, time, *([sizes[0]] * (2 if spec.sub_windows is None else spec.sub_windows + 1))]


def _joined(numbers: list[int], sizes: list[int] | tuple[int, ...]) -> bytes:
    return b"".join([number.to_bytes(size, "little") for number, size in zip(numbers, sizes, strict=True)])
