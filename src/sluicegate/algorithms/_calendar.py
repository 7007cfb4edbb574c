"""Calendar windows: the day, week, month or year of a time zone as a span of microseconds.

A day of a zone runs from the first moment of its date to the first moment of the next, so it has 23, 24 or 25 hours
where clocks are changed, and none at all where a zone skipped a date.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from sluicegate.bounds import CALENDAR_MEMO_MAX

__all__ = ["UNITS_US", "checked", "end_us", "start_us"]

_HOUR_US: Final = 3_600 * 1_000_000
_DAY_US: Final = 24 * _HOUR_US
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)

UNITS_US: Final = {"day": _DAY_US, "week": 7 * _DAY_US, "month": 30 * _DAY_US, "year": 365 * _DAY_US}
"""The units and their nominal lengths."""

# No window of the unit has been shorter in any zone since 1970. A day lost seven hours where a polar station changed its
# zone, and a zone that moves across the date line leaves out a date.
_SHORTEST_US: Final = {"day": 17 * _HOUR_US, "week": 6 * _DAY_US, "month": 27 * _DAY_US, "year": 364 * _DAY_US}
_SHORTEST_UTC_US: Final = {"day": _DAY_US, "week": 7 * _DAY_US, "month": 28 * _DAY_US, "year": 365 * _DAY_US}


def checked(unit: str | None, tz: str, window_us: int) -> int:
    """A length no window of ``unit`` is shorter than; ValueError names what is unknown or does not agree."""
    if unit not in UNITS_US:
        raise ValueError(f"unit: calendar windows are {', '.join(UNITS_US)}, got {unit!r}")
    if window_us != UNITS_US[unit]:
        raise ValueError(f"window_us: a calendar {unit} is written {UNITS_US[unit]}, got {window_us}")
    try:
        _zone(tz)
    except (KeyError, ValueError, OSError, TypeError):  # not a name, a path outside the database, not in it
        hint = "" if available_timezones() else "; this machine has no time zone database (package tzdata)"
        raise ValueError(f"tz: unknown time zone {tz!r}{hint}") from None
    return (_SHORTEST_UTC_US if tz == "UTC" else _SHORTEST_US)[unit]


def start_us(now_us: int, unit: str, tz: str) -> int:
    """The first moment of the window that holds ``now_us``."""
    today = (_EPOCH + timedelta(microseconds=now_us)).astimezone(_zone(tz)).date()
    first_us = _first_moment_us(_first_date(today, unit), tz)
    # Clocks set back just after midnight repeat the end of a date whose successor has begun; that hour is the successor's.
    while (next_us := end_us(first_us, unit, tz)) <= now_us:
        first_us = next_us
    return first_us


@lru_cache(CALENDAR_MEMO_MAX)
def end_us(start_us: int, unit: str, tz: str) -> int:
    """The first moment after the window that starts at ``start_us``."""
    first = (_EPOCH + timedelta(microseconds=start_us)).astimezone(_zone(tz)).date()
    if unit == "day":
        return _first_moment_us(first + timedelta(days=1), tz)
    if unit == "week":
        return _first_moment_us(_first_date(first, unit) + timedelta(days=7), tz)
    if unit == "month":
        return _first_moment_us(date(first.year + first.month // 12, first.month % 12 + 1, 1), tz)
    return _first_moment_us(date(first.year + 1, 1, 1), tz)


def _zone(tz: str) -> tzinfo:
    # UTC needs no time zone database, which a small container may lack.
    return UTC if tz == "UTC" else ZoneInfo(tz)


def _first_date(day: date, unit: str) -> date:
    if unit == "day":
        return day
    if unit == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if unit == "month" else day.replace(month=1, day=1)


def _first_moment_us(day: date, tz: str) -> int:
    # Where clocks skip midnight, this is the moment they skip it: a time in a gap is read with the offset before it.
    # Where midnight happens twice, it is the first of them.
    return (datetime(day.year, day.month, day.day, tzinfo=_zone(tz)) - _EPOCH) // _US
