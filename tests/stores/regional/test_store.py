"""A regional store to its callers: answers speak of the counters that were asked about, with what is left of the region's part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, LeakyBucket, Precision, Spec, TokenBucket
from sluicegate.algorithms.verdict import LocalVerdict
from sluicegate.bounds import REGION_QUIET_US
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.shares import Shares
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.near import NearSettings, NearStore
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.regional.plan import EACH, Plan
from sluicegate.stores.regional.store import RegionalStore

SECOND = 1_000_000
START_US = 1_700_000_000_000_000
PLAN = Plan({"eu": 1, "us": 1})

MakeStore = Callable[..., RegionalStore]


def counter_of(name: str, spec: Spec) -> Counter:
    return Counter(name, spec, counter_prefix("default", name, spec.algorithm, spec.shape))


ALL = counter_of("all", TokenBucket(100, 100, 60 * SECOND))
CLIENT = counter_of("client", FixedWindow(10, 3_600 * SECOND))


@pytest.fixture
def make_store(servers: Any, require_program: Callable[[str], str]) -> Iterator[MakeStore]:
    """A store of the region eu, whose time stands still and whose parts move when ``step`` is called."""
    server = servers.empty("redis", require_program)
    made: list[RegionalStore] = []

    def make(plan: Plan = PLAN) -> RegionalStore:
        home = RedisStore(server.url, time_source=ManualClock(START_US))
        made.append(RegionalStore(home, plan, "eu", {}, ManualClock(START_US), keep=False))
        return made[-1]

    yield make
    for store in made:
        store.close()


def test_answers_are_about_what_was_asked(make_store: MakeStore) -> None:
    """Receipts and charges name the caller's counters, verdicts say what is left of the region's part, and a refund finds its counter."""
    store = make_store()
    request = [(ALL, "*", 3), (CLIENT, "user:1", 2)]
    answer = store.decide_one(request)
    assert [verdict.remaining for verdict in answer.verdicts()] == [37, 3]
    assert [(one.counter, one.cost) for one in answer.receipts()] == [(ALL, 3), (CLIENT, 2)]
    assert store.refund(answer.receipts()) == 2
    assert [
        verdict.remaining for verdict in store.decide([[(ALL, "*", 0), (CLIENT, "user:1", 0)]], peek=True)[0].verdicts()
    ] == [40, 5]


def test_a_refusal_names_the_counter(make_store: MakeStore) -> None:
    """What does not fit the region's part is refused, though the whole would have it."""
    store = make_store()
    answer = store.decide_one([(CLIENT, "user:1", 4), (ALL, "*", 41)])
    assert not answer.admitted
    assert answer.refused() == [(ALL, "*", 41)]
    _, singles = store.decide_singles([(CLIENT, "user:1", 5), (CLIENT, "user:1", 1)])
    assert [admitted for admitted, _ in singles] == [True, False]
    assert all(isinstance(state, LocalVerdict) for _, state in singles)


async def test_coroutines_and_callbacks_say_the_same(make_store: MakeStore) -> None:
    """Each form charges the same part."""
    store = make_store()
    assert (await store.adecide_one([(ALL, "*", 1)])).verdicts()[0].remaining == 39
    assert (await store.adecide([[(ALL, "*", 1)]]))[0].verdicts()[0].remaining == 38
    assert await store.agrant([(ALL, "*", 1)]) == [1]
    assert await store.areset([(ALL, "*")]) == 1
    await store.aclose()


def test_clients_may_have_all_of_their_limit_in_each_region(make_store: MakeStore) -> None:
    """With ``each`` a client's counter is the whole one; a shared one is a part all the same."""
    store = make_store(Plan({"eu": 1, "us": 1}, clients=EACH))
    answer = store.decide_one([(CLIENT, "user:1", 1), (ALL, "*", 1)])
    assert [verdict.remaining for verdict in answer.verdicts()] == [9, 39]


def test_what_does_not_move_is_the_share_by_weight(make_store: MakeStore) -> None:
    """A shared leaky bucket, and with weights under way any counter, has the region's own part, under its usual key."""
    leaky = counter_of("leaky", LeakyBucket(10, 10, SECOND, 0, True))
    store = make_store()
    assert store.decide_one([(leaky, "*", 5)]).admitted
    assert not store.decide_one([(leaky, "*", 1)]).admitted
    changing = make_store(Plan({"eu": 1, "us": 3}, before={"eu": 1, "us": 1}))
    assert changing.decide_one([(ALL, "endpoint:GET /x", 25)]).admitted
    assert not changing.decide_one([(ALL, "endpoint:GET /x", 1)]).admitted


def test_without_its_store_a_region_counts_by_what_it_never_lends(make_store: MakeStore) -> None:
    """Local counters of a process divide the part that is the region's whatever happens."""
    store = make_store()
    store.decide_one([(ALL, "*", 1), (CLIENT, "user:1", 1)])
    shares = Shares(store.least)
    assert shares.of(ALL, 2).local.spec.capacity == 20
    assert shares.of(CLIENT, 2).local.spec.capacity == 2


def test_a_part_grows_to_the_whole_of_a_region_that_is_alone(make_store: MakeStore) -> None:
    """Where there is one region its record holds everything after a few looks."""
    store = make_store(Plan({"eu": 1}, Fraction(1, 2)))
    store.decide_one([(ALL, "*", 1)])
    assert store.step()
    assert store.status().counters[ALL.prefix + "*"].held == 1
    assert store.decide_one([(ALL, "*", 1)]).verdicts()[0].remaining in (48, 98)


@pytest.mark.parametrize(
    ("region", "others", "message"),
    [
        ("ap", {}, "region: 'ap' is none of"),
        ("eu", {"ap": None}, "region_stores: ap"),
        ("eu", {"eu": None}, "region_stores: eu"),
    ],
)
def test_regions_that_are_not_in_the_plan(
    make_store: MakeStore, region: str, others: dict[str, Any], message: str
) -> None:
    """They are refused by name."""
    home = make_store().store
    with pytest.raises(ConfigurationError, match=message):
        RegionalStore(home, PLAN, region, others, ManualClock(START_US), keep=False)


def test_a_cost_that_never_fits_asks_other_regions_for_nothing(make_store: MakeStore) -> None:
    """Only what the whole could have admitted counts as wanted: a request that is too large for any region borrows nothing. T23"""
    store = make_store()
    (_, watched) = store._parts.of(ALL, "*")
    assert watched is not None
    store.decide_one([(ALL, "*", 101)])
    assert (watched.admitted, watched.refused) == (0, 0)
    store.decide_one([(ALL, "*", 100)])
    assert (watched.admitted, watched.refused) == (0, 100)
    assert store.decide_one([(ALL, "*", 40)]).admitted
    assert (watched.admitted, watched.refused) == (40, 100)


def test_hot_counters_are_neither_split_nor_drawn_in_a_region(make_store: MakeStore) -> None:
    """By the whole's numbers every region would admit all of it: a rule that says so is decided by the region's part, as an exact one."""
    store = make_store()
    near = NearStore(store, NearSettings(), ManualClock(START_US), keep=False)
    for precision in (Precision.SPLIT, Precision.ESTIMATED):
        for subject, spec in (("*", FixedWindow(100, 3_600 * SECOND)), ("user:1", FixedWindow(100, 3_600 * SECOND))):
            counter = counter_of(precision.value, spec)._replace(precision=precision)
            assert not near.hot.promote(counter, subject, near.now_us())
            charged = [(counter, subject, 1)]
            assert sum([near.decide_one(charged).admitted for _ in range(60)]) == (40 if subject == "*" else 50)
            assert near.reset([(counter, subject)]) == 1


def test_what_is_not_used_any_more_is_forgotten(make_store: MakeStore) -> None:
    """After a minute without a charge nobody looks at a counter, and nothing is kept of it; a charge begins anew."""
    clock = ManualClock(START_US)
    store = RegionalStore(make_store().store, PLAN, "eu", {}, clock, keep=False)
    (_, first) = store._parts.of(ALL, "*")
    store.decide_one([(ALL, "*", 1)])
    assert store.step()
    assert list(store.status().counters) == [ALL.prefix + "*"]
    clock.advance(REGION_QUIET_US - 1)
    assert store.step()
    clock.advance(1)
    assert not store.step()
    broker = store.broker
    assert (store.status().counters, broker._held, broker._losing) == ({}, {}, {})
    (_, second) = store._parts.of(ALL, "*")
    assert second is not first
    store.decide_one([(ALL, "*", 1)])
    assert store.step()
    assert list(store.status().counters) == [ALL.prefix + "*"]
