"""The script that changes a part: what is left stays, counts stay, and it writes only what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, SlidingWindow, Spec, TokenBucket
from sluicegate.algorithms.leasing import LeaseAsk, LeaseGrant, LeaseTerms
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.region_parts import PartStep, PartView
from sluicegate.stores.regional.counters import Moving
from sluicegate.stores.regional.units import ALL, mask_of, part_of

SECOND = 1_000_000
START_US = 1_700_000_000_000_000
HALF, MORE, LESS = mask_of([0, 3_000]), mask_of([0, 4_500]), mask_of([0, 600])

SPECS: list[Spec] = [
    TokenBucket(100, 7, 60 * SECOND),
    FixedWindow(100, 3_600 * SECOND),
    SlidingWindow(100, 3_600 * SECOND),
    SlidingWindow(100, 3_600 * SECOND, sub_windows=6),
    FixedWindow(100, 86_400 * SECOND, align="calendar", unit="day"),
]


@pytest.fixture(params=["plain", "packed", "cluster"])
def store(
    request: pytest.FixtureRequest, servers: Any, clusters: Any, require_program: Callable[[str], str]
) -> Iterator[RedisStore]:
    """A store in each layout, and on a cluster, whose time stands still."""
    server = (clusters if request.param == "cluster" else servers).empty("redis", require_program)
    query = "&layout=packed&expected_clients=1000" if request.param == "packed" else ""
    found = RedisStore(server.url + query, time_source=ManualClock(START_US))
    yield found
    found.close()


def moving_of(spec: Spec) -> Moving:
    return Moving(Counter("all", spec, counter_prefix("default", "all", spec.algorithm, spec.shape)), "*")


def step(store: RedisStore, counter: Counter, *change: Any, **uses: int) -> PartView:
    (view,) = store.parts([PartStep(counter, "*", *change, **uses)])
    assert isinstance(view, PartView)
    return view


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_a_counter_keeps_what_it_was_given(store: RedisStore, spec: Spec) -> None:
    """It decides by its own numbers whatever a request says; only a step whose record is the one that is there gives it others."""
    moving = moving_of(spec)
    half = moving.with_units(HALF)
    first = step(store, half, admitted=3, refused=1)
    assert (first.written, first.capacity, first.record, first.admitted, first.refused) == (False, 0, b"", 3, 1)
    given = step(store, moving.with_units(MORE), b"one" * 200, b"", first.life, 50, 2)
    assert (given.written, given.capacity, given.record, given.admitted) == (True, 75, b"one" * 200, 5)
    answer = store.decide_one([(half, "*", 10)])
    assert answer.admitted
    assert answer.request[0][0].spec == part_of(spec, MORE)  # type: ignore[attr-defined]
    assert step(store, half).differs
    for record, life in ((b"another", first.life), (b"one" * 200, "0" * 16)):
        missed = step(store, half, b"two", record, life, 50)
        assert (missed.written, missed.capacity) == (False, 75)


@pytest.mark.parametrize("spec", SPECS[1:], ids=repr)
def test_counts_of_windows_stay(store: RedisStore, spec: Spec) -> None:
    """Less limit than is used refuses, and forgets nothing: more again leaves what was left before."""
    moving = moving_of(spec)
    life = step(store, moving.with_units(ALL)).life
    step(store, moving.with_units(MORE), b"1", b"", life)
    assert store.decide_one([(moving.with_units(HALF), "*", 70)]).admitted
    low = step(store, moving.with_units(LESS), b"2", b"1", life)
    assert (low.capacity, low.used, low.left) == (10, 70, 0)
    assert not store.decide_one([(moving.with_units(HALF), "*", 1)]).admitted
    high = step(store, moving.with_units(MORE), b"3", b"2", life)
    assert (high.capacity, high.used, high.left) == (75, 70, 5)


def test_more_capacity_brings_no_tokens_and_less_cuts_them_off(store: RedisStore) -> None:
    """A bucket's level stays through any change, but for what is above the new capacity."""
    moving = moving_of(SPECS[0])
    life = step(store, moving.with_units(HALF)).life
    step(store, moving.with_units(HALF), b"1", b"", life, 50)
    assert store.decide_one([(moving.with_units(HALF), "*", 30)]).admitted
    assert step(store, moving.with_units(MORE), b"2", b"1", life, 50).left == 20
    assert step(store, moving.with_units(LESS), b"3", b"2", life, 50).left == 10
    assert step(store, moving.with_units(MORE), b"4", b"3", life, 50).left == 10
    store.reset([(moving.with_units(HALF), "*")])
    assert step(store, moving.with_units(MORE), b"5", b"4", life, 50).left == 50


def test_leases_of_the_larger_part_are_out(store: RedisStore) -> None:
    """Tokens granted before stay out above a lower capacity, nothing more is granted meanwhile, and the look says so."""
    moving = moving_of(SPECS[0])
    half, terms = moving.with_units(HALF), LeaseTerms()
    life = step(store, half).life
    step(store, half, b"1", b"", life, 50)
    ask = LeaseAsk(serial=1, want=40, share=1, settled=True)
    (grant,) = store.lease("holder-1", terms, [LeaseItem(half, "*", ask)])
    assert isinstance(grant, LeaseGrant)
    assert grant.granted == 40
    low = step(store, moving.with_units(LESS), b"2", b"1", life, 50)
    assert (low.capacity, low.left, low.out) == (10, 0, 40)
    (grant,) = store.lease("holder-2", terms, [LeaseItem(half, "*", ask._replace(serial=1))])
    assert isinstance(grant, LeaseGrant)
    assert grant.granted == 0
    assert not store.decide_one([(half, "*", 1)]).admitted


def test_counters_of_several_slots_are_dealt_with_together(store: RedisStore) -> None:
    """Each step has its own answer, in order, wherever its counter is."""
    half = moving_of(SPECS[0]).with_units(HALF)
    subjects = ["*", *(f"endpoint:GET /{number}" for number in range(40))]
    first = store.parts([PartStep(half, subject, admitted=at) for at, subject in enumerate(subjects)])
    views = [view for view in first if isinstance(view, PartView)]
    assert [view.admitted for view in views] == list(range(41))
    given = store.parts(
        [
            PartStep(half, subject, subject.encode(), b"", view.life, 50)
            for subject, view in zip(subjects, views, strict=True)
        ]
    )
    assert all(isinstance(view, PartView) and view.written for view in given)
    again = store.parts([PartStep(half, subject) for subject in subjects])
    assert [view.record.decode() for view in again if isinstance(view, PartView)] == subjects
