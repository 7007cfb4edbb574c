"""A near store and the news of its store: heard from the first refusal on, and no longer than somebody uses the near store."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable

import pytest

from sluicegate.algorithms import FixedWindow, Precision
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.stores.base import Counter, Heard
from sluicegate.stores.near import NearSettings, NearStore


@pytest.fixture
def told(bench) -> list[Heard]:
    """The store of the bench has news; who hears them."""
    listening: list[Heard] = []

    def subscribe(heard: Heard) -> Callable[[], None]:
        listening.append(heard)
        return lambda: listening.remove(heard)

    def publish(keys: Iterable[str]) -> None:
        names = [hash(key) for key in keys]
        for heard in listening:
            heard(names)

    bench.model.news_name, bench.model.publish, bench.model.subscribe = hash, publish, subscribe
    return listening


@pytest.fixture
def counter(counter_of: Callable[..., Counter]) -> Counter:
    """Two a minute."""
    return counter_of(spec=FixedWindow(2, 60 * US_PER_S), precision=Precision.EXACT)


def refuse(near: NearStore, counter: Counter) -> None:
    """Have the store refuse the counter once, so that it is known to be refused."""
    while near.decide_one([(counter, "*", 1)]).admitted:
        pass


def test_news_are_heard_from_the_first_refusal_on(bench, told: list[Heard], counter: Counter) -> None:
    """Nobody listens who remembers nothing; what was heard is asked about again."""
    near = bench.near()
    assert near.decide_one([(counter, "*", 1)]).admitted
    assert told == []
    refuse(near, counter)
    refuse(near, counter)
    assert len(told) == 1
    bench.model.reset([(counter, "*")])
    assert not near.decide_one([(counter, "*", 1)]).admitted
    bench.model.publish([counter.prefix + "*"])
    assert near.decide_one([(counter, "*", 1)]).admitted


def test_a_near_store_that_nobody_uses_is_not_kept_by_its_store(told: list[Heard], bench, counter: Counter) -> None:
    """It goes without being closed, and hears nothing more."""
    near = NearStore(bench.model, NearSettings(), ManualClock(), keep=False)
    refuse(near, counter)
    assert len(told) == 1
    gone = weakref.ref(near)
    del near
    gc.collect()
    assert gone() is None
    assert told == []


def test_a_closed_near_store_hears_nothing(told: list[Heard], bench, counter: Counter) -> None:
    """The end is said once, however often it is closed."""
    near = bench.near()
    refuse(near, counter)
    near.close()
    assert told == []
    near.close()
