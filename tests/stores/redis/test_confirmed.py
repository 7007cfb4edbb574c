"""Leases that are used only when a replica has them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluicegate.algorithms import Precision, TokenBucket
from sluicegate.algorithms.leasing import LeaseAsk, LeaseGrant, LeaseTerms
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.redis import RedisStore

SECOND = 1_000_000
TERMS = LeaseTerms(confirmed=True)
SPEC = TokenBucket(10_000, 1, SECOND)
COUNTER = Counter("rule", SPEC, counter_prefix("test", "rule", SPEC.algorithm, SPEC.shape), precision=Precision.LEASED)


def ask(store: RedisStore, serial: int, terms: LeaseTerms = TERMS) -> LeaseGrant:
    item = LeaseItem(COUNTER, "*", LeaseAsk(serial=serial, want=10, settled=True))
    (grant,) = store.lease("holder-a", terms, [item])
    assert isinstance(grant, LeaseGrant)
    return grant


@pytest.fixture
def pair(start_redis) -> Iterator[tuple[Any, Any]]:
    """A master and a replica that follows it."""
    master, replica = start_redis("--repl-diskless-sync-delay", "0"), start_redis()
    with contextlib.closing(replica.client()) as client:
        client.replicaof("127.0.0.1", master.port)
        end = time.monotonic() + 60
        while client.info("replication")["master_link_status"] != "up":
            assert time.monotonic() < end
            time.sleep(0.01)
        with contextlib.closing(master.client()) as first:
            first.set("begun", 1)
            assert first.wait(1, 20_000) == 1
        yield master, replica


@pytest.fixture
def store(pair) -> Iterator[RedisStore]:
    """A store on the master, which knows the script."""
    with contextlib.closing(RedisStore(pair[0].url)) as store:
        assert store.warm()
        yield store


def test_a_grant_is_confirmed_by_a_replica(store: RedisStore, pair) -> None:
    """What was granted is in the replica when the answer comes."""
    grant = ask(store, 1)
    assert (grant.granted, grant.confirmed) == (10, True)
    with contextlib.closing(pair[1].client()) as client:
        assert any(b"rule" in key or "rule" in str(key) for key in client.keys("*"))


@pytest.mark.measured
@pytest.mark.slow
def test_without_a_replica_nothing_is_confirmed(start_redis) -> None:
    """A server that stands alone confirms nothing, and says so of each grant; reports need no confirmation."""
    server = start_redis()
    with contextlib.closing(RedisStore(server.url.replace("timeout_ms=5000", "timeout_ms=400"))) as store:
        grant = ask(store, 1)
        assert (grant.granted, grant.confirmed) == (10, False)
        assert ask(store, 1, LeaseTerms()).confirmed
        began = time.monotonic()
        (report,) = store.lease("holder-a", TERMS, [LeaseItem(COUNTER, "*", LeaseAsk())])
        assert time.monotonic() - began < 0.15
        assert isinstance(report, LeaseGrant)
        assert report.confirmed


def test_a_script_that_the_server_forgot_is_confirmed_all_the_same(store: RedisStore, pair) -> None:
    """The grant is sent again where the script is not known, and the replica is waited for after that."""
    with contextlib.closing(pair[0].client()) as client:
        client.script_flush()
    assert ask(store, 1).confirmed


def test_coroutines_wait_beside_their_loop(store: RedisStore) -> None:
    """``alease`` confirms as well, and the event loop goes on meanwhile."""

    async def run() -> Any:
        return await store.alease(
            "holder-a", TERMS, [LeaseItem(COUNTER, "*", LeaseAsk(serial=7, want=5, settled=True))]
        )

    (grant,) = asyncio.run(run())
    assert (grant.granted, grant.confirmed) == (5, True)


def turn(leases: Leases, store: RedisStore, now_us: int) -> int:
    """One turn of a keeper; how many counters it asked about."""
    items = leases.step(now_us)
    if items:
        leases.answered(items, store.lease(leases.holder, TERMS, items), now_us)
    return len(items)


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_process_spends_nothing_that_no_replica_has(pair) -> None:
    """With the replica stopped there are no tokens, so requests are decided exactly; what was granted in vain goes back."""
    master, replica = pair
    settings = NearSettings(terms=TERMS)
    with contextlib.closing(RedisStore(master.url.replace("timeout_ms=5000", "timeout_ms=600"))) as store:
        assert store.warm()
        leases = Leases(settings, lambda: 0.0)
        # Another process has leased the counter in this life of the server, so this one need not wait.
        assert ask(store, 1).confirmed

        def now_us() -> int:
            return time.monotonic_ns() // 1_000

        def wanted() -> Any:
            entry = leases.find(COUNTER, "*", now_us())
            assert entry is not None
            for _ in range(5):
                if not entry.take(1, now_us()):
                    assert entry.waits_us(1, now_us()) is None
            return entry

        def asked() -> bool:
            wanted()
            return turn(leases, store, now_us()) > 0

        until(lambda: asked() and leases.counts.granted > 0)
        os.kill(replica.pid, signal.SIGSTOP)
        entry = wanted()
        entry.freeze()
        granted = leases.counts.granted
        for _ in range(6):
            until(asked)
            assert entry.left(now_us()) == 0
        assert leases.counts.granted == granted
        # Of all that was granted in vain at most the last is still out, beside the other process's.
        assert ask(store, 1).leases <= 2
