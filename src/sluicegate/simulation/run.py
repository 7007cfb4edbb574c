"""One run of the fleet model, from numbers to a report."""

from __future__ import annotations

from sluicegate.simulation.calibration import Calibration, shipped_calibration
from sluicegate.simulation.fleet import Fleet
from sluicegate.simulation.plan import FleetPlan
from sluicegate.simulation.report import FleetReport, report_of

__all__ = ["simulate"]


def simulate(plan: FleetPlan, costs: Calibration | None = None) -> FleetReport:
    """Play a fleet and report. ``costs`` None: those shipped with the package. The same plan and costs give the same report, on any machine.

    Takes about five seconds of one core per second of the default fleet.
    """
    fleet = Fleet(plan, shipped_calibration() if costs is None else costs)
    fleet.play()
    return report_of(fleet)
