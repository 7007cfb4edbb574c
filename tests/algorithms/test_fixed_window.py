"""Fixed window: the edge, the epoch and the calendar."""

import zoneinfo
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from sluicegate.algorithms import (
    FixedWindow,
    LeakyBucket,
    SlidingLog,
    SlidingWindow,
    Spec,
    State,
    TokenBucket,
    _calendar,
)
from sluicegate.testing.steps import ALLOWED, DENIED, NEVER_FITS, Step, run_steps

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
WEEK_US = 7 * DAY_US
# A full minute: 2023-11-14 22:13:00 UTC.
START_US = 1_699_999_980_000_000


def at(text: str, tz: str = "UTC") -> int:
    """Microseconds of a local time."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()) * SECOND_US


def test_counts_per_window() -> None:
    """The limit passes in each window; a refusal waits for the window's end, whatever its cost."""
    run_steps(
        FixedWindow(5, MINUTE_US),
        [
            Step(0, 0, ALLOWED, remaining=5, reset_after_us=MINUTE_US),
            Step(10 * SECOND_US, 4, ALLOWED, remaining=1, reset_after_us=50 * SECOND_US),
            Step(20 * SECOND_US, 2, DENIED, remaining=1, retry_after_us=40 * SECOND_US),
            Step(30 * SECOND_US, 1, ALLOWED, remaining=0),
            Step(59_999_999, 1, DENIED, remaining=0, retry_after_us=1, reset_after_us=1),
            Step(MINUTE_US, 5, ALLOWED, remaining=0, reset_after_us=MINUTE_US),
        ],
        start_us=START_US,
    )


def test_denied_cost_is_not_debited() -> None:
    """5/min: a cost of 10 never fits, one of 5 after a hit is refused, and neither takes what is left (P01, T08)."""
    run_steps(
        FixedWindow(5, MINUTE_US),
        [
            Step(0, 10, NEVER_FITS, remaining=5),
            Step(0, 1, ALLOWED, remaining=4),
            Step(0, 5, DENIED, remaining=4),
            Step(0, 4, ALLOWED, remaining=0),
        ],
        start_us=START_US,
    )


@pytest.mark.parametrize(
    ("spec", "passed"),
    [
        (FixedWindow(5, MINUTE_US), 10),
        (TokenBucket(5, 5, MINUTE_US), 5),
        (LeakyBucket(5, 5, MINUTE_US, nodelay=True), 5),
        (SlidingWindow(5, MINUTE_US), 5),
        (SlidingWindow(5, MINUTE_US, 6), 5),
        (SlidingLog(5, MINUTE_US), 5),
    ],
)
def test_burst_over_the_edge(spec: Spec, passed: int) -> None:
    """Five hits a second before a minute's end and five after: only the fixed window admits all ten (T64, P16)."""
    state: State | None = None
    count = 0
    for time_us in [START_US - SECOND_US] * 5 + [START_US + SECOND_US] * 5:
        after = spec.admit(state, time_us, 1)
        if after is not None:
            state, count = after, count + 1
    assert count == passed
    assert count <= spec.most_admitted(2 * SECOND_US + 1)


@pytest.mark.parametrize("day", ["2026-05-06", "2026-05-10", "2026-05-04"])
def test_weeks_begin_on_monday(day: str) -> None:
    """On a Wednesday, a Sunday and a Monday the week ends with Sunday 24:00 UTC (T55)."""
    week = FixedWindow(1, WEEK_US)
    assert week.bounds_us(at(f"{day}T12:00")) == (at("2026-05-04T00:00"), at("2026-05-11T00:00"))
    assert week.bounds_us(at("2026-05-10T23:59:59")) == week.bounds_us(at("2026-05-04T00:00"))
    fortnight = FixedWindow(1, 2 * WEEK_US).bounds_us(at(f"{day}T12:00"))
    assert [datetime.fromtimestamp(edge // SECOND_US, UTC).weekday() for edge in fortnight] == [0, 0]


def test_month_and_year_are_fixed_lengths_unless_asked() -> None:
    """A month is 30 days and a year 365 from the epoch; the calendar's are opt-in and end where it says (T56, P98)."""
    month, year = FixedWindow(1, 30 * DAY_US), FixedWindow(1, 365 * DAY_US)
    for spec in (month, year):
        start_us, end_us = spec.bounds_us(at("2026-02-14T00:00"))
        assert (start_us % spec.window_us, end_us - start_us) == (0, spec.window_us)
    calendar = FixedWindow(1, 30 * DAY_US, align="calendar", unit="month")
    assert calendar.bounds_us(at("2026-02-14T00:00")) == (at("2026-02-01T00:00"), at("2026-03-01T00:00"))
    assert calendar.bounds_us(at("2026-12-31T23:59:59")) == (at("2026-12-01T00:00"), at("2027-01-01T00:00"))
    calendar = FixedWindow(1, 365 * DAY_US, align="calendar", unit="year")
    assert calendar.bounds_us(at("2028-02-29T12:00")) == (at("2028-01-01T00:00"), at("2029-01-01T00:00"))


def test_calendar_month_resets_and_expires_at_its_end() -> None:
    """Retry, reset and expiry of a calendar month agree, on its last day and on its first (T56)."""
    spec = FixedWindow(1, 30 * DAY_US, align="calendar", unit="month")
    start_us, hour_us = at("2026-02-28T23:00"), HOUR_US
    state = run_steps(
        spec,
        [
            Step(0, 1, ALLOWED, remaining=0, reset_after_us=hour_us),
            Step(hour_us - 1, 1, DENIED, retry_after_us=1),
        ],
        start_us=start_us,
    )
    assert state is not None
    assert spec.expires_us(state) == start_us + hour_us
    run_steps(spec, [Step(hour_us, 1, ALLOWED, reset_after_us=31 * DAY_US)], start_us=start_us, state=state)


@pytest.mark.parametrize(
    ("tz", "unit", "now", "first", "last"),
    [
        ("Europe/Berlin", "day", "2026-03-29T12:00", "2026-03-29T00:00", "2026-03-30T00:00"),
        ("Europe/Berlin", "day", "2026-10-25T12:00", "2026-10-25T00:00", "2026-10-26T00:00"),
        ("Europe/Berlin", "week", "2026-10-21T12:00", "2026-10-19T00:00", "2026-10-26T00:00"),
        ("America/New_York", "month", "2026-03-31T23:00", "2026-03-01T00:00", "2026-04-01T00:00"),
        ("Asia/Kolkata", "year", "2026-01-01T00:00", "2026-01-01T00:00", "2027-01-01T00:00"),
        # Clocks skip midnight here: the day begins at 01:00.
        ("America/Santiago", "day", "2025-09-07T12:00", "2025-09-07T01:00", "2025-09-08T00:00"),
        # This zone left out 30 December: the 29th ends where the 31st begins.
        ("Pacific/Apia", "day", "2011-12-29T12:00", "2011-12-29T00:00", "2011-12-31T00:00"),
    ],
)
def test_calendar_windows_of_a_zone(tz: str, unit: str, now: str, first: str, last: str) -> None:
    """Windows begin and end with the zone's own dates, through changes of its clocks."""
    nominal = {"day": DAY_US, "week": WEEK_US, "month": 30 * DAY_US, "year": 365 * DAY_US}[unit]
    spec = FixedWindow(1, nominal, align="calendar", tz=tz, unit=unit)
    assert spec.bounds_us(at(now, tz)) == (at(first, tz), at(last, tz))


def test_hour_repeated_after_midnight_belongs_to_the_new_day() -> None:
    """Clocks set back at 00:01 repeat the last hour of a day: its successor has begun, and windows never overlap."""
    spec = FixedWindow(2, DAY_US, align="calendar", tz="America/St_Johns", unit="day")
    midnight_us, end_us = at("2010-11-07T00:00", "America/St_Johns"), at("2010-11-08T00:00", "America/St_Johns")
    change_us = midnight_us + MINUTE_US
    assert end_us - midnight_us == 25 * HOUR_US
    for moment_us in (midnight_us, change_us - 1, change_us, change_us + 30 * MINUTE_US, change_us + 2 * HOUR_US):
        assert spec.bounds_us(moment_us) == (midnight_us, end_us)
    run_steps(
        spec,
        [Step(0, 1, ALLOWED), Step(MINUTE_US, 1, ALLOWED, remaining=0), Step(HOUR_US, 1, DENIED)],
        start_us=midnight_us,
    )


@pytest.mark.parametrize(
    "tz",
    [
        "UTC",
        "Europe/Berlin",
        "America/St_Johns",
        "Pacific/Apia",
        "Africa/Casablanca",
        "Australia/Lord_Howe",
        "Asia/Amman",
    ],
)
@pytest.mark.parametrize("unit", ["day", "week", "month", "year"])
def test_calendar_windows_follow_each_other(tz: str, unit: str) -> None:
    """From 1985 to 2030 each window ends where the next begins, and none is shorter than its bound assumes."""
    nominal = {"day": DAY_US, "week": WEEK_US, "month": 30 * DAY_US, "year": 365 * DAY_US}[unit]
    spec = FixedWindow(1, nominal, align="calendar", tz=tz, unit=unit)
    now_us = at("1985-01-01T00:00") if unit != "day" else at("2009-06-01T00:00")
    stop_us = at("2030-01-01T00:00") if unit != "day" else at("2012-06-01T00:00")
    while now_us < stop_us:
        start_us, end_us = spec.bounds_us(now_us)
        assert start_us <= now_us < end_us
        assert spec.bounds_us(end_us - 1) == (start_us, end_us)
        assert spec.bounds_us(end_us)[0] == end_us
        assert end_us - start_us >= spec._shortest_us
        now_us = end_us


def test_calendar_bound_counts_the_shortest_windows() -> None:
    """31 days of UTC touch at most three months (January to March); a zone that once lost hours counts with its loss."""
    month = FixedWindow(10, 30 * DAY_US, align="calendar", unit="month")
    assert [month.most_admitted(days * DAY_US) for days in (0, 28, 31)] == [0, 20, 30]
    day = FixedWindow(10, DAY_US, align="calendar", unit="day", tz="Antarctica/Vostok")
    start_us, end_us = day.bounds_us(at("1994-11-01T12:00", "Antarctica/Vostok"))
    assert end_us - start_us == day._shortest_us


def test_clock_a_little_behind_counts_on_in_the_same_window() -> None:
    """Seconds before its start the state's window goes on, so an edge crossed twice does not give two limits (T58)."""
    run_steps(
        FixedWindow(3, MINUTE_US),
        [
            Step(0, 2, ALLOWED, remaining=1),
            Step(-10 * SECOND_US, 1, ALLOWED, remaining=0, reset_after_us=70 * SECOND_US),
            Step(-10 * SECOND_US, 1, DENIED, retry_after_us=70 * SECOND_US),
            Step(0, 1, DENIED, retry_after_us=MINUTE_US),
        ],
        start_us=START_US,
    )


def test_clock_set_back_takes_the_count_along() -> None:
    """Set back an hour, the count stands in the window of now and is forgotten at its end (P33)."""
    run_steps(
        FixedWindow(3, MINUTE_US),
        [
            Step(0, 3, ALLOWED, remaining=0),
            Step(-HOUR_US + SECOND_US, 1, DENIED, remaining=0, retry_after_us=59 * SECOND_US),
            Step(-HOUR_US + MINUTE_US - 1, 1, DENIED, retry_after_us=1),
            Step(-HOUR_US + MINUTE_US, 1, ALLOWED, remaining=2),
        ],
        start_us=START_US,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"align": "hour"}, "align: must be"),
        ({"unit": "day"}, "unit: only align=.calendar. takes one, got 'day'"),
        ({"tz": "Europe/Berlin"}, "tz: only align=.calendar. takes one"),
        ({"align": "calendar"}, "unit: calendar windows are day, week, month, year, got None"),
        ({"align": "calendar", "unit": "hour"}, "unit: .* got 'hour'"),
        ({"align": "calendar", "unit": "week"}, "window_us: a calendar week is written 604800000000, got 86400000000"),
        ({"align": "calendar", "unit": "day", "tz": "Mars/Olympus"}, "tz: unknown time zone 'Mars/Olympus'"),
        ({"align": "calendar", "unit": "day", "tz": "../etc/passwd"}, "tz: unknown time zone"),
        ({"align": "calendar", "unit": "day", "tz": ""}, "tz: unknown time zone ''"),
    ],
)
def test_wrong_calendars_are_named(arguments: dict[str, str], message: str) -> None:
    """The error names the field and the value."""
    with pytest.raises(ValueError, match=message):
        FixedWindow(5, DAY_US, **arguments)  # type: ignore[arg-type]


def test_missing_database_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a time zone database the error says so, and UTC works all the same."""

    def absent(name: str) -> ZoneInfo:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(_calendar, "ZoneInfo", absent)
    monkeypatch.setattr(_calendar, "available_timezones", set)
    with pytest.raises(ValueError, match=r"tz: unknown time zone 'Asia/Tokyo'; this machine has no time zone database"):
        FixedWindow(5, DAY_US, align="calendar", tz="Asia/Tokyo", unit="day")
    assert FixedWindow(5, DAY_US, align="calendar", unit="day").bounds_us(START_US)[1] % DAY_US == 0
