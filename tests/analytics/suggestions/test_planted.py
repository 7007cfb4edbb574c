"""Worlds in which the right answer is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.analytics.suggestions import Exact, Limits, Policy, judge
from sluicegate.clock import US_PER_S
from sluicegate.events import Demand
from sluicegate.rules.quota import parse_quota

MINUTE_US = 60 * US_PER_S
World = Callable[..., list[Demand]]
MakeLimits = Callable[..., Limits]
# 900 casual clients ask 5 a minute, 90 power users 60, and 10 abusers 3,000.
SORTS = ((900, 5), (90, 60), (10, 3_000))


def windows(limit: int) -> list[Spec]:
    """Every algorithm of windows, a minute long."""
    return [
        FixedWindow(limit, MINUTE_US),
        SlidingWindow(limit, MINUTE_US),
        SlidingWindow(limit, MINUTE_US, sub_windows=6),
        SlidingLog(limit, MINUTE_US),
    ]


@pytest.mark.parametrize("spec", windows(40), ids=str)
def test_power_users_raise_a_limit_that_holds_them(world: World, limits: MakeLimits, spec: Spec) -> None:
    """Power users ask 60 a minute and are held at 40: 60 with headroom, 75, is rounded to 80; abusers count for nothing."""
    made = judge(limits(spec), world(*SORTS, limit=40))
    assert (made.verdict, made.proposed, made.evidence.needed) == ("raise", "80/minute", (60,))
    assert made.evidence.excluded == 10
    assert made.evidence.proposed is not None
    assert made.evidence.proposed.clients == 0


def test_bucket_needs_less_than_a_window(world: World, limits: MakeLimits) -> None:
    """A bucket refills while a minute lasts, so who asks 60 a minute evenly needs fewer than 60."""
    made = judge(limits(TokenBucket(25, 25, MINUTE_US)), world(*SORTS, limit=25))
    assert made.verdict == "raise"
    assert 25 < made.evidence.needed[0] < 60


def test_one_step_goes_no_further_than_twice(world: World, limits: MakeLimits) -> None:
    """Held at 20 they need three times that: twice is proposed, and it is said that more is needed."""
    made = judge(limits(FixedWindow(20, MINUTE_US)), world(*SORTS, limit=20))
    assert (made.verdict, made.proposed) == ("raise", "40/minute")
    assert any("One step goes no further" in caution for caution in made.cautions)


def test_wide_limit_is_lowered_by_half_at_most(world: World, limits: MakeLimits) -> None:
    """Where 75 would do 1,000 a minute is lowered to 500, and 120 to 80."""
    rows = world(*SORTS, limit=10_000)
    assert judge(limits(FixedWindow(1_000, MINUTE_US)), rows).proposed == "500/minute"
    assert judge(limits(FixedWindow(120, MINUTE_US)), rows).proposed == "80/minute"


def test_limit_that_suits_is_kept(world: World, limits: MakeLimits) -> None:
    """Where 75 would do a limit of 60, 80 or 95 is kept: small differences are no reason for a change."""
    rows = world(*SORTS, limit=80)
    for limit in (60, 80, 95):
        made = judge(limits(FixedWindow(limit, MINUTE_US)), rows)
        assert (made.verdict, made.proposed) == ("keep", made.current)


def test_nothing_is_lowered_within_a_day(world: World, limits: MakeLimits) -> None:
    """Half a day without need says nothing of the other half, but refusals within it count."""
    noon_us = (1_700_000_040 + 43_200) * US_PER_S
    free = [one for one in world(*SORTS, limit=10_000, days=1) if one.at_us < noon_us]
    assert judge(limits(FixedWindow(1_000, MINUTE_US)), free).verdict == "keep"
    held = [one for one in world(*SORTS, limit=40, days=1) if one.at_us < noon_us]
    assert judge(limits(FixedWindow(40, MINUTE_US)), held).verdict == "raise"


def test_little_traffic_proposes_nothing_and_says_what_is_missing(world: World, limits: MakeLimits) -> None:
    """Nine clients are not enough; how many would be is said."""
    made = judge(limits(FixedWindow(40, MINUTE_US)), world((9, 60), limit=40))
    assert (made.verdict, made.confidence, made.proposed) == ("not enough data", "none", "40/minute")
    assert made.missing == ("9 of 200 clients",)
    none = judge(limits(FixedWindow(40, MINUTE_US)), [])
    assert none.missing == ("no demand was recorded for this rule and tier (nodes tell of it once a minute)",)


@pytest.mark.parametrize(
    ("specs", "other", "word"),
    [((), {}, "No limit"), ((Ban(),), {}, "ban"), ((TokenBucket(5, 5, US_PER_S),), {"shared": True}, "share")],
)
def test_what_traffic_cannot_judge_is_kept(
    world: World, limits: MakeLimits, specs: tuple[Spec, ...], other: dict[str, object], word: str
) -> None:
    """No limit, a ban and a counter that everybody shares are left as they are, and why is said."""
    made = judge(limits(*specs, **other), world(*SORTS, limit=40))
    assert (made.verdict, made.proposed) == ("keep", made.current)
    assert word in made.why


def test_what_was_not_refused_raises_nothing(world: World, limits: MakeLimits) -> None:
    """A limit that would refuse a tenth of the clients in a replay, and refused nobody in truth, is kept, and both are said."""
    made = judge(limits(FixedWindow(40, MINUTE_US)), world(*SORTS, limit=10_000))
    assert made.verdict == "keep"
    assert any("really refused" in caution for caution in made.cautions)


def test_burst_bucket_takes_the_knee(row: Callable[..., Demand], limits: MakeLimits, policy: Policy) -> None:
    """Clients that take 30 at once every ten minutes need capacity, not rate: the rate stays, the capacity grows."""
    rows = [
        row(f"c{number:03}", minute, 30, 10, peak=30)
        for number in range(100)
        for minute in range(number % 10, 2_880, 10)
    ]
    made = judge(limits(TokenBucket(20, 1, US_PER_S)), rows, policy)
    assert (made.verdict, made.proposed) == ("raise", "1/second burst 40")
    slowest, fastest = made.evidence.buckets[0], made.evidence.buckets[-1]
    assert slowest.capacity >= fastest.capacity


def test_queue_is_judged_by_its_longest_wait(world: World, limits: MakeLimits) -> None:
    """A leaky bucket that may hold nobody for longer than a second is raised where its clients wait longer."""
    made = judge(limits(LeakyBucket(30, 30, MINUTE_US)), world(*SORTS, limit=30))
    assert made.verdict == "raise"


def test_calendar_and_parts_are_judged_apart(world: World, limits: MakeLimits) -> None:
    """Of two limits in one quota only the one that is too small is raised; a calendar window stays one."""
    day = FixedWindow(1_000, 86_400 * US_PER_S, align="calendar", tz="UTC", unit="day")
    made = judge(limits(FixedWindow(40, MINUTE_US), day), world(*SORTS, limit=40, days=3))
    assert made.proposed.startswith("80/minute; ")
    assert "/day" in made.proposed
    assert any("calendar" in caution for caution in made.cautions)


def test_minimum_holds(world: World, limits: MakeLimits) -> None:
    """What was promised is not gone below, however little is asked, and that it held is said."""
    floor = parse_quota("700/minute", algorithm="fixed_window").specs[0]
    given = limits(FixedWindow(1_000, MINUTE_US), minimum=floor, minimum_text="700/minute")
    made = judge(given, world(*SORTS, limit=10_000))
    assert made.proposed == "700/minute"
    assert "minimum is 700/minute" in made.cautions[0]


def test_sampled_clients_stand_for_more(row: Callable[..., Demand], limits: MakeLimits, policy: Policy) -> None:
    """Of clients of which a tenth was sampled ten times as many are told of, with the error of their share."""
    rows = [
        row(f"c{number:03}", minute, 60 if number < 50 else 5, 20 if number < 50 else 0, share=0.1)
        for number in range(500)
        for minute in range(0, 2_880, 360)
    ]
    made = judge(limits(FixedWindow(40, MINUTE_US)), rows, policy, Exact(40_000, 9_000, (1, 2)))
    evidence = made.evidence
    assert (evidence.clients, evidence.clients_estimated) == (500, 5_000)
    assert evidence.now is not None
    assert evidence.now.clients == pytest.approx(0.1)
    assert evidence.now.low < 0.1 < evidence.now.high
    assert (evidence.matched, evidence.refused) == (40_000, 9_000)
    said = " ".join(made.cautions)
    assert "10 % of the clients were looked at" in said
    assert "2 versions" in said


def test_traffic_of_the_day_is_judged_by_its_busiest_minute(
    row: Callable[..., Demand], limits: MakeLimits, policy: Policy
) -> None:
    """Clients that ask ten times as much at noon are served at noon."""
    rows = []
    for number in range(50):
        for hour in range(72):
            tokens = 50 if hour % 24 == 12 else 5
            rows.append(row(f"c{number:02}", 60 * hour + number % 60, tokens, max(0, tokens - 30)))
    made = judge(limits(FixedWindow(30, MINUTE_US)), rows, policy)
    assert (made.verdict, made.evidence.needed) == ("raise", (50,))
    assert any("show no week" in caution for caution in made.cautions)


def test_tiers_are_judged_by_their_own_clients(row: Callable[..., Demand], policy: Policy) -> None:
    """What free clients ask does not move the numbers of paid ones; who is of no tier that has numbers counts as the default."""
    rows = [
        row(f"f{number}", minute, 60, 20, tier=tier)
        for tier in ("free", "odd")
        for number in range(30)
        for minute in (0, 2_000)
    ]
    rows += [row(f"p{number}", minute, 60, 0, tier="paid") for number in range(30) for minute in (0, 2_000)]
    spec = FixedWindow(40, MINUTE_US)
    free = judge(Limits("api", "free", (spec,), "40/minute", others=frozenset({"paid"})), rows, policy)
    wide = FixedWindow(80, MINUTE_US)
    paid = judge(Limits("api", "paid", (wide,), "80/minute", others=None), rows, policy)
    assert (free.verdict, free.evidence.requests) == ("raise", 7_200)
    assert (paid.verdict, paid.evidence.requests) == ("keep", 3_600)
