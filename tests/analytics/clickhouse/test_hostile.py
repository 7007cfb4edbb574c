"""Names that try to be more than names, sizes and times that no node should tell."""

from __future__ import annotations

from typing import Any

import pytest

from sluicegate.analytics.clickhouse import ClickHouseHome
from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.model import Span, Where
from sluicegate.clock import US_PER_S
from sluicegate.errors import InvalidRequest
from sluicegate.events import SCHEMA_VERSION, Batch, DecisionSample, RequestCount, SubjectCount, SubjectTotal

pytestmark = pytest.mark.slow

NAMES = (
    "'; DROP TABLE batches; --",
    "' OR 1 = 1 --",
    "\\' OR 1 = 1 --",
    'a`b"c$d{x:String}%s?',
    "nul\x00\ttab\nline\r\\N\\",
    "naïve ☃ 𝄞 \u2028",
    "x" * 256,
)


def test_no_filter_is_more_than_a_value(home: ClickHouseHome, told: Any) -> None:
    """Through every argument of every question a hostile text finds what is called so and nothing else."""
    at_us = told.base_us
    for number, name in enumerate(NAMES):
        decision = DecisionSample(
            at_us, name, 1.0, name, name, rules=(name,), subjects={name: name}, method=name, endpoint=name
        )
        home.ingest(
            told.batches(
                1,
                node=name,
                requests=[RequestCount(name, name, name, 1, number + 1, 1)],
                rules=[],
                subjects=[SubjectCount(name, name, "refused", number + 1)],
                totals=[SubjectTotal(name, "refused", number + 1)],
                decisions=[decision],
                demand=[],
            )
        )
    for number, name in enumerate(NAMES):
        for field in ("rule", "outcome", "tier", "node"):
            rows = home.requests(told.span, by=("rule", "node"), where=Where(**{field: (name,)}))
            assert [(row.rule, row.node, row.decisions) for row in rows] == [(name, name, number + 1)]
        found = home.offenders(told.span, rule=name, subject=name)
        assert [(row.subject, row.times) for row in found.rows] == [(name, number + 1)]
        (row,) = home.decisions(told.span, rule=name, outcome=name, subject=name)
        assert (row.node, row.decision.subjects, row.decision.rules) == (name, {name: name}, (name,))
        assert home.demand(told.span, rule=name, tier=name) == []
    assert home.nodes(told.span) == sorted(NAMES)
    assert home.status().batches == len(NAMES)


@pytest.mark.parametrize("by", [("rule; DROP TABLE batches",), ("at_s",), ("rule", "rule"), ("decisions",)])
def test_groups_are_of_a_list(home: ClickHouseHome, told: Any, by: tuple[str, ...]) -> None:
    """What is grouped by is a name of the list, once, or nothing is asked."""
    with pytest.raises(InvalidRequest):
        home.requests(told.span, by=by)


def test_times_far_away(home: ClickHouseHome, told: Any) -> None:
    """Batches of any time that the contract allows are kept beside others, and answered for."""
    far = [0, 1, 4_102_444_800 * US_PER_S, 2**62, 2**63 - 1 - US_PER_S]
    many = [day * 86_400 * US_PER_S for day in range(1, 400)]
    batches = [
        Batch(
            SCHEMA_VERSION, f"n/far/{at_us}", "n", at_us, at_us + 1, requests=[RequestCount("r", "denied", "", 0, 1, 1)]
        )
        for at_us in (*far, *many)
    ]
    home.ingest([*batches, *told.batches(1)])
    assert [row.decisions for row in home.requests(told.span)] == [7]
    for at_us in far:
        assert [
            row.decisions for row in home.requests(Span(at_us, at_us + 1), by=("rule",), where=Where(rule=("r",)))
        ] >= [1]
    (row,) = home.requests(Span(0, 2**63 - 1), where=Where(rule=("r",)))
    assert row.decisions == len(batches)


def test_big_blocks(home: ClickHouseHome, told: Any) -> None:
    """More than one block of batches with many rows each is kept whole."""
    requests = [RequestCount(f"rule {number}", "denied", "", 1, 1, 1) for number in range(300)]
    home.ingest(told.batches(1_100, requests=requests, rules=[], subjects=[], totals=[], decisions=[], demand=[]))
    rows = home.requests(told.span, by=("rule",))
    assert len(rows) == 300
    assert {row.decisions for row in rows} == {1_100}


def test_unknown_fields_and_words(home: ClickHouseHome, told: Any) -> None:
    """Outcomes and fields of a later minor version are kept or ignored, and do not stop what is known."""
    connection = Connection(home.settings)
    body = (
        f'{{"v":1,"id":"later/1/1","node":"later","at_us":{told.base_us},"until_us":{told.base_us + 1},"new":[{{"a":1}}],'
        '"requests":[{"rule":"api","outcome":"queued","tier":"","version":1,"decisions":5,"tokens":5,"new":{"b":[]}}]}'
    )
    connection.insert("landing", ("body",), [(body,)])
    connection.close()
    home.roll_up(told.span)
    assert [(row.outcome, row.decisions) for row in home.requests(told.span, by=("outcome",))] == [("queued", 5)]
