"""The Redis store on real clusters: where counters are, and requests over several slots."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter as Tally
from collections.abc import Callable
from random import Random

import pytest

from sluicegate import Facts, Limiter
from sluicegate.algorithms import FixedWindow, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.clock import ManualClock
from sluicegate.errors import PartlyDecided, PartlyReached, StoreError
from sluicegate.stores.base import Counter, Request
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.redis.slots import slot_of

SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND


def counter_of(name: str, spec: Spec, **more: bool) -> Counter:
    return Counter(name, spec, counter_prefix("cluster", name, spec.algorithm, spec.shape), **more)


def used(store: RedisStore, counter: Counter, subject: str) -> int:
    (verdict,) = store.decide_one([(counter, subject, 0)], peek=True).verdicts()
    return counter.spec.capacity - verdict.remaining


# ---------------------------------------------------------------------- where things are


def test_counters_are_spread_and_riders_are_not(cluster, open_here: Callable[..., RedisStore]) -> None:
    """Clients are on all masters, one client's counters on one; the secret and the list of processes have one place each (P41)."""
    store = open_here()
    rule, other = counter_of("rule", TokenBucket(9, 9, 60 * SECOND)), counter_of("other", FixedWindow(9, YEAR))
    for number in range(60):
        store.decide_one([(rule, f"user:{number}", 1), (other, f"user:{number}|path:/a", 1)])
    found = {port: cluster.ask(port, "KEYS", "*") for port in cluster.masters()}
    assert all(len(keys) > 10 for keys in found.values())
    everything = [key for keys in found.values() for key in keys]
    assert len(everything) == 2 * 60 + 2
    for number in range(60):
        keys = [store.key(rule, f"user:{number}"), store.key(other, f"user:{number}|path:/a")]
        assert len({slot_of(key) for key in keys}) == 1
    for name in ("rl1:key_secret", "rl1:nodes"):
        assert name.encode() in found[cluster.owner(slot_of(name))]
    again = open_here()
    assert again.warm()
    assert again.key(rule, "user:1") == store.key(rule, "user:1")
    assert len(store.health()) == 3
    assert {one.state for one in store.health()} == {"up"}
    assert store.nodes == 1


def test_only_masters_are_asked(cluster, open_here: Callable[..., RedisStore]) -> None:
    """Whatever server the URL names, decisions and peeks go to masters: a replica lags (P46)."""
    replica = cluster.replica_of(cluster.owner(slot_of("rl1:nodes")))
    url = f"redis+cluster://127.0.0.1:{replica}?timeout_ms=5000"
    store = RedisStore(url)
    rule = counter_of("rule", FixedWindow(5, YEAR))
    assert [store.decide_one([(rule, "user:1", 1)]).admitted for _ in range(6)] == [True] * 5 + [False]
    assert used(store, rule, "user:1") == 5
    assert {int(one.address.rpartition(":")[2]) for one in store.health()} == set(cluster.masters())
    assert store.stats.moved == 0
    store.close()


def test_a_seed_that_is_gone(cluster, open_here: Callable[..., RedisStore], free_port: Callable[[], int]) -> None:
    """A server of the URL that is not there is passed over."""
    store = RedisStore(f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{cluster.ports[2]}?timeout_ms=5000")
    assert store.decide_one([(counter_of("rule", FixedWindow(5, YEAR)), "user:1", 1)]).admitted
    store.close()


def test_a_single_server_is_no_cluster(servers, require_program: Callable[[str], str]) -> None:
    """A Redis without cluster mode under a cluster's URL is an error that says so."""
    server = servers.empty("redis", require_program)
    store = RedisStore(f"redis+cluster://127.0.0.1:{server.port}?timeout_ms=5000")
    with pytest.raises(StoreError, match=r"is no cluster that can be used.*cluster support disabled"):
        store.decide_one([(counter_of("rule", FixedWindow(5, YEAR)), "user:1", 1)])
    store.close()


# ---------------------------------------------------------------------- requests over several slots


def test_requests_over_slots_agree_with_the_core(open_here: Callable[..., RedisStore]) -> None:
    """At one instant after another, requests over several slots admit, refuse and leave behind what one process would."""
    clock = ManualClock()
    store, oracle = open_here(time_source=clock, clock=clock), MemoryStore(clock)
    draw = Random(7)
    specs = [
        TokenBucket(5, 5, 60 * SECOND), TokenBucket(3, 7, SECOND), FixedWindow(4, 10 * SECOND), SlidingWindow(5, 10 * SECOND),
        SlidingWindow(6, 12 * SECOND, sub_windows=6), SlidingLog(4, 10 * SECOND), TokenBucket(40, 40, 60 * SECOND),
    ]  # fmt: skip
    charges = [(counter_of(f"r{number}", spec), f"user:{number % 4}") for number, spec in enumerate(specs)]
    charges += [(counter_of("shadow", TokenBucket(2, 2, 60 * SECOND), shadow=True), "path:/a")]
    refused = 0
    for _ in range(400):
        clock.advance(draw.choice([0, 0, 1_000, 300_000, 2 * SECOND]))
        request = [
            (counter, subject, draw.choice([1, 1, 1, 2]))
            for counter, subject in draw.sample(charges, draw.randint(1, 5))
        ]
        if draw.random() < 0.2:
            answers, expected = store.decide([request, request[:1]]), oracle.decide([request, request[:1]])
            if not expected[0].admitted:
                # In a batch the first request's provisional charges may refuse the second; never the other way round.
                store.reset([charge[:2] for charge in request])
                oracle.reset([charge[:2] for charge in request])
                assert expected[1].admitted or not answers[1].admitted
                continue
        else:
            answers, expected = [store.decide_one(request)], [oracle.decide_one(request)]
        for answer, right in zip(answers, expected, strict=True):
            refused += not right.admitted
            assert (answer.admitted, answer.unanimous) == (right.admitted, right.unanimous)
            for charge, shown, known in zip(request, answer.verdicts(), right.verdicts(), strict=False):
                assert (shown.outcome, shown.remaining, shown.retry_after_us) == (
                    known.outcome, known.remaining, known.retry_after_us,
                ), charge  # fmt: skip
            if right.admitted and draw.random() < 0.2:
                assert store.refund(answer.receipts()) == oracle.refund(right.receipts())
    assert refused > 50
    assert store.stats.undone > 10


@pytest.mark.slow
def test_clients_and_a_global_rule_race(open_here: Callable[..., RedisStore], hammer) -> None:
    """Many clients at once on limits of their own and one for all: nobody is over-admitted, and nothing that was undone is lost."""
    everybody = counter_of("everybody", FixedWindow(150, YEAR))
    own = counter_of("own", SlidingWindow(20, YEAR))
    stores = [open_here() for _ in range(3)]
    requests: list[Request] = [[(everybody, "*", 1), (own, f"user:{number}", 1)] for number in range(10)]
    loads = [hammer(store, requests) for store in stores]
    with contextlib.ExitStack() as stack:
        for load in loads:
            stack.enter_context(load)
        for load in loads:
            load.wait_for(300)
    assert [load.errors for load in loads] == [[], [], []]
    admitted: Tally[int] = sum((load.admitted for load in loads), Tally())
    assert admitted.total() <= 150
    assert max(admitted.values()) <= 20
    assert used(stores[0], everybody, "*") == admitted.total()
    for number in range(10):
        assert used(stores[0], own, f"user:{number}") == admitted[number]
    # What provisional charges kept from being admitted is still there.
    later = sum(stores[0].decide_one(requests[number % 10]).admitted for number in range(400))
    assert admitted.total() + later == 150
    undone = sum(store.stats.undone for store in stores)
    print(
        f"\n{sum(load.asked for load in loads)} requests at once: {admitted.total()} of 150 admitted, {undone} charges undone"
    )


def test_refused_client_drains_no_shared_bucket(open_here: Callable[..., RedisStore]) -> None:
    """A client that hammers after its refusal costs a fast shared bucket one charge at most, not one each time."""
    shared = counter_of("shared", TokenBucket(1_000, 1_000_000, SECOND))
    slow = counter_of("slow", TokenBucket(1_000, 1, 3_600 * SECOND))
    own = counter_of("own", TokenBucket(1, 1, YEAR))
    store = open_here()
    request = [(shared, "*", 1), (slow, "path:/a", 1), (own, "user:1", 1)]
    assert [store.decide_one(request).admitted for _ in range(50)] == [True] + [False] * 49
    assert used(store, slow, "path:/a") == 1
    assert store.stats.undone == 2


@pytest.mark.measured
def test_a_part_that_hangs(cluster, open_here: Callable[..., RedisStore]) -> None:
    """Where one master hangs the answer comes in time, with the verdicts and receipts of what was reached (T85, T79)."""
    store = open_here("?timeout_ms=400")
    wide = counter_of("wide", FixedWindow(9, YEAR))
    subjects = {cluster.owner(slot_of(store.key(wide, f"user:{number}"))): f"user:{number}" for number in range(60)}
    (here, fast), (there, hung) = list(subjects.items())[:2]
    request = [(wide, fast, 2), (wide, hung, 3)]
    assert store.decide_one(request).admitted
    cluster.pause(there)
    try:
        began = time.monotonic()
        with pytest.raises(PartlyReached) as caught:
            store.decide_one(request)
        assert 0.35 < time.monotonic() - began < 0.7
    finally:
        cluster.resume(there)
    error = caught.value
    assert error.transient
    assert [verdict and verdict.remaining for verdict in error.verdicts] == [5, None]
    assert [(receipt.subject, receipt.cost) for receipt in error.receipts] == [(fast, 2)]
    cluster.wait_whole()
    assert store.refund(error.receipts) == 1
    assert used(store, wide, fast) == 2
    # Whether the lost charge was made is not known; it was made once at most.
    assert used(store, wide, hung) in (3, 6)
    assert here != there


@pytest.mark.measured
def test_a_batch_of_which_a_part_hangs(cluster, open_here: Callable[..., RedisStore]) -> None:
    """Each request of a batch has its own answer, what was reached of it, or nothing; what was reached stays charged (T79)."""
    store = open_here("?timeout_ms=400")
    wide = counter_of("wide", FixedWindow(9, YEAR))
    subjects = {cluster.owner(slot_of(store.key(wide, f"user:{number}"))): f"user:{number}" for number in range(60)}
    (_, fast), (there, hung) = list(subjects.items())[:2]
    cluster.pause(there)
    try:
        with pytest.raises(PartlyDecided) as caught:
            store.decide([[(wide, fast, 1)], [(wide, fast, 2), (wide, hung, 3)], [(wide, hung, 1)]])
    finally:
        cluster.resume(there)
    whole, part, none = caught.value.answers
    assert whole.verdicts()[0].remaining == 8
    assert isinstance(part, PartlyReached)
    assert [verdict and verdict.remaining for verdict in part.verdicts] == [6, None]
    assert none is None
    cluster.wait_whole()
    assert used(store, wide, fast) == 3
    assert store.refund(part.receipts) == 1
    assert used(store, wide, fast) == 1


@pytest.mark.measured
def test_a_part_that_hangs_beside_one_that_refuses(cluster, open_here: Callable[..., RedisStore]) -> None:
    """What was charged is given back after the deadline too: the servers that were reached are there."""
    store = open_here("?timeout_ms=400")
    wide, tight = counter_of("wide", FixedWindow(9, YEAR)), counter_of("tight", FixedWindow(1, YEAR))
    places = {cluster.owner(slot_of(store.key(wide, f"user:{number}"))): f"user:{number}" for number in range(60)}
    (charged, refusing, hung) = places.values()
    assert store.decide_one([(tight, refusing, 1)]).admitted
    there = cluster.owner(slot_of(store.key(wide, hung)))
    request = [(wide, charged, 2), (tight, refusing, 1), (wide, hung, 3)]

    async def ask(store: RedisStore) -> None:
        try:
            await store.adecide_one(request)
        finally:
            await store.disconnect()

    for way in (lambda store: store.decide_one(request), lambda store: asyncio.run(ask(store))):
        cluster.pause(there)
        try:
            with pytest.raises(PartlyReached) as caught:
                way(store)
        finally:
            cluster.resume(there)
        assert [verdict and verdict.remaining for verdict in caught.value.verdicts] == [9, 0, None]
        assert caught.value.receipts == ()
        cluster.wait_whole()
        other = open_here()
        assert used(other, wide, charged) == 0
        other.reset([(wide, hung)])
        # The next one asks the refusing counter first, unless it is told to forget.
        store = open_here("?timeout_ms=400")
        assert store.warm()
    assert store.stats.undo_lost == 0


RULES = """
version: 1
rules:
  - {name: everybody, scope: global, quota: 40/hour}
  - {name: client, per: [user], quota: 5/hour}
  - {name: page, per: [user, path], quota: 3/hour}
"""


def test_limiter_on_a_cluster(cluster, tmp_path) -> None:
    """Rules for all, per client and per client and path are decided together, in every form of asking, and refunded together."""
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    # The store is asked each time: a refusal that is repeated in the process does not tell what remains of the other counters.
    limiter = Limiter.from_file(path, store=cluster.url, near=None)
    facts = Facts(user="u1", path="/a")
    told = [limiter.check(facts) for _ in range(5)]
    assert [(one.allowed, one.rule) for one in told] == [(True, "page")] * 3 + [(False, "page")] * 2
    assert [[result.remaining for result in one.results] for one in told] == [
        [39, 4, 2], [38, 3, 1], [37, 2, 0], [37, 2, 0], [37, 2, 0],
    ]  # fmt: skip
    assert not any(one.degraded for one in told)
    batch = limiter.check_many([Facts(user=f"u{number}", path="/b") for number in range(2, 42)])
    assert sum(one.allowed for one in batch) == 37
    assert {one.rule for one in batch if not one.allowed} == {"everybody"}

    async def ask() -> list[bool]:
        answers = await asyncio.gather(*(limiter.acheck(Facts(user=f"w{number}", path="/b")) for number in range(20)))
        await limiter.aclose()
        return [answer.allowed for answer in answers]

    assert asyncio.run(ask()) == [False] * 20
