"""Worlds of three regions from seeds: lost, late and doubled messages, brokers and servers that crash, partitions. Every interval is checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, SlidingWindow, Spec, TokenBucket
from sluicegate.stores.regional import broker, record
from sluicegate.stores.regional.record import Record

SECOND = 1_000_000

SPECS: dict[str, Spec] = {
    "bucket of small capacity": TokenBucket(60, 200, SECOND),
    "bucket": TokenBucket(300, 300, SECOND),
    "fixed window": FixedWindow(200, SECOND),
    "long fixed window": FixedWindow(2_000, 10 * SECOND),
    "estimate": SlidingWindow(200, SECOND),
    "strict": SlidingWindow(200, SECOND, sub_windows=4),
}
SEEDS = range(4)

MakeWorld = Callable[..., Any]

every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
every_seed = pytest.mark.parametrize("seed", SEEDS)


@every_spec
@every_seed
def test_no_interval_is_above_the_whole_while_the_stores_keep_their_writes(
    make_world: MakeWorld, spec: Spec, seed: int
) -> None:
    """Whatever messages, brokers and links between regions do, no unit is held twice and no interval of all regions together holds too much."""
    world = make_world(seed, spec).run()
    assert world.excess() is None, world.excess()
    assert len(world.hits) > 300


@every_spec
@every_seed
def test_servers_that_come_back_with_their_writes(make_world: MakeWorld, spec: Spec, seed: int) -> None:
    """A region whose server lives anew begins with what is never lent, and what it had borrowed goes back when it no longer uses it."""
    world = make_world(seed, spec, restart_us=4 * SECOND).run()
    assert world.excess() is None, world.excess()


@every_spec
@every_seed
@pytest.mark.parametrize("event", ["rollback_us", "flush_us"])
def test_units_stay_apart_where_servers_lose_writes(make_world: MakeWorld, spec: Spec, seed: int, event: str) -> None:
    """A server that has lost the last second, or everything, brings back no unit that another region holds; every step of the world checks it."""
    world = make_world(seed, spec, **{event: 5 * SECOND}).run()
    assert len(world.hits) > 100


def test_parts_move_in_these_worlds(make_world: MakeWorld) -> None:
    """The worlds do what they are for: in each dozen, units are handed over many times."""
    assert sum(make_world(seed, SPECS["bucket"]).run().transfers for seed in range(12)) >= 12


# ---------------------------------------------------------------------- that the checks would notice


def _caught(make_world: MakeWorld, **faults: int) -> bool:
    """Whether some world of a score is found to be wrong."""
    for seed in range(20):
        for name in ("bucket of small capacity", "long fixed window"):
            try:
                world = make_world(seed, SPECS[name], lost=0.02, late=0.05, **faults).run()
            except AssertionError:
                return True
            if world.excess() is not None:
                return True
    return False


def _restarted_in_a_window(make_world: MakeWorld) -> int:
    """What three regions admit in one long window, in the middle of which the borrower of nearly all comes back and the others are asked."""
    calm = {"lost": 0, "late": 0, "crash_us": 0, "cut_us": 0, "shift_us": 0, "skew_us": 0, "lease": 0}
    world = make_world(1, FixedWindow(4_000, 20 * SECOND), flow_per_s=900, **calm)
    world.flow = {"ap": 0, "eu": 1, "us": 0}

    def turn() -> None:
        world.regions["eu"].live_anew()
        world.flow = {"ap": 1, "eu": 0, "us": 1}

    world.later(8 * SECOND, turn)
    world.length_us = 20 * SECOND
    world.run()
    (admitted,) = world.windows.values()
    return int(admitted)


def test_what_is_used_of_borrowed_units_is_not_used_again_where_they_go_back(make_world: MakeWorld) -> None:
    """A borrower comes back in another life with its window nearly used up: its lenders wait until that has passed."""
    assert 3_700 < _restarted_in_a_window(make_world) <= 4_000


def test_mutant_that_takes_what_is_still_in_use(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking units back at once is noticed there."""
    monkeypatch.setattr(broker, "_has_let_go", lambda *_: True)
    assert _restarted_in_a_window(make_world) > 4_000


def test_mutant_that_does_not_wait_for_the_log(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handing over before a server that loses its last second has surely kept the giving is noticed."""
    monkeypatch.setattr(broker, "REGION_SETTLE_US", 0)
    assert _caught(make_world, rollback_us=SECOND)


def test_mutant_that_gives_without_having_less(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A giver that keeps what it gives away is noticed."""
    real = broker.claimed

    def generous(plan: Any, me: str, before: Record, *args: Any, **amounts: int) -> Record | None:
        after = real(plan, me, before, *args, **amounts)
        return after and Record(**{**_fields(after), "held": before.held})

    monkeypatch.setattr(broker, "claimed", generous)
    assert _caught(make_world)


def test_mutant_that_takes_a_transfer_of_an_earlier_epoch(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking what an earlier record of the giver had on its way is noticed."""

    def careless(_plan: Any, me: str, before: Record, giver: str, theirs: Record) -> Record | None:
        back = theirs.link(me)
        link = before.link(giver)
        if back is None or link is None or not back.out:
            return None
        return before.with_link(giver, record.replace(link, taken=back.given), before.held | back.out)

    monkeypatch.setattr(broker, "taken", careless)
    monkeypatch.setattr(broker, "pending", lambda *_: 1)
    assert _caught(make_world, restart_us=3 * SECOND)


def test_mutant_that_takes_back_after_a_while(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A giver that reclaims a transfer because nobody has taken it for long is noticed."""
    real = broker.sampled

    def impatient(plan: Any, region: str, before: Record, *args: Any) -> Record:
        after = real(plan, region, before, *args)
        for name, link in after.links.items():
            if link.out and after.turn % 12 == 0:
                return after.with_link(name, record.replace(link, out=0, lent=0), after.held | link.out)
        return after

    monkeypatch.setattr(broker, "sampled", impatient)
    assert _caught(make_world)


def _fields(one: Record) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Record.__dataclass_fields__}
