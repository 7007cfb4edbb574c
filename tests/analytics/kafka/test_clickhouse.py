"""From the real broker into the real engine of ClickHouse, which loses replies, is slow and dies."""

from __future__ import annotations

import pytest

from sluicegate.analytics.model import Span
from sluicegate.app.consuming.run import keeper_of
from sluicegate.clock import SystemClock
from sluicegate.errors import AnalyticsError

pytestmark = pytest.mark.slow

ALL = Span(1_699_999_200_000_000, 1_700_002_800_000_000)


def total(home) -> int:
    """All decisions in the home; -1 while it is away."""
    try:
        return sum(row.decisions for row in home.requests(ALL))
    except AnalyticsError:
        return -1


def test_a_database_that_fails(sink, tell, consume, new_clickhouse_home, shared_clickhouse, wait_until) -> None:
    """Its replies are lost, it is killed and started again: every decision is counted once."""
    home = new_clickhouse_home()
    # Each is carried out; more than the client library asks again for by itself.
    shared_clickhouse.fault("cut", match="landing", times=9)
    made = tell(sink, 3, range(10))
    running = consume(keeper_of(home, SystemClock()))
    wait_until(lambda: running.stats.home_errors > 0, "a lost reply")
    shared_clickhouse.fault("none")
    wait_until(lambda: total(home) == made, "all decisions, after lost replies")
    wait_until(lambda: running.stats.lag == 0, "no lag")
    failed = running.stats.home_errors
    shared_clickhouse.kill()
    try:
        made += tell(sink, 3, range(10, 20))
        wait_until(lambda: running.stats.home_errors > failed, "attempts at nobody")
    finally:
        shared_clickhouse.start()
    made += tell(sink, 3, range(20, 30))
    wait_until(lambda: total(home) == made, "all decisions, after the restart")
    assert running.stats.missing == running.stats.dead == 0
