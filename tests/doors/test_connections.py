"""The registry of live connections: deadlines and drain, on the running loop with short intervals."""

from __future__ import annotations

import asyncio

import pytest

from sluicegate.bounds import DRAIN_GRACE_S
from sluicegate.doors.connections import NEVER_S, Connections


class Peer:
    """A connection that notes what it is told."""

    def __init__(self, registry: Connections, *, leaves: bool = True) -> None:
        self.deadline_s = NEVER_S
        self.told: list[str] = []
        self._registry = registry
        self._leaves = leaves
        self.expired = asyncio.Event()
        registry.add(self)

    def expire(self) -> None:
        self.told.append("expire")
        self.deadline_s = NEVER_S
        self.expired.set()

    def drain(self) -> None:
        self.told.append("drain")
        if self._leaves:
            self._registry.discard(self)

    def abort(self) -> None:
        self.told.append("abort")


@pytest.mark.measured
async def test_passed_deadline_expires_once_and_others_stay() -> None:
    """Only the connection whose deadline has passed is expired, within a few sweeps."""
    registry = Connections(interval_s=0.01)
    late, patient = Peer(registry), Peer(registry)
    late.deadline_s = registry.now_s + 0.02
    await asyncio.wait_for(late.expired.wait(), 5)
    assert late.told == ["expire"]
    assert patient.told == []
    assert await registry.drain(5) == 0


@pytest.mark.measured
async def test_sweep_sleeps_while_nobody_is_connected() -> None:
    """With no connection there is no timer; the next one is swept again and sees a fresh ``now_s``."""
    ticks: list[float] = []
    registry = Connections(interval_s=0.01, on_tick=lambda: ticks.append(0))
    first = Peer(registry)
    registry.discard(first)
    while registry._timer is not None:
        await asyncio.sleep(0.005)
    seen = len(ticks)
    await asyncio.sleep(0.05)
    assert len(ticks) == seen
    second = Peer(registry)
    assert len(ticks) == seen + 1
    assert registry.now_s == asyncio.get_running_loop().time() or registry.now_s > 0
    second.deadline_s = registry.now_s
    await asyncio.wait_for(second.expired.wait(), 5)
    assert await registry.drain(5) == 0


@pytest.mark.measured
async def test_drain_waits_for_the_busy_and_aborts_the_stuck() -> None:
    """Drain tells everybody, returns when the last one leaves, and aborts those that outstay the timeout."""
    registry = Connections(interval_s=0.01)
    polite = Peer(registry)
    busy = Peer(registry, leaves=False)
    asyncio.get_running_loop().call_later(DRAIN_GRACE_S + 0.05, registry.discard, busy)
    assert await registry.drain(5) == 0
    assert polite.told == busy.told == ["drain"]
    assert registry.draining
    stuck = Peer(registry, leaves=False)
    assert await registry.drain(0.02) == 1
    assert stuck.told == ["drain", "abort"]
    assert len(registry) == 0
    assert registry.opened == 3


@pytest.mark.measured
async def test_drain_first_waits_for_requests_on_their_way() -> None:
    """Nobody is told to go while a request may be on its way; a drain that has seen all leave by themselves is over."""
    registry = Connections(interval_s=0.01)
    peer = Peer(registry)
    draining = asyncio.create_task(registry.drain(5))
    await asyncio.sleep(DRAIN_GRACE_S / 4)
    assert registry.draining
    assert peer.told == []
    registry.discard(peer)
    assert await draining == 0
    assert peer.told == []


@pytest.mark.measured
async def test_sweep_goes_on_for_what_outlives_the_connections() -> None:
    """While ``more`` says so the sweep runs with nobody connected, and sleeps once it does not."""
    left = [3]

    def tick() -> None:
        left[0] -= 1

    registry = Connections(interval_s=0.01, on_tick=tick, more=lambda: left[0] > -5)
    registry.discard(Peer(registry))
    async with asyncio.timeout(60):
        while registry._timer is not None:
            await asyncio.sleep(0.005)
    assert left == [-5]
