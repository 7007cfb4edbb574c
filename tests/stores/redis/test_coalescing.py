"""Requests of one event loop ride together: how many calls they make, and that none of them suffers from another."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from random import Random
from typing import Any, NamedTuple

import pytest

from sluicegate.algorithms import FixedWindow, SlidingWindow, TokenBucket
from sluicegate.bounds import REDIS_BATCH_MAX, REDIS_WAITING_MAX
from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore

HOUR_US = 3_600_000_000
BUCKET = TokenBucket(10_000, 1, HOUR_US)
COUNTER = Counter("rule", BUCKET, counter_prefix("ride", "rule", BUCKET.algorithm, BUCKET.shape))
ONE = ((COUNTER, "ip:192.0.2.1", 1),)


def left(answers: Iterable[Any]) -> list[int]:
    """What each answer left in the counter."""
    return [answer.verdicts()[0].remaining for answer in answers]


def script_calls(server) -> int:
    """How many scripts the server was told to run by their digest."""
    with contextlib.closing(server.client()) as client:
        found = client.info("commandstats")
    return found.get("cmdstat_evalsha", {"calls": 0})["calls"]


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.fixture
async def store(server) -> AsyncIterator[RedisStore]:
    found = RedisStore(server.url)
    assert await found.awarm()
    yield found
    await found.aclose()


class Slow(NamedTuple):
    """A store behind a proxy, with this deadline."""

    store: RedisStore
    proxy: object
    timeout_s: float


@pytest.fixture
async def slow(proxy) -> AsyncIterator[Slow]:
    found = RedisStore(f"redis://127.0.0.1:{proxy.port}?timeout_ms=300")
    assert await found.awarm()
    await found.adecide_one(ONE, peek=True)
    yield Slow(found, proxy, 0.3)
    proxy.passing.set()
    await found.aclose()


async def test_coroutines_ride_together(store: RedisStore, server) -> None:
    """64 checks that are gathered make one call of the script, and are decided in the order in which they came."""
    before, calls = store.stats.as_dict(), script_calls(server)
    answers = await asyncio.gather(*(store.adecide_one(ONE) for _ in range(64)))
    assert left(answers) == list(range(9_999, 9_935, -1))
    after = store.stats.as_dict()
    assert (after["batches"] - before["batches"], after["batched"] - before["batched"]) == (1, 64)
    assert script_calls(server) - calls == 1


@pytest.mark.measured
async def test_what_comes_meanwhile_goes_next(slow: Slow) -> None:
    """While a call is in flight everything that comes, in whatever round of the loop, is one next call."""
    before = slow.store.stats.batches
    found: list[Answer | StoreError] = []
    slow.proxy.passing.clear()
    slow.store.submit(ONE, found.append)
    for _ in range(40):
        await asyncio.sleep(0)
        slow.store.submit(ONE, found.append)
    assert slow.store.stats.batches == before + 1
    slow.proxy.passing.set()
    await until(lambda: len(found) == 41)
    assert left(found) == list(range(9_999, 9_958, -1))
    assert slow.store.stats.batches == before + 2


async def test_large_crowds_are_cut(store: RedisStore) -> None:
    """More requests than one call may hold go in several calls, all at once."""
    before = store.stats.batches
    many = 2 * REDIS_BATCH_MAX + 10
    answers = await asyncio.gather(*(store.adecide_one(ONE) for _ in range(many)))
    assert left(answers) == list(range(9_999, 9_999 - many, -1))
    assert store.stats.batches == before + 3


async def test_peeks_ride_along(store: RedisStore) -> None:
    """Peeks among charges charge nothing, and all operations of one moment share one packet."""
    charges = [store.adecide_one(ONE) for _ in range(5)]
    peeks = [store.adecide_one(ONE, peek=True) for _ in range(5)]
    others = [store.adecide([ONE, ONE]), store.areset([(COUNTER, "ip:198.51.100.1")])]
    answers = await asyncio.gather(*charges, *peeks, *others)
    assert all(answer.admitted for answer in answers[:10])
    assert (await store.adecide_one(ONE, peek=True)).verdicts()[0].remaining == 10_000 - 7
    assert store.stats.connects == 2  # the one that learned the secret, and this loop's


async def test_a_callback_that_raises_harms_nobody(store: RedisStore) -> None:
    """The loop is told of it; those beside it get their answers, and the lane goes on."""
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(str(context["exception"])))
    found: list[Answer | StoreError] = []

    def fails(_: object) -> None:
        raise ValueError("mine")

    for done in (found.append, fails, found.append):
        store.submit(ONE, done)
    await until(lambda: len(found) == 2)
    assert (left(found), told) == ([9_999, 9_997], ["mine"])
    assert (await store.adecide_one(ONE)).admitted


async def test_a_callback_may_submit(store: RedisStore) -> None:
    """A callback that submits again, ever so often, gets each answer."""
    found: list[Answer | StoreError] = []

    def again(answer: Answer | StoreError) -> None:
        found.append(answer)
        if len(found) < 50:
            store.submit(ONE, again)

    store.submit(ONE, again)
    await until(lambda: len(found) == 50)
    assert left(found) == list(range(9_999, 9_949, -1))


@pytest.mark.parametrize("strange", [COUNTER._replace(spec=object()), COUNTER._replace(prefix="\ud800:")])
async def test_a_request_that_cannot_be_packed_fails_alone(store: RedisStore, strange: Counter) -> None:
    """A counter of a spec that the scripts do not know, or under a key that is no text, gets an error, and those beside it their answers."""
    answers = await asyncio.gather(
        *(store.adecide_one(request) for request in (ONE, ((strange, "s", 1),), ONE)), return_exceptions=True
    )
    assert isinstance(answers[1], StoreError)
    assert not answers[1].transient
    assert left([answers[0], answers[2]]) == [9_999, 9_998]


async def test_a_key_that_is_no_text(store: RedisStore) -> None:
    """Operations on it fail alone too, on a loop and on a thread, and cost no connection."""
    strange = COUNTER._replace(prefix="\ud800:")
    connects = store.stats.connects
    found = await asyncio.gather(
        store.areset([(strange, "s")]), store.adecide([ONE]), store.areset([(COUNTER, "s")]), return_exceptions=True
    )
    assert isinstance(found[0], StoreError)
    assert (left(found[1]), found[2]) == ([9_999], 0)
    for _ in range(3):
        with pytest.raises(StoreError, match="cannot be sent"):
            store.decide_one(((strange, "s", 1),))
        assert store.decide_one(ONE).admitted
    assert store.stats.connects <= connects + 1


async def test_an_unreadable_key_fails_alone(store: RedisStore, server) -> None:
    """In a crowd only the requests of a key of another type fail."""
    with contextlib.closing(server.client()) as client:
        client.lpush(store.key(COUNTER, "bad"), "x")
    requests = [((COUNTER, "bad" if i % 4 == 0 else "good", 1),) for i in range(40)]
    answers = await asyncio.gather(*(store.adecide_one(request) for request in requests), return_exceptions=True)
    assert [isinstance(answer, StoreError) for answer in answers] == [i % 4 == 0 for i in range(40)]
    assert store.health()[0].state == "up"


async def test_a_script_flush_in_a_crowd(store: RedisStore, server) -> None:
    """A server that forgot the script gets it in full for what was in flight; each charge is made once."""  # P40
    with contextlib.closing(server.client()) as client:
        client.script_flush()
    many = 2 * REDIS_BATCH_MAX
    answers = await asyncio.gather(*(store.adecide_one(ONE) for _ in range(many)))
    assert sorted(left(answers)) == list(range(10_000 - many, 10_000))
    assert 1 <= store.stats.loads <= 2


async def test_a_wrong_guess_of_the_window(server) -> None:
    """Calendar windows are guessed by this process's clock; where that is far off the call is made again, and the answer is right."""
    store = RedisStore(server.url, clock=ManualClock(86_400_000_000))
    spec = FixedWindow(5, 86_400_000_000, align="calendar", unit="day", tz="Europe/Berlin")
    counter = Counter("day", spec, counter_prefix("ride", "day", spec.algorithm, spec.shape))
    answers = await asyncio.gather(*(store.adecide_one([(counter, "s", 1)]) for _ in range(6)))
    assert [answer.admitted for answer in answers] == [True] * 5 + [False]
    await store.aclose()


async def test_every_algorithm_rides(store: RedisStore) -> None:
    """Requests of different rules and with several charges share a call, each with its own answer."""
    specs = (TokenBucket(5, 5, HOUR_US), FixedWindow(5, HOUR_US), SlidingWindow(5, HOUR_US))
    counters = [
        Counter(f"r{i}", spec, counter_prefix("ride", f"r{i}", spec.algorithm, spec.shape))
        for i, spec in enumerate(specs)
    ]
    requests = [[(counter, "s", 1) for counter in counters[: i % 3 + 1]] for i in range(9)]
    before = store.stats.batches
    answers = await asyncio.gather(*(store.adecide_one(request) for request in requests))
    assert store.stats.batches == before + 1
    assert [answer.admitted for answer in answers] == [True] * 5 + [False] * 4
    assert [len(answer.verdicts()) for answer in answers] == [1, 2, 3] * 3


@pytest.mark.measured
async def test_each_waits_until_its_own_deadline(slow: Slow) -> None:
    """Behind a server that stalls each request is told after its own time, whether it was sent or is in line."""  # T77
    loop = asyncio.get_running_loop()
    waited: list[float] = []
    slow.proxy.passing.clear()

    def ask() -> None:
        began = loop.time()
        slow.store.submit(ONE, lambda _: waited.append(loop.time() - began))

    for _ in range(4):
        ask()
        await asyncio.sleep(0.06)
    await until(lambda: len(waited) == 4)
    assert all(slow.timeout_s <= seconds < slow.timeout_s + 0.1 for seconds in waited), waited


@pytest.mark.measured
async def test_one_that_is_told_early_disturbs_nobody(proxy) -> None:
    """A request whose deadline comes while it is in flight leaves the connection to those sent with it."""
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}?timeout_ms=1000")
    await store.adecide_one(ONE, peek=True)
    found: dict[str, Answer | StoreError] = {}
    proxy.delay_s = 0.6
    for name, pause_s in (("first", 0.02), ("early", 0.5), ("late", 0)):
        store.submit(ONE, partial(found.__setitem__, name))
        await asyncio.sleep(pause_s)
    await until(lambda: len(found) == 3)
    assert [isinstance(found[name], StoreError) for name in ("first", "early", "late")] == [False, True, False]
    assert (store.stats.lost, store.health()[0].state) == (0, "up")
    # The one that was told an error was charged, once.
    assert left([found["first"], found["late"]]) == [9_999, 9_997]
    await store.aclose()


@pytest.mark.measured
async def test_replies_of_a_connection_given_up_reach_nobody(slow: Slow) -> None:
    """What a stalled server says later is not taken for the answer to another request."""  # T81
    other = COUNTER._replace(prefix=counter_prefix("ride", "other", "token_bucket", "-"))
    slow.proxy.passing.clear()
    with pytest.raises(StoreError, match="in time") as caught:
        await slow.store.adecide_one(ONE)
    assert caught.value.transient
    slow.proxy.passing.set()
    for cost in range(1, 6):
        answer = await slow.store.adecide_one([(other, "s", cost)])
        assert answer.request[0][2] == cost
    assert answer.verdicts()[0].remaining == 10_000 - 15
    assert slow.store.stats.lost == 1


@pytest.mark.measured
async def test_half_open_connections(slow: Slow) -> None:
    """Where a connection is dead and nobody says so, it is given up after one deadline, and the next one works."""  # T81
    slow.proxy.swallowing = True
    with pytest.raises(StoreError, match="in time"):
        await slow.store.adecide_one(ONE)
    slow.proxy.swallowing = False
    assert (await slow.store.adecide_one(ONE)).verdicts()[0].remaining == 9_999
    assert slow.store.stats.lost == 1


async def test_a_connection_closed_while_idle(store: RedisStore, server) -> None:
    """A connection that the server closed is made anew, and no request is lost."""
    assert (await store.adecide_one(ONE)).admitted
    with contextlib.closing(server.client()) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    await asyncio.sleep(0.05)
    answers = await asyncio.gather(*(store.adecide_one(ONE) for _ in range(5)))
    assert left(answers) == [9_998, 9_997, 9_996, 9_995, 9_994]
    assert store.stats.lost == 0


@pytest.mark.measured
async def test_a_loop_that_is_held_up_before_it_sends(server) -> None:
    """Where the loop had no time to send before the deadline, the request is sent all the same: a late loop is no late store."""
    store = RedisStore(server.url.replace("5000", "400"))
    assert await store.awarm()
    found: list[Answer | StoreError] = []
    for _ in range(3):
        store.submit(ONE, found.append)
    threading.Event().wait(0.45)
    await until(lambda: len(found) == 3)
    assert left(found) == [9_999, 9_998, 9_997]
    waiting = asyncio.create_task(store.areset([(COUNTER, "ip:192.0.2.1")]))
    await asyncio.sleep(0)
    threading.Event().wait(0.45)
    assert await waiting == 1
    await store.aclose()


@pytest.mark.measured
async def test_the_line_has_an_end(slow: Slow) -> None:
    """More requests than may wait fail at once and are counted; the others are told by their deadlines."""
    found: list[Answer | StoreError] = []
    slow.proxy.passing.clear()
    slow.store.submit(ONE, found.append)
    await asyncio.sleep(0)
    for _ in range(REDIS_WAITING_MAX):
        slow.store.submit(ONE, found.append)
    assert found == []
    for _ in range(10):
        slow.store.submit(ONE, found.append)
    assert [str(answer).split(" requests")[0] for answer in found] == [str(REDIS_WAITING_MAX)] * 10
    assert slow.store.stats.overflowed == 10
    await until(lambda: len(found) == REDIS_WAITING_MAX + 11)
    assert all(isinstance(answer, StoreError) for answer in found)
    assert 0 < slow.store.stats.expired <= REDIS_WAITING_MAX


@pytest.mark.measured
async def test_a_long_line_that_is_late_is_told_in_little_time(slow: Slow) -> None:
    """Thousands of commands whose deadlines pass at once take the loop no longer than thousands of callbacks do."""
    found: list[Any] = []
    slow.proxy.passing.clear()
    slow.store.submit(ONE, found.append)
    await asyncio.sleep(0)
    side = slow.store._async._here()
    command = slow.store._core.packing.reset([(COUNTER, "x")])
    for _ in range(REDIS_WAITING_MAX - 1):
        side.send(command, found.append, side.loop.time() + 0.2)
    (lane,) = side._lanes.values()
    began = time.thread_time()
    lane._expire_line(side.loop.time() + 1)
    assert time.thread_time() - began < 0.2
    assert len(found) == REDIS_WAITING_MAX - 1
    await until(lambda: len(found) == REDIS_WAITING_MAX)


@pytest.mark.measured
async def test_connecting_outlives_deadlines(start_redis, start_proxy) -> None:
    """Where signing in takes longer than a decision may, the connection is made once nevertheless."""
    server = start_redis("--requirepass", "secret")
    proxy = start_proxy(server.port)
    store = RedisStore(f"redis://:secret@127.0.0.1:{proxy.port}?timeout_ms=40&keys=plain")
    proxy.delay_s = 0.15
    for _ in range(2):
        with pytest.raises(StoreError, match="no connection"):
            await store.adecide_one(ONE)
    await until(lambda: store.stats.connects == 1)
    proxy.delay_s = 0
    assert (await store.adecide_one(ONE)).verdicts()[0].remaining == 9_999
    assert store.stats.connects == 1
    with pytest.raises(StoreError, match="no connection"):
        proxy.delay_s = 0.15
        store.decide_one(ONE)
    proxy.delay_s = 0
    await until(lambda: store.stats.connects == 2)
    assert store.decide_one(ONE).verdicts()[0].remaining == 9_998
    assert store.stats.connects == 2
    await store.aclose()


async def test_everybody_is_told_once_and_nobody_anothers_answer(proxy, open_store) -> None:
    """Behind a network that cuts, delays and swallows, each of thousands of requests of coroutines and threads gets one answer, its own.

    What one leaves in the counter no other leaves, and at most what was asked for is charged.
    """  # P54, T81
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}?timeout_ms=60")
    assert await store.awarm()
    capacity = 100_000
    one = ((COUNTER._replace(spec=TokenBucket(capacity, 1, HOUR_US)), "chaos", 1),)
    random = Random(7)
    told: list[list[Answer | StoreError]] = []
    ended = threading.Event()

    async def by_callback() -> None:
        while not ended.is_set():
            for _ in range(random.randrange(1, 20)):
                told.append([])
                store.submit(one, told[-1].append)
            await asyncio.sleep(random.random() / 100)

    def by_thread() -> list[list[Answer | StoreError]]:
        answers: list[list[Answer | StoreError]] = []
        while not ended.is_set():
            try:
                answers.append([store.decide_one(one)])
            except StoreError as error:
                answers.append([error])
                ended.wait(0.002)
        return answers

    threads = [asyncio.get_running_loop().run_in_executor(None, by_thread) for _ in range(3)]
    tasks = [asyncio.create_task(by_callback()) for _ in range(4)]
    moments, end = 0, time.monotonic() + 20
    # Longer where the machine is so slow that few are answered.
    while moments < 40 or (
        time.monotonic() < end and sum(bool(one) and not isinstance(one[0], StoreError) for one in told) <= 200
    ):
        moments += 1
        what = random.choice(("cut", "delay", "swallow", "stall", "nothing", "nothing"))
        proxy.cut_replies = int(what == "cut")
        proxy.delay_s = 0.02 if what == "delay" else 0.0
        proxy.swallowing = what == "swallow"
        (proxy.passing.clear if what == "stall" else proxy.passing.set)()
        await asyncio.sleep(0.05)
    ended.set()
    proxy.passing.set()
    await asyncio.gather(*tasks)
    for found in await asyncio.gather(*threads):
        told += found
    await store.aclose()
    assert {len(answers) for answers in told} == {1}
    seen = [answer.verdicts()[0].remaining for (answer,) in told if not isinstance(answer, StoreError)]
    assert len(seen) == len(set(seen))
    assert 0 < len(seen) < len(told)
    charged = capacity - open_store().decide_one(one, peek=True).verdicts()[0].remaining
    assert len(seen) <= charged <= len(told)


async def test_operations_after_closing(store: RedisStore) -> None:
    """Whoever waits when the store is closed is told, and so is everybody after."""
    waiting = asyncio.create_task(store.adecide_one(ONE))
    await asyncio.sleep(0)
    await store.aclose()
    found: list[Answer | StoreError] = []
    store.submit(ONE, found.append)
    for call in (
        waiting,
        store.adecide_one(ONE),
        store.adecide([ONE]),
        store.arefund([]),
        store.areset([(COUNTER, "x")]),
    ):
        with contextlib.suppress(StoreError):
            assert await call == 0
    assert [str(answer) for answer in found] == ["the Redis store is closed"]
    assert not await store.awarm()
