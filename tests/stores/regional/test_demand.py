"""What a region wants and offers, by what its store says of a counter."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, TokenBucket
from sluicegate.bounds import REGION_BEAT_US, REGION_CALM_US, REGION_CALM_US_MAX, REGION_UNITS
from sluicegate.stores.region_parts import PartView
from sluicegate.stores.regional.demand import is_due, sampled
from sluicegate.stores.regional.plan import Plan
from sluicegate.stores.regional.record import Link, Record
from sluicegate.stores.regional.units import first_of

SECOND = 1_000_000
START_US = 1_700_000_000_000_000
THEN_US = START_US + 250_000
"""A sample later."""
PLAN = Plan({"eu": 1, "us": 1}, Fraction(9, 10))
HALF = REGION_UNITS // 2
BUCKET = TokenBucket(60_000, 60_000, SECOND)
"""A quarter of a second is 15,000 tokens: a unit is two and a half."""
WINDOW = FixedWindow(60_000, 3_600 * SECOND)


def view_of(**fields: Any) -> PartView:
    """The region's half, nothing of it used."""
    given = {"capacity": 30_000, "used": 0, "left": 30_000, "admitted": 0, "refused": 0, "now_us": THEN_US, **fields}
    return PartView(written=False, differs=False, out=0, record=b"", life="0" * 16, **given)


def record_of(**fields: Any) -> Record:
    given = {"held": PLAN.own("eu"), "at_us": START_US, **fields}
    return Record(PLAN.mark, "0" * 16, "epoch", **given)


def after(record: Record, spec: Any = BUCKET, **fields: Any) -> Record:
    return sampled(PLAN, "eu", record, view_of(**fields), spec, "us")


def test_when_a_sample_is_due() -> None:
    """After most of a beat, or where the last one is of a time that is still to come."""
    record = record_of()
    assert not is_due(record, START_US)
    assert not is_due(record, START_US + REGION_BEAT_US * 4 // 5 - 1)
    assert is_due(record, START_US + REGION_BEAT_US * 4 // 5)
    assert is_due(record, START_US - 1)


def test_the_first_sample_only_looks() -> None:
    """Sums of a time that is not known say nothing: nothing is wanted or offered by them."""
    for at_us in (0, THEN_US + 1):
        seen = after(record_of(at_us=at_us, offer=9, goal=9), admitted=1_000_000, refused=1_000_000)
        assert (seen.at_us, seen.by, seen.turn) == (THEN_US, "us", 1)
        assert (seen.admitted, seen.refused, seen.use, seen.goal, seen.offer) == (1_000_000, 1_000_000, 0, 0, 0)


def test_a_bucket_that_is_hardly_used_offers_the_rest() -> None:
    """What is beyond its use, a quarter more, and a hundredth of the whole."""
    seen = after(record_of(), admitted=2_500)
    assert (seen.use, seen.goal) == (1_000, 0)
    assert seen.offer == HALF - 1_250 - REGION_UNITS // 100


def test_what_is_never_lent_is_not_offered() -> None:
    """Nor is what belongs to others."""
    assert after(record_of()).offer == (PLAN.own("eu") & ~PLAN.kept("eu")).bit_count()
    assert after(record_of(held=PLAN.kept("eu") | PLAN.own("us"))).offer == 0


def test_less_than_a_fiftieth_is_not_offered() -> None:
    """Transfers cost more than so little is worth."""
    least = REGION_UNITS // 50
    for use, offer in ((2_256, least), (2_258, 0)):
        seen = after(record_of(), admitted=use * 5 // 2, left=20_000)
        assert (seen.use, seen.offer) == (use, offer)


def test_use_that_falls_is_believed_slowly() -> None:
    """By a quarter with each sample; a rise at once."""
    assert after(record_of(use=1_000)).use == 750
    assert after(record_of(use=1_000), admitted=5_000).use == 2_000


def test_refusals_ask_for_what_was_wanted() -> None:
    """A quarter more than that, or three times what is held where that is more, but never more than there is."""
    held = first_of(PLAN.own("eu"), 300)
    seen = after(record_of(held=held), admitted=750, refused=2_000)
    assert (seen.goal, seen.offer) == (1_375, 0)
    assert after(record_of(held=held), admitted=750, refused=1).goal == 900
    assert after(record_of(), admitted=7_500, refused=100_000).goal == REGION_UNITS


@pytest.mark.parametrize(
    ("spec", "fields", "short"),
    [
        (BUCKET, {"admitted": 6_750, "left": 3_000}, True),
        (BUCKET, {"admitted": 6_750, "left": 3_001}, False),
        (BUCKET, {"admitted": 6_747, "left": 3_000}, False),
        (WINDOW, {"used": 27_000}, True),
        (WINDOW, {"used": 26_999}, False),
    ],
)
def test_who_has_a_tenth_left_is_short(spec: Any, fields: dict[str, int], short: bool) -> None:
    """Before anybody is refused: a bucket that is used at nine tenths of its rate and nearly empty, a window that is nearly full."""
    seen = after(record_of(), spec, **fields)
    assert (seen.goal > 0) is short
    assert short is (seen.offer == 0 and seen.goal == REGION_UNITS)


def test_sums_that_began_again_are_counted_from_there() -> None:
    """A store that lost them says less than before; that is no negative use."""
    seen = after(record_of(admitted=900_000, refused=900_000), admitted=2_500)
    assert (seen.use, seen.goal, seen.admitted, seen.refused) == (1_000, 0, 2_500, 0)


def test_who_asked_for_its_own_back_lends_nothing_for_longer_and_longer() -> None:
    """Ten seconds, doubled each time it is soon again; not by every sample while it lasts, and not where nothing is lent."""
    lending = record_of(links={"us": Link("e", lent=first_of(PLAN.own("eu"), 10))})
    calm = after(lending, refused=5)
    assert (calm.calm_until_us - THEN_US, calm.calm_us) == (REGION_CALM_US, REGION_CALM_US)
    while_calm = replace(calm, at_us=START_US)
    assert after(while_calm).offer == 0
    assert after(while_calm, refused=9).calm_until_us == calm.calm_until_us
    for before_us, calm_us, found_us in (
        (1, REGION_CALM_US, 2 * REGION_CALM_US),
        (1, REGION_CALM_US_MAX, REGION_CALM_US_MAX),
        (3 * REGION_CALM_US, REGION_CALM_US, REGION_CALM_US),
    ):
        over = replace(lending, calm_until_us=THEN_US - before_us, calm_us=calm_us)
        assert after(over, refused=5).calm_us == found_us
    assert after(record_of(), refused=5).calm_until_us == 0
