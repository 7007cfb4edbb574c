"""Split and estimated counters behind a near store: found by its own calls, composed with leases, given back with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sluicegate.algorithms import FixedWindow, Precision, TokenBucket
from sluicegate.clock import US_PER_S
from sluicegate.errors import PartlyReached, StoreError
from sluicegate.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.base import Counter
from sluicegate.stores.near import NearStore

SPLIT = TokenBucket(640, 640, 64 * US_PER_S)
SUBJECT = "user:u"


def split_by(near: NearStore, counter: Counter, subject: str = SUBJECT) -> None:
    """Split a counter as it is when it is found to be hot."""
    assert near.hot.promote(counter, subject, near.now_us())
    near.hot.work()
    assert near.hot.splits.using(counter.prefix + subject, near.now_us()) is not None


@pytest.mark.parametrize("precision", [Precision.SPLIT, Precision.ESTIMATED])
def test_a_counter_is_found_hot_and_let_go(bench, counter_of: Callable[..., Counter], precision: Precision) -> None:
    """At more than 50 calls a second a counter is split or estimated within two seconds, and exact again when it has been cold for ten."""
    near, counter = bench.near(), counter_of(spec=TokenBucket(5_000, 5_000, US_PER_S), precision=precision)
    key = counter.prefix + SUBJECT

    def second(calls: int) -> None:
        for _ in range(calls):
            near.decide_one([(counter, SUBJECT, 1)])
            bench.pass_us(US_PER_S // calls)
            near.hot.work()

    def is_hot() -> bool:
        split, one = near.hot.splits.using(key, near.now_us()), near.hot.estimates.find(key)
        return split is not None if precision is Precision.SPLIT else one is not None and one.figure_us is not None

    second(30)
    second(30)
    assert not is_hot()
    second(100)
    second(100)
    second(20)
    assert is_hot()
    for _ in range(20):
        second(5)
    assert not is_hot()


def test_leases_and_parts_together(bench, counter_of: Callable[..., Counter]) -> None:
    """A request over a leased and a split counter asks the store for the part alone; its receipts give both back."""
    near = bench.near()
    shared, split = (
        counter_of("s", TokenBucket(100_000, 100_000, US_PER_S), Precision.LEASED),
        counter_of("r", SPLIT, Precision.SPLIT),
    )
    split_by(near, split)
    bench.supply(near, shared)
    bench.model.asked.clear()
    answer = near.decide_one([(shared, "*", 1), (split, SUBJECT, 1)])
    assert answer.admitted
    assert [[charge[0].name for charge in request] for request in bench.model.asked] == [["r"]]
    assert [receipt.counter.name for receipt in answer.receipts()] == ["s", "r"]
    assert answer.receipts()[1].subject.startswith(SUBJECT + "#")
    assert near.refund(answer.receipts()[1:]) == 1


def test_a_refused_part_puts_the_lease_back(bench, counter_of: Callable[..., Counter]) -> None:
    """Where the parts refuse, the tokens that were taken of a lease are held again, and the refusal is the split counter's."""
    near = bench.near()
    shared, split = (
        counter_of("s", TokenBucket(100_000, 100_000, US_PER_S), Precision.LEASED),
        counter_of("r", SPLIT, Precision.SPLIT),
    )
    split_by(near, split)
    assert near.decide_one([(split, SUBJECT, 640)]).admitted
    bench.supply(near, shared)
    leased = near.front.leases.find(shared, "*", near.now_us())
    before = leased.left(near.now_us())
    answer = near.decide_one([(shared, "*", 1), (split, SUBJECT, 1)])
    assert not answer.admitted
    assert [charge[0].name for charge in answer.refused()] == ["r"]
    assert leased.left(near.now_us()) == before


def test_a_gate_is_told_by_the_second_call(bench, counter_of: Callable[..., Counter]) -> None:
    """Coroutines, callbacks and batches of a process that does not know of the split find the parts as calls of threads do."""
    split = counter_of("r", SPLIT, Precision.SPLIT)
    split_by(bench.near(), split)
    request = [(split, SUBJECT, 1)]
    for ask in (
        lambda near: near.decide_one(request),
        lambda near: near.decide([request, request])[1],
        lambda near: asyncio.run(near.adecide_one(request)),
        lambda near: asyncio.run(near.adecide([request, request]))[0],
    ):
        near = bench.near()
        bench.model.asked.clear()
        answer = ask(near)
        assert answer.admitted
        assert [charge[0].name for charge in bench.model.asked[0]] == ["r", "r"]
        assert answer.verdicts()[0].remaining <= 10
        split_seen = near.hot.splits.using(split.prefix + SUBJECT, near.now_us())
        assert split_seen is not None
        assert split_seen.admitted >= 1


def test_a_store_that_fails_counts_as_used(bench, counter_of: Callable[..., Counter]) -> None:
    """What parts were asked when the store failed is told to the whole as admitted: nobody knows that it was not."""
    near, split = bench.near(), counter_of("r", SPLIT, Precision.SPLIT)
    split_by(near, split)
    bench.model.flaky.lose_next = 1
    with pytest.raises(StoreError):
        near.decide_one([(split, SUBJECT, 3)])
    assert near.hot.splits.using(split.prefix + SUBJECT, near.now_us()).admitted == 3


def test_a_partly_reached_request_speaks_of_its_own_charges(bench, counter_of: Callable[..., Counter]) -> None:
    """Where some servers answered, the verdicts are one for each charge of the request, not for what was asked in its place."""
    near = bench.near()
    other, split = counter_of("o", FixedWindow(5, US_PER_S)), counter_of("r", SPLIT, Precision.SPLIT)

    def partly(request, *, peek=False):
        found = bench.model.memory.decide_one(request[:1])
        raise PartlyReached(
            StoreError("half of it"), [*found.verdicts(), *[None] * (len(request) - 1)], found.receipts(), found.now_us
        )

    bench.model.decide_one = partly
    with pytest.raises(PartlyReached) as caught:
        near.decide_one([(other, "ip:a", 1), (split, SUBJECT, 1)])
    assert [verdict and verdict.outcome.value for verdict in caught.value.verdicts] == ["allowed", None]
    assert [receipt.counter.name for receipt in caught.value.receipts] == ["o"]
    with pytest.raises(PartlyReached) as caught:
        near.decide_one([(split, SUBJECT, 1), (other, "ip:a", 1)])
    assert [verdict and verdict.outcome.value for verdict in caught.value.verdicts] == ["allowed", None]
    assert [receipt.counter.name for receipt in caught.value.receipts] == ["r"]


def test_chance_beside_other_rules(bench, counter_of: Callable[..., Counter]) -> None:
    """An estimated charge that is drawn yes costs no call; one drawn no refuses the request before anything is asked or charged."""
    near = bench.near()
    chance = counter_of("e", TokenBucket(100, 100, US_PER_S), Precision.ESTIMATED)
    other = counter_of("o", FixedWindow(1_000_000, 3_600 * US_PER_S))
    assert near.hot.promote(chance, "*", near.now_us())
    for _ in range(40):
        for _ in range(10):
            near.decide_one([(chance, "*", 1)])
        bench.pass_us(10_000)
        near.hot.work()
    bench.model.asked.clear()
    answers = [near.decide_one([(other, "ip:a", 1), (chance, "*", 1)]) for _ in range(100)]
    admitted = [answer for answer in answers if answer.admitted]
    assert 0 < len(admitted) < 60
    assert [[charge[0].name for charge in request] for request in bench.model.asked] == [["o"]] * len(admitted)
    assert all(len(answer.verdicts()) == 2 for answer in answers)
    assert {charge[0].name for answer in answers for charge in answer.refused()} == {"e"}
    assert {receipt.counter.name for answer in admitted for receipt in answer.receipts()} == {"o"}


async def test_a_second_call_that_cannot_be_made_is_answered(
    bench, counter_of: Callable[..., Counter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the parts cannot even be asked after the gate has refused, the caller gets an error, and does not wait for ever."""
    split = counter_of("r", SPLIT, Precision.SPLIT)
    split_by(bench.near(), split)
    near, submit, calls = bench.near(), bench.model.submit, 0

    def once(*arguments: object, **options: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError("no loop")
        submit(*arguments, **options)

    monkeypatch.setattr(bench.model, "submit", once)
    with pytest.raises(StoreError, match="cannot be asked: no loop"):
        await near.adecide_one([(split, SUBJECT, 1)])
    assert calls == 2


async def test_a_reset_by_a_process_that_splits_nothing_reaches_the_parts(bench) -> None:
    """The rules service, and whoever asks the store about everything, forgets what others may have split a counter into."""
    rules = "version: 1\nrules: [{name: r, per: [user], quota: 640/64s, precision: split}]\n"
    limiter = Limiter.from_rules(load_rules(rules, "rules.yaml"), bench.model, bench.clock, near=None)
    ((split, subject, _),) = limiter.engine.plan(Facts(user="u")).charges
    near = bench.near()
    for again in (lambda: asyncio.sleep(0, limiter.reset(Facts(user="u"))), lambda: limiter.areset(Facts(user="u"))):
        split_by(near, split, subject)
        while near.decide_one([(split, subject, 10)]).admitted:
            pass
        near.forget()
        await again()
        assert near.decide_one([(split, subject, 640)]).admitted
