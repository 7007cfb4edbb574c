"""The fleet model: what a fleet of gateways and masters would do, by discrete events and measured costs. Standard library only."""

from __future__ import annotations

from sluicegate.simulation.calibration import Calibration, load_calibration, shipped_calibration
from sluicegate.simulation.plan import FleetPlan, Scenario
from sluicegate.simulation.report import FleetReport
from sluicegate.simulation.run import simulate

__all__ = [
    "Calibration",
    "FleetPlan",
    "FleetReport",
    "Scenario",
    "load_calibration",
    "shipped_calibration",
    "simulate",
]
