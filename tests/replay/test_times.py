"""Times as logs write them."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.replaying.times import ClfTimes, time_us

BASE = 1_431_857_103_000_000  # 2015-05-17 10:05:03 UTC


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("17/May/2015:10:05:03 +0000", BASE),
        ("17/May/2015:12:05:03 +0200", BASE),
        ("17/May/2015:04:35:03 -0530", BASE),
        ("17/may/2015:10:05:03 +0000", BASE),
        ("17/May/2015:10:05:03", BASE),
        ("17/May/2015:10:05:03.25 +0000", BASE + 250_000),
        ("17/May/2015:10:05:03.123456789 +0000", BASE + 123_456),
        ("17/May/2015:10:05:60 +0000", BASE + 57_000_000),
        ("7/May/2015:10:05:03 +0000", BASE - 10 * 86_400_000_000),
        ("01/Jan/1970:00:00:00 +0000", 0),
        ("29/Feb/2024:00:00:00 +0000", 1_709_164_800_000_000),
    ],
)
def test_clf(text: str, us: int) -> None:
    """The time of common logs, with zones, fractions and a leap second; a second look gives the same."""
    times = ClfTimes()
    assert times[text] == times[text] == us
    assert time_us(text) == us


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "17/May/2015",
        "17/Mai/2015:10:05:03 +0000",
        "32/May/2015:10:05:03 +0000",
        "29/Feb/2015:10:05:03 +0000",
        "17/May/2015:24:05:03 +0000",
        "17/May/2015:10:60:03 +0000",
        "17/May/2015:10:05:61 +0000",
        "17/May/2015:10:05:0x +0000",
        "17/May/2015:10:05:٣٣ +0000",
        "17/May/2015 10:05:03 +0000",
        "17/May/2015:10:05:03 +00:0",
        "17/May/1915:10:05:03 +0000",
        "17/May/9999:10:05:03 +0000",
        "17/May/0000:10:05:03 +0000",
    ],
)
def test_no_clf(text: str) -> None:
    """What is no time, or outside the range of the algorithms, is a ValueError, also when its minute is known."""
    times = ClfTimes()
    assert times["17/May/2015:10:05:03 +0000"] == BASE
    with pytest.raises(ValueError):
        times[text]


@pytest.mark.parametrize(
    ("value", "us"),
    [
        (1_431_857_103, BASE),
        (1_431_857_103.5, BASE + 500_000),
        ("1431857103.123", BASE + 123_000),
        ("1431857103", BASE),
        (1_431_857_103_123, BASE + 123_000),
        (1_431_857_103_123.5, BASE + 123_500),
        (1_431_857_103_123_456, BASE + 123_456),
        (1_431_857_103_123_456_789, BASE + 123_456),
        ("2015-05-17T10:05:03Z", BASE),
        ("2015-05-17T10:05:03.5+00:00", BASE + 500_000),
        ("2015-05-17 12:05:03,250 +0200", BASE + 250_000),
        ("2015-05-17T10:05:03", BASE),
        ("2015-05-17T10:05:03.999999999Z", BASE + 999_999),
        (0, 0),
    ],
)
def test_json_times(value: Any, us: int) -> None:
    """Numbers are seconds to nanoseconds by their size; RFC 3339 without a zone is UTC."""
    assert time_us(value) == us


@pytest.mark.parametrize(
    "value", [None, True, -1, 1e300, float("inf"), float("nan"), "now", "2015-13-01T00:00:00Z", [], {}, 1 << 80]
)
def test_no_json_time(value: Any) -> None:
    """Nothing else is a time."""
    with pytest.raises(ValueError):
        time_us(value)


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2111, 1, 1)),
    st.integers(-14 * 60, 14 * 60).filter(lambda minutes: minutes % 15 == 0),
)
def test_agrees_with_datetime(when: datetime, zone_minutes: int) -> None:
    """Every date and zone means what the standard library says."""
    aware = when.replace(microsecond=0, tzinfo=timezone(timedelta(minutes=zone_minutes)))
    us = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert ClfTimes()[f"{aware:%d/%b/%Y:%H:%M:%S %z}"] == us
    assert time_us(aware.isoformat()) == us


@given(st.lists(st.text(alphabet="0123456789/:+- .MayJunTZ", max_size=32), max_size=20))
def test_only_value_errors(texts: list[str]) -> None:
    """Any text is a time or a ValueError, whatever was asked before."""
    times = ClfTimes()
    for text in texts:
        for read in (times.__getitem__, time_us):
            with contextlib.suppress(ValueError):
                assert read(text) >= 0


def test_memo_is_bounded() -> None:
    """A log of a week does not fill memory with its seconds."""
    times = ClfTimes()
    for second in range(20_000):
        times[f"17/May/2015:{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} +0000"]
    assert len(times) <= 1_024


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**40, float("inf"), float("nan"), 1e308, True])
def test_numbers_that_no_log_can_mean(value: object) -> None:
    """A number of any size is refused as a time, also an integer that no float can hold."""
    with pytest.raises(ValueError, match="time"):
        time_us(value)
