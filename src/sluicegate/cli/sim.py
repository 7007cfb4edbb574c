"""``sluicegate sim``: what a fleet would do, before there is one."""

from __future__ import annotations

import json as json_format
from pathlib import Path

import click

from sluicegate.cli.options import DurationType, config_option, flag, option
from sluicegate.simulation import FleetPlan, Scenario, load_calibration, shipped_calibration, simulate

__all__ = ["fleet", "sim"]

_DEFAULT = FleetPlan()


@click.group()
def sim() -> None:
    """Model a fleet with measured costs."""


@sim.command()
@config_option()
@option("gateways", type=int, default=_DEFAULT.gateways, help="Processes that decide.")
@option("rate", type=int, default=_DEFAULT.rate, help="Checks per second and gateway.")
@option("keys", type=int, default=_DEFAULT.keys, help="Live clients.")
@option("masters", type=int, default=_DEFAULT.masters, help="Redis masters.")
@option("seconds", type=DurationType(), default=f"{_DEFAULT.seconds:g}s", help="How long the fleet is watched.")
@option(
    "scenario",
    type=click.Choice([each.value for each in Scenario]),
    default=_DEFAULT.scenario.value,
    help="What happens to it: nothing, a master is lost, a client goes viral, the global limit is lowered.",
)
@flag("affinity", help="A client always comes to the same gateway.")
@option("seed", type=int, default=_DEFAULT.seed, help="Of all that is drawn; the same seed gives the same report.")
@option(
    "calibration",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Costs measured by bench/calibrate.py; without it those shipped.",
)
@flag("json", help="Print one JSON object.")
def fleet(
    gateways: int,
    rate: int,
    keys: int,
    masters: int,
    seconds: float,
    scenario: str,
    affinity: bool,
    seed: int,
    calibration: Path | None,
    json: bool,
) -> int:
    """Model gateways and masters by discrete events: calls, latencies, over- and under-admission, failover, a viral client, a lowered limit.

    Prints a table, a chart, the measured costs it rests on and every assumption.
    """
    plan = FleetPlan(
        gateways=gateways,
        rate=rate,
        keys=keys,
        masters=masters,
        seconds=seconds,
        scenario=Scenario(scenario),
        affinity=affinity,
        seed=seed,
    )
    costs = shipped_calibration() if calibration is None else load_calibration(calibration)
    report = simulate(plan, costs)
    click.echo(json_format.dumps(report.to_dict(), indent=2) if json else report.text())
    return 0
