"""Servers that go and come back: who waits how long, what is sent meanwhile, how soon they are used again; and how many processes there are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis

from sluicegate.algorithms import TokenBucket
from sluicegate.bounds import REDIS_BEAT_TTL_MS, REDIS_NODES_MEMORY_US
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter, FleetStore
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.redis.beats import NODES_KEY, Beats
from sluicegate.stores.redis.errand import Errand

BUCKET = TokenBucket(100_000, 1, 3_600_000_000)
COUNTER = Counter("rule", BUCKET, counter_prefix("health", "rule", BUCKET.algorithm, BUCKET.shape))
ONE = ((COUNTER, "ip:192.0.2.1", 1),)

Decide = Callable[[RedisStore], Awaitable[int]]


async def by_coroutine(store: RedisStore) -> int:
    """What a check leaves."""
    return (await store.adecide_one(ONE)).verdicts()[0].remaining


async def by_thread(store: RedisStore) -> int:
    """What a check of another thread leaves."""
    answer = await asyncio.to_thread(store.decide_one, ONE)
    return answer.verdicts()[0].remaining


@pytest.fixture(params=[by_thread, by_coroutine])
def decide(request: pytest.FixtureRequest) -> Decide:
    """Both sides of the store."""
    return request.param


async def fails(store: RedisStore, decide: Decide) -> tuple[StoreError, float]:
    """The error of a check, and how many seconds it took."""
    began = time.monotonic()
    with pytest.raises(StoreError) as caught:
        await decide(store)
    return caught.value, time.monotonic() - began


async def open_breaker(store: RedisStore, decide: Decide) -> None:
    """Check until the server is given up."""
    async with asyncio.timeout(60):
        while store.health()[0].state != "down":
            await fails(store, decide)


async def back_after(store: RedisStore, decide: Decide) -> float:
    """Seconds until a check is answered."""
    began = time.monotonic()
    async with asyncio.timeout(60):
        while True:
            try:
                await decide(store)
            except StoreError:
                await asyncio.sleep(0.002)
            else:
                return time.monotonic() - began


@pytest.fixture
def stores() -> Iterator[Callable[..., RedisStore]]:
    """Makes stores that are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(url: str, *, counted: bool = True) -> RedisStore:
            store = RedisStore(url, counted=counted)
            stack.callback(store.close)
            return store

        yield make


@pytest.mark.measured
async def test_a_server_that_is_not_there(stores, decide: Decide, free_port: Callable[[], int]) -> None:
    """After a few refused connections nothing is sent any more: checks fail at once, say so, and the server is tried now and then."""  # T80
    store = stores(f"redis://127.0.0.1:{free_port()}?keys=plain")
    assert store.health()[0].state == "unknown"
    await open_breaker(store, decide)
    began, calls = time.monotonic(), store.stats.calls
    checks = 0
    while time.monotonic() - began < (0.6 if store.stats.probes >= 2 else 5):
        error, _ = await fails(store, decide)
        assert error.transient
        assert "nothing was sent" in str(error)
        checks += 1
    assert checks > 50
    assert store.stats.calls == calls
    assert store.stats.breaker_opens == 1
    assert 2 <= store.stats.probes <= 15 + 10 * (time.monotonic() - began)
    health = store.health()[0]
    assert (health.state, health.address) == ("down", store.settings.address)
    assert "refused" in health.error
    await store.aclose()


@pytest.mark.measured
async def test_a_server_that_comes_later(stores, decide: Decide, start_redis, free_port: Callable[[], int]) -> None:
    """A store whose server starts after it uses it within a second of its start, also where it must learn the secret of the keys first."""  # T80
    port = free_port()
    store = stores(f"redis://127.0.0.1:{port}?timeout_ms=200")
    assert not store.warm()
    await open_breaker(store, decide)
    start_redis("--port", str(port))
    assert await back_after(store, decide) < 1
    health = store.health()[0]
    assert (health.state, health.error) == ("up", None)
    await store.aclose()


@pytest.mark.measured
@pytest.mark.parametrize("trouble", ["no thread", "held up"])
async def test_a_probe_in_trouble(
    stores, decide: Decide, free_port: Callable[[], int], start_redis, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """A probe for which no thread is to be had, or whose thread is held up at its end, keeps no later one from being made."""  # T80
    port = free_port()
    store = stores(f"redis://127.0.0.1:{port}?keys=plain")
    go = threading.Event()
    begin, finish = threading.Thread.start, Errand._finish

    def no_thread(thread: threading.Thread) -> None:
        if thread.name == "sluicegate probe" and not go.is_set():
            raise RuntimeError("can't start new thread")
        begin(thread)

    def held_up(errand: Errand) -> None:
        if errand._name == "probe":
            go.wait(60)
        finish(errand)

    if trouble == "no thread":
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    else:
        monkeypatch.setattr(Errand, "_finish", held_up)
    await open_breaker(store, decide)
    began = time.monotonic()
    while time.monotonic() - began < (0.5 if store.stats.probes else 5):
        await fails(store, decide)
    start_redis("--port", str(port))
    go.set()
    assert await back_after(store, decide) < 2
    await store.aclose()


@pytest.mark.measured
async def test_a_stopped_server(stores, decide: Decide, start_redis) -> None:
    """A server that is stopped costs a few deadlines and then nothing; when it goes on it is used within a second."""  # T77
    server = start_redis()
    store = stores(f"redis://127.0.0.1:{server.port}?timeout_ms=50")
    await back_after(store, decide)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        slow = 0
        while store.health()[0].state == "up":
            _, seconds = await fails(store, decide)
            assert seconds < 0.25
            slow += 1
        assert 3 <= slow <= 6
        for _ in range(100):
            error, seconds = await fails(store, decide)
            assert "nothing was sent" in str(error)
        assert store.stats.breaker_opens == 1
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert await back_after(store, decide) < 1
    await store.aclose()


@pytest.mark.measured
async def test_a_server_that_returns_empty(stores, decide: Decide, start_redis, free_port: Callable[[], int]) -> None:
    """After a restart that lost everything an old process decides under the secret of the new server from its first decision on."""
    port = free_port()
    for _ in range(3):
        server = start_redis("--port", str(port))
        old = stores(f"redis://127.0.0.1:{port}?timeout_ms=200")
        await back_after(old, decide)
        os.kill(server.pid, signal.SIGKILL)
        await open_breaker(old, decide)
        server = start_redis("--port", str(port))
        new = stores(f"redis://127.0.0.1:{port}?timeout_ms=200")
        await back_after(new, decide)
        await back_after(old, decide)
        with contextlib.closing(redis.Redis(unix_socket_path=str(server.path))) as client:
            assert len(client.keys("rl1:health:*")) == 1
        await old.aclose()
        await new.aclose()
        os.kill(server.pid, signal.SIGKILL)


@pytest.mark.measured
async def test_a_server_behind_a_dead_network(stores, decide: Decide, start_redis, start_proxy) -> None:
    """Where packets are swallowed probes fail by their own time, and no check waits for one; the way back is used within a second."""  # T81
    server = start_redis()
    proxy = start_proxy(server.port)
    store = stores(f"redis://127.0.0.1:{proxy.port}?timeout_ms=50")
    await back_after(store, decide)
    proxy.swallowing = True
    await open_breaker(store, decide)
    began = time.monotonic()
    waited = []
    while time.monotonic() - began < (0.5 if store.stats.probes else 5):
        _, seconds = await fails(store, decide)
        waited.append(seconds)
        await asyncio.sleep(0.005)
    # The machine may be slow now and then; whoever waited for a probe would have waited for its whole time.
    assert sorted(waited)[len(waited) * 9 // 10] < 0.045
    proxy.swallowing = False
    assert await back_after(store, decide) < 1
    await store.aclose()


@pytest.mark.measured
@pytest.mark.parametrize("reason", ["OOM", "READONLY"])
async def test_a_server_that_takes_no_writes(stores, decide: Decide, start_redis, reason: str) -> None:
    """A server that refuses to write is given up and stays so: the probe asks for what decisions need."""  # T76
    server = start_redis()
    store = stores(f"{server.url}&keys=plain")
    await decide(store)
    with contextlib.closing(server.client()) as client:
        if reason == "OOM":
            client.config_set("maxmemory", "1")
        else:
            client.replicaof("127.0.0.1", 1)
        seen = []
        while store.health()[0].state != "down":
            error, _ = await fails(store, decide)
            seen.append(str(error))
        assert len(seen) == 3
        assert all(reason in text for text in seen)
        began = time.monotonic()
        while time.monotonic() - began < 0.5:
            error, _ = await fails(store, decide)
            assert "nothing was sent" in str(error)
            await asyncio.sleep(0.002)
        assert (store.stats.breaker_opens, store.health()[0].state) == (1, "down")
        assert store.stats.probes >= 2
        if reason == "OOM":
            client.config_set("maxmemory", "0")
        else:
            client.replicaof("NO", "ONE")
    assert await back_after(store, decide) < 1
    assert store.stats.breaker_opens == 1
    await store.aclose()


async def test_a_password_that_is_set_later(stores, decide: Decide, start_redis) -> None:
    """A server that wants a password from now on is given up with its words as the reason, which waiting does not cure."""
    server = start_redis()
    store = stores(f"{server.url}&keys=plain")
    await decide(store)
    with contextlib.closing(server.client()) as client:
        client.config_set("requirepass", "x")
        client.client_kill_filter(_type="normal", skipme=True)
    await asyncio.sleep(0.05)
    error, _ = await fails(store, decide)
    assert "NOAUTH" in str(error)
    assert not error.transient
    await open_breaker(store, decide)
    assert "NOAUTH" in store.health()[0].error
    await store.aclose()


async def test_one_bad_key_opens_nothing(stores, decide: Decide, start_redis) -> None:
    """A key that cannot be read fails its requests for ever, and says nothing of the server."""
    server = start_redis()
    store = stores(f"{server.url}&keys=plain")
    await decide(store)
    with contextlib.closing(server.client()) as client:
        client.delete(store.key(COUNTER, "ip:192.0.2.1"))
        client.lpush(store.key(COUNTER, "ip:192.0.2.1"), "x")
    for _ in range(20):
        error, _ = await fails(store, decide)
        assert "nothing was sent" not in str(error)
    assert (store.health()[0].state, store.stats.breaker_opens) == ("up", 0)
    await store.aclose()


async def test_threads_and_coroutines_share_what_they_know(stores, free_port: Callable[[], int]) -> None:
    """What threads found out keeps coroutines from waiting."""
    store = stores(f"redis://127.0.0.1:{free_port()}?keys=plain")
    await open_breaker(store, by_thread)
    error, _ = await fails(store, by_coroutine)
    assert "nothing was sent" in str(error)
    await store.aclose()


# ------------------------------------------------------------------ how many processes there are


def announce(server, *names: str) -> None:
    """Heartbeats of other processes, now."""
    with contextlib.closing(server.client()) as client:
        seconds, microseconds = client.time()
        now_ms = seconds * 1_000 + microseconds // 1_000
        client.zadd(NODES_KEY, dict.fromkeys(names, now_ms))


async def test_processes_are_counted(stores, decide: Decide, server) -> None:
    """A process learns with its decisions how many others there are, and says itself that it is there."""
    store = stores(server.url)
    assert isinstance(store, FleetStore)
    assert store.nodes == 1
    announce(server, "one", "two")
    await decide(store)
    assert store.nodes == 3
    with contextlib.closing(server.client()) as client:
        assert client.zcard(NODES_KEY) == 3
        assert 0 < client.pttl(NODES_KEY) <= 2 * REDIS_BEAT_TTL_MS
    assert stores(f"{server.url}&nodes=7").nodes == 7
    await store.aclose()


async def test_a_process_that_admits_nobody_is_not_counted(stores, decide: Decide, server) -> None:
    """A store opened as not counted says nothing of its process, whatever it is asked and however it is hurried."""
    store = stores(server.url, counted=False)
    assert await store.awarm()
    await decide(store)
    store._core.riders.hurry()
    await store.abeat()
    await decide(store)
    with contextlib.closing(server.client()) as client:
        assert client.zcard(NODES_KEY) == 0
    assert store.nodes == 1
    await store.aclose()


async def test_processes_that_are_gone_are_not_counted(stores, server) -> None:
    """A heartbeat is believed for its time only; one from the future, by a clock that was set back, is dropped."""
    with contextlib.closing(server.client()) as client:
        now_ms = client.time()[0] * 1_000
        old, future = now_ms - REDIS_BEAT_TTL_MS - 2_000, now_ms + 60_000
        client.zadd(NODES_KEY, {"old": old, "future": future})
        store = stores(server.url)
        store.decide_one(ONE)
        assert (store.nodes, client.zcard(NODES_KEY)) == (1, 1)


async def test_an_idle_process_is_counted(stores, server) -> None:
    """``abeat`` says that a process is there which decides nothing; it never raises for a store that is absent or closed."""
    store = stores(server.url)
    await store.abeat()
    with contextlib.closing(server.client()) as client:
        assert client.zcard(NODES_KEY) == 1
    assert store.nodes == 1
    announce(server, "other")
    store._core.riders.hurry()
    await store.abeat()
    assert store.nodes == 2
    absent = stores("redis://127.0.0.1:1")
    await absent.abeat()
    assert absent.nodes == 1
    await absent.aclose()
    await absent.abeat()


def test_a_forked_child_is_another_process(stores, server) -> None:
    """A child says under a name of its own that it is there."""
    store = stores(server.url)
    store.decide_one(ONE)
    child = os.fork()
    if child == 0:
        good = False
        with contextlib.suppress(BaseException):
            store._core.riders.hurry()
            store.decide_one(ONE)
            good = store.nodes == 2
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0


async def test_heartbeats_fail_no_decision(stores, decide: Decide, server) -> None:
    """Where the key of the heartbeats holds something else, decisions are made all the same."""
    with contextlib.closing(server.client()) as client:
        client.set(NODES_KEY, "x")
    store = stores(server.url)
    for _ in range(3):
        store._core.riders.hurry()
        assert await decide(store) > 0
    assert store.nodes == 1
    assert store.stats.errors >= 3
    assert store.health()[0].state == "up"
    await store.aclose()


def test_the_most_processes_are_remembered() -> None:
    """The number falls only when the larger one was not seen for the whole memory, and never without news."""
    beats = Beats()
    table = [
        # (after so many memories, seen, nodes)
        (0.0, 1, 1),
        (0.1, 5, 5),
        (0.2, 2, 5),
        (1.05, 2, 5),
        (1.9, 3, 5),
        (2.1, 2, 3),
        (3.2, 1, 2),
        (50.0, 1, 1),
    ]
    for after, seen, nodes in table:
        beats.learn(seen, int((1_000 + after) * REDIS_NODES_MEMORY_US))
        assert beats.nodes == nodes, (after, seen)


# ------------------------------------------------------------------ errands


def test_an_errand_runs_once_at_a_time() -> None:
    """Whoever starts an errand that is under way shares it, and is told when it ends."""
    go = threading.Event()
    ran: list[bool] = []
    told: list[str] = []

    def work() -> None:
        ran.append(threading.current_thread().daemon)
        go.wait(60)

    errand = Errand("test", work)
    for name in "abc":
        errand.start(partial(told.append, name))
    assert not errand.wait(0.01)
    assert told == []
    go.set()
    assert errand.wait(60)
    until = time.monotonic() + 60
    while len(told) < 3:
        assert time.monotonic() < until
    assert (ran, sorted(told)) == ([True], ["a", "b", "c"])
    errand.start(lambda: told.append("d"))
    assert errand.wait(60)
    assert len(ran) == 2


def test_an_errand_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread is to be had the errand ends in vain, and whoever started it is told."""

    def none(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    told: list[str] = []
    errand = Errand("test", lambda: told.append("never"))
    errand.start(lambda: told.append("ended"))
    assert errand.wait(0)
    assert told == ["ended"]


def test_a_forked_child_runs_its_own_errands(tmp_path: Path) -> None:
    """An errand that was under way in the parent does not keep a child from starting its own."""
    go = threading.Event()

    def work() -> None:
        if not go.is_set():
            go.wait(60)
        (tmp_path / str(os.getpid())).touch()

    errand = Errand("test", work)
    errand.start()
    child = os.fork()
    if child == 0:
        go.set()
        errand.start()
        os._exit(0 if errand.wait(60) and (tmp_path / str(os.getpid())).exists() else 1)
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    assert errand.wait(60)


def test_a_store_that_is_not_ready_says_why(server, stores: Callable[[str], RedisStore]) -> None:
    """A server that answers may be used with another key secret: that is what its health shows, while there is nothing against it."""
    assert stores(server.url + "&key_secret=0123456789abcdef").warm()
    other = stores(server.url + "&key_secret=fedcba9876543210")
    assert other.health()[0].error is None
    assert not other.warm()
    (health,) = other.health()
    assert health.state == "failing"
    assert "another key_secret" in (health.error or "")
