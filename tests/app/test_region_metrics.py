"""The metrics of a region's parts, by what its store says of itself."""

from __future__ import annotations

from fractions import Fraction
from typing import cast

import pytest

from sluicegate.app.region_metrics import region_metrics
from sluicegate.stores.regional.broker import BrokerStats
from sluicegate.stores.regional.status import CounterShare, RegionStatus
from sluicegate.stores.regional.store import RegionalStore

KEY = "default:all:token_bucket:-:0:*"


class Told:
    """What a region's store says."""

    def __init__(self, status: RegionStatus) -> None:
        self._status = status

    def status(self) -> RegionStatus:
        return self._status


def values(status: RegionStatus) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    return {
        (sample.name.removeprefix("sluicegate_region_"), *sample.labels.values()): sample.value
        for family in region_metrics(cast("RegionalStore", Told(status)))
        for sample in family.samples
    }


def test_parts_counts_and_times() -> None:
    """Parts by counter, what was done as counts, and for how many seconds a region was not reached."""
    stats = BrokerStats(given=3, taken=2, conflicts=5, begun=1, outdated=4)
    share = CounterShare(float(Fraction(1, 4)), 0.5, 0.125)
    found = values(RegionStatus("eu", {KEY: share}, {"us": 2_500_000}, stats))
    assert found == {
        ("held", "eu", KEY): 0.25,
        ("lent", "eu", KEY): 0.5,
        ("borrowed", "eu", KEY): 0.125,
        ("unreachable_seconds", "us"): 2.5,
        ("given_total",): 3,
        ("taken_total",): 2,
        ("begun_total",): 1,
        ("conflicts_total",): 5,
        ("outdated_total",): 4,
    }


@pytest.mark.parametrize("name", ["held", "lent", "borrowed", "unreachable_seconds"])
def test_what_there_is_nothing_to_say_of_has_no_values(name: str) -> None:
    """No counter was in use, and every region could be reached."""
    assert not [key for key in values(RegionStatus("eu", {}, {}, BrokerStats())) if key[0] == name]
