"""What the scripts leave in the server: keys, times to live, and what happens to keys that are not ours."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import sluicegate.stores.redis
from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.bounds import CLOCK_BEHIND_US_MAX, REDIS_BATCH_MAX
from sluicegate.clock import ManualClock
from sluicegate.errors import PartlyDecided, StoreError
from sluicegate.limiter import Limiter
from sluicegate.limiter.calls import verdict_of
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore

SECOND = 1_000_000
SPECS: tuple[Spec, ...] = (
    TokenBucket(10, 10, 60 * SECOND),
    TokenBucket(3, 7, 60 * SECOND),
    LeakyBucket(5, 5, 60 * SECOND, nodelay=True),
    FixedWindow(5, 60 * SECOND),
    FixedWindow(5, 86_400 * SECOND, align="calendar", tz="Europe/Berlin", unit="day"),
    SlidingWindow(5, 60 * SECOND),
    SlidingWindow(5, 60 * SECOND, sub_windows=6),
    SlidingLog(5, 60 * SECOND),
)

Open = Callable[..., RedisStore]


def counter_of(spec: Spec, name: str = "rule", *, denied_counts: bool = False) -> Counter:
    return Counter(name, spec, counter_prefix("test", name, spec.algorithm, spec.shape), denied_counts=denied_counts)


@pytest.fixture
def client(server):
    with contextlib.closing(server.client()) as client:
        yield client


def test_the_tolerance_is_the_one_of_the_core() -> None:
    """The clock tolerance in the scripts equals that of the algorithms."""
    scripts = Path(sluicegate.stores.redis.__file__).parent / "scripts"
    assert re.search(r"BEHIND_US = (\d+)", (scripts / "frame.lua").read_text())[1] == str(CLOCK_BEHIND_US_MAX)
    assert re.search(r"BEHIND_US = \d+, (\d+)", (scripts / "usual.lua").read_text())[1] == str(CLOCK_BEHIND_US_MAX)


def test_scripts_say_what_they_do() -> None:
    """Every script file begins with a comment."""
    files = sorted((Path(sluicegate.stores.redis.__file__).parent / "scripts").glob("*.lua"))
    assert len(files) > 9
    assert all(file.read_text().startswith("-- ") for file in files)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_time_to_live(open_store: Open, client, spec: Spec) -> None:
    """A key lives for twice the drain or two windows, so it is there until it means nothing and gone some time after."""  # P38
    store, counter = open_store(), counter_of(spec)
    store.decide_one([(counter, "s", 1)])
    ttl_us = client.pttl(store.key(counter, "s")) * 1_000
    assert 1.9 * spec.window_us < ttl_us <= 2.1 * spec.window_us


def test_no_key_is_left_without_time_to_live(open_store: Open, client) -> None:
    """After thousands of charges, refusals, refunds and changed numbers every key has a time to live."""  # T47, T48, P43, P44
    store, draw = open_store(), Random(1)
    counters = [counter_of(spec, f"r{i}", denied_counts=bool(i % 2)) for i, spec in enumerate(SPECS)]
    for _ in range(300):
        request = [(counter, f"ip:{draw.randrange(9)}", draw.choice([1, 2, 5])) for counter in draw.sample(counters, 3)]
        answer = store.decide_one(request)
        if draw.random() < 0.2:
            store.refund(answer.receipts())
    keys = [key for key in client.scan_iter("rl1:*") if key != b"rl1:key_secret"]
    assert len(keys) > 60
    assert all(client.pttl(key) > 0 for key in keys)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_key_without_time_to_live_heals(open_store: Open, client, spec: Spec) -> None:
    """Where a time to live was lost, the next charge sets it again."""  # P43
    store, counter = open_store(), counter_of(spec)
    store.decide_one([(counter, "s", 1)])
    key = store.key(counter, "s")
    assert client.persist(key)
    store.decide_one([(counter, "s", 1)])
    assert client.pttl(key) > 0


@pytest.mark.parametrize("poison", ["hash", "text", "number", "huge"])
@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_poisoned_key_fails_its_own_request_only(open_store: Open, client, spec: Spec, poison: str) -> None:
    """A key of another type or text fails the requests that need it, wholly; the others of the batch are charged."""
    store, counter, other = open_store(), counter_of(spec), counter_of(TokenBucket(9, 1, 3_600 * SECOND), "other")
    key = store.key(counter, "bad")
    text = {"text": "nonsense", "number": "5", "huge": f"5|1 {10**20} 1"}
    client.hset(key, "a", 1) if poison == "hash" else client.set(key, text[poison])
    with pytest.raises(PartlyDecided) as caught:
        store.decide(
            [[(other, "s", 1)], [(other, "s", 1), (counter, "bad", 1)], [(counter, "good", 1), (other, "s", 1)]]
        )
    first, none, last = caught.value.answers
    assert none is None
    assert first.admitted and last.admitted
    assert last.verdicts()[1].remaining == 7
    with pytest.raises(StoreError, match=r"WRONGTYPE|UNREADABLE"):
        store.decide_one([(other, "s", 1), (counter, "bad", 1)])
    assert store.decide_one([(other, "s", 0)], peek=True).verdicts()[0].remaining == 7
    assert store.reset([(counter, "bad")]) == 1
    assert store.decide_one([(counter, "bad", 1)]).admitted


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_poisoned_key_among_different_keys(open_store: Open, client, spec: Spec) -> None:
    """Where a batch is read at once, a key of another type fails its request only, and is not taken for a new counter."""
    store, counter = open_store(), counter_of(spec)
    key = store.key(counter, "s1")
    client.hset(key, "a", 1)
    for _ in range(2):
        with pytest.raises(PartlyDecided, match="WRONGTYPE") as caught:
            store.decide([[(counter, f"s{i}", 1)] for i in range(3)])
        assert [answer and answer.admitted for answer in caught.value.answers] == [True, None, True]
    assert client.type(key) == b"hash"
    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.decide_one([(counter_of(spec, "other"), "s1", 1), (counter, "s1", 1)])
    assert client.exists(store.key(counter_of(spec, "other"), "s1")) == 0


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_text_of_another_length_is_no_counter(open_store: Open, client, spec: Spec) -> None:
    """A counter's text that was cut or grew is refused, and not decided on."""
    store, counter = open_store(), counter_of(spec)
    store.decide_one([(counter, "s", 1)])
    key = store.key(counter, "s")
    text = client.get(key)
    for wrong in (text[:-1], text + b"\0", b"", b"\xff" * len(text)):
        client.set(key, wrong)
        with pytest.raises(StoreError, match="UNREADABLE"):
            store.decide_one([(counter, "s", 1)])
        with pytest.raises(StoreError, match="UNREADABLE"):
            store.decide([[(counter, "s", 1)], [(counter, "s", 1)]])
    client.set(key, text)
    assert store.decide_one([(counter, "s", 1)]).admitted


def test_a_request_without_charges_is_admitted(open_store: Open) -> None:
    """Where no rule applies, nothing is asked of a key and the request passes, alone and in a batch."""
    store = open_store()
    assert store.decide_one([]).admitted
    assert [answer.admitted for answer in store.decide([[], [(counter_of(SPECS[0]), "s", 1)], []])] == [True] * 3


def test_a_limiter_degrades_the_poisoned_request_only(open_store: Open, client) -> None:
    """Of a batch, only the request with a key that cannot be read is decided by the failure policy."""
    store = open_store()
    limiter = Limiter.from_quota("5/minute", store=store)
    (charge,) = limiter._live.plan("bad", 1).charges
    client.lpush(store.key(charge[0], charge[1]), "x")
    good, bad, again = limiter.check_many(["good", "bad", "good"])
    assert [d.degraded for d in (good, bad, again)] == [False, True, False]
    assert (good.remaining, again.remaining) == (4, 3)
    counter = charge[0]
    charges = [(counter, "a", 1), (counter, charge[1], 1), (counter, "a", 1)]
    singles = limiter.decide_counters(charges)
    assert singles.degraded
    verdicts = [verdict_of(made, single, singles.now_us) for made, single in zip(charges, singles.singles, strict=True)]
    assert [verdict.remaining for verdict in verdicts][::2] == [4, 3]
    assert (limiter.stats.store_errors, limiter.stats.degraded) == (2, 2)


def test_full_memory_is_refused_before_anything_is_done(open_store: Open, client) -> None:
    """Out of memory is a transient error, and the counters are as they were."""
    store, counter = open_store(), counter_of(TokenBucket(9, 1, 3_600 * SECOND))
    store.decide_one([(counter, "s", 1)])
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreError, match="OOM") as caught:
            store.decide_one([(counter, "s", 1)])
        assert caught.value.transient
    finally:
        client.config_set("maxmemory", 0)
    assert store.decide_one([(counter, "s", 1)]).verdicts()[0].remaining == 7


def test_script_flush_goes_unnoticed(open_store: Open, client) -> None:
    """A server that forgot the script gets it in full, once, also where the secret's check rides along."""  # P40
    store, counter = open_store(), counter_of(TokenBucket(9, 1, 3_600 * SECOND))
    store.decide_one([(counter, "s", 1)])
    for left in (7, 6):
        client.script_flush()
        store._core.riders.hurry()
        assert store.decide_one([(counter, "s", 1)]).verdicts()[0].remaining == left
    client.script_flush()
    receipts = store.decide_one([(counter, "s", 1)]).receipts()
    client.script_flush()
    assert store.refund(receipts) == 1
    assert store.stats.loads >= 4


async def test_script_flush_goes_unnoticed_by_coroutines(server, client) -> None:
    """The asynchronous store loads the script again too."""  # P40
    store, counter = RedisStore(server.url), counter_of(TokenBucket(9, 1, 3_600 * SECOND))
    for left in (8, 7):
        client.script_flush()
        assert (await store.adecide_one([(counter, "s", 1)])).verdicts()[0].remaining == left
    await store.aclose()


def test_a_flush_gives_a_fresh_budget(open_store: Open, client) -> None:
    """FLUSHALL forgets counters and nothing else: the next call decides on a full counter."""
    store, counter = open_store(), counter_of(TokenBucket(1, 1, 3_600 * SECOND))
    assert [store.decide_one([(counter, "s", 1)]).admitted for _ in range(2)] == [True, False]
    client.flushall()
    assert [store.decide_one([(counter, "s", 1)]).admitted for _ in range(2)] == [True, False]


def test_clocks_of_clients_do_not_matter(open_store: Open, server) -> None:
    """Clients whose clocks differ by 30 s, or by 40 days where windows are those of a calendar, share one budget."""
    near, far = ManualClock(), ManualClock()
    now_us = open_store().decide_one([(counter_of(SPECS[0]), "t", 1)]).now_us
    near.set(now_us - 30 * SECOND)
    far.set(now_us - 40 * 86_400 * SECOND)
    stores = [RedisStore(server.url, clock=clock) for clock in (near, far)]
    for place, spec in enumerate(SPECS):
        counter = counter_of(spec, f"shared{place}")
        admitted = [stores[i % 2].decide_one([(counter, "s", 1)]) for i in range(2 * spec.capacity)]
        assert sum(answer.admitted for answer in admitted) == spec.capacity
        assert {abs(answer.now_us - now_us) < 20 * SECOND for answer in admitted} == {True}
    for store in stores:
        store.close()


def test_a_large_batch_is_decided_in_order(open_store: Open) -> None:
    """600 requests take several calls and are charged one after the other."""
    store, counter = open_store(), counter_of(TokenBucket(1_000, 1, 3_600 * SECOND))
    answers = store.decide([[(counter, "s", 1)] for _ in range(600)])
    assert [answer.verdicts()[0].remaining for answer in answers] == list(range(999, 399, -1))
    assert store.reset([(counter, f"x{i}") for i in range(600)]) == 0
    assert store.refund([receipt for answer in answers for receipt in answer.receipts()]) == 600


def test_costs_in_the_trillions(open_store: Open) -> None:
    """The largest numbers a rule may have are charged exactly: a cost of the whole limit passes once."""  # P06
    clock = ManualClock()
    store = open_store(clock)
    for place, spec in enumerate(
        (TokenBucket(10**12, 10**12 - 1, 10**9), FixedWindow(10**12, 3_650 * 86_400 * SECOND), SlidingWindow(10**12, 7))
    ):
        counter = counter_of(spec, f"r{place}")
        assert store.decide_one([(counter, "s", 10**12)]).verdicts()[0].remaining == 0
        assert not store.decide_one([(counter, "s", 1)]).admitted


def test_a_log_of_many_entries(open_store: Open) -> None:
    """A log of 1,000 entries at different times expires them in order, charges after charges."""
    clock = ManualClock()
    store, counter = open_store(clock), counter_of(SlidingLog(1_000, 10 * SECOND))
    for _ in range(8):
        store.decide([[(counter, "s", 1)] for _ in range(125)])
        clock.advance(SECOND)
    answer = store.decide_one([(counter, "s", 300)])
    assert answer.verdicts()[0].retry_after_us == 4 * SECOND
    clock.advance(4 * SECOND - 1)
    assert not store.decide_one([(counter, "s", 300)]).admitted
    clock.advance(1)
    assert store.decide_one([(counter, "s", 300)]).verdicts()[0].remaining == 75


@pytest.mark.parametrize(
    "spec, denied_counts",
    # A refusal that counts rewrites a log.
    [(spec, denied) for spec in SPECS for denied in (False, True) if not (denied and isinstance(spec, SlidingLog))],
    ids=repr,
)
def test_the_usual_check_reads_and_writes_once(open_store: Open, client, spec: Spec, denied_counts: bool) -> None:
    """A check, admitted or refused, is decided on one reading of its counter; a batch reads all its counters at once."""
    store, counter = open_store(ManualClock()), counter_of(spec, denied_counts=denied_counts)

    def commands() -> dict[str, int]:
        return {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in client.info("commandstats").items()}

    store.decide([[(counter, f"s{i}", 1)] for i in range(32)])
    client.config_resetstat()
    admitted = [store.decide_one([(counter, "s0", 1)]).admitted for _ in range(spec.capacity)]
    assert admitted == [True] * (spec.capacity - 1) + [False]
    found = commands()
    assert found["get"] == spec.capacity
    # The key's secret may have been looked at meanwhile, by a SET too.
    assert found["set"] in (spec.capacity - 1 + denied_counts, spec.capacity + denied_counts)
    client.config_resetstat()
    store.decide([[(counter, f"s{i}", 1)] for i in range(1, 32)])
    found = commands()
    assert (found["mget"], "get" in found) == (1, False)


def test_many_rules_in_a_full_batch(open_store: Open) -> None:
    """A full batch of requests that each charge forty counters, no two alike in a row, is more numbers than Lua's stack holds."""
    store = open_store()
    counters = [counter_of(TokenBucket(1_000, 1, 3_600 * SECOND), f"r{i}") for i in range(40)]
    requests = [[(counter, f"s{i}", 1) for counter in counters[:: 1 - 2 * (i % 2)]] for i in range(REDIS_BATCH_MAX)]
    for left in (999, 998):
        answers = store.decide(requests)
        assert {verdict.remaining for answer in answers for verdict in answer.verdicts()} == {left}


@pytest.mark.slow
def test_thousands_of_rules_for_one_request(open_store: Open) -> None:
    """A request may charge as many counters as a file has rules."""
    store = open_store()
    counters = [counter_of(SlidingWindow(3, 3_600 * SECOND), f"r{i}") for i in range(5_000)]
    request = [(counter, "s", 1) for counter in counters]
    assert [store.decide_one(request).admitted for _ in range(4)] == [True, True, True, False]
