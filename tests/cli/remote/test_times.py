"""Times, spans, shares and steps as people write them."""

from __future__ import annotations

import contextlib
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.cli.remote.times import End, EndType, ShareType, StepType

DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15m", End(after_us=900_000_000)),
        ("3 days", End(after_us=3 * DAY_US)),
        ("1970-01-02", End(at_us=DAY_US)),
        ("1970-01-02T00:00Z", End(at_us=DAY_US)),
        ("1970-01-02T01:30:05+01:30", End(at_us=DAY_US + 5_000_000)),
    ],
)
def test_an_end_is_a_span_or_a_time(text: str, expected: End) -> None:
    """A span counts from when the service hears of it; a time has its zone, a date is its first moment in UTC."""
    assert EndType().convert(text, None, None) == expected


@pytest.mark.parametrize(
    "text",
    [
        "friday",
        "",
        "5",
        "0m",
        "-1h",
        "2026-12-04T18:00",
        "2026-12-04 18:00Z",
        "2026-13-01",
        "2026-W49-5",
        "20261204",
        "12/04/2026",
        "2026-12-04T25:00Z",
    ],
)
def test_what_could_be_read_two_ways_is_refused(text: str) -> None:
    """A day of the week, a time without its zone and other calendars are errors that name the text."""
    with pytest.raises(click.BadParameter):
        EndType().convert(text, None, None)


def test_an_end_as_a_field() -> None:
    """A span is sent as seconds from now, a time as it is; what takes no span gets the time by the clock here."""
    assert End(after_us=1_500_000).fields("until_us", "for_s") == {"for_s": 1.5}
    assert End(at_us=7).fields("until_us", "for_s") == {"until_us": 7}
    assert End(after_us=5).moment_us(10) == 15
    assert End(at_us=7).moment_us(10) == 7


@pytest.mark.parametrize(("text", "points"), [("1%", 100), ("0.25%", 25), ("100%", 10_000), ("0%", 0), ("12.5%", 1250)])
def test_a_share_is_in_percent(text: str, points: int) -> None:
    """A share is a percentage of at most two decimals."""
    assert ShareType().convert(text, None, None) == points


@pytest.mark.parametrize("text", ["1", "101%", "0.001%", "-1%", "%", "١%", "nan%"])
def test_no_share(text: str) -> None:
    """A bare number could be a percentage or a ratio, and is neither."""
    with pytest.raises(click.BadParameter):
        ShareType().convert(text, None, None)


def test_a_step() -> None:
    """A step is a share and how long after the step before it."""
    assert StepType().convert("10%@15m", None, None) == {"basis_points": 1000, "after_s": 900}
    for bad in ("10%", "10%@", "@15m", "10@15m", "10%@x"):
        with pytest.raises(click.BadParameter):
            StepType().convert(bad, None, None)


@given(st.text(max_size=30), st.sampled_from([EndType(), ShareType(), StepType()]))
def test_any_text_is_read_or_refused(text: str, kind: Any) -> None:
    """Whatever is typed is a value or an error of use, never another failure."""
    with contextlib.suppress(click.BadParameter):
        kind.convert(text, None, None)
