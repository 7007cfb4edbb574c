"""Every home there is, empty, and batches with a naive oracle beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.home import Home
from sluicegate.analytics.model import ANYTHING, CountRow, Span, Where, cells_of
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.events import (
    SCHEMA_VERSION,
    Batch,
    Dropped,
    RequestCount,
    RuleCount,
    SubjectCount,
    SubjectTotal,
    batch_id,
)

HOMES = ("embedded", "clickhouse", "kafka_engine")
"""Each has a fixture ``new_NAME_home``, a function that gives an empty home and is called once a test; it closes what it gave."""


@pytest.fixture
def new_embedded_home(tmp_path: Path) -> Iterator[Callable[[], Home]]:
    """A home in a file that is not there yet."""
    made: list[EmbeddedHome] = []

    def new() -> Home:
        made.append(EmbeddedHome(tmp_path / f"analytics-{len(made)}.db"))
        return made[-1]

    yield new
    for home in made:
        home.close()


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest) -> Home:
    """An empty home."""
    new: Callable[[], Home] = request.getfixturevalue(f"new_{request.param}_home")
    return new()


@dataclass
class World:
    """Makes batches of seconds, and answers from them what a home should, by going through all of them."""

    base_us: int
    """Start of a minute some minutes ago, so that no home lets go of it during a test."""
    batches: list[Batch] = field(default_factory=list)
    sequences: dict[str, int] = field(default_factory=dict)

    def batch(self, node: str = "n", second: int = 0, **parts: Any) -> Batch:
        """One batch of a second, counted from ``base_us``; ``parts``: fields of it."""
        number = self.sequences.get(node, 0)
        self.sequences[node] = number + 1
        at_us = self.base_us + second * US_PER_S
        made = Batch(SCHEMA_VERSION, batch_id(node, 0xFEED, number), node, at_us, at_us + US_PER_S, **parts)
        self.batches.append(made)
        return made

    def span(self, since_s: float = -600, until_s: float = 1_200) -> Span:
        """By seconds from ``base_us``."""
        return Span(self.base_us + int(since_s * US_PER_S), self.base_us + int(until_s * US_PER_S))

    def counts(
        self,
        home: Home,
        table: str,
        span: Span,
        step_s: int | None = None,
        by: Sequence[str] = (),
        where: Where = ANYTHING,
    ) -> list[CountRow]:
        """What ``home.requests`` or ``home.rules`` should say, with as long cells as it keeps."""
        cell_s = cells_of(span, step_s, home.status().kept_since_us)
        wide = span.in_cells_of(cell_s)
        step = None if step_s is None else max(step_s, cell_s) * US_PER_S
        found: dict[tuple[Any, ...], list[int]] = {}
        for batch in self.batches:
            at_us = batch.at_us // (cell_s * US_PER_S) * cell_s * US_PER_S
            if not wide.since_us <= at_us < wide.until_us:
                continue
            for row in getattr(batch, table):
                told = {"node": batch.node, **{name: getattr(row, name) for name in row.__struct_fields__}}
                if any(told[name] not in values for name, values in where.given().items()):
                    continue
                key = (*(() if step is None else (at_us // step * step,)), *(told[name] for name in by))
                both = found.setdefault(key, [0, 0])
                both[0] += row.decisions
                both[1] += row.tokens
        names = [*(() if step is None else ("at_us",)), *by]
        return [CountRow(*found[key], **dict(zip(names, key, strict=True))) for key in sorted(found)]


@pytest.fixture
def world() -> World:
    """A world that begins twenty minutes ago."""
    now_us = SystemClock().now_us()
    return World((now_us // US_PER_S - 1_200) // 60 * 60 * US_PER_S)


@pytest.fixture
def busy(world: World) -> World:
    """Three nodes' traffic of some minutes, drawn from a seed."""
    random = Random(7)
    names = ["", "api", "login", "block:ip"]
    for second in sorted(random.sample(range(-90, 400), 60)):
        for node in ("a", "b", "c"):
            if random.random() < 0.7:
                fill(world, random, names, node, second)
    return world


def fill(world: World, random: Random, names: list[str], node: str, second: int) -> None:
    """One batch with every sort of count."""
    requests = {
        (
            random.choice(names),
            random.choice(["allowed", "denied", "undecided"]),
            random.choice(["", "free", "pro"]),
            random.randrange(3),
            random.random() < 0.2,
        )
        for _ in range(4)
    }
    rules = {(random.choice(names[1:]), random.choice(["allowed", "denied", "shadow_denied"])) for _ in range(3)}
    world.batch(
        node,
        second,
        requests=[
            RequestCount(rule, outcome, tier, version, random.randrange(1, 99), random.randrange(999), degraded)
            for rule, outcome, tier, version, degraded in sorted(requests)
        ],
        rules=[RuleCount(rule, outcome, "", 1, random.randrange(1, 99), 5) for rule, outcome in sorted(rules)],
        subjects=[
            SubjectCount(rule, f"s{random.randrange(9)}", "refused", random.randrange(1, 50)) for rule in ("", "api")
        ],
        totals=[SubjectTotal(rule, "refused", 50, 3) for rule in ("", "api")],
        dropped=Dropped(samples=random.randrange(3), demand=random.randrange(2)),
    )
