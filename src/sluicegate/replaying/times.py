"""Times as logs write them, as microseconds since the epoch.

All functions raise ValueError for what is no time, and for a time outside the range the algorithms are exact in (1970
to 2112).
"""

from __future__ import annotations

import math
import re
from datetime import date
from typing import Final

from sluicegate.bounds import NOW_US_MAX, REPLAY_TIMES_MEMO_MAX
from sluicegate.clock import US_PER_S

__all__ = ["ClfTimes", "clf_us", "time_us"]

_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CLF = re.compile(
    r"(?P<day>\d{1,2})/(?P<month>[A-Za-z]{3})/(?P<year>\d{4}):(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:[.,](?P<fraction>\d{1,9}))?(?: (?P<zone>[+-]\d{4}))?",
    re.ASCII,
)
_ISO = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)[Tt ](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:[.,](?P<fraction>\d{1,9}))? ?(?P<zone>[Zz]|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,9})?", re.ASCII)

# The length of the usual form, 17/May/2015:10:05:03 +0000, and where its seconds stand.
_USUAL_CHARS: Final = 26
_COLON: Final = 17
_SECONDS: Final = slice(18, 20)
_ZONE: Final = slice(20, None)
_OF_A_MINUTE: Final = {f"{second:02}": second * US_PER_S for second in range(60)}

# An epoch time below the first number is in seconds, below the next in milliseconds, then microseconds, then nanoseconds:
# each is the year 5138 in its unit and a few months of 1973 or less in the next larger one.
_SECONDS_BELOW: Final = 1e11
_MS_BELOW: Final = 1e14
_US_BELOW: Final = 1e17


class ClfTimes(dict[str, int]):
    """``times["17/May/2015:10:05:03 +0000"]``, remembered: lines of one second share the text.

    A fraction of a second is taken; without a zone the time is UTC. Second 60 (a leap second) is the one after.
    """

    __slots__ = ("_minutes",)

    def __init__(self) -> None:
        self._minutes: dict[str, int] = {}

    def __missing__(self, text: str) -> int:
        seconds = text[_SECONDS]
        if len(text) != _USUAL_CHARS or text[_COLON] != ":" or seconds not in _OF_A_MINUTE:
            return clf_us(text)
        minute = text[:_COLON] + text[_ZONE]
        start_us = self._minutes.get(minute)
        if start_us is None:
            start_us = clf_us(text) - _OF_A_MINUTE[seconds]
            if len(self._minutes) >= REPLAY_TIMES_MEMO_MAX:
                self._minutes.clear()
            self._minutes[minute] = start_us
        us = start_us + _OF_A_MINUTE[seconds]
        if len(self) >= REPLAY_TIMES_MEMO_MAX:
            self.clear()
        self[text] = us
        return us


def clf_us(text: str) -> int:
    """``17/May/2015:10:05:03 +0000``."""
    found = _CLF.fullmatch(text)
    month = None if found is None else _MONTHS.get(found["month"].capitalize())
    if found is None or month is None:
        raise ValueError(f"no time: {_shown(text)}")
    return _us(found, month)


def time_us(value: object) -> int:
    """A time in a JSON log: seconds, milliseconds, microseconds or nanoseconds since the epoch by their size, a number or text; RFC 3339 (UTC where there is no zone); or as in a common log."""
    if isinstance(value, str):
        found = _ISO.fullmatch(value)
        if found is not None:
            return _us(found, int(found["month"]))
        if not _NUMBER.fullmatch(value):
            return clf_us(value)
        whole, _, fraction = value.partition(".")
        return _epoch_us(int(whole), int(fraction.ljust(9, "0")))
    if isinstance(value, int) and not isinstance(value, bool):
        # JSON has integers of any length, and beyond 10^308 one has no float.
        return _epoch_us(value, 0)
    if not isinstance(value, float) or not math.isfinite(value):
        raise ValueError(f"no time: {_shown(value)}")
    whole_number = math.floor(value)
    return _epoch_us(whole_number, round((value - whole_number) * 1e9))


def _epoch_us(whole: int, billionths: int) -> int:
    """``whole`` and a fraction, in the unit that its size tells."""
    for below, unit_us in ((_SECONDS_BELOW, US_PER_S), (_MS_BELOW, 1_000), (_US_BELOW, 1)):
        if whole < below:
            return _in_range(whole * unit_us + (billionths * unit_us + 500_000_000) // 1_000_000_000)
    return _in_range(whole // 1_000)


def _us(found: re.Match[str], month: int) -> int:
    year, day, hour, minute, second = (int(found[name]) for name in ("year", "day", "hour", "minute", "second"))
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError as error:
        raise ValueError(f"no time: {_shown(found[0])}: {error}") from None
    if hour > 23 or minute > 59 or second > 60:
        raise ValueError(f"no time: {_shown(found[0])}")
    seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - _zone_s(found["zone"])
    return _in_range(seconds * US_PER_S + int((found["fraction"] or "0").ljust(6, "0")[:6]))


def _zone_s(text: str | None) -> int:
    """Seconds that a zone is ahead of UTC."""
    if text is None or text in {"Z", "z"}:
        return 0
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return -minutes * 60 if text[0] == "-" else minutes * 60


def _in_range(us: int) -> int:
    if not 0 <= us <= NOW_US_MAX:
        raise ValueError("the time is outside the years 1970 to 2112")
    return us


def _shown(value: object) -> str:
    return ascii(value)[:64]
