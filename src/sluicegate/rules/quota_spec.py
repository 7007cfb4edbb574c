"""From the numbers of one limit to the spec of its algorithm, with every option checked against the algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import CAPACITY_MAX, DRAIN_US_MAX, SUB_WINDOWS_MAX, WINDOW_US_MAX
from sluicegate.clock import US_PER_MS
from sluicegate.rules.notation import DAY_US, NotationError, shown, suggest

__all__ = [
    "ALGORITHMS",
    "BUCKETS",
    "CALENDAR_US",
    "EXAMPLE",
    "MAX_DELAY_MS_DEFAULT",
    "Amount",
    "Options",
    "QuotaError",
    "checked_options",
    "spec_of",
]

BUCKETS: Final = ("token_bucket", "leaky_bucket")
ALGORITHMS: Final = (*BUCKETS, "fixed_window", "sliding_window", "sliding_log")

MAX_DELAY_MS_DEFAULT: Final = 1_000
_STRICT_DEFAULT: Final = 6
_YEAR_US: Final = 365 * DAY_US
CALENDAR_US: Final = {"day": DAY_US, "week": 7 * DAY_US, "month": 30 * DAY_US, "year": 365 * DAY_US}
EXAMPLE: Final = "write COUNT/PERIOD, such as 100/minute"


class QuotaError(NotationError):
    """A quota cannot be read or its numbers are out of range.

    ``part`` is the offending part of the text; ``field`` names the key where the quota was a mapping, else None.
    """

    def __init__(self, message: str, *, part: str, suggestion: str | None = None, field: str | None = None) -> None:
        super().__init__(message if field is None else f"{field}: {message}", part=part, suggestion=suggestion)
        self.message = message
        self.field = field


@dataclass(frozen=True, slots=True)
class Amount:
    """``count`` tokens per ``period_us``, at most ``burst`` at once (None: as many as ``count``)."""

    count: int
    period_us: int
    burst: int | None
    text: str
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """What a rule says beside its numbers; checked against the algorithm once, so nothing is silently ignored."""

    algorithm: str
    sub_windows: int | None
    max_delay_us: int
    nodelay: bool
    align: str
    tz: str


def checked_options(
    algorithm: str, strict: bool | int | None, max_delay_ms: int, nodelay: bool, align: str, tz: str
) -> Options:
    if algorithm not in ALGORITHMS:
        hint = suggest(str(algorithm), ALGORITHMS)
        raise QuotaError(
            f"unknown algorithm {shown(algorithm)}", part=str(algorithm), suggestion=hint, field="algorithm"
        )
    owners = (
        ("strict", strict is not None and strict is not False, "sliding_window"),
        ("max_delay_ms", max_delay_ms != MAX_DELAY_MS_DEFAULT, "leaky_bucket"),
        ("nodelay", nodelay, "leaky_bucket"),
        ("align", align != "epoch", "fixed_window"),
        ("tz", tz != "UTC", "fixed_window"),
    )
    for name, given, owner in owners:
        if given and algorithm != owner:
            raise QuotaError(f"belongs to {owner} and does nothing for {algorithm}", part=name, field=name)
    if align not in ("epoch", "calendar"):
        hint = suggest(str(align), ("epoch", "calendar"))
        raise QuotaError(f"unknown alignment {shown(align)}", part=str(align), suggestion=hint, field="align")
    if tz != "UTC" and align != "calendar":
        raise QuotaError("needs align: calendar; windows from the epoch have no time zone", part=tz, field="tz")
    if strict is not None and not isinstance(strict, bool) and not 1 <= strict <= SUB_WINDOWS_MAX:
        message = f"{shown(strict)} is out of range: 1 to {SUB_WINDOWS_MAX} sub-windows"
        raise QuotaError(message, part=shown(strict), field="strict")
    sub_windows = _STRICT_DEFAULT if strict is True else None if strict is False else strict
    return Options(algorithm, sub_windows, max_delay_ms * US_PER_MS, nodelay, align, tz)


def spec_of(amount: Amount, options: Options) -> Spec:
    """The spec of one limit; a count of 0 is a ban under every algorithm."""
    bucket = options.algorithm in BUCKETS
    if amount.burst is not None and not bucket:
        message = f"burst belongs to buckets; a {options.algorithm} admits its limit at once anyway"
        raise QuotaError(message, part=f"burst {amount.burst}")
    if amount.count == 0:
        if amount.burst is not None:
            raise QuotaError("a rate of 0 with a burst never refills; a ban is written 0", part=amount.text)
        return Ban()
    _check_ranges(amount, bucket=bucket)
    try:
        if bucket:
            return _bucket(amount, options)
        return _window(amount, options)
    except QuotaError:
        raise
    except ValueError as error:
        raise QuotaError(f"{shown(amount.text)}: {error}", part=amount.text) from None


def _check_ranges(amount: Amount, *, bucket: bool) -> None:
    """What the specs would refuse too, in the words of the person who wrote the quota."""
    capacity = amount.count if amount.burst is None else amount.burst
    if max(capacity, amount.count) > CAPACITY_MAX:
        raise QuotaError(f"{shown(amount.text)} has more than {CAPACITY_MAX} tokens", part=amount.text)
    if bucket and capacity * amount.period_us > DRAIN_US_MAX * amount.count:
        years = capacity * amount.period_us // (amount.count * _YEAR_US)
        message = f"{shown(amount.text)} takes {years} years to fill; at most {DRAIN_US_MAX // _YEAR_US} are allowed"
        raise QuotaError(message, part=amount.text)
    if not bucket and amount.period_us > WINDOW_US_MAX:
        message = f"{shown(amount.text)} has a window above {WINDOW_US_MAX // _YEAR_US} years"
        raise QuotaError(message, part=amount.text)


def _bucket(amount: Amount, options: Options) -> Spec:
    capacity = amount.count if amount.burst is None else amount.burst
    if options.algorithm == "token_bucket":
        return TokenBucket(capacity, amount.count, amount.period_us)
    return LeakyBucket(
        capacity, amount.count, amount.period_us, max_delay_us=options.max_delay_us, nodelay=options.nodelay
    )


def _window(amount: Amount, options: Options) -> Spec:
    if options.algorithm == "sliding_log":
        return SlidingLog(amount.count, amount.period_us)
    if options.algorithm == "sliding_window":
        return SlidingWindow(amount.count, amount.period_us, sub_windows=options.sub_windows)
    if options.align == "epoch":
        return FixedWindow(amount.count, amount.period_us)
    if amount.unit is None:
        message = f"{shown(amount.text)} has no calendar window: align: calendar takes one day, week, month or year"
        raise QuotaError(message, part=amount.text)
    return FixedWindow(amount.count, amount.period_us, align="calendar", tz=options.tz, unit=amount.unit)
