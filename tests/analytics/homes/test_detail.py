"""Clients, sampled decisions, demand and asks in every home."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from sluicegate.algorithms.space_saving import SpaceSaving
from sluicegate.analytics.home import Home
from sluicegate.analytics.model import OffenderRow, WatchLevel
from sluicegate.analytics.offenders.batches import merged_batches, offenders_of
from sluicegate.clock import US_PER_S
from sluicegate.errors import InvalidRequest
from sluicegate.events import (
    Admission,
    DecisionSample,
    Demand,
    SubjectCount,
    SubjectTotal,
    Watching,
)


def test_offenders_are_merged_over_nodes(home: Home, world: Any) -> None:
    """Counts of one client add up over nodes and batches; what each batch leaves unsaid widens the error of the others."""
    for node, second in (("a", 0), ("b", 0), ("a", 70)):
        world.batch(
            node,
            second,
            subjects=[SubjectCount("api", "x", "refused", 10, 1), SubjectCount("", "x", "refused", 12)],
            totals=[SubjectTotal("api", "refused", 15, 2), SubjectTotal("", "refused", 17, 0)],
        )
    world.batch(
        "c",
        3,
        subjects=[SubjectCount("api", "y", "refused", 50), SubjectCount("api", "z", "asked", 99)],
        totals=[SubjectTotal("api", "refused", 54, 4), SubjectTotal("api", "asked", 99)],
    )
    home.ingest([*world.batches, *world.batches])
    got = home.offenders(world.span(), rule="api")
    # y is in one batch of four: the other three say at most 2 each.
    assert got.rows == (OffenderRow("api", "y", 56, 6), OffenderRow("api", "x", 34, 7))
    assert (got.total, got.error, got.more, got.sample_rate) == (99, 10, False, 1.0)
    assert home.offenders(world.span(), rule="").rows == (OffenderRow("", "x", 36, 0),)
    assert [row.subject for row in home.offenders(world.span(), kind="asked").rows] == ["z"]
    assert home.offenders(world.span(), rule="api", limit=1).more
    assert home.offenders(world.span(), rule="api", subject="x").rows == (OffenderRow("api", "x", 34, 7),)
    assert home.offenders(world.span(), rule="api", subject="nobody").rows == ()


def test_offenders_hold_their_bounds(home: Home, world: Any) -> None:
    """Of many clients in small summaries the true count of each one told of is within its bounds, and of every other below ``error``."""
    random = Random(11)
    truth: Counter[str] = Counter()
    for second in range(0, 240, 4):
        for node in ("a", "b"):
            seen: SpaceSaving[str] = SpaceSaving(12)
            for _ in range(150):
                client = f"c{min(int(random.paretovariate(0.7)), 2_000)}"
                truth[client] += 1
                seen.add(client)
            tallies = sorted(seen.tallies(), key=lambda tally: -tally.times)
            untold = min(tally.times for tally in tallies)
            world.batch(
                node,
                second,
                subjects=[SubjectCount("r", tally.key, "refused", tally.times, tally.error) for tally in tallies],
                totals=[SubjectTotal("r", "refused", 150, untold)],
            )
    random.shuffle(world.batches)
    home.ingest(world.batches)
    got = home.offenders(world.span(), rule="r", limit=10_000)
    assert got.total == sum(truth.values())
    told = {row.subject: row for row in got.rows}
    assert not got.more
    assert len(told) > 20
    for client, times in truth.items():
        if client in told:
            assert told[client].times - told[client].error <= times <= told[client].times, client
        else:
            assert times <= got.error, client
    assert [row.times for row in got.rows] == sorted((row.times for row in got.rows), reverse=True)


def test_offenders_by_seconds(home: Home, world: Any) -> None:
    """A span of seconds in the last minutes is answered for just those, and together with whole minutes where it is longer."""
    # Clients are kept by seconds for the last minutes only.
    world.base_us += 1_080 * US_PER_S
    for second in range(-70, 70):
        world.batch(
            "ab"[second % 2],
            second,
            subjects=[SubjectCount("api", f"s{second % 3}", "refused", 100 + second)],
            totals=[SubjectTotal("api", "refused", 100 + second)],
        )
    home.ingest(world.batches)
    home.prune(world.base_us + 70 * US_PER_S)
    assert home.status().clients_kept_us[1] <= world.base_us - 70 * US_PER_S
    for since, until in ((3, 4), (3, 13), (55, 65), (-7, 3), (-1, 61), (-70, 69), (0, 60), (5, 5)):
        got = home.offenders(world.span(since, until), rule="api")
        want: Counter[str] = Counter()
        for second in range(since, until):
            want[f"s{second % 3}"] += 100 + second
        assert {row.subject: row.times for row in got.rows} == want, (since, until)
        assert (got.total, got.error) == (want.total(), 0)


def test_offenders_are_what_the_merger_says(home: Home, world: Any) -> None:
    """Of random summaries, complete and not, a home answers exactly what merging them in a program does."""
    random = Random(23)
    for second in sorted(random.sample(range(180), 40)):
        for node in random.sample("abc", 2):
            untold = {rule: random.randrange(4) for rule in ("", "api", "login") if random.random() < 0.8}
            world.batch(
                node,
                second,
                subjects=[
                    SubjectCount(rule, f"s{name}", "refused", least + random.randrange(9), random.randrange(least + 1))
                    for rule, least in untold.items()
                    for name in random.sample(range(60), random.randrange(20))
                ],
                totals=[SubjectTotal(rule, "refused", random.randrange(500), least) for rule, least in untold.items()],
            )
    home.ingest(random.sample(world.batches, len(world.batches)))
    for since, until in ((0, 180), (0, 60), (60, 180), (-600, 1_200)):
        span = world.span(since, until)
        told = merged_batches(each for each in world.batches if span.since_us <= each.at_us < span.until_us)
        for rule, limit in (("api", 10), ("", 1_000), (None, 7), (None, 1_000)):
            chosen = {name: told[name, kind] for name, kind in told if (name == rule if rule is not None else name)}
            assert home.offenders(span, rule=rule, limit=limit) == offenders_of(chosen, "refused", limit=limit)


def test_sampled_offenders_say_so(home: Home, world: Any) -> None:
    """The least sample rate of the span is told."""
    rows = [SubjectCount("r", "x", "asked", 100, sample_rate=0.25)]
    world.batch("a", 0, subjects=rows, totals=[SubjectTotal("r", "asked", 100, sample_rate=0.25)])
    world.batch("a", 1, totals=[SubjectTotal("r", "asked", 1)])
    home.ingest(world.batches)
    assert home.offenders(world.span(), kind="asked", rule="r").sample_rate == pytest.approx(0.25)


@pytest.mark.parametrize("limit", [0, -1, 10**9])
def test_limits_out_of_range(home: Home, world: Any, limit: int) -> None:
    """A limit that is none is refused by its name."""
    home.ingest([world.batch()])
    for ask in (home.offenders, home.decisions):
        with pytest.raises(InvalidRequest, match="limit"):
            ask(world.span(), limit=limit)


def test_decisions_come_back_as_they_were_told(home: Home, world: Any) -> None:
    """Every field of a sampled decision survives; the newest is first; filters find what they name."""
    made = [
        DecisionSample(
            world.base_us + number * 1_000,
            ("denied", "allowed")[number % 2],
            0.1 + number / 10,
            rule=("api", "lo'gin")[number % 2],
            tier="frée",
            version=2**40 + number,
            rules=("api", "lo'gin"),
            subjects={"ip": f"d{number}", "api_key|endpoint": 'k"☃', "": ""},
            method="GET",
            endpoint="/a'b/{id}",
            cost=2**60,
            limit=None if number else 10,
            remaining=3,
            retry_after_ms=None if number == 2 else number,
            degraded=number == 3,
        )
        for number in range(5)
    ]
    home.ingest([world.batch("n", 0, decisions=made[:3]), world.batch("m", 1, decisions=made[3:])])
    got = home.decisions(world.span())
    assert [row.decision for row in got] == made[::-1]
    assert [row.node for row in got] == ["m", "m", "n", "n", "n"]
    assert [row.decision for row in home.decisions(world.span(), rule="lo'gin")] == [made[3], made[1]]
    assert [row.decision for row in home.decisions(world.span(), outcome="denied", limit=2)] == [made[4], made[2]]
    assert [row.decision for row in home.decisions(world.span(), subject="d2")] == [made[2]]
    assert len(home.decisions(world.span(), subject='k"☃')) == 5
    assert home.decisions(world.span(), subject="%") == []


def test_demand_comes_back_as_it_was_told(home: Home, world: Any) -> None:
    """Every field of demand survives; it is found by rule and tier."""
    made = [
        Demand(rule, tier, f"s{place}", world.base_us + place, 10, 5 + place, 2**55, 1, 3, 4, 0.5)
        for place, (rule, tier) in enumerate([("api", ""), ("api", "pro"), ("l'x", "")])
    ]
    home.ingest([world.batch("n", 0, demand=made[1:]), world.batch("n", 1, demand=made[:1])])
    assert home.demand(world.span()) == made
    assert home.demand(world.span(), rule="api") == made[:2]
    assert home.demand(world.span(), rule="api", tier="") == made[:1]
    assert home.demand(world.span(), rule="l'x") == made[2:]


def test_admissions_and_what_was_watched(home: Home, world: Any) -> None:
    """Asks come by time, and with them what each node watched."""
    asks = [
        Admission("api", "s", "token_bucket", 10, 5, 1_000_000, 2_000_000, world.base_us + at, 1, at % 2 == 0, level=2)
        for at in range(4)
    ]
    home.ingest(
        [
            world.batch("b", 0, admissions=asks[2:], watch=Watching(2)),
            world.batch("a", 0, admissions=asks[:2], watch=Watching(3)),
        ]
    )
    got = home.admissions(world.span())
    assert got.admissions == tuple(asks)
    end = world.base_us + US_PER_S
    assert got.levels == (WatchLevel("a", world.base_us, end, 3), WatchLevel("b", world.base_us, end, 2))
