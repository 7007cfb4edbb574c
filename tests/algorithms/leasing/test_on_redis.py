"""The worlds of the simulation with a real server as their store: the same history, admission for admission."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseAsk, LeaseGrant
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore

pytestmark = pytest.mark.slow

MS = 1_000
SECOND = 1_000_000


def put_on(world: Any, store: RedisStore, clock: ManualClock, client: Any) -> None:
    """Let the store be what the world's holders and exact charges ask, and what is flushed and gets new lives."""
    spec = world.spec
    counter = Counter("world", spec, counter_prefix("test", "world", spec.algorithm, spec.shape))

    def turn(name: str, ask: LeaseAsk) -> LeaseGrant:
        clock.set(world.store_us())
        world.is_leased = True
        (grant,) = store.lease(name, world.terms, [LeaseItem(counter, "*", ask)])
        assert isinstance(grant, LeaseGrant)
        return grant

    def exact() -> None:
        if world.up and world.is_leased:
            cost = world.draw.choice((1, 1, 2, 5))
            clock.set(world.store_us())
            if store.decide_one([(counter, "*", cost)]).admitted:
                world.exact_admitted += cost
                world.hits.append((world.store_us(), cost))

    def flush() -> None:
        flush_model()
        world.is_leased = False
        client.delete(*(client.keys("rl1:test:*") or ["none"]))

    def new_life() -> None:
        new_life_of_model()
        world.is_leased = False
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        client.execute_command("REPLICAOF", "NO", "ONE")

    flush_model, new_life_of_model = world.flush, world.new_life
    world.is_leased = False
    world.turn, world.exact, world.flush, world.new_life = turn, exact, flush, new_life


@pytest.mark.parametrize(
    "spec",
    [
        TokenBucket(37, 700, 3_000_007),
        FixedWindow(80, 500 * MS),
        SlidingWindow(80, 500 * MS),
        SlidingWindow(80, 600 * MS, sub_windows=3),
        SlidingLog(80, 400 * MS),
    ],
    ids=["bucket", "fixed", "estimate", "strict", "log"],
)
@pytest.mark.parametrize(
    "losses",
    [{"settled": True}, {"restart_us": 700 * MS, "flush_us": 1_500 * MS}],
    ids=["writes kept", "restarts and flushes"],
)
@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_a_world_on_a_server_is_that_of_the_model(
    make_world: Callable[..., Any],
    servers: Any,
    require_program: Callable[[str], str],
    spec: Spec,
    name: str,
    losses: Any,
) -> None:
    """With all faults of messages, holders and the server it admits what the model admits, and no interval exceeds the bound."""
    server = servers.empty(name, require_program)
    admitted = 0
    for seed in (7, 8, 9):
        model = make_world(seed, spec, **losses).run(4 * SECOND)
        clock = ManualClock()
        world = make_world(seed, spec, **losses)
        with (
            contextlib.closing(RedisStore(server.url, time_source=clock)) as store,
            contextlib.closing(server.client()) as client,
        ):
            client.delete(*(client.keys("rl1:test:*") or ["none"]))
            put_on(world, store, clock, client)
            world.run(4 * SECOND)
        assert world.hits == model.hits, seed
        assert world.excess() is None, world.told(world.excess())
        admitted += world.spent_leased
    assert admitted > 50
