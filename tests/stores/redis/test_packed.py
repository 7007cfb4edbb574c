"""The packed layout: many clients' counters in one hash, for one epoch."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

import pytest
import redis

from sluicegate.algorithms import (
    FixedWindow,
    LeakyBucket,
    OnChange,
    Precision,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
)
from sluicegate.algorithms.leasing import LeaseAsk, LeaseGrant, LeaseReport, LeaseTerms
from sluicegate.clock import ManualClock
from sluicegate.errors import PartlyDecided, StoreError
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.keys import BucketSubjects, counter_prefix
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.redis.layout import EPOCHS_S, epoch_s

SECOND = 1_000_000
DAY = 86_400 * SECOND
PACKED = "&layout=packed&expected_clients=300"
HOUR_MS = 3_600_000  # by which a store that is given its time lets keys live longer

SPECS: tuple[Spec, ...] = (
    TokenBucket(10, 10, 60 * SECOND),
    TokenBucket(1_000_000, 700_000, DAY),
    LeakyBucket(5, 5, 60 * SECOND, nodelay=True),
    FixedWindow(5, 70 * SECOND),
    FixedWindow(5, DAY, align="calendar", tz="Europe/Berlin", unit="day"),
    SlidingWindow(5, 60 * SECOND),
    SlidingWindow(5, 60 * SECOND, sub_windows=6),
)
"""Counters that are fields."""

Open = Callable[..., RedisStore]


def counter_of(spec: Spec, name: str = "rule", **more: object) -> Counter:
    return Counter(name, spec, counter_prefix("test", name, spec.algorithm, spec.shape), **more)


def named(spec: Spec) -> str:
    return f"{spec.algorithm}-{spec.shape}-{spec.capacity}"


@pytest.fixture
def client(server) -> Iterator[redis.Redis]:
    with contextlib.closing(server.client()) as client:
        yield client


def fields(client: redis.Redis, key: bytes) -> list[bytes]:
    """The clients in a hash."""
    return [field for field in client.hkeys(key) if isinstance(field, bytes) and field != b"o"]


def kept(client: redis.Redis) -> list[bytes]:
    """The keys that hold counters."""
    found = [key for key in client.keys("rl1:test:*") if isinstance(key, bytes)]
    return [key for key in found if client.type(key) != b"hash" or fields(client, key)]


def hashes(client: redis.Redis) -> list[bytes]:
    """The hashes that hold counters, oldest epoch first."""
    found = [key for key in kept(client) if client.type(key) == b"hash"]
    return sorted(found, key=lambda key: int(key.rpartition(b":")[2]))


def admitted(store: RedisStore, counter: Counter, subject: str, asked: int = 1) -> int:
    return sum(store.decide_one([(counter, subject, 1)]).admitted for _ in range(asked))


@pytest.mark.parametrize("spec", SPECS, ids=named)
def test_many_clients_are_small_hashes(open_store: Open, client: redis.Redis, spec: Spec) -> None:
    """300 clients are three listpacks: a field of 8 bytes each, no key of their own, and every key has an end."""
    store = open_store(None, PACKED)
    counter = counter_of(spec)
    store.decide([[(counter, f"user:{number}", 1)] for number in range(300)])
    found = hashes(client)
    assert len(found) == 3
    assert sum(len(fields(client, key)) for key in found) == 300
    assert all(client.object("encoding", key) == b"listpack" for key in found)
    assert {len(field) for key in found for field in fields(client, key)} == {8}
    assert max(len(value) for key in found for value in client.hvals(key)) <= 64
    assert all(client.pttl(key) > 0 for key in client.scan_iter("rl1:test:*"))
    assert len(list(client.scan_iter("rl1:test:*"))) == 3


@pytest.mark.parametrize("spec", SPECS, ids=named)
def test_a_hash_ends_with_the_next_epoch(open_store: Open, client: redis.Redis, spec: Spec) -> None:
    """Idle clients vanish: the server deletes a hash when the epoch after its own is over, whoever came in between."""
    store = open_store(None, PACKED)
    counter = counter_of(spec)
    admitted(store, counter, "user:1", 2)
    (key,) = hashes(client)
    end_ms = client.execute_command("PEXPIRETIME", key)
    _, _, seconds, epoch = key.rsplit(b":", 3)
    assert int(seconds) == epoch_s(counter)
    assert 0 <= end_ms - (int(epoch) + 2) * int(seconds) * 1_000 <= 1
    for number in range(50):
        admitted(store, counter, f"user:{number}")
    assert client.execute_command("PEXPIRETIME", key) == end_ms


def test_a_hash_that_lost_its_end_gets_one(open_store: Open, client: redis.Redis) -> None:
    """A hash without a time to live has one again when the next client comes to it."""
    store = open_store(None, "&layout=packed&expected_clients=100")
    counter = counter_of(SPECS[0])
    admitted(store, counter, "user:1")
    (key,) = hashes(client)
    client.persist(key)
    admitted(store, counter, "user:2")
    assert client.pttl(key) > 0


@pytest.mark.parametrize("spec", SPECS, ids=named)
def test_an_epoch_is_long_enough(open_store: Open, client: redis.Redis, spec: Spec) -> None:
    """What was used just before an epoch ends is known to the last moment at which it matters, and moves to the hash of now."""
    clock = ManualClock()
    store = open_store(clock, PACKED)
    counter = counter_of(spec)
    epoch_us = epoch_s(counter) * SECOND
    clock.set((clock.now_us() // epoch_us + 1) * epoch_us - 1)
    assert admitted(store, counter, "user:1", spec.capacity if spec.capacity < 100 else 1) > 0
    before = store.decide_one([(counter, "user:1", 1)], peek=True).verdicts()[0]
    clock.advance(2)
    after = store.decide_one([(counter, "user:1", 1)], peek=True).verdicts()[0]
    assert after.remaining == before.remaining
    assert len(hashes(client)) == 1
    if not store.decide_one([(counter, "user:1", 1)]).admitted:
        clock.advance(after.reset_after_us or 0)
        clock.advance(after.retry_after_us or 0)
        assert admitted(store, counter, "user:1")
    (key,) = hashes(client)
    assert int(key.rpartition(b":")[2]) == clock.now_us() // epoch_us


def test_a_clock_that_went_back_an_epoch(open_store: Open) -> None:
    """A client that is used up stays so where the clock goes back by 17 minutes, less a little."""
    clock = ManualClock()
    store = open_store(clock, PACKED)
    counter = counter_of(TokenBucket(3, 1, 60 * SECOND))
    assert admitted(store, counter, "user:1", 4) == 3
    clock.set(clock.now_us() - EPOCHS_S[0] * SECOND + 1)
    assert admitted(store, counter, "user:1") == 0
    assert admitted(store, counter, "user:2", 4) == 3


@pytest.mark.parametrize("how", [OnChange.KEEP, OnChange.SCALE])
def test_other_numbers_with_other_epochs(open_store: Open, client: redis.Redis, how: OnChange) -> None:
    """A bucket whose numbers ask for another epoch, or for none at all, keeps what was used of it, there and back."""
    clock = ManualClock()
    store = open_store(clock, PACKED)
    specs = [TokenBucket(4, 4, period * SECOND) for period in (60, 3_000, 40_000, 900_000, 400 * 86_400)]
    assert [epoch_s(counter_of(spec)) for spec in specs] == [1_000, 10_000, 100_000, 1_000_000, 0]
    assert admitted(store, counter_of(specs[0]), "user:1", 3) == 3
    for spec in [*specs[1:], *specs[-2::-1]]:
        found = store.decide_one([(counter_of(spec, on_change=how), "user:1", 1)], peek=True).verdicts()[0]
        assert found.remaining == 1
        assert len(kept(client)) == 1
    assert admitted(store, counter_of(specs[0]), "user:1", 4) == 1


@pytest.mark.parametrize(
    ("spec", "precision"),
    [
        (SlidingLog(5, 60 * SECOND), Precision.EXACT),
        (SlidingWindow(10**9, 60 * SECOND, sub_windows=30), Precision.EXACT),
        (TokenBucket(1, 1, 300 * DAY), Precision.EXACT),
        (TokenBucket(10, 10, 60 * SECOND), Precision.LEASED),
    ],
    ids=["a log", "a long value", "a long drain", "leased"],
)
def test_what_has_a_key_of_its_own(open_store: Open, client: redis.Redis, spec: Spec, precision: Precision) -> None:
    """Logs, values longer than a small hash takes, drains of more than 115 days and leased counters are no fields, and share the client's slot."""
    store = open_store(None, PACKED)
    counter = counter_of(spec, precision=precision)
    packed = counter_of(SPECS[0], "other")
    answer = store.decide_one([(counter, "user:1", 1), (packed, "user:1", 1)])
    assert answer.admitted
    keys = list(client.scan_iter("rl1:test:*"))
    assert sorted(map(client.type, keys)) == [b"hash", b"string"]
    assert len({key[key.index(b"{") : key.index(b"}")] for key in keys}) == 1
    assert store.reset([(counter, "user:1"), (packed, "user:1")]) == 2
    assert not kept(client)


def test_a_request_is_one_step(open_store: Open) -> None:
    """All rules of a client are decided together: what one refuses is charged to none, in every kind of place."""
    store = open_store(None, PACKED)
    wide = [counter_of(spec, f"wide{place}") for place, spec in enumerate((*SPECS, SlidingLog(50, 60 * SECOND)))]
    tight = counter_of(FixedWindow(1, DAY), "tight")
    request = [*[(counter, "user:1", 1) for counter in wide], (tight, "user:1|path:/a", 1)]
    assert store.decide_one(request).admitted
    before = store.decide_one(request[:-1], peek=True).verdicts()
    assert [answer.admitted for answer in store.decide([request, request])] == [False, False]
    after = store.decide_one(request[:-1], peek=True).verdicts()
    assert [verdict.remaining for verdict in after] == [verdict.remaining for verdict in before]


@pytest.mark.parametrize("poison", [b"", b"\0\0", b"\x11\x01" + bytes(14), b"x" * 16, b"1234567890"])
@pytest.mark.parametrize("spec", SPECS, ids=named)
def test_a_value_that_is_no_counter(open_store: Open, client: redis.Redis, spec: Spec, poison: bytes) -> None:
    """A value that cannot be read fails its own request only, and a reset ends that."""
    store = open_store(None, "&layout=packed&expected_clients=100")
    counter = counter_of(spec)
    admitted(store, counter, "user:1")
    (key,) = hashes(client)
    (field,) = fields(client, key)
    client.hset(key, field, poison)
    with pytest.raises(PartlyDecided) as caught:
        store.decide([[(counter, "user:2", 1)], [(counter, "user:1", 1)], [(counter, "user:3", 1)]])
    assert [answer is not None for answer in caught.value.answers] == [True, False, True]
    with pytest.raises(StoreError, match="something else than a counter"):
        store.decide_one([(counter, "user:1", 1)])
    assert client.hget(key, field) == poison
    assert store.reset([(counter, "user:1")]) == 1
    assert admitted(store, counter, "user:1") == 1


def test_a_key_of_another_type(open_store: Open, client: redis.Redis) -> None:
    """What stands in the place of a hash fails the requests of its clients, and a reset of any of them deletes it."""
    store = open_store(None, "&layout=packed&expected_clients=100")
    counter = counter_of(SPECS[0])
    admitted(store, counter, "user:1")
    (key,) = hashes(client)
    client.delete(key)
    client.set(key, "x")
    for number in (1, 2):
        with pytest.raises(StoreError, match="WRONGTYPE"):
            store.decide_one([(counter, f"user:{number}", 1)])
    assert store.reset([(counter, "user:2")]) == 1
    assert admitted(store, counter, "user:1") == 1


def test_clients_with_one_digest_share_a_counter(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two digests are the same less is admitted, never more."""
    monkeypatch.setattr(BucketSubjects, "digest", lambda _self, _text: bytes(16))
    store = open_store(None, PACKED)
    counter = counter_of(TokenBucket(10, 10, DAY))
    assert sum(admitted(store, counter, f"user:{number}", 3) for number in range(5)) == 10


@pytest.mark.parametrize("spec", [SPECS[0], FixedWindow(40, 60 * SECOND)], ids=named)
def test_a_counter_that_is_leased_stands_apart(open_store: Open, client: redis.Redis, spec: Spec) -> None:
    """While parts of a client's counter are granted in advance it has a key of its own; then it is a field again, with what was used."""
    clock = ManualClock()
    store = open_store(clock, PACKED)
    counter = counter_of(spec)
    terms = LeaseTerms(ttl_us=200_000)

    def step(ask: LeaseAsk) -> LeaseGrant:
        (grant,) = store.lease("holder-a", terms, [LeaseItem(counter, "user:1", ask)])
        assert isinstance(grant, LeaseGrant)
        return grant

    assert admitted(store, counter, "user:1", 2) == 2
    assert step(LeaseAsk((), 1, 5, 1, True, False)).granted == 5
    assert not hashes(client)
    assert admitted(store, counter, "user:1", 1) == 1
    assert not hashes(client)
    step(LeaseAsk([LeaseReport(1, 1, True)], 0, 0, 1, True, True))
    assert len(hashes(client)) == 1
    assert kept(client) == hashes(client)
    left = store.decide_one([(counter, "user:1", 1)], peek=True).verdicts()[0].remaining
    assert left == spec.capacity - 4


def test_small_limits_of_the_server_are_told(
    open_store: Open, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that makes large hashes of ours is named in the log when the store is opened; one with its defaults is not."""
    with caplog.at_level(logging.WARNING, "sluicegate.store"):
        assert open_store(None, PACKED).warm()
        assert not caplog.records
        before = client.config_get("hash-max-listpack-entries")["hash-max-listpack-entries"]
        client.config_set("hash-max-listpack-entries", 64)
        try:
            assert open_store(None, PACKED).warm()
            assert open_store(None).warm()
        finally:
            client.config_set("hash-max-listpack-entries", before)
    (record,) = caplog.records
    assert "hash-max-listpack-entries 64: set it to 256 or more" in record.getMessage()


MOVES = {
    "plain to packed": ("", f"{PACKED}&moving_from=plain"),
    "packed to plain": (PACKED, "&moving_from=packed&moving_from_clients=300"),
    "to another size": (PACKED, "&layout=packed&expected_clients=100&moving_from=packed&moving_from_clients=300"),
}
"""Per migration, what the URL says before and during it."""


@pytest.mark.parametrize("spec", [*SPECS, SlidingLog(5, 60 * SECOND), SlidingLog(500, 60 * SECOND)], ids=named)
@pytest.mark.parametrize("move", MOVES)
def test_counters_move(open_store: Open, client: redis.Redis, move: str, spec: Spec) -> None:
    """In a migration a counter that is not where it belongs is taken from where it was, with all that was used and given receipts for."""
    clock = ManualClock()
    old, new = (open_store(clock, more) for more in MOVES[move])
    counter, part = counter_of(spec), "user:1|path:/a"
    receipts = [old.decide_one([(counter, subject, 2)]).receipts() for subject in ("user:1", "user:2", part)]
    clock.advance(1)
    assert old.decide_one([(counter, "user:3", 1)]).admitted
    expected = [old.decide_one([(counter, subject, 1)], peek=True).verdicts() for subject in ("user:1", "user:2", part)]
    # One by one, in a batch, and as a look.
    found = [new.decide_one([(counter, "user:1", 1)], peek=True).verdicts()]
    found += [
        answer.verdicts() for answer in new.decide([[(counter, name, 1)] for name in ("user:2", part)], peek=True)
    ]
    assert found == expected
    assert new.decide_one([(counter, "user:1", 1)]).admitted
    assert new.refund([receipt for made in receipts[1:] for receipt in made]) == (0 if spec.algorithm == "leaky" else 2)
    assert new.grant([(counter, "user:3", 1)]) == [1]
    # Nothing is left behind: whoever looks by the old layout finds fresh counters.
    left = [
        old.decide_one([(counter, name, 1)], peek=True).verdicts()[0].remaining
        for name in ("user:1", "user:2", part, "user:3")
    ]
    assert left == [spec.capacity] * 4
    assert new.reset([(counter, name) for name in ("user:1", "user:2", part, "user:3", "user:4")]) >= 1
    assert not kept(client)


@pytest.mark.parametrize("move", MOVES)
def test_a_reset_while_counters_move(open_store: Open, move: str) -> None:
    """A counter that has not moved yet is forgotten too."""
    clock = ManualClock()
    old, new = (open_store(clock, more) for more in MOVES[move])
    counter = counter_of(TokenBucket(1, 1, DAY))
    assert admitted(old, counter, "user:1") == 1
    assert new.reset([(counter, "user:1"), (counter, "user:2")]) == 1
    assert admitted(new, counter, "user:1") == 1


@pytest.mark.parametrize("move", MOVES)
def test_leases_move(open_store: Open, move: str) -> None:
    """Leases that are out are known in the new layout: what they may use is not granted again."""
    clock = ManualClock()
    old, new = (open_store(clock, more) for more in MOVES[move])
    terms = LeaseTerms(ttl_us=200_000)
    for place, spec in enumerate((TokenBucket(10, 10, DAY), FixedWindow(10, DAY), SlidingLog(10, DAY))):
        counter = counter_of(spec, f"leased{place}", precision=Precision.LEASED)
        item = LeaseItem(counter, "user:1", LeaseAsk((), 1, 10, 1, True, False))
        (grant,) = old.lease("holder-a", terms, [item])
        assert isinstance(grant, LeaseGrant)
        assert grant.granted == 10
        (again,) = new.lease("holder-b", terms, [item._replace(ask=LeaseAsk((), 1, 10, 1, False, False))])
        assert isinstance(again, LeaseGrant)
        assert (again.granted, again.lost) == (0, False)
        assert admitted(new, counter, "user:1") == 0


def test_without_a_migration_counters_start_anew(open_store: Open) -> None:
    """Another layout or size without ``moving_from`` costs at most one capacity more for each client, once."""
    counter = counter_of(TokenBucket(5, 1, DAY))
    for more in ("", PACKED, "&layout=packed&expected_clients=200"):
        assert admitted(open_store(None, more), counter, "user:1", 7) == 5
