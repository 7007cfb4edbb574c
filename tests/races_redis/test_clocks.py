"""Two nodes whose wall clocks are 30 s apart decide as one node whose clock is right: counters are dated by the server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from random import Random

import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.redis import RedisStore

RULES = load_rules(
    b"""
version: 1
rules:
  - {name: token, match: {path: /token}, per: [user], quota: 8/minute}
  - {name: leaky, match: {path: /leaky}, per: [user], quota: 8/minute, algorithm: leaky_bucket, nodelay: true}
  - {name: fixed, match: {path: /fixed}, per: [user], quota: 8/15s, algorithm: fixed_window}
  - {name: sliding, match: {path: /sliding}, per: [user], quota: 8/15s, algorithm: sliding_window}
  - {name: strict, match: {path: /strict}, per: [user], quota: 8/15s, algorithm: sliding_window, strict: true}
  - {name: log, match: {path: /log}, per: [user], quota: 8/15s, algorithm: sliding_log}
  - {name: day, match: {path: /day}, per: [user], quota: 8/day, algorithm: fixed_window, align: calendar, tz: Europe/Berlin}
  - {name: month, match: {path: /month}, per: [user], quota: 8/month, algorithm: fixed_window, align: calendar}
  - {name: year, match: {path: /year}, per: [user], quota: 8/year, algorithm: fixed_window, align: calendar}
""",
    "rules.yaml",
)
START_US = int(datetime(2026, 12, 31, 22, 59, 40, tzinfo=UTC).timestamp()) * US_PER_S
"""Twenty seconds before midnight in Berlin; an hour and twenty seconds before the UTC year ends."""

HOUR_US = 3_600 * US_PER_S


class OffClock(ManualClock):
    """The clock of a node: another one's reading and its own error."""

    def __init__(self, right: ManualClock, error_us: int) -> None:
        super().__init__()
        self._right, self._error_us = right, error_us

    def now_us(self) -> int:
        return self._right.now_us() + self._error_us


@pytest.fixture
def open_node(server) -> Iterator[Callable[[ManualClock, ManualClock], Limiter]]:
    """Makes a node: ``open_node(its clock, the server's clock)``."""
    with contextlib.ExitStack() as stack:

        def make(clock: ManualClock, time_source: ManualClock) -> Limiter:
            store = RedisStore(server.url, clock=clock, time_source=time_source)
            return stack.enter_context(Limiter.from_rules(RULES, store, clock, near=None))

        yield make


@pytest.mark.parametrize("seed", range(3))
def test_nodes_with_wrong_clocks_decide_as_one(open_node, seed: int) -> None:
    """A minute of requests around the end of a day and of a year, to nodes at random, gets the answers of a single node."""
    random = Random(seed)
    right = ManualClock(START_US)
    clocks = [OffClock(right, error_us) for error_us in (-15 * US_PER_S, 15 * US_PER_S)]
    nodes = [open_node(clock, right) for clock in clocks]
    single = Limiter.from_rules(RULES, clock=right)
    outcomes = set()
    for step in range(600):
        # The first half passes midnight in Berlin, the second the end of the year in UTC.
        if step == 300:
            right.advance(HOUR_US + START_US - right.now_us())
        right.advance(random.randrange(240_000))
        facts = Facts(path=f"/{random.choice(RULES.rules).name}", user=random.choice("ab"))
        cost = random.choice((1, 1, 1, 3))
        found, expected = random.choice(nodes).check(facts, cost), single.check(facts, cost)
        assert not found.degraded
        assert found.results == expected.results
        outcomes.add((facts.path, found.allowed))
    assert len(outcomes) == 2 * len(RULES.rules)
