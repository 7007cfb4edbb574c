"""An empty home in the shared server, and batches to put into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from real_clickhouse import ClickHouse

from sluicegate.analytics.clickhouse import ClickHouseHome, ClickHouseSettings
from sluicegate.analytics.model import HOUR_S, MINUTE_S, Span
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.events import (
    SCHEMA_VERSION,
    Batch,
    DecisionSample,
    Demand,
    Dropped,
    RequestCount,
    RuleCount,
    SubjectCount,
    SubjectTotal,
    batch_id,
)


@dataclass
class Told:
    """Makes batches that hold everything, each of another second from the start of an hour on, and says what they add up to."""

    base_us: int
    made: int = 0

    def batches(self, number: int, **parts: Any) -> list[Batch]:
        """So many new ones; each counts 7 decisions of 11 tokens, of which 2 were dropped."""
        return [self._one(**parts) for _ in range(number)]

    def _one(self, **parts: Any) -> Batch:
        at_us = self.base_us + self.made % HOUR_S * US_PER_S
        fields: dict[str, Any] = {
            "node": "n",
            "requests": [RequestCount("api", "denied", "free", 1, 3, 4), RequestCount("", "allowed", "", 1, 4, 7)],
            "rules": [RuleCount("api", "denied", "free", 1, 3, 4)],
            "subjects": [SubjectCount("api", "s", "refused", 3)],
            "totals": [SubjectTotal("api", "refused", 3)],
            "decisions": [DecisionSample(at_us, "denied", 1.0, "api", subjects={"ip": "s"})],
            "demand": [Demand("api", "free", "s", at_us, 1, 3, 4, 3, 4, 4)],
            "dropped": Dropped(decisions=2),
        }
        fields |= {"id": batch_id("n", 1, self.made), "at_us": at_us, "until_us": at_us + US_PER_S, **parts}
        batch = Batch(SCHEMA_VERSION, **fields)
        self.made += 1
        return batch

    @property
    def span(self) -> Span:
        """The hour that they are of: answered by the cells of an hour."""
        return Span(self.base_us, self.base_us + HOUR_S * US_PER_S)

    @property
    def odd_span(self) -> Span:
        """The same and some more, answered by cells of seconds."""
        return Span(self.base_us, self.base_us + (HOUR_S + 1) * US_PER_S)

    def check(self, home: ClickHouseHome, number: int) -> None:
        """Whether the home holds ``number`` batches, each once, in every table and in cells of every length."""
        minutes = Span(self.base_us, self.base_us + (HOUR_S + MINUTE_S) * US_PER_S)
        for span in (self.span, minutes, self.odd_span):
            counted = [(row.decisions, row.tokens) for row in home.requests(span)]
            assert counted == ([(7 * number, 11 * number)] if number else []), span
            assert [(row.decisions, row.tokens) for row in home.rules(span)] == (
                [(3 * number, 4 * number)] if number else []
            )
            found = home.offenders(span, rule="api")
            assert [(row.subject, row.times) for row in found.rows] == ([("s", 3 * number)] if number else [])
            assert found.total == 3 * number
        assert len(home.decisions(self.span, limit=1_000)) == number
        assert len(home.demand(self.span)) == number
        assert home.dropped(self.span).decisions == 2 * number
        assert home.status().batches == number


@pytest.fixture
def told() -> Told:
    """Batches of the hour before this one."""
    now_s = SystemClock().now_us() // US_PER_S
    return Told((now_s // HOUR_S - 1) * HOUR_S * US_PER_S)


@pytest.fixture
def home(new_clickhouse_home: Callable[[], ClickHouseHome]) -> ClickHouseHome:
    """An empty home in the shared server."""
    return new_clickhouse_home()


@pytest.fixture
def new_settings(shared_clickhouse: ClickHouse, clickhouse_database: str) -> ClickHouseSettings:
    """Settings of a database that is not there yet."""
    return ClickHouseSettings.from_url(shared_clickhouse.url(clickhouse_database))
