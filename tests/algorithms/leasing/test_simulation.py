"""No interval ever admits more than the counter's bound, whatever messages, holders and servers do; from seeds, every interval checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, SlidingLog, SlidingWindow, Spec, TokenBucket

MS = 1_000
SECOND = 1_000_000

SPECS: dict[str, Spec] = {
    "bucket": TokenBucket(60, 200, SECOND),
    "bucket of an odd rate": TokenBucket(37, 700, 3_000_007),
    "slow bucket": TokenBucket(200, 20, SECOND),
    "fixed window": FixedWindow(80, 500 * MS),
    "estimate": SlidingWindow(80, 500 * MS),
    "strict": SlidingWindow(80, 600 * MS, sub_windows=3),
    "log": SlidingLog(80, 400 * MS),
}
SEEDS = range(4)

pytestmark = pytest.mark.slow

every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
every_seed = pytest.mark.parametrize("seed", SEEDS)


@every_spec
@every_seed
def test_over_admission_is_zero_while_the_store_keeps_its_writes(
    make_world: Callable[..., Any], spec: Spec, seed: int
) -> None:
    """Lost, late, doubled and reordered messages, crashed and stopped holders, drift of 1 % and a store that goes down admit nothing more."""
    world = make_world(seed, spec, settled=True).run()
    excess = world.excess()
    assert excess is None, world.told(excess)
    assert world.spent_leased > 50


@every_spec
@every_seed
def test_over_admission_is_zero_where_a_server_restarts_with_its_writes(
    make_world: Callable[..., Any], spec: Spec, seed: int
) -> None:
    """A new life of the server makes holders wait, and admits nothing more."""
    world = make_world(seed, spec, restart_us=2 * SECOND).run()
    excess = world.excess()
    assert excess is None, world.told(excess)


@every_spec
@every_seed
@pytest.mark.parametrize("event", ["flush_us", "failover_us"])
def test_a_store_that_loses_writes_over_admits_at_most_the_exact_charges_lost(
    make_world: Callable[..., Any], spec: Spec, seed: int, event: str
) -> None:
    """After a flush or a failover to a replica that is behind, leases over-admit nothing; exact charges that were lost count twice."""
    world = make_world(seed, spec, **{event: 2 * SECOND}).run()
    excess = world.excess()
    assert excess is None, world.told(excess)


@pytest.mark.parametrize("event", ["flush_us", "failover_us"])
def test_without_exact_charges_a_loss_over_admits_nothing(make_world: Callable[..., Any], event: str) -> None:
    """Where all charges are leased, losing the store's writes admits nothing more in any interval."""
    for seed in range(10):
        world = make_world(seed, SPECS["bucket"], **{event: SECOND, "exact_us": 0}).run()
        assert world.lost_exact == 0
        assert world.lost_times
        excess = world.excess()
        assert excess is None, world.told(excess)


@pytest.mark.parametrize(
    ("spec", "later"),
    [
        (TokenBucket(200, 400, SECOND), TokenBucket(20, 40, SECOND)),
        (TokenBucket(20, 40, SECOND), TokenBucket(200, 400, SECOND)),
        (FixedWindow(200, 500 * MS), FixedWindow(20, 500 * MS)),
        (SlidingWindow(200, 600 * MS, sub_windows=3), SlidingWindow(20, 600 * MS, sub_windows=3)),
        (SlidingLog(150, 400 * MS), SlidingLog(30, 400 * MS)),
    ],
    ids=["bucket lowered", "bucket raised", "window lowered", "strict lowered", "log lowered"],
)
@every_seed
def test_a_changed_limit_binds_when_older_leases_have_ended(
    make_world: Callable[..., Any], spec: Spec, later: Spec, seed: int
) -> None:
    """From one hold after a change, the new bound holds in every interval; the larger of both at any time."""
    world = make_world(seed, spec, {"later": later}, settled=True, change_at_us=2_500_000).run()
    excess = world.excess()
    assert excess is None, world.told(excess)
