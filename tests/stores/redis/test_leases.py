"""Leases in a server: what is kept, what a loss of its writes does, and what fails alone."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sluicegate.stores.redis
from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseAsk, LeaseGrant, LeaseReport, LeaseTerms
from sluicegate.bounds import LEASE_HOLD_US_MAX, LEASE_ITEMS_MAX, LEASED_KEEP_US, LEASES_PER_COUNTER_MAX
from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import AsyncLeaseStore, Counter, LeaseItem, LeaseStore
from sluicegate.stores.keys import LEDGER_SUFFIX, counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import RedisStore

SECOND = 1_000_000
TERMS = LeaseTerms(ttl_us=1_000_000)
HOLDER = "holder-a"
BUCKET = TokenBucket(1_000, 1, SECOND)
SPECS: tuple[Spec, ...] = (
    BUCKET,
    FixedWindow(1_000, 3_600 * SECOND),
    SlidingWindow(1_000, 3_600 * SECOND),
    SlidingWindow(1_000, 3_600 * SECOND, sub_windows=6),
    SlidingLog(1_000, 3_600 * SECOND),
)

Open = Callable[..., RedisStore]
every_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.shape + spec.algorithm)


def counter_of(spec: Spec, name: str = "rule") -> Counter:
    return Counter(name, spec, counter_prefix("test", name, spec.algorithm, spec.shape))


def lease(store: Any, spec: Spec, *reports: tuple[Any, ...], holder: str = HOLDER, **wish: Any) -> LeaseGrant:
    """One step of a holder on the rule's one counter."""
    ask = LeaseAsk([LeaseReport(*report) for report in reports], **wish)
    (grant,) = store.lease(holder, TERMS, [LeaseItem(counter_of(spec), "*", ask)])
    assert isinstance(grant, LeaseGrant)
    return grant


@pytest.fixture
def store(open_store: Open) -> RedisStore:
    """A store on the server."""
    return open_store()


@pytest.fixture
def client(server):
    with contextlib.closing(server.client()) as client:
        yield client


def test_the_bounds_are_the_ones_of_the_core() -> None:
    """The maxima in the scripts equal those of the package."""
    scripts = Path(sluicegate.stores.redis.__file__).parent / "scripts"
    for file, name, value in (
        ("ledger", "HOLD_US_MAX", LEASE_HOLD_US_MAX),
        ("ledger", "LEASED_KEEP_US", LEASED_KEEP_US),
        ("lease", "LEASES_MAX", LEASES_PER_COUNTER_MAX),
    ):
        found = re.search(rf"local {name} = (\d+)", (scripts / f"{file}.lua").read_text())
        assert found is not None
        assert int(found[1]) == value


def test_stores_have_the_ability(store: RedisStore) -> None:
    """Both stores lease, for threads and for coroutines."""
    for one in (store, MemoryStore(ManualClock())):
        assert isinstance(one, LeaseStore)
        assert isinstance(one, AsyncLeaseStore)


def test_a_right_that_is_missing_is_called_that(server, client) -> None:
    """Servers name neither command nor right where a script meets one that is missing; the error says what is the matter."""
    client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~rl1:*", "+@all", "-info")
    try:
        with contextlib.closing(RedisStore(server.url.replace("redis://", "redis://limited:pw@"))) as store:
            assert store.decide_one([(counter_of(BUCKET), "*", 1)]).admitted
            item = LeaseItem(counter_of(BUCKET), "*", LeaseAsk([], serial=1, want=10))
            (found,) = store.lease(HOLDER, TERMS, [item])
            assert isinstance(found, StoreError)
            assert "the store's user lacks a right that a script needs" in str(found)
    finally:
        client.execute_command("ACL", "DELUSER", "limited")


@every_spec
def test_exact_charges_take_only_what_is_not_granted(store: RedisStore, spec: Spec) -> None:
    """With 600 of 1,000 out, 400 can be charged exactly."""
    assert lease(store, spec, serial=1, want=600, settled=True).granted == 600
    assert store.decide_one([(counter_of(spec), "*", 400)]).admitted
    assert not store.decide_one([(counter_of(spec), "*", 5)]).admitted
    assert not store.decide([[(counter_of(spec), "*", 5)], [(counter_of(spec), "*", 6)]])[1].admitted
    assert lease(store, spec, (1, 100, True)).level >= 500


@every_spec
def test_keys_of_leased_counters_outlive_their_leases(store: RedisStore, client: Any, spec: Spec) -> None:
    """What the leases are known by stays for a day, also where an exact charge writes it."""
    lease(store, spec, serial=1, want=600, settled=True)
    store.decide_one([(counter_of(spec), "*", 1)])
    key = store.key(counter_of(spec), "*")
    ledger = key if spec is BUCKET else key + LEDGER_SUFFIX
    assert client.pttl(ledger) > LEASED_KEEP_US // 1_000 - 60_000
    assert client.pttl(key) >= 2 * TERMS.ttl_us // 1_000


def test_a_log_shorter_than_a_lease_is_kept_until_its_entries_have_left(store: RedisStore, client: Any) -> None:
    """Its entries stand at the end of the lease, and its key does not go before."""
    spec = SlidingLog(100, 50_000)
    assert lease(store, spec, serial=1, want=60, settled=True).granted == 60
    assert client.pttl(store.key(counter_of(spec), "*")) > 1_000


@every_spec
def test_a_flush_is_a_loss(store: RedisStore, client: Any, spec: Spec) -> None:
    """A counter that has gone grants nothing, and a report of a lease that it had does nothing."""
    lease(store, spec, serial=1, want=600, settled=True)
    client.delete(*client.keys("rl1:test:*"))
    grant = lease(store, spec, (1, 10), serial=2, want=5)
    assert (grant.lost, grant.granted, grant.level) == (True, 0, 0)
    assert not store.decide_one([(counter_of(spec), "*", 1)]).admitted


@every_spec
def test_another_life_of_the_server_is_a_loss(store: RedisStore, client: Any, spec: Spec) -> None:
    """A replica that became the master in place, with all connections kept, is noticed in the same step."""
    before = lease(store, spec, serial=1, want=600, settled=True)
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    client.execute_command("REPLICAOF", "NO", "ONE")
    after = lease(store, spec, serial=2, want=5, settled=True)
    assert before.incarnation != after.incarnation
    assert (after.lost, after.granted, after.level) == (True, 0, 0)
    assert not lease(store, spec, serial=3, want=5).lost


def test_a_lost_bucket_goes_on_when_unknown_leases_have_ended(open_store: Open) -> None:
    """It grants nothing for one hold, and then what time gives."""
    clock = ManualClock()
    store = open_store(clock)
    spec = TokenBucket(1_000, 1_000, SECOND)
    assert lease(store, spec, serial=1, want=5).lost
    clock.advance(TERMS.hold_us - 1)
    assert lease(store, spec, serial=2, want=5).granted == 0
    clock.advance(1)
    assert lease(store, spec, serial=3, want=5).level == 0
    clock.advance(20_000)
    assert lease(store, spec, serial=4, want=5).granted == 5


def test_a_retired_counter_is_a_plain_one(store: RedisStore, client: Any) -> None:
    """When nothing is out, a bucket is 37 bytes again, and a window has no ledger."""
    for spec in SPECS[:2]:
        lease(store, spec, serial=1, want=600, settled=True)
        lease(store, spec, (1, 600, True), retire=True)
        key = store.key(counter_of(spec), "*")
        assert client.strlen(key) == (37 if spec is BUCKET else 25)
        assert not client.exists(key + LEDGER_SUFFIX)
        assert store.decide_one([(counter_of(spec), "*", 400)]).admitted


@pytest.mark.parametrize("key_of", [lambda key: key, lambda key: key + LEDGER_SUFFIX], ids=["counter", "ledger"])
def test_a_key_that_cannot_be_read_fails_alone(store: RedisStore, client: Any, key_of: Callable[[str], str]) -> None:
    """Of two counters in one call, the other one is granted."""
    bad, good = counter_of(SPECS[1], "bad"), counter_of(SPECS[1], "good")
    for value in ("text", "x" * 36):
        client.set(key_of(store.key(bad, "*")), value)
        asks = [LeaseItem(counter, "*", LeaseAsk((), 1, 5, settled=True)) for counter in (bad, good)]
        first, second = store.lease(HOLDER, TERMS, asks)
        assert isinstance(first, StoreError)
        assert isinstance(second, LeaseGrant)
        assert second.granted == 5
    client.delete(key_of(store.key(bad, "*")))
    client.rpush(key_of(store.key(bad, "*")), "a")
    assert isinstance(store.lease(HOLDER, TERMS, asks)[0], StoreError)


def test_a_bucket_with_a_broken_ledger_is_refused(store: RedisStore, client: Any) -> None:
    """A text that is a bucket and something else behind it is nobody's counter."""
    lease(store, BUCKET, serial=1, want=5, settled=True)
    key = store.key(counter_of(BUCKET), "*")
    client.append(key, "x")
    with pytest.raises(StoreError, match="UNREADABLE"):
        store.decide_one([(counter_of(BUCKET), "*", 1)])


def test_many_counters_ride_in_one_call(store: RedisStore) -> None:
    """More than fit one call go in several, and the answers are in order."""
    items = [
        LeaseItem(counter_of(SPECS[number % 5], f"rule{number}"), "*", LeaseAsk((), 1, number + 1, settled=True))
        for number in range(LEASE_ITEMS_MAX + 40)
    ]
    grants = store.lease(HOLDER, TERMS, items)
    assert [grant.granted for grant in grants if isinstance(grant, LeaseGrant)] == [n + 1 for n in range(len(items))]


def test_coroutines_lease_too(open_store: Open) -> None:
    """``alease`` is ``lease``."""

    async def ask() -> list[LeaseGrant | StoreError]:
        store = open_store()
        item = LeaseItem(counter_of(BUCKET), "*", LeaseAsk((), 1, 5, settled=True))
        found = await store.alease(HOLDER, TERMS, [item])
        await store.aclose()
        return found

    (grant,) = asyncio.run(ask())
    assert isinstance(grant, LeaseGrant)
    assert grant.granted == 5


@pytest.mark.measured
def test_a_store_that_is_not_there_answers_for_each_counter(start_proxy: Any, server: Any) -> None:
    """Each counter has its StoreError, and nothing is raised."""
    proxy = start_proxy(server.port)
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}?timeout_ms=500")
    with contextlib.closing(store):
        assert store.warm()
        proxy.close()
        items = [LeaseItem(counter_of(spec), "*", LeaseAsk()) for spec in SPECS]
        assert all(isinstance(grant, StoreError) for grant in store.lease(HOLDER, TERMS, items))


@pytest.mark.parametrize("server", ["redis cluster"], indirect=True)
def test_counters_of_many_slots_are_leased_side_by_side(open_store: Open, clusters: Any) -> None:
    """Each server answers for its own, with its own life."""
    store = open_store()
    counter = counter_of(FixedWindow(100, 60 * SECOND))
    items = [LeaseItem(counter, f"tenant:{n}", LeaseAsk((), 1, n + 1, settled=True)) for n in range(40)]
    grants = [grant for grant in store.lease(HOLDER, TERMS, items) if isinstance(grant, LeaseGrant)]
    assert [grant.granted for grant in grants] == [n + 1 for n in range(40)]
    assert len({grant.incarnation for grant in grants}) > 1


def test_what_cannot_be_leased_is_refused(store: RedisStore) -> None:
    """A leaky bucket, and a holder's name of another length."""
    leaky = LeaseItem(counter_of(LeakyBucket(5, 5, SECOND)), "*", LeaseAsk())
    with pytest.raises(ValueError, match="never leased"):
        store.lease(HOLDER, TERMS, [leaky])
    with pytest.raises(ValueError, match="holder"):
        store.lease("me", TERMS, [])
