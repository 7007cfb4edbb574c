"""Several processes that lease one counter: no interval above its bound, little below it, and everybody gets a fair part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.stores.near.settings import NearSettings

MS = 1_000
SECOND = 1_000_000

Make = Callable[..., Any]

QUICK = NearSettings(terms=LeaseTerms(ttl_us=200 * MS), horizon_us=50 * MS, exact_below=5)
SPECS: tuple[Spec, ...] = (
    TokenBucket(60, 200, SECOND),
    TokenBucket(41, 730, 3_000_017),
    TokenBucket(200, 20, SECOND),
    FixedWindow(80, 500 * MS),
    SlidingWindow(80, 500 * MS),
    SlidingWindow(80, 600 * MS, sub_windows=3),
    SlidingLog(80, 4_100 * MS),
)
FAULTS = {
    "lost": 0.05,
    "late": 0.05,
    "crash_us": 4 * SECOND,
    "stop_us": 3 * SECOND,
    "down_us": 5 * SECOND,
    "fork_us": 4 * SECOND,
    "drift_ppm": 10_000,
    "slow": 0.1,
}

every_spec = pytest.mark.parametrize("spec", SPECS, ids=str)


def uneven(node: int, now_us: int) -> float:
    """Requests a second: in turns as many on every node, and most on one."""
    return (100, 60, 20, 250)[node] if now_us // SECOND % 2 else 60


@pytest.mark.slow
@every_spec
@pytest.mark.parametrize("seed", range(3))
def test_over_admission_is_zero_with_all_faults(make_fleet: Make, spec: Spec, seed: int) -> None:
    """Lost and late messages, crashed, forked and stopped processes, clocks 1 % wrong and a store that goes down admit nothing more."""
    fleet = make_fleet(seed, spec, uneven, nodes_count=4, settings=QUICK, troubles=FAULTS, costs=(1, 1, 2, 3))
    fleet.run(5 * SECOND)
    assert fleet.excess() is None, fleet.told()
    assert fleet.admitted() > 50


@pytest.mark.slow
@every_spec
@pytest.mark.parametrize("event", ["restart_us", "failover_us"])
def test_a_new_life_of_the_store_admits_at_most_the_exact_charges_that_were_lost(
    make_fleet: Make, spec: Spec, event: str
) -> None:
    """After restarts and failovers to a replica that is behind, what processes held and hold adds nothing."""
    for seed in range(3):
        troubles = {**FAULTS, event: 1_500 * MS}
        fleet = make_fleet(seed, spec, uneven, nodes_count=4, settings=QUICK, troubles=troubles).run(5 * SECOND)
        assert fleet.losing.events > 0
        assert fleet.excess() is None, fleet.told()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "later"),
    [
        (TokenBucket(200, 400, SECOND), TokenBucket(20, 40, SECOND)),
        (TokenBucket(40, 80, SECOND), TokenBucket(200, 400, SECOND)),
        (FixedWindow(200, 500 * MS), FixedWindow(30, 500 * MS)),
        (SlidingWindow(200, 600 * MS, sub_windows=3), SlidingWindow(30, 600 * MS, sub_windows=3)),
    ],
    ids=["bucket lowered", "bucket raised", "window lowered", "strict lowered"],
)
def test_a_changed_limit_binds_when_older_leases_have_ended(make_fleet: Make, spec: Spec, later: Spec) -> None:
    """From one hold after a change the new bound holds in every interval; the larger of both at any time."""
    for seed in range(2):
        fleet = make_fleet(seed, spec, uneven, nodes_count=4, settings=QUICK, later=(1_500 * MS, later))
        fleet.run(3 * SECOND)
        assert fleet.excess() is None, fleet.told()


# ---------------------------------------------------------------------- what is lost to leases

NODES = 8
SKEWS: dict[str, Callable[[float], Callable[[int, int], float]]] = {
    "all on one": lambda total: lambda node, _: total if node == 0 else 0,
    "equal": lambda total: lambda _, __: total / NODES,
    "idle, then busy": lambda total: lambda node, now_us: total / NODES if node or now_us > 2 * SECOND else 0,
    "moves": lambda total: lambda node, now_us: total if node == now_us // (2 * SECOND) % 2 else 0,
}
STEADY: dict[str, tuple[Spec, int]] = {
    "bucket": (TokenBucket(1_000, 1_000, SECOND), 1_000),
    "bucket that fills fast": (TokenBucket(400, 1_000, SECOND), 1_000),
    "small bucket": (TokenBucket(400, 100, SECOND), 100),
    "fixed window": (FixedWindow(1_000, SECOND), 1_000),
    "estimate": (SlidingWindow(1_000, SECOND), 1_000),
    "strict": (SlidingWindow(3_200, 4 * SECOND, sub_windows=4), 800),
}


def under_admission(fleet: Any, since_us: int) -> float:
    """The part that is missing of what one exact counter would have admitted of the same requests."""
    since_us += fleet.origin_us
    state, ideal = None, 0
    for time_us, cost in fleet.offers:
        after = fleet.spec.admit(state, time_us, cost)
        if after is not None:
            state = after
            ideal += cost if time_us >= since_us else 0
    got = sum([cost for time_us, cost in fleet.hits if time_us >= since_us])
    return 1 - got / max(ideal, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("skew", SKEWS)
def test_under_admission_is_at_most_a_tenth_at_steady_load(make_fleet: Make, name: str, skew: str) -> None:
    """With eight processes and no faults, from half the limit to ten times it, however the load is spread."""
    spec, per_s = STEADY[name]
    for load in (0.5, 1, 2, 10):
        fleet = make_fleet(1, spec, SKEWS[skew](per_s * load)).run(6 * SECOND)
        assert under_admission(fleet, 2 * SECOND) <= 0.1, (load, [node.admitted for node in fleet.nodes])
        if load == 10:
            assert fleet.asks < 6 * 20 * NODES


@pytest.mark.slow
def test_a_log_is_under_admitted_by_its_holds(make_fleet: Make) -> None:
    """A token of a log counts for one hold longer: of twenty holds, not more than a tenth is lost in all."""
    spec = SlidingLog(4_000, 21 * SECOND)
    fleet = make_fleet(1, spec, SKEWS["equal"](2 * 4_000 / 21)).run(85 * SECOND)
    assert under_admission(fleet, 22 * SECOND) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bucket", "fixed window"])
def test_equal_demand_gets_equal_parts(make_fleet: Make, name: str) -> None:
    """Of a counter that is wanted twice, eight equal processes get within a tenth of the same."""
    spec, per_s = STEADY[name]
    fleet = make_fleet(3, spec, SKEWS["equal"](2 * per_s)).run(12 * SECOND)
    got = [node.admitted for node in fleet.nodes]
    assert max(got) <= 1.1 * sum(got) / NODES
    assert min(got) >= 0.9 * sum(got) / NODES


@pytest.mark.slow
def test_a_small_demand_is_served_wholly(make_fleet: Make) -> None:
    """A process that wants less than its part gets all of it, while the others fight for ten times the limit."""
    spec, per_s = STEADY["bucket"]
    small = per_s / NODES / 5
    fleet = make_fleet(1, spec, lambda node, _: small if node == 0 else 10 * per_s / 7).run(12 * SECOND)
    assert fleet.nodes[0].admitted >= 0.95 * fleet.nodes[0].offered


@pytest.mark.slow
def test_a_hot_counter_asks_its_store_hardly_ever(make_fleet: Make) -> None:
    """Of eight processes with a hot counter below its limit, one request in a hundred or fewer is an ask, and after the start none is exact."""
    spec = TokenBucket(40_000, 40_000, SECOND)
    fleet = make_fleet(1, spec, SKEWS["equal"](20_000)).run(3 * SECOND)
    exact, asks = sum([node.exact for node in fleet.nodes]), fleet.asks
    fleet.run(5 * SECOND)
    assert sum([node.exact for node in fleet.nodes]) == exact
    assert fleet.asks - asks < 2 * 20_000 / 100


def test_a_fleet_that_starts_is_not_refused(make_fleet: Make) -> None:
    """In the first second of all processes nobody knows whether the store lost writes; every request is decided, exactly."""
    for spec in (TokenBucket(1_000, 1_000, SECOND), FixedWindow(3_600_000, 3_600 * SECOND)):
        fleet = make_fleet(1, spec, SKEWS["equal"](500)).run(SECOND)
        assert fleet.admitted() >= sum([node.offered for node in fleet.nodes]) - 5
        fleet.run(4 * SECOND)
        assert sum([node.leased for node in fleet.nodes]) > 1_000


def test_a_process_that_joins_is_leased_at_once(make_fleet: Make) -> None:
    """Where others lease a counter in this life of the store, a new process need not wait."""
    spec = TokenBucket(4_000, 4_000, SECOND)
    fleet = make_fleet(1, spec, lambda node, now_us: 250 if node < 7 or now_us > 3 * SECOND else 0).run(3_300 * MS)
    late = fleet.nodes[7]
    assert late.leased > late.exact
