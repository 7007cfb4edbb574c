"""The connections that threads share: who gets one that is made late, and what closing leaves."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import US_PER_S
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisSettings, RedisStore
from sluicegate.stores.redis.link import Link
from sluicegate.stores.redis.node import Node

BUCKET = TokenBucket(100, 1, 3_600_000_000)
COUNTER = Counter("rule", BUCKET, counter_prefix("links", "rule", BUCKET.algorithm, BUCKET.shape))
ONE = ((COUNTER, "ip:192.0.2.1", 1),)


class Gate:
    """Connecting waits until ``open`` is set; ``begun`` counts the attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.begun = 0
        connect = Node.connect

        def gated(node: Node, deadline_us: int) -> Link:
            self.begun += 1
            self.open.wait(10)
            return connect(node, deadline_us + 10 * US_PER_S)

        monkeypatch.setattr(Node, "connect", gated)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


class Interrupted(Exception):
    """What a signal handler raises."""


def test_closing_tells_whoever_waits_for_a_connection(server, gate: Gate) -> None:
    """A thread that waits for a connection is told at once; the connection that was being made is closed and no other is begun."""
    store = RedisStore(server.url + "&keys=plain")
    told: list[StoreError] = []

    def decide() -> None:
        try:
            store.decide_one(ONE)
        except StoreError as error:
            told.append(error)

    thread = threading.Thread(target=decide)
    thread.start()
    until = time.monotonic() + 60
    while not gate.begun:
        assert time.monotonic() < until
    store.close()
    thread.join(60)
    assert [str(error) for error in told] == [f"the connections to Redis at {store.settings.address} are closed"]
    gate.open.set()
    with contextlib.closing(server.client()) as client:
        until = time.monotonic() + 60
        while not store.stats.connects or len(client.client_list()) > 1:
            assert time.monotonic() < until
    assert gate.begun == 1


def test_an_interrupted_caller_keeps_no_connection(server, gate: Gate) -> None:
    """A caller that is interrupted by a signal while it waits leaves the connection made for it to the next."""
    store = RedisStore(server.url + "&keys=plain")

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupted):
            store.decide_one(ONE)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    gate.open.set()
    for left in (99, 98):
        assert store.decide_one(ONE).verdicts()[0].remaining == left
    assert gate.begun == 1
    store.close()


async def test_a_name_that_cannot_be_looked_up_is_a_store_error() -> None:
    """What the resolver refuses to encode fails calls as an absent server does; no thread ends with a traceback."""
    store = RedisStore(RedisSettings(host="a..b", plain_keys=True))
    with pytest.raises(StoreError, match=r"no connection to Redis at a\.\.b:6379"):
        store.decide_one(ONE)
    with pytest.raises(StoreError, match=r"no connection to Redis at a\.\.b:6379"):
        await store.adecide_one(ONE)
    await store.aclose()


def test_a_caller_interrupted_as_a_thread_begins_is_not_waiting(server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection made for it is the next caller's; nothing is lost, however often that happens."""
    store = RedisStore(server.url + "&keys=plain")
    links = store._core.router.nodes()[0].links
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(Interrupted):
            store.decide_one(ONE)
    assert store.decide_one(ONE).admitted
    assert not links._waiters
    assert store.stats.connects == 1
    store.close()


def test_a_connection_that_a_caller_lost_is_not_counted(server) -> None:
    """An exception of a signal handler may strike as a connection is given: then it is closed, and another may be made for it."""
    store = RedisStore(server.url + "&keys=plain")
    assert store.decide_one(ONE).admitted
    links = store._core.router.nodes()[0].links
    assert len(links._open) == 1
    lost = links.take(0)
    lost.close()  # as the collector does, which would warn
    del lost
    assert len(links._open) == 0
    assert store.decide_one(ONE).admitted
    store.close()
