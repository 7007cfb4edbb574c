"""The store as a server sees it: what is logged, what is shown, and what never is."""

from __future__ import annotations

import asyncio
import logging

import pytest

from sluicegate.app.settings import Settings
from sluicegate.app.store_watch import StoreWatch, address_of
from sluicegate.clock import ManualClock
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.model import RuleSet
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://?max_counters=5", "memory://?max_counters=5"),
        ("redis://127.0.0.1:6379/2", "redis://127.0.0.1:6379/2"),
        ("rediss://user:pass@redis.example/0?key_secret=0123456789abcdef#x", "rediss://redis.example/0"),
        ("redis://:p@ss/word@host:1", "redis://host:1"),
        ("redis://host:1?key_secret=0123456789@bcdef", "redis://host:1"),
        ("redis+cluster://u:p@a:1,[::1]:2?nodes=3", "redis+cluster://a:1,[::1]:2"),
        ("redis+unix:///run/redis.sock?db=1", "redis+unix:///run/redis.sock"),
    ],
)
def test_an_address_shows_no_secret(url: str, shown: str) -> None:
    """User, password and parameters are cut off, also where somebody forgot to escape them."""
    assert address_of(url) == shown


def test_settings_show_no_secret() -> None:
    """Whoever prints the settings of a server prints neither the store's password nor the token of the API."""
    settings = Settings(store="redis://u:password@h:1", serving=HttpSettings(api_token="token-of-the-api"))
    assert settings.serving.api_token == "token-of-the-api"
    assert "password" not in repr(settings)
    assert "token-of-the-api" not in repr(settings)


def watch_of(clock: ManualClock) -> tuple[StoreWatch, LaterStore]:
    """A watch over a store that says what it is told to."""
    store = LaterStore(MemoryStore(clock))
    return StoreWatch(Limiter.from_rules(RuleSet(rules=()), store, clock), "redis://u:p@store:1", clock), store


async def test_a_store_in_the_process_is_not_watched() -> None:
    """It is always there: nothing is logged, and readiness shows its URL only."""
    clock = ManualClock()
    limiter = Limiter.from_rules(RuleSet(rules=()), MemoryStore(clock), clock)
    watch = StoreWatch(limiter, "memory://", clock)
    await watch.warm()
    async with asyncio.timeout(1):
        await watch.keep_watching()
    assert watch.detail() == {"store": "memory://"}


async def test_changes_are_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line when the store is found or not at start, one when it goes, one when it is back; a beat each time it is looked at."""
    monkeypatch.setattr("sluicegate.app.store_watch._BEAT_S", 0.001)
    caplog.set_level(logging.INFO, logger="sluicegate")
    watch, store = watch_of(ManualClock())

    async def beats(state: str, error: str | None) -> None:
        store.state, store.error = state, error
        seen = store.beats
        while store.beats < seen + 3:
            await asyncio.sleep(0.001)

    await watch.warm()
    task = asyncio.create_task(watch.keep_watching())
    async with asyncio.timeout(60):
        await beats("up", None)
        await beats("down", "connection refused")
        await beats("up", None)
    task.cancel()
    assert [record.getMessage() for record in caplog.records] == ["store_ready", "store_down", "store_up"]
    assert caplog.records[1].fields == {"server": "later", "error": "connection refused"}
    caplog.clear()
    store.state, store.error = "down", "refused"
    await watch.warm()
    assert [record.getMessage() for record in caplog.records] == ["store_absent"]
    assert caplog.records[0].fields == {"store": "redis://store:1", "error": "refused"}


async def test_readiness_says_since_when(caplog: pytest.LogCaptureFixture) -> None:
    """The state of each server has a time of day and the last error; without one that is down nothing is degraded."""
    clock = ManualClock()
    watch, store = watch_of(clock)
    clock.advance(90_000_000)
    assert watch.detail()["degraded_since"] is None
    store.state, store.error, store.nodes = "down", "refused", 4
    assert watch.detail() == {
        "store": "redis://store:1",
        "degraded_since": "2023-11-14T22:13:20Z",
        "degraded_error": None,
        "nodes": 4,
        "servers": [{"address": "later", "state": "down", "since": "2023-11-14T22:13:20Z", "error": "refused"}],
    }


async def test_readiness_notices_the_return_of_a_store_that_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure the store is looked at with each beat: it is degraded while that fails and no longer, and nothing is charged."""
    monkeypatch.setattr("sluicegate.app.store_watch._BEAT_S", 0.001)
    clock = ManualClock()
    counters = MemoryStore(clock)
    flaky = FlakyStore(counters)
    store = LaterStore(flaky)
    limiter = Limiter.from_quota("5/minute", store=store, clock=clock)
    watch = StoreWatch(limiter, "redis://store:1", clock)
    flaky.down = True
    assert (await limiter.acheck("ann")).degraded
    task = asyncio.create_task(watch.keep_watching())
    async with asyncio.timeout(60):
        while flaky.calls < 4:
            await asyncio.sleep(0.001)
        assert watch.detail()["degraded_since"] is not None
        flaky.down = False
        while watch.detail()["degraded_since"] is not None:
            await asyncio.sleep(0.001)
        beats, calls = store.beats, flaky.calls
        while store.beats < beats + 3:
            await asyncio.sleep(0.001)
    task.cancel()
    assert flaky.calls == calls
    assert len(counters) == 0
    assert (limiter.stats.peeks, limiter.stats.store_errors) == (0, 1)


async def test_a_store_that_answers_and_decides_nothing_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server is down, and each call fails: one line says why, readiness too, and one line says when it is over."""
    monkeypatch.setattr("sluicegate.app.store_watch._BEAT_S", 0.001)
    caplog.set_level(logging.INFO, logger="sluicegate")
    clock = ManualClock()
    flaky = FlakyStore(MemoryStore(clock))
    store = LaterStore(flaky)
    limiter = Limiter.from_quota("5/minute", store=store, clock=clock)
    watch = StoreWatch(limiter, "redis://u:p@store:1", clock)
    flaky.down = True
    assert (await limiter.acheck("ann")).degraded
    error = watch.detail()["degraded_error"]
    assert error
    task = asyncio.create_task(watch.keep_watching())
    async with asyncio.timeout(60):
        while store.beats < 5:
            await asyncio.sleep(0.001)
        flaky.down = False
        while watch.detail()["degraded_error"] is not None:
            await asyncio.sleep(0.001)
        beats = store.beats
        while store.beats < beats + 3:
            await asyncio.sleep(0.001)
    task.cancel()
    assert [record.getMessage() for record in caplog.records] == ["store_failing", "store_answers"]
    assert caplog.records[0].fields == {"store": "redis://store:1", "error": error}


async def test_a_call_that_fails_once_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """What fails at one look and not at the next is not logged, nor what a server that is down explains."""
    watch, store = watch_of(ManualClock())
    watch._look_at_calls("late")
    watch._look_at_calls(None)
    watch._look_at_calls("late")
    store.state, store.error = "down", "refused"
    watch._look()
    watch._look()
    assert [record.getMessage() for record in caplog.records] == ["store_down"]


async def test_a_store_that_hangs_does_not_keep_beats_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at a store that does not answer is given up, and the next beat comes."""
    monkeypatch.setattr("sluicegate.app.store_watch._BEAT_S", 0.001)
    monkeypatch.setattr("sluicegate.app.store_watch._LOOK_S", 0.01)
    clock = ManualClock()
    flaky = FlakyStore(MemoryStore(clock))
    store = LaterStore(flaky)
    limiter = Limiter.from_quota("5/minute", store=store, clock=clock)
    flaky.fail_next = 1
    assert (await limiter.acheck("ann")).degraded
    store.hold()
    task = asyncio.create_task(StoreWatch(limiter, "redis://store:1", clock).keep_watching())
    async with asyncio.timeout(60):
        while store.beats < 3:
            await asyncio.sleep(0.001)
    assert store.waiting >= 2
    assert limiter.failing_since_us is not None
    task.cancel()
    store.release()


async def test_a_fault_in_beating_does_not_end_the_watch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged as a fault of ours, and the next beat comes."""
    monkeypatch.setattr("sluicegate.app.store_watch._BEAT_S", 0.001)
    watch, store = watch_of(ManualClock())
    beats = 0

    async def broken() -> None:
        nonlocal beats
        beats += 1
        raise RuntimeError("broken")

    monkeypatch.setattr(store, "abeat", broken)
    task = asyncio.create_task(watch.keep_watching())
    async with asyncio.timeout(60):
        while beats < 3:
            await asyncio.sleep(0.001)
    task.cancel()
    assert {record.getMessage() for record in caplog.records} == {"store_watch_failed"}
