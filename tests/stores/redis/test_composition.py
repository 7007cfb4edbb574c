"""Requests over several hash slots, without any server: each slot is a store of its own, and what is sent may be lost or refused."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, Outcome, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.clock import ManualClock
from sluicegate.errors import PartlyReached, StoreError
from sluicegate.stores.base import Answer, Charge, Counter, Receipt, Request
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.redis.composition import Composition
from sluicegate.stores.redis.faults import fault_of
from sluicegate.stores.redis.stats import RedisStats
from sluicegate.stores.redis.suspects import Suspects

SECOND = 1_000_000
LOST = StoreError("lost")
SPECS: tuple[Spec, ...] = (
    TokenBucket(5, 5, 60 * SECOND),
    TokenBucket(3, 7, 1 * SECOND),
    LeakyBucket(4, 2, SECOND, nodelay=True),
    FixedWindow(5, 10 * SECOND),
    SlidingWindow(5, 10 * SECOND),
    SlidingWindow(6, 12 * SECOND, sub_windows=6),
    SlidingLog(4, 10 * SECOND),
    Ban(),
)


def counter_of(name: str, spec: Spec, **more: Any) -> Counter:
    return Counter(name, spec, counter_prefix("c", name, spec.algorithm, spec.shape), **more)


class Slots:
    """A store per slot. A subject's slot is its number; commands are (slot, what is done), and fail as ``fate`` says.

    ``fate(slot, kind)`` gives None (done and answered), "lost" (done, no answer), "unsent" (not done, no answer) or the text of
    an error reply.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.stores: dict[int, MemoryStore] = {}
        self.stats = RedisStats()
        self.fate: Callable[[int, str], str | None] = lambda slot, kind: None
        self.delay: Callable[[], None] = lambda: None
        self.rounds: list[list[tuple[int, str]]] = []
        self.composition = Composition(self, self.slot_of, Suspects(clock), self.stats)  # type: ignore[arg-type]

    def slot_of(self, subject: str) -> int:
        return int(subject.split(".", maxsplit=1)[0])

    def store(self, subject: str) -> MemoryStore:
        slot = self.slot_of(subject)
        if slot not in self.stores:
            self.stores[slot] = MemoryStore(self.clock)
        return self.stores[slot]

    def step(self, slot: int, kind: str, work: Callable[[], Any]) -> Generator[Any, Any, Any]:
        (reply,) = yield [(slot, kind, work)]
        if isinstance(reply, StoreError):
            raise reply
        return reply

    # What ``Composition`` uses of ``Calls``.

    def decide_batch(self, requests: Sequence[Request], *, peek: bool) -> Generator[Any, Any, Any]:
        subjects = {subject for request in requests for _, subject, _ in request}
        (slot,) = {self.slot_of(subject) for subject in subjects}
        store = self.store(str(slot))
        kind = "peek" if peek else "one" if len(subjects) == 1 else "decide"
        return self.step(slot, kind, lambda: store.decide(requests, peek=peek))

    def refund(self, receipts: Sequence[Receipt]) -> Generator[Any, Any, Any]:
        (slot,) = {self.slot_of(receipt.subject) for receipt in receipts}
        kind = "refund" if len({receipt.subject for receipt in receipts}) == 1 else "refunds"
        return self.step(slot, kind, lambda: self.store(str(slot)).refund(receipts))

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> Generator[Any, Any, Any]:
        (slot,) = {self.slot_of(subject) for _, subject in keys}
        kind = "reset" if len({subject for _, subject in keys}) == 1 else "resets"
        return self.step(slot, kind, lambda: self.store(str(slot)).reset(keys))

    # What a driver does.

    def perform(self, steps: Generator[Any, Any, Any]) -> Any:
        try:
            commands = next(steps)
            while True:
                commands = steps.send(self.replies(commands))
        except StopIteration as done:
            return done.value

    def replies(self, commands: Sequence[Any]) -> list[Any]:
        self.rounds.append([(slot, kind) for slot, kind, _ in commands])
        found = []
        for slot, kind, work in commands:
            fate = self.fate(slot, kind)
            if fate in (None, "lost"):
                result = work()
                found.append(result if fate is None else LOST)
            else:
                found.append(LOST if fate == "unsent" else fault_of(fate, "here"))
        self.delay()
        return found

    def decide(self, *charges: Charge, peek: bool = False) -> Answer:
        return self.perform(self.composition.decide_one(charges, peek=peek))

    def left(self, counter: Counter, subject: str) -> int:
        return self.store(subject).decide_one([(counter, subject, 0)], peek=True).verdicts()[0].remaining


@pytest.fixture
def slots() -> Slots:
    return Slots(ManualClock())


WIDE = counter_of("wide", TokenBucket(10, 10, 3_600 * SECOND))
TIGHT = counter_of("tight", TokenBucket(2, 2, 3_600 * SECOND))


def test_one_slot_is_one_command(slots: Slots) -> None:
    """Counters of one slot are decided by one command, whatever their number."""
    answer = slots.decide((WIDE, "1.a", 1), (TIGHT, "1.b", 1))
    assert answer.admitted
    assert slots.rounds == [[(1, "decide")]]
    assert len(answer.receipts()) == 2


def test_several_slots_are_one_round(slots: Slots) -> None:
    """Each slot has one command, all sent side by side; verdicts and receipts come in the request's order."""
    answer = slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1), (TIGHT, "1.c", 1), (WIDE, "3.d", 3))
    assert answer.admitted
    assert answer.unanimous
    assert slots.rounds == [[(1, "decide"), (2, "one"), (3, "one")]]
    assert [verdict.remaining for verdict in answer.verdicts()] == [9, 1, 1, 7]
    assert [(receipt.counter, receipt.subject, receipt.cost) for receipt in answer.receipts()] == [
        (WIDE, "1.a", 1), (TIGHT, "2.b", 1), (TIGHT, "1.c", 1), (WIDE, "3.d", 3),
    ]  # fmt: skip


def test_partial_refusal_is_undone(slots: Slots) -> None:
    """Where one slot refuses, the others give back what they charged, and the verdicts describe them without it (T05, T12)."""
    for _ in range(2):
        assert slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1)).admitted
    slots.rounds.clear()
    answer = slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1))
    assert not answer.admitted
    assert slots.rounds == [[(1, "one"), (2, "one")], [(1, "refund")]]
    wide, tight = answer.verdicts()
    assert (wide.outcome, wide.remaining) == (Outcome.ALLOWED, 8)
    assert (tight.outcome, tight.remaining, tight.retry_after_us) == (Outcome.DENIED, 0, 1_800 * SECOND)
    assert answer.receipts() == ()
    assert slots.left(WIDE, "1.a") == 8
    assert (slots.stats.undone, slots.stats.undo_lost) == (1, 0)


def test_counter_that_refused_is_decided_first(slots: Slots) -> None:
    """Until it would pass again, a counter that refused is asked before others are charged: a refused client costs them nothing."""
    for _ in range(3):
        slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1))
    slots.rounds.clear()
    for _ in range(5):
        answer = slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1))
        assert not answer.admitted
        assert [verdict.remaining for verdict in answer.verdicts()] == [8, 0]
    assert slots.rounds == [[(1, "peek"), (2, "one")]] * 5
    assert slots.stats.undone == 1
    slots.clock.advance(1_800 * SECOND)
    slots.rounds.clear()
    assert slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1)).admitted
    assert slots.rounds == [[(1, "one"), (2, "one")]]


def test_counter_that_refused_passes_early(slots: Slots) -> None:
    """Where the suspected counter passes, the others are charged in a second round, and undo it where they refuse."""
    for _ in range(3):
        slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1))
    slots.store("2").reset([(TIGHT, "2.b")])
    slots.rounds.clear()
    answer = slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1))
    assert answer.admitted
    assert slots.rounds == [[(1, "peek"), (2, "one")], [(1, "one")]]
    assert [verdict.remaining for verdict in answer.verdicts()] == [7, 1]
    assert len(answer.receipts()) == 2
    slots.decide((WIDE, "1.a", 7))
    assert not slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1)).admitted
    assert slots.left(TIGHT, "2.b") == 1


def test_cost_that_never_fits_charges_nobody(slots: Slots) -> None:
    """A cost above a capacity is known to be refused, so the others are only looked at."""
    answer = slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 3))
    assert [verdict.outcome for verdict in answer.verdicts()] == [Outcome.ALLOWED, Outcome.NEVER_FITS]
    assert slots.rounds == [[(1, "peek"), (2, "one")]]
    assert slots.left(WIDE, "1.a") == 10


def test_shadow_refuses_nobody(slots: Slots) -> None:
    """A shadow counter that would refuse stops nothing; one that passes is undone with the others."""
    shadow = counter_of("shadow", TokenBucket(1, 1, 3_600 * SECOND), shadow=True)
    assert slots.decide((shadow, "1.a", 1), (TIGHT, "2.b", 1)).admitted
    answer = slots.decide((shadow, "1.a", 1), (TIGHT, "2.b", 1))
    assert answer.admitted
    assert not answer.unanimous
    assert [receipt.counter for receipt in answer.receipts()] == [TIGHT]
    fresh = counter_of("fresh", TokenBucket(5, 5, 3_600 * SECOND), shadow=True)
    assert not slots.decide((fresh, "3.a", 1), (TIGHT, "2.b", 1)).admitted
    assert slots.left(fresh, "3.a") == 5


def test_peek_charges_nothing(slots: Slots) -> None:
    """A peek is one round, also where it is refused, and leaves nothing behind."""
    slots.decide((TIGHT, "2.b", 2))
    slots.rounds.clear()
    answer = slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1), peek=True)
    assert not answer.admitted
    assert answer.receipts() == ()
    assert slots.rounds == [[(1, "peek"), (2, "peek")]]
    assert slots.left(WIDE, "1.a") == 10


def test_denied_counts_stays_charged_where_it_refuses(slots: Slots) -> None:
    """A refusing ``denied_counts`` counter keeps the refused hit; a passing one in another slot gives it back."""
    window = FixedWindow(3, 1_000 * SECOND)
    refusing = counter_of("refusing", FixedWindow(1, 1_000 * SECOND), denied_counts=True)
    passing = counter_of("passing", window, denied_counts=True)
    assert slots.decide((passing, "1.a", 1), (refusing, "2.b", 1)).admitted
    assert not slots.decide((passing, "1.a", 1), (refusing, "2.b", 1)).admitted
    assert slots.left(passing, "1.a") == 2
    assert slots.left(refusing, "2.b") == 0


@pytest.mark.parametrize("how", ["lost", "unsent", "READONLY no"])
def test_part_that_is_not_reached(slots: Slots, how: str) -> None:
    """What was reached is told with receipts of what stands; whoever refuses the request gives it back."""
    slots.fate = lambda slot, kind: how if slot == 2 else None
    with pytest.raises(PartlyReached) as caught:
        slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1), (WIDE, "3.c", 2))
    error = caught.value
    assert [verdict and verdict.remaining for verdict in error.verdicts] == [9, None, 8]
    assert [receipt.subject for receipt in error.receipts] == ["1.a", "3.c"]
    assert error.now_us == slots.clock.now_us()
    assert len(slots.rounds) == 1
    slots.fate = lambda slot, kind: None
    assert slots.perform(slots.composition.refund(error.receipts)) == 2
    assert slots.left(WIDE, "1.a") == slots.left(WIDE, "3.c") == 10


def test_part_that_is_not_reached_of_a_refused_request(slots: Slots) -> None:
    """Where a counter that was reached refuses, nothing stands: what was charged is undone at once."""
    slots.decide((TIGHT, "3.c", 2))
    slots.fate = lambda slot, kind: "lost" if slot == 2 else None
    with pytest.raises(PartlyReached) as caught:
        slots.decide((WIDE, "1.a", 1), (WIDE, "2.b", 1), (TIGHT, "3.c", 1))
    wide, unknown, tight = caught.value.verdicts
    assert (wide.outcome, unknown, tight.outcome) == (Outcome.ALLOWED, None, Outcome.DENIED)
    assert wide.remaining == 10
    assert caught.value.receipts == ()
    assert slots.left(WIDE, "1.a") == 10


def test_nothing_is_reached(slots: Slots) -> None:
    """Where no part is reached the error is the store's own."""
    slots.fate = lambda slot, kind: "lost"
    with pytest.raises(StoreError) as caught:
        slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1))
    assert type(caught.value) is StoreError


@pytest.mark.parametrize("how", ["lost", "unsent"])
def test_lost_give_back(slots: Slots, how: str) -> None:
    """A give-back that fails is counted, is not repeated, and loses at most the charge; the answer stays the refusal."""
    slots.decide((TIGHT, "2.b", 2))
    slots.fate = lambda slot, kind: how if kind == "refund" else None
    assert not slots.decide((WIDE, "1.a", 3), (TIGHT, "2.b", 1)).admitted
    assert [len(sent) for sent in slots.rounds] == [1, 2, 1]
    assert slots.left(WIDE, "1.a") == (10 if how == "lost" else 7)
    assert (slots.stats.undone, slots.stats.undo_lost) == (1, 1)


def test_moving_slot_is_decided_key_by_key(slots: Slots) -> None:
    """On TRYAGAIN each counter has a command of its own, and what was charged is undone where one refuses."""
    slots.fate = lambda slot, kind: "TRYAGAIN Multiple keys" if kind == "decide" else None
    answer = slots.decide((WIDE, "1.a", 1), (TIGHT, "1.b", 1))
    assert answer.admitted
    assert slots.rounds == [[(1, "decide")], [(1, "one"), (1, "one")]]
    assert len(answer.receipts()) == 2
    slots.decide((WIDE, "1.a", 1), (TIGHT, "1.b", 1), (WIDE, "2.c", 1))
    answer = slots.decide((WIDE, "1.a", 1), (TIGHT, "1.b", 1), (WIDE, "2.c", 1))
    assert not answer.admitted
    assert [verdict.remaining for verdict in answer.verdicts()] == [8, 0, 9]
    assert [slots.left(WIDE, "1.a"), slots.left(WIDE, "2.c")] == [8, 9]


def test_give_back_on_a_moving_slot(slots: Slots) -> None:
    """On TRYAGAIN charges are given back, and counters forgotten, one by one."""
    slots.decide((TIGHT, "2.b", 2))
    slots.fate = lambda slot, kind: "TRYAGAIN x" if kind in ("decide", "refunds", "resets") else None
    assert not slots.decide((WIDE, "1.a", 1), (WIDE, "1.c", 2), (TIGHT, "2.b", 1)).admitted
    assert [slots.left(WIDE, "1.a"), slots.left(WIDE, "1.c")] == [10, 10]
    assert slots.rounds[-2:] == [[(1, "refunds")], [(1, "refund"), (1, "refund")]]
    assert (slots.stats.undone, slots.stats.undo_lost) == (2, 0)
    answer = slots.decide((WIDE, "1.a", 1), (WIDE, "1.c", 2))
    assert slots.perform(slots.composition.refund(answer.receipts())) == 2
    assert slots.decide((WIDE, "1.a", 1), (WIDE, "1.c", 2)).admitted
    assert slots.perform(slots.composition.reset([(WIDE, "1.a"), (WIDE, "1.c")])) == 2


def test_batch(slots: Slots) -> None:
    """A batch has one command per slot and round; each request has its own answer or error, and what a partly reached one charged stands."""
    slots.fate = lambda slot, kind: "unsent" if slot == 9 else None
    requests = [
        [(TIGHT, "1.a", 1)],
        [(TIGHT, "1.a", 1), (WIDE, "2.b", 1)],
        [(TIGHT, "1.a", 1), (WIDE, "2.b", 1)],
        [(WIDE, "2.b", 1), (WIDE, "9.x", 1)],
        [(WIDE, "9.x", 1)],
        [(WIDE, "2.b", 1)],
    ]
    answers = slots.perform(slots.composition.decide(requests, peek=False))
    assert [answer.admitted for answer in answers if not isinstance(answer, StoreError)] == [True, True, False, True]
    assert [type(answer) for answer in answers if isinstance(answer, StoreError)] == [PartlyReached, StoreError]
    assert slots.rounds == [[(1, "one"), (2, "one"), (9, "one")], [(2, "refund")]]
    assert slots.left(TIGHT, "1.a") == 0
    assert slots.left(WIDE, "2.b") == 7


def test_batch_with_a_counter_that_refused(slots: Slots) -> None:
    """What is charged later because a counter is decided first keeps its place in the batch: nobody behind is charged before."""
    for _ in range(3):
        slots.decide((WIDE, "1.a", 1), (TIGHT, "2.b", 1))
    slots.store("2").reset([(TIGHT, "2.b")])
    slots.rounds.clear()
    requests = [
        [(WIDE, "1.a", 1), (TIGHT, "2.b", 1)],
        [(WIDE, "1.a", 1), (TIGHT, "2.b", 1)],
        [(WIDE, "3.c", 1)],
        [(WIDE, "1.a", 1), (TIGHT, "4.d", 1)],
        [(TIGHT, "4.d", 1)],
        [(WIDE, "1.a", 1), (TIGHT, "2.b", 1)],
    ]
    answers = slots.perform(slots.composition.decide(requests, peek=False))
    assert [answer.admitted for answer in answers] == [True, True, True, True, True, False]
    shown = [[verdict.remaining for verdict in answer.verdicts()] for answer in answers]
    assert shown == [[7, 1], [6, 0], [9], [5, 1], [0], [8, 0]]
    assert slots.rounds == [[(1, "peek"), (2, "one"), (3, "one")], [(1, "one"), (4, "one")]]


def test_batch_on_a_moving_slot(slots: Slots) -> None:
    """A batch that meets TRYAGAIN is decided in order all the same, each key by a command of its own."""
    slots.fate = lambda slot, kind: "TRYAGAIN" if kind == "decide" else None
    requests = [[(TIGHT, "1.a", 1)], [(TIGHT, "1.a", 1), (WIDE, "1.b", 1)], [(TIGHT, "1.a", 1)]]
    answers = slots.perform(slots.composition.decide(requests, peek=False))
    assert [answer.admitted for answer in answers] == [True, True, False]


def test_refund_and_reset_of_several_slots(slots: Slots) -> None:
    """Refunds and resets have one command per slot; an error is told after the others are done (T12)."""
    answer = slots.decide((WIDE, "1.a", 1), (WIDE, "2.b", 1))
    slots.fate = lambda slot, kind: "unsent" if slot == 1 else None
    with pytest.raises(StoreError):
        slots.perform(slots.composition.refund(answer.receipts()))
    assert slots.left(WIDE, "2.b") == 10
    slots.fate = lambda slot, kind: None
    assert slots.decide((WIDE, "1.a", 1), (WIDE, "2.b", 1)).admitted
    assert slots.perform(slots.composition.reset([(WIDE, "1.a"), (WIDE, "2.b"), (WIDE, "3.c")])) == 2


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32), st.booleans())
def test_nobody_is_over_admitted(seed: int, instant: bool) -> None:
    """Whatever is refused, lost or moved: no counter admits more than its algorithm's own bound, and with nothing lost and no delay

    every counter stands exactly as if only admitted requests had been made.
    """
    random = Random(seed)
    slots = Slots(ManualClock())
    fates = [None] * 12 + ([] if instant else ["lost", "unsent", "TRYAGAIN x"])
    slots.fate = lambda slot, kind: random.choice(fates)
    if not instant:
        slots.delay = lambda: slots.clock.advance(random.randrange(20_000))
    # A leaky bucket gives a slot back only while it is the last, so it may stand higher.
    specs = [spec for spec in SPECS if not (instant and isinstance(spec, LeakyBucket))]
    charges = [(counter_of(f"c{index}", spec), f"{index % 4}.s") for index, spec in enumerate(specs)]
    oracle = MemoryStore(slots.clock)
    admitted: dict[str, list[tuple[int, int]]] = {}
    for _ in range(60):
        slots.clock.advance(random.choice([0, 0, 1_000, 300_000, 2 * SECOND]))
        chosen = random.sample(charges, random.randint(1, 4))
        request = [(counter, subject, random.choice([1, 1, 2])) for counter, subject in chosen]
        try:
            answer = slots.decide(*request)
        except StoreError:
            continue
        assert len(answer.verdicts()) == len(request)
        if answer.admitted:
            for receipt in answer.receipts():
                admitted.setdefault(receipt.counter.name, []).append((receipt.charged_us, receipt.cost))
        if instant:
            assert oracle.decide_one(request).admitted == answer.admitted
            for counter, subject in charges:
                shown = oracle.decide_one([(counter, subject, 0)], peek=True).verdicts()[0]
                assert slots.left(counter, subject) == shown.remaining, counter.name
    for counter, _ in charges:
        made = admitted.get(counter.name, [])
        for first in range(len(made)):
            total = 0
            for last in range(first, len(made)):
                total += made[last][1]
                assert total <= counter.spec.most_admitted(made[last][0] - made[first][0] + 1)
