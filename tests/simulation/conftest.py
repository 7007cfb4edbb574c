"""Small fleets that are played once for all tests of a module."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from sluicegate.simulation import Calibration, FleetPlan
from sluicegate.simulation.fleet import Fleet

Play = Callable[..., Fleet]


@pytest.fixture(scope="session")
def costs() -> Calibration:
    """Costs that do not change with a new measurement."""
    texts = ("a machine", "2026-01-01", "a server", "a Python")
    return Calibration(
        *texts, local_check_us=10.0, ask_us=20.0, exact_call_us=12.0, exact_check_us=3.0, lease_call_us=25.0,
        lease_item_us=13.0, rtt_us=80.0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def play(costs: Calibration) -> Play:
    """Play a fleet of four gateways and 4,000 checks a second for three seconds; what is given is changed in its plan."""

    @cache
    def played(**changes: object) -> Fleet:
        numbers: dict[str, object] = {"gateways": 4, "rate": 1_000, "keys": 20_000, "masters": 2, "seconds": 3.0}
        fleet = Fleet(FleetPlan(**(numbers | changes)), costs)  # type: ignore[arg-type]  # a test names fields of the plan
        fleet.play()
        return fleet

    return played
