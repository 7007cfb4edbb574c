"""What the log and readiness say of other regions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from sluicegate.app.region_watch import RegionWatch
from sluicegate.app.store_watch import StoreWatch
from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.regional.broker import BrokerStats
from sluicegate.stores.regional.plan import Plan
from sluicegate.stores.regional.status import RegionStatus
from sluicegate.stores.regional.store import RegionalStore

SECOND = 1_000_000


class Told:
    """A region's store that says which regions are away for how long."""

    def __init__(self) -> None:
        self.away_us: dict[str, int] = {}

    def status(self) -> RegionStatus:
        return RegionStatus("eu", {}, self.away_us, BrokerStats(), dict.fromkeys(self.away_us, "refused"))


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """What was logged since the last time."""
    found = [(record.getMessage(), cast("Any", record).fields) for record in caplog.records]
    caplog.clear()
    return found


def test_a_region_that_is_away_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line with the reason when it has been away for a second, one when it is back; one exchange that failed is no news."""
    caplog.set_level(logging.INFO, logger="sluicegate")
    told = Told()
    watch = RegionWatch(told.status)
    told.away_us = {"us": SECOND - 1}
    watch.look()
    assert lines(caplog) == []
    told.away_us = {"us": SECOND, "ap": 5 * SECOND}
    watch.look()
    assert lines(caplog) == [
        ("region_unreachable", {"region": "ap", "error": "refused"}),
        ("region_unreachable", {"region": "us", "error": "refused"}),
    ]
    told.away_us = {"us": 9 * SECOND}
    watch.look()
    assert lines(caplog) == [("region_reached", {"region": "ap"})]
    told.away_us = {}
    watch.look()
    watch.look()
    assert lines(caplog) == [("region_reached", {"region": "us"})]


def test_the_own_store_is_not_told_of_twice(caplog: pytest.LogCaptureFixture) -> None:
    """That the region's own server is away is `store_down`; readiness lists it with the others."""
    caplog.set_level(logging.INFO, logger="sluicegate")
    told = Told()
    watch = RegionWatch(told.status)
    told.away_us = {"eu": 60 * SECOND}
    watch.look()
    assert lines(caplog) == []
    assert watch.detail(str) == {
        "region": "eu",
        "regions_unreachable": [{"region": "eu", "since": "60000000", "error": "refused"}],
    }


def test_a_store_of_a_region_that_refuses_the_password_is_named(start_redis: Callable[..., Any]) -> None:
    """Readiness says which region cannot be reached, since when, and what its server said."""
    home, other = start_redis(), start_redis("--requirepass", "right")
    clock = ManualClock()
    partner = RedisStore(f"redis://:wrong@127.0.0.1:{other.port}?timeout_ms=5000")
    store = RegionalStore(
        RedisStore(f"redis://127.0.0.1:{home.port}?timeout_ms=5000"),
        Plan({"eu": 1, "us": 1}),
        "eu",
        {"us": partner},
        clock,
        keep=False,
    )
    rules = load_rules("version: 1\nrules: [{name: all, quota: 600/second}]", "rules")
    with Limiter.from_rules(rules, store, clock, near=None) as limiter:
        watch = StoreWatch(limiter, "redis://u:p@store:1", clock)
        assert watch.detail()["regions_unreachable"] == []
        assert limiter.check({"path": "/"})
        assert store.step()
        clock.advance(7 * SECOND)
        found = watch.detail()
        assert found["region"] == "eu"
        (away,) = found["regions_unreachable"]
        assert (away["region"], away["since"]) == ("us", "2023-11-14T22:13:20Z")
        assert "WRONGPASS" in away["error"] or "invalid username-password" in away["error"]
        assert "right" not in away["error"]
