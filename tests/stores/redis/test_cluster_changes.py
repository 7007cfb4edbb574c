"""The Redis store on real clusters that change under load: slots that move, masters that change, hang or die."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from sluicegate.algorithms import FixedWindow, SlidingWindow, Spec
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter, Request
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.redis.slots import slot_of

SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND


def counter_of(name: str, spec: Spec, **more: bool) -> Counter:
    return Counter(name, spec, counter_prefix("cluster", name, spec.algorithm, spec.shape), **more)


def used(store: RedisStore, counter: Counter, subject: str) -> int:
    (verdict,) = store.decide_one([(counter, subject, 0)], peek=True).verdicts()
    return counter.spec.capacity - verdict.remaining


# ---------------------------------------------------------------------- slots that move


@pytest.mark.slow
def test_slots_move_under_load(cluster, open_here: Callable[..., RedisStore], hammer) -> None:
    """While a slot moves there and back, its keys one by one, no caller sees an error and the limit is the limit (MOVED, ASK, TRYAGAIN)."""
    store = open_here()
    tight = counter_of("tight", FixedWindow(1_500, YEAR))
    wide = [counter_of(f"wide{number}", SlidingWindow(100_000, YEAR)) for number in range(4)]
    request = [*((counter, "user:1", 1) for counter in wide), (tight, "user:1", 1)]
    store.decide_one(request)
    slot = slot_of(store.key(tight, "user:1"))
    home = cluster.owner(slot)
    to = next(port for port in cluster.masters() if port != home)
    with hammer(store, [request, [(tight, "user:1", 1)]]) as load:
        for target in (to, home):
            load.wait_for(60)
            here = cluster.begin_migration(slot, target)
            load.wait_for(60)
            for _ in range(3):
                cluster.move_keys(slot, here, target, 1)
                load.wait_for(60)
            cluster.end_migration(slot, here, target)
            load.wait_for(60)
        while not load.refused:
            load.wait_for(50)
    assert load.errors == []
    assert load.admitted.total() == 1_500 - 1
    assert {used(store, counter, "user:1") for counter in wide} == {load.admitted[0] + 1}
    assert store.stats.moved > 20
    # Error replies that no caller saw: TRYAGAIN, after which the keys were decided one by one.
    assert store.stats.errors > 0
    assert store.stats.undo_lost == 0
    cluster.wait_whole()
    print(
        f"\n{load.asked} requests, {store.stats.moved} redirected, {store.stats.errors} decided key by key, {store.stats.undone} undone"
    )


@pytest.mark.slow
def test_manual_failover_under_load(cluster, open_here: Callable[..., RedisStore], hammer) -> None:
    """A failover that was asked for loses nothing: no caller sees an error, and the limit is the limit."""
    store = open_here()
    rule = counter_of("rule", FixedWindow(2_500, YEAR))
    store.decide_one([(rule, "user:1", 1)])
    slot = slot_of(store.key(rule, "user:1"))
    with hammer(store, [[(rule, "user:1", 1)]]) as load:
        for _ in range(2):
            load.wait_for(200)
            cluster.fail_over(cluster.owner(slot))
            load.wait_for(200)
            cluster.wait_whole()
        while not load.refused:
            load.wait_for(50)
    assert load.errors == []
    assert load.admitted.total() == 2_500 - 1


@pytest.mark.slow
def test_scripts_and_keys_are_flushed_under_load(cluster, open_here: Callable[..., RedisStore], hammer) -> None:
    """A flush of scripts goes unnoticed; a flush of keys gives a fresh budget and no error (P40)."""
    store = open_here()
    rule, everybody = counter_of("rule", FixedWindow(300, YEAR)), counter_of("everybody", FixedWindow(100_000, YEAR))
    with hammer(store, [[(rule, f"user:{number}", 1), (everybody, "*", 1)] for number in range(3)]) as load:
        for _ in range(3):
            load.wait_for(100)
            cluster.flush_scripts()
        load.wait_for(100)
        before = load.admitted.total()
        cluster.empty()
        load.wait_for(100)
    assert load.errors == []
    assert store.stats.loads >= 3
    assert before <= 3 * 300
    assert load.admitted.total() <= 2 * 3 * 300 + 18


# ---------------------------------------------------------------------- masters that die


@pytest.mark.slow
def test_a_master_is_killed_under_load(own_cluster, hammer) -> None:
    """Its replica takes over and is found; over-admission is at most what was not replicated, and what is not served is an error."""
    cluster = own_cluster
    store = RedisStore(cluster.url.replace("5000", "200"))
    limit = 60_000
    rule, other = counter_of("rule", FixedWindow(limit, YEAR)), counter_of("other", FixedWindow(100_000, YEAR))
    assert store.warm()
    dead = cluster.owner(slot_of(store.key(rule, "user:1")))
    elsewhere = next(
        subject
        for subject in map("user:{}".format, range(2, 90))
        if cluster.owner(slot_of(store.key(other, subject))) != dead
    )
    with hammer(store, [[(rule, "user:1", 1)], [(other, elsewhere, 1)]]) as load:
        load.wait_for(1_000)
        synced = load.admitted[0]
        cluster.wait_replicated(dead, store.key(rule, "user:1"))
        cluster.kill(dead)
        killed = time.monotonic()
        before = load.admitted[0]
        end = killed + 30
        while load.admitted[0] <= before + 50:
            assert time.monotonic() < end, load.errors[-1:]
            time.sleep(0.01)
    # Replies that were on their way when the master died were counted after ``before``.
    resumed_s = load.last_error_s - killed
    patient = RedisStore(cluster.url)
    charged = used(patient, rule, "user:1")
    unreplicated = max(load.admitted[0] - charged, 0)
    assert patient.decide_one([(rule, "user:1", limit - charged)]).admitted
    assert not patient.decide_one([(rule, "user:1", 1)]).admitted
    over = load.admitted[0] + limit - charged - limit
    assert over <= unreplicated
    # Six replies may have been on their way.
    assert unreplicated <= before + 6 - synced
    assert resumed_s < 15
    assert all(error.transient for error in load.errors)
    assert store.stats.refreshes > 1
    print(
        f"\nmaster killed after {before} admissions: served again after {resumed_s:.2f} s, {len(load.errors)} errors, "
        f"{unreplicated} charges lost, over-admission {max(over, 0)} of {limit}"
    )
    cluster.wait_whole()
    heir = cluster.owner(slot_of(store.key(rule, "user:1")))
    assert heir != dead
    assert str(heir) in {one.address.rpartition(":")[2] for one in store.health()}
    patient.close()
    _then_the_cluster_is_down(cluster, store, heir, [(other, elsewhere, 1)])


@pytest.mark.slow
def test_a_master_hangs_under_load(own_cluster, hammer) -> None:
    """A master that hangs with its connections open is replaced like one that died, and what it wakes up to charges nobody."""
    cluster = own_cluster
    store = RedisStore(cluster.url.replace("5000", "150"))
    rule = counter_of("rule", FixedWindow(1_000_000, YEAR))
    assert store.warm()
    hung = cluster.owner(slot_of(store.key(rule, "user:1")))
    with hammer(store, [[(rule, "user:1", 1)]]) as load:
        load.wait_for(500)
        synced = load.admitted[0]
        cluster.wait_replicated(hung, store.key(rule, "user:1"))
        cluster.pause(hung)
        began = time.monotonic()
        before = load.admitted[0]
        # The old master is asleep, so what was admitted after its last answer was admitted by its heir.
        while load.admitted[0] <= before + 300:
            assert time.monotonic() < began + 30, load.errors[-1:]
            time.sleep(0.01)
        resumed_s = load.last_error_s - began
        cluster.resume(hung)
        load.wait_for(300)
    cluster.wait_whole()
    assert resumed_s < 15
    assert all(error.transient for error in load.errors)
    patient = RedisStore(cluster.url)
    unreplicated = max(load.admitted[0] - used(patient, rule, "user:1"), 0)
    patient.close()
    # Six replies may have been on their way.
    assert unreplicated <= before + 6 - synced
    heir = cluster.owner(slot_of(store.key(rule, "user:1")))
    assert heir != hung
    assert cluster.ask(hung, "ROLE")[0] == b"slave"
    print(
        f"\nmaster hung: served again after {resumed_s:.2f} s, {len(load.errors)} errors, {unreplicated} charges lost"
    )
    store.close()


def _then_the_cluster_is_down(cluster, store: RedisStore, heir: int, request: Request) -> None:
    """Without master and replica of a slot the cluster serves nobody: an error that says so (T79)."""
    cluster.kill(heir)
    end = time.monotonic() + 60
    while True:
        try:
            store.decide_one(request)
        except StoreError as error:
            if error.transient and "CLUSTERDOWN" in str(error):
                break
        assert time.monotonic() < end
        time.sleep(0.05)
    store.close()
