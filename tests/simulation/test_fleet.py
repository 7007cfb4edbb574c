"""Whole runs: repeatable, nothing lost between the parts, no more admitted than is promised."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable

import pytest

from sluicegate.simulation import Calibration, FleetPlan, Scenario, simulate
from sluicegate.simulation.fleet import Fleet
from sluicegate.simulation.report import report_of

Play = Callable[..., Fleet]
SCENARIOS = list(Scenario)


def test_a_seed_gives_one_report(costs: Calibration) -> None:
    """The same plan and costs give the same report to the last digit, another seed another one."""
    plan = FleetPlan(gateways=3, rate=500, keys=5_000, masters=2, seconds=1.0, seed=5)
    first, again = simulate(plan, costs), simulate(plan, costs)
    assert first.to_dict() == again.to_dict()
    assert first.text() == again.text()
    other = FleetPlan(gateways=3, rate=500, keys=5_000, masters=2, seconds=1.0, seed=6)
    assert simulate(other, costs).checks != first.checks


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_checks_add_up(play: Play, scenario: Scenario) -> None:
    """Every check is decided in one place, and there are as many as are offered."""
    fleet = play(scenario=scenario)
    checks = report_of(fleet).checks
    parts = (
        "refused by the deny cache, %", "viral client: decided by leases, %", "asked the store, %",
        "decided without their store, %",
    )  # fmt: skip
    assert sum(checks[part] for part in parts) == pytest.approx(100.0, abs=0.01)
    offered = fleet.plan.usual_per_us * 1e6
    if fleet.viral is not None:
        offered += fleet.plan.checks_per_us * fleet.plan.viral_part * 0.8 * 1e6
    assert checks["checks per second"] == pytest.approx(offered, rel=0.04)
    binned = sum(one.checks for one in fleet.bins) / fleet.plan.seconds
    assert checks["checks per second"] == pytest.approx(binned, rel=1e-6)


def test_what_asks_arrives(play: Play) -> None:
    """Checks that the gateways send are those that the masters answer, apart from what is under way at the ends and the clients that others stand for."""
    fleet = play()
    sent = fleet.clients.counts.asked + fleet.tail_asked + sum(one.asked for one in fleet.counters)
    assert sum(master.checks for master in fleet.masters) == pytest.approx(sent, rel=0.02)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_shared_counters_stay_within_their_bound(play: Play, scenario: Scenario) -> None:
    """No interval of a shared counter is above its bound, in any scenario, with clocks that are 1 % wrong."""
    for counter in play(scenario=scenario).counters:
        assert counter.sweep.total > 0
        assert counter.sweep.excess == 0


def test_clients_stay_within_their_bound(play: Play) -> None:
    """No interval of a client's counter is above its bound while no master is lost."""
    assert all(client.sweep.excess == 0 for client in play().clients.all)


def test_leases_are_used(play: Play) -> None:
    """The global counter is decided by leases: hardly any of its tokens needs a question, and what is asked for is not held back."""
    fleet = play()
    counter = report_of(fleet).counters[0]
    assert counter["passed_by_lease_percent"] > 95
    assert counter["under_admitted_percent"] < 2


def test_a_contended_counter_gets_its_limit(play: Play) -> None:
    """An endpoint that is asked for more than its limit gets all of it, less what leases may strand."""
    endpoint = report_of(play(rate=10_000)).counters[1]
    assert endpoint["offered_per_s"] > endpoint["limit_per_s"]
    assert endpoint["under_admitted_percent"] <= 10


def test_failover_is_within_what_is_promised(play: Play) -> None:
    """What passes above the bound of clients whose master was lost is at most the lost charges and the gateways' shares."""
    fleet = play(scenario=Scenario.FAILOVER)
    lines = fleet.event.lines()
    assert lines["checks decided without the store"] > 0
    promised = lines["the most that is promised: what was lost and what gateways let pass by themselves"]
    assert lines["their tokens above the bound"] <= promised
    assert fleet.shared.lives
    away = [one.calls[0] for one in fleet.bins]
    assert 0 in away
    assert away[-1] > 0


def test_a_viral_client_moves_into_leases(play: Play) -> None:
    """A client that asks for nine tenths of all checks is leased everywhere within a window of the heat and a bit, and then hardly asks the store."""
    fleet = play(scenario=Scenario.VIRAL, seconds=6.0)
    lines = fleet.event.lines()
    assert 0 < lines["until the first gateway leases it, ms"] <= lines["until all gateways lease it, ms"] < 1_500
    assert lines["answered with no charge sent, in the last third, %"] > 85
    assert fleet.viral is not None
    assert fleet.viral.sweep.excess == 0


def test_a_lowered_limit_binds_in_time(play: Play) -> None:
    """No interval that begins a lease's whole time after the last gateway was told is above the new limit."""
    fleet = play(scenario=Scenario.RULE, seconds=6.0, rate=5_000)
    lines = fleet.event.lines()
    promised = lines["the most that is promised: told, and a lease's whole time, ms"]
    assert lines["no interval that begins later is above the new limit, ms"] <= promised
    assert lines["passed per second after that, the burst included"] <= lines["new global limit, per second"] * 1.15
    assert lines["tokens above the new limit, counted from the change"] > 0


def test_affinity_saves_asks(play: Play) -> None:
    """Where clients keep to one gateway fewer checks ask the store."""
    apart, together = report_of(play()).checks, report_of(play(affinity=True)).checks
    name = "answered with no charge sent to the store, %"
    assert together[name] > apart[name] + 3


def test_a_report_is_plain_json(play: Play) -> None:
    """A report survives a round trip through JSON, and its text names every measured cost and every assumption."""
    report = report_of(play())
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
    text = report.text()
    assert all(line in text for line in report.assumptions)
    assert all(f"{name} " in text for name in ("local_check_us", "exact_call_us", "lease_item_us", "rtt_us"))


def test_a_fleet_that_is_too_small_for_its_load(costs: Calibration) -> None:
    """Where one master cannot answer all, checks are late and decided by gateways' shares, and the run ends all the same."""
    slow = dataclasses.replace(costs, exact_check_us=6.0)
    report = simulate(FleetPlan(gateways=20, rate=25_000, keys=1_000_000, masters=1, seconds=1.0, warmup_s=1.0), slow)
    assert report.masters[0]["busy_percent"] > 85
    assert report.checks["decided without their store, %"] > 1
    assert report.latency_us["those that ask the store"]["max"] <= 8_000 + costs.local_check_us + costs.ask_us


def test_an_overloaded_master_costs_no_more_than_shares(costs: Calibration) -> None:
    """Where a viral client makes its master too late, what passes above its bound is at most what gateways' own shares let pass meanwhile."""
    slow = dataclasses.replace(costs, exact_check_us=400.0)
    fleet = Fleet(FleetPlan(gateways=4, rate=5_000, keys=20_000, masters=3, seconds=4.0, scenario=Scenario.VIRAL), slow)
    fleet.play()
    assert fleet.viral is not None
    assert 0 < fleet.viral.sweep.excess <= fleet.viral.share_passed
    assert sum(master.late for master in fleet.masters) > 0
    assert sum(one.degraded for one in fleet.bins) > 0
