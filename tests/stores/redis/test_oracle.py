"""The scripts decide as the Python core does, to the microsecond, with every algorithm, several of them in one request."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.algorithms import (
    Ban,
    FixedWindow,
    LeakyBucket,
    OnChange,
    Outcome,
    SlidingLog,
    SlidingWindow,
    Spec,
    TokenBucket,
    Verdict,
)
from sluicegate.bounds import CLOCK_BEHIND_US_MAX
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Charge, Counter, Receipt, Request
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.redis.layout import EPOCHS_S, epoch_s

pytestmark = pytest.mark.parametrize("server", ["redis", "valkey", "redis cluster", "valkey cluster"], indirect=True)

SECOND = 1_000_000
DAY = 86_400 * SECOND

FAMILIES: tuple[tuple[Spec, ...], ...] = (
    (TokenBucket(5, 5, 60 * SECOND), TokenBucket(50, 10, 7 * SECOND), TokenBucket(3, 3, 3_600 * SECOND)),
    (TokenBucket(7, 7, 60 * SECOND), TokenBucket(10**12, 999_999_999_989, 10**9), TokenBucket(1, 1, 30 * DAY)),
    (TokenBucket(1_000_000, 1_000_000, 30 * DAY), TokenBucket(1_000, 700_000, SECOND)),
    (TokenBucket(100, 100_000_000, SECOND), TokenBucket(1_000_000, 1_000_000, SECOND)),
    (LeakyBucket(4, 2, SECOND, max_delay_us=1_500_000), LeakyBucket(9, 7, SECOND, max_delay_us=0)),
    (LeakyBucket(4, 7, 60 * SECOND, nodelay=True), LeakyBucket(40, 7, 3 * SECOND, max_delay_us=3_600 * SECOND)),
    (FixedWindow(5, 10 * SECOND), FixedWindow(10**12, 10 * SECOND), FixedWindow(2, 10 * SECOND)),
    (FixedWindow(5, 7 * DAY), FixedWindow(4, 7 * DAY)),
    (FixedWindow(5, DAY, align="calendar", tz="Europe/Berlin", unit="day"),),
    (
        FixedWindow(9, 30 * DAY, align="calendar", unit="month"),
        FixedWindow(5, 30 * DAY, align="calendar", unit="month"),
    ),
    (SlidingWindow(5, 10 * SECOND), SlidingWindow(50, 10 * SECOND)),
    (SlidingWindow(10**12, 3_650 * DAY), SlidingWindow(10**12 - 7, 3_650 * DAY)),
    (SlidingWindow(6, 12 * SECOND, sub_windows=6), SlidingWindow(4, 12 * SECOND, sub_windows=6)),
    (SlidingWindow(5, 7, sub_windows=1), SlidingWindow(7, 7, sub_windows=1)),
    (SlidingLog(4, 10 * SECOND), SlidingLog(7, 10 * SECOND), SlidingLog(2, 10 * SECOND)),
    (SlidingLog(1, 3), SlidingLog(10_000, 3)),
    (SlidingLog(200, 150_000), SlidingLog(190, 150_000)),
    (Ban(),),
)
"""Per family, numbers that a rule may be changed between."""

OTHERS = ("ip:192.0.2.2", "ip:192.0.2.3")
"""Subjects of a batch in which all keys differ."""

LAYOUTS = ("", "&layout=packed&expected_clients=500")

run = itertools.count()


class Model:
    """What a store must do, in the words of the algorithms, with a dict."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.kept: dict[str, tuple[Spec, object, int]] = {}

    def current(self, counter: Counter, subject: str) -> object:
        key = counter.prefix + subject
        if key not in self.kept:
            return None
        spec, state, born_us = self.kept[key]
        if spec != counter.spec:
            state = counter.spec.carry(spec, state, self.clock.now_us(), counter.on_change)
            if state is None:
                del self.kept[key]
                return None
            self.kept[key] = (counter.spec, state, born_us)
        return state

    def write(self, counter: Counter, subject: str, state: object) -> None:
        key = counter.prefix + subject
        born_us = self.kept[key][2] if key in self.kept else self.clock.now_us()
        self.kept[key] = (counter.spec, state, born_us)

    def decide(self, request: Request, *, peek: bool) -> tuple[bool, list[Verdict], list[Receipt]]:
        now_us = self.clock.now_us()
        states = [self.current(counter, subject) for counter, subject, _ in request]
        after = [
            counter.spec.admit(state, now_us, cost) if cost else state
            for (counter, _, cost), state in zip(request, states, strict=True)
        ]
        passes = [new is not None or not cost for new, (_, _, cost) in zip(after, request, strict=True)]
        admitted = all(ok or counter.shadow for ok, (counter, _, _) in zip(passes, request, strict=True))
        verdicts, receipts = [], []
        for (counter, subject, cost), state, new, ok in zip(request, states, after, passes, strict=True):
            spec = counter.spec
            if state is not None and not ok and not peek and cost <= spec.capacity:
                state = spec.clamp(state, now_us)
                self.write(counter, subject, state)
            charged = ok and admitted and not peek
            if charged and new is not None:
                state = new
                self.write(counter, subject, state)
                receipts.append(Receipt(counter, subject, cost, now_us))
            elif not (peek or admitted or ok or counter.shadow) and counter.denied_counts and cost <= spec.capacity:
                state = spec.charge_refused(state, now_us, cost)
                self.write(counter, subject, state)
            verdicts.append(spec.verdict(state, now_us, cost if charged or not ok else 0, ok))
        return admitted, verdicts, receipts

    def refund(self, receipts: list[Receipt]) -> int:
        changed = 0
        for counter, subject, cost, charged_us in receipts:
            state = self.current(counter, subject)
            key = counter.prefix + subject
            if state is None or self.kept[key][2] > charged_us:
                continue
            after = counter.spec.refund(state, self.clock.now_us(), cost, charged_us)
            self.kept[key] = (counter.spec, after, self.kept[key][2])
            changed += after != state
        return changed

    def grant(self, charges: list[Charge]) -> list[int]:
        granted = []
        for counter, subject, tokens in charges:
            state, given = self.current(counter, subject), 0
            if state is not None:
                state, given = counter.spec.grant(state, self.clock.now_us(), tokens)
            if given:
                self.write(counter, subject, state)
            granted.append(given)
        return granted


def counters_of(number: int) -> list[list[Counter]]:
    """Per family its counters, one key each that no other call gives; flags differ from family to family."""
    found = []
    series = next(run)
    for place, family in enumerate(FAMILIES):
        name = f"r{series}-{place}"
        found.append(
            [
                Counter(
                    name,
                    spec,
                    counter_prefix("oracle", name, spec.algorithm, spec.shape),
                    shadow=(number + place) % 5 == 0,
                    denied_counts=(number + place) % 3 == 0,
                    on_change=list(OnChange)[(number + place) % 3],
                )
                for spec in family
            ]
        )
    return found


moves = st.one_of(
    st.just(0),
    st.integers(1, 10),
    st.integers(0, 20 * SECOND),
    st.integers(0, 3 * DAY),
    st.integers(-CLOCK_BEHIND_US_MAX - 2, -1),
    st.integers(-40 * DAY, 40 * DAY),
)
charges = st.tuples(
    st.integers(0, len(FAMILIES) - 1), st.integers(0, 2), st.sampled_from([1, 1, 1, 2, 3, "capacity", "more", 0])
)
steps = st.tuples(
    moves,
    st.sampled_from(["decide", "decide", "decide", "batch", "wide", "peek", "refund", "grant"]),
    st.lists(charges, min_size=1, max_size=4, unique_by=lambda charge: charge[0]),
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "packed"])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(steps, min_size=1, max_size=40), st.integers(0, 14))
def test_mixed_requests(open_store: Callable[..., RedisStore], layout: str, history: list, flags: int) -> None:
    """Requests of several algorithms, refusals that count, shadows, changed numbers, refunds, grants and a clock that jumps."""
    clock = ManualClock()
    store = open_store(clock, layout)
    compare(store, clock, history, flags)
    store.close()


def compare(store: RedisStore, clock: ManualClock, history: list, flags: int = 1) -> None:
    # The packed layout forgets what a clock that went back by more than an epoch has left behind.
    back_us = EPOCHS_S[0] * SECOND if store.settings.layout.packed else 1 << 62
    latest_us = clock.now_us()
    model = Model(clock)
    counters = counters_of(flags)
    # A birth is known for two epochs, of the shortest that the numbers of a rule ever asked for.
    known_us = {
        family[0].name: 2 * SECOND * min(epoch_s(counter) or EPOCHS_S[-1] for counter in family) for family in counters
    }
    receipts: list[Receipt] = []
    for move_us, action, chosen in history:
        clock.set(max(clock.now_us() + move_us, latest_us - back_us))
        latest_us = max(latest_us, clock.now_us())
        if action == "refund":
            if store.settings.layout.packed:
                receipts = [one for one in receipts if clock.now_us() - one.charged_us <= known_us[one.counter.name]]
            assert store.refund(receipts) == model.refund(receipts), receipts
            receipts = []
            continue
        request = []
        for family, numbers, cost in chosen:
            counter = counters[family][numbers % len(counters[family])]
            capacity = counter.spec.capacity
            amount = {"capacity": max(capacity, 1), "more": min(capacity + 1, 10**12)}.get(cost, cost)
            request.append((counter, "ip:192.0.2.1", amount if action == "peek" else max(amount, 1)))
        if action == "grant":
            assert store.grant(request) == model.grant(request), request
            continue
        requests = [request]
        if action == "batch":
            requests = [request, request[:1], request]
        elif action == "wide":
            requests = [request, *([(counter, other, cost) for counter, _, cost in request] for other in OTHERS)]
        peek = action == "peek"
        expected = [model.decide(request, peek=peek) for request in requests]
        answers = [store.decide_one(request, peek=peek)] if len(requests) == 1 else store.decide(requests)
        for request, answer, (admitted, verdicts, made) in zip(requests, answers, expected, strict=True):
            assert answer.now_us == clock.now_us()
            assert list(answer.verdicts()) == verdicts, request
            assert answer.admitted == admitted
            assert answer.unanimous == all(verdict.outcome is Outcome.ALLOWED for verdict in verdicts)
            assert list(answer.receipts()) == made
            receipts += made


@pytest.mark.parametrize("denied_counts", [False, True], ids=["refusals cost nothing", "refusals count"])
@pytest.mark.parametrize("family", range(len(FAMILIES)))
@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "packed"])
def test_each_alone(open_store: Callable[..., RedisStore], family: int, denied_counts: bool, layout: str) -> None:
    """A long sequence on one counter, its numbers changed now and then, equals the core's."""
    clock = ManualClock()
    draw = Random(family)
    span_us = max(FAMILIES[family][0].window_us // 5, 1)
    history = []
    for _ in range(250):
        move_us = draw.choice(
            [0, 0, 1, draw.randrange(span_us + 1), draw.randrange(3 * span_us + 1), -draw.randrange(span_us + 1)]
        )
        numbers = draw.choice([0, 0, 0, 0, 1, 2]) if draw.random() < 0.1 else 0
        history.append(
            (
                move_us,
                draw.choice(["decide"] * 7 + ["batch", "wide", "peek", "refund", "grant"]),
                [(family, numbers, draw.choice([1, 1, 1, 2, 3, "capacity"]))],
            )
        )
    # Of the flags that ``counters_of`` knows, those that give this family's counters what is asked for, and no shadow.
    flags = next(n for n in range(15) if ((n + family) % 3 == 0) == denied_counts and (n + family) % 5)
    compare(open_store(clock, layout), clock, history, flags)


def test_a_refund_before_its_calendar_window(open_store: Callable[[ManualClock], RedisStore]) -> None:
    """A charge is given back in its window also where the clock was set back by days, before that window."""
    compare(open_store(clock := ManualClock()), clock, [(0, "decide", [(8, 0, 1)]), (-2 * DAY, "refund", [])])


@pytest.mark.slow
def test_a_long_log(open_store: Callable[[ManualClock], RedisStore]) -> None:
    """A log that is not written whole equals the core's: charged at its ends and cut when most of it has left, then written anew."""
    clock, draw = ManualClock(), Random(3)
    family = next(place for place, family in enumerate(FAMILIES) if family[0] == SlidingLog(200, 150_000))
    history = []
    for step in range(1_800):
        move_us = draw.choice([0, 1, draw.randrange(3_000), draw.randrange(3_000)])
        action, numbers = "decide" if step % 50 else draw.choice(["batch", "wide", "peek"]), 0
        if step > 1_400:
            # Refunds, other numbers and a clock that jumps write the whole log, so nothing would be left to cut before.
            action = "refund" if step % 70 == 0 else action
            numbers = int(step > 1_600)
            move_us = draw.choice([100_000, SECOND, -5_000, -20 * SECOND]) if step % 50 == 0 else move_us
        history.append((move_us, action, [(family, numbers, draw.choice([1, 1, 1, 2, 3]))]))
    compare(open_store(clock), clock, history, 0)
