"""Counts of every home: what a naive oracle says of the same batches."""

from __future__ import annotations

from itertools import combinations
from random import Random
from typing import Any

import pytest

from sluicegate.analytics.home import Home
from sluicegate.analytics.model import DIMENSIONS, CountRow, Span, Where
from sluicegate.bounds import TRAFFIC_STEPS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import InvalidRequest
from sluicegate.events import Dropped, RequestCount, RuleCount, sum_dropped

HOSTILE = (
    "'; DROP TABLE requests; --",
    '"quoted"',
    "back\\slash\ttab\nline",
    "naïve ☃ 𝄞 汉字",
    "nul\x00inside",
    "%_*?[a]{x:String}",
    "x" * 256,
    "\\N",
    " ",
)
BIG = 2**53 + 1


def one(decisions: int = 1, tokens: int = 1, rule: str = "r", **more: Any) -> RequestCount:
    """A count of requests with usual fields."""
    fields = {"outcome": "denied", "tier": "", "version": 1, **more}
    return RequestCount(rule=rule, decisions=decisions, tokens=tokens, **fields)


@pytest.mark.parametrize("size", range(3))
def test_totals_by_every_grouping(home: Home, busy: Any, size: int) -> None:
    """Requests and rules add up by every choice of dimensions."""
    home.ingest(busy.batches)
    for by in combinations(DIMENSIONS, size):
        assert home.requests(busy.span(), by=by) == busy.counts(home, "requests", busy.span(), by=by)
        if "degraded" not in by:
            assert home.rules(busy.span(), by=by) == busy.counts(home, "rules", busy.span(), by=by)


@pytest.mark.parametrize("edges", [(-600, 1200), (0, 60), (-1, 61), (59, 121), (-0.5, 60.000001), (0, 0)])
def test_steps_at_borders(home: Home, busy: Any, edges: tuple[float, float]) -> None:
    """Steps of any length, and spans that begin and end at, before and after the borders of cells, answer what the oracle does."""
    home.ingest(busy.batches)
    span = busy.span(*edges)
    for step_s in (1, 7, 10, 60, 90, 3600):
        for by in ((), ("outcome", "rule")):
            assert home.requests(span, step_s=step_s, by=by) == busy.counts(home, "requests", span, step_s, by)
    assert home.requests(span) == busy.counts(home, "requests", span)


def test_doubled_and_reordered_batches_change_nothing(home: Home, busy: Any) -> None:
    """The same batches in any order, each several times, in one call and in many, give the same answers."""
    random = Random(3)
    parts = [*busy.batches, *busy.batches]
    random.shuffle(parts)
    while parts:
        size = random.randrange(1, 30)
        home.ingest(parts[:size])
        parts = parts[size:]
    home.ingest(list(reversed(busy.batches)))
    by = ("node", "rule", "outcome")
    assert home.requests(busy.span(), by=by) == busy.counts(home, "requests", busy.span(), by=by)
    assert home.rules(busy.span(), step_s=1) == busy.counts(home, "rules", busy.span(), 1)
    want = Dropped()
    for batch in busy.batches:
        want = sum_dropped(want, batch.dropped)
    assert home.dropped(busy.span()) == want
    assert home.status().batches == len(busy.batches)


@pytest.mark.parametrize(
    "where",
    [
        Where(rule=("api",)),
        Where(rule=("",)),
        Where(rule=("api", "login"), outcome=("denied",)),
        Where(tier=("pro",), version=(1, 2)),
        Where(node=("a", "nobody")),
        Where(node=()),
        Where(rule=("' OR 1=1 --",)),
    ],
)
def test_filters(home: Home, busy: Any, where: Where) -> None:
    """A filter leaves exactly the counts whose fields are among the values given."""
    home.ingest(busy.batches)
    want = busy.counts(home, "requests", busy.span(), by=("rule", "node"), where=where)
    assert home.requests(busy.span(), by=("rule", "node"), where=where) == want


def test_hostile_names(home: Home, world: Any) -> None:
    """Names of any characters come back as they were told, and are found by themselves only."""
    for name in HOSTILE:
        world.batch(name, 0, requests=[one(rule=name, tier=name)], rules=[RuleCount(name, "denied", name, 1, 2, 3)])
    home.ingest(world.batches)
    assert [row.rule for row in home.requests(world.span(), by=("rule",))] == sorted(HOSTILE)
    for name in HOSTILE:
        for where in (Where(rule=(name,)), Where(node=(name,)), Where(tier=(name,))):
            assert home.requests(world.span(), where=where) == [CountRow(1, 1)], repr(name)
        assert home.rules(world.span(), by=("rule", "tier"), where=Where(rule=(name,))) == [
            CountRow(2, 3, rule=name, tier=name)
        ]
    assert home.nodes(world.span()) == sorted(HOSTILE)


def test_huge_numbers_are_exact(home: Home, world: Any) -> None:
    """Counts beyond what a double holds are neither rounded nor lost when they are added."""
    for second in range(3):
        world.batch("n", second, requests=[one(BIG, BIG * 200, version=2**53 + 1)])
    home.ingest(world.batches)
    assert home.requests(world.span(), by=("version",)) == [CountRow(3 * BIG, 600 * BIG, version=2**53 + 1)]
    assert home.requests(world.span(), step_s=60) == [CountRow(3 * BIG, 600 * BIG, world.base_us)]


def test_an_empty_home_answers_with_nothing(home: Home, world: Any) -> None:
    """A home whose only batch tells of an idle second has no counts, and knows the node."""
    home.ingest([])
    home.ingest([world.batch("idle")])
    span = world.span()
    assert home.requests(span, step_s=1, by=("rule",)) == []
    assert home.rules(span) == []
    assert home.offenders(span).rows == ()
    assert home.decisions(span) == []
    assert home.demand(span) == []
    assert home.admissions(span).admissions == ()
    assert home.dropped(span) == Dropped()
    assert home.nodes(span) == ["idle"]
    assert home.nodes(Span(0, 60 * US_PER_S)) == []


def test_the_newest_second_is_answered_at_once(home: Home, world: Any) -> None:
    """What was kept is in the next answer."""
    for number in range(1, 4):
        home.ingest([world.batch("n", number, requests=[one()])])
        assert home.requests(world.span()) == [CountRow(number, number)]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"by": ("client",)}, "by"),
        ({"by": ("rule", "rule")}, "by"),
        ({"by": ("rule; DROP TABLE requests",)}, "by"),
        ({"step_s": 0}, "step"),
        ({"step_s": -1}, "step"),
    ],
)
def test_questions_that_cannot_be_answered(home: Home, world: Any, arguments: dict[str, Any], field: str) -> None:
    """A bad question names its field."""
    home.ingest([world.batch()])
    with pytest.raises(InvalidRequest) as caught:
        home.requests(world.span(), **arguments)
    assert caught.value.field == field


def test_too_many_steps(home: Home, world: Any) -> None:
    """A step too short for its span is refused before any work."""
    home.ingest([world.batch()])
    span = Span(world.base_us - (TRAFFIC_STEPS_MAX + 10) * US_PER_S, world.base_us)
    with pytest.raises(InvalidRequest, match="step"):
        home.requests(span, step_s=1)


def test_rules_are_not_grouped_by_what_they_have_not(home: Home, world: Any) -> None:
    """``degraded`` is of requests."""
    home.ingest([world.batch()])
    with pytest.raises(InvalidRequest):
        home.rules(world.span(), by=("degraded",))


def test_a_span_that_is_none() -> None:
    """A span may not end before it begins, nor begin before 1970."""
    with pytest.raises(InvalidRequest, match="until"):
        Span(5, 4)
    with pytest.raises(InvalidRequest, match="since"):
        Span(-1, 4)
