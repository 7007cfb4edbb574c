"""Limits on functions."""

from __future__ import annotations

import asyncio
import functools
import pickle
import threading

import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError, InvalidRequest, RateLimited, SluicegateError
from sluicegate.limiter import Limiter, rate_limit
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules


def test_a_refused_function_does_not_run() -> None:
    """Above the limit RateLimited is raised with decision and wait, and the function does not run."""  # P09
    clock = ManualClock()
    ran: list[str] = []

    @rate_limit("2/minute", key=lambda user: user, clock=clock)
    def work(user: str) -> str:
        """Docs."""
        ran.append(user)
        return f"for {user}"

    assert [work("ann"), work("ann"), work("bob")] == ["for ann", "for ann", "for bob"]
    with pytest.raises(RateLimited) as caught:
        work("ann")
    assert ran == ["ann", "ann", "bob"]
    assert caught.value.retry_after_s == 30
    assert caught.value.decision.rule == "quota"  # type: ignore[attr-defined]
    assert isinstance(caught.value, SluicegateError)
    clock.advance(30 * US_PER_S)
    work(user="ann")
    assert (work.__name__, work.__doc__) == ("work", "Docs.")


async def test_coroutine_functions() -> None:
    """A coroutine function is limited when it is awaited, and may have coroutine functions for key and cost."""
    ran: list[str] = []

    async def key(user: str, weight: int) -> str:
        await asyncio.sleep(0)
        return user

    async def cost(user: str, weight: int) -> int:
        return weight

    @rate_limit("5/minute", key=key, cost=cost)
    async def work(user: str, weight: int) -> str:
        ran.append(user)
        return user

    assert asyncio.iscoroutinefunction(work)
    assert await work("ann", 4) == "ann"
    with pytest.raises(RateLimited):
        await work("ann", 2)
    assert await work("ann", weight=1) == "ann"
    assert ran == ["ann", "ann"]


def test_a_cost_that_never_fits_raises_at_once() -> None:
    """A call above the capacity is refused with no time to wait for, instead of running or waiting for ever."""  # P09
    ran: list[int] = []
    work = rate_limit("3/minute", cost=lambda weight: weight)(ran.append)
    with pytest.raises(RateLimited) as caught:
        work(5)
    assert caught.value.retry_after_s is None
    assert ran == []
    work(3)
    assert ran == [3]


def test_no_key_is_one_counter_per_function() -> None:
    """Without a key all calls of one function share a counter, and two functions of one limiter do not."""
    limiter = Limiter.from_quota("1/minute", clock=ManualClock())

    @limiter.limit()
    def one(argument: int = 0) -> int:
        return argument

    @limiter.limit()
    def two() -> None:
        return None

    one(1)
    two()
    with pytest.raises(RateLimited):
        one(2)


def test_a_fixed_key_is_shared() -> None:
    """Functions with the same fixed key on the same limiter share its counter."""
    limiter = Limiter.from_quota("1/minute", clock=ManualClock())
    one = limiter.limit(key="mail")(lambda: 1)
    two = limiter.limit(key="mail")(lambda: 2)
    one()
    with pytest.raises(RateLimited):
        two()


@pytest.mark.parametrize("part", ["key", "cost"])
def test_a_coroutine_key_on_a_plain_function_fails_at_decoration(part: str) -> None:
    """A key or cost that would have to be awaited is an error where it is written, in every disguise."""

    async def later(*_: object) -> str:
        return "k"

    class Later:
        async def __call__(self, *_: object) -> str:
            return "k"

    for disguise in (later, functools.partial(later, 1), Later()):
        with pytest.raises(ConfigurationError, match=f"{part}: is a coroutine function"):
            rate_limit("1/minute", **{part: disguise})(lambda: None)


@pytest.mark.parametrize("part", ["key", "cost"])
def test_an_awaitable_from_a_plain_function_is_no_key(part: str) -> None:
    """Where a plain key function gives a coroutine after all, the call fails and no common key is used."""
    ran: list[int] = []

    async def later() -> str:
        return "k"

    def disguised() -> object:
        return later()

    work = rate_limit("1/minute", **{part: disguised})(lambda: ran.append(1))
    with pytest.raises(InvalidRequest, match=part):
        work()
    assert ran == []


def test_a_key_that_is_missing_is_no_common_key() -> None:
    """A key function that gives None or an empty text makes the call fail; nobody shares an empty key."""
    work = rate_limit("1/minute", key=lambda user: user)(lambda user: user)
    for nobody in (None, ""):
        with pytest.raises(InvalidRequest, match="key"):
            work(nobody)


def test_limiters_with_rules_take_facts() -> None:
    """On a limiter with rules the key function gives facts; without one the decoration fails."""
    limiter = Limiter.from_rules(
        load_rules("version: 1\nrules: [{name: a, per: [user], quota: 1/hour}]", "r"), clock=ManualClock()
    )
    work = limiter.limit(key=lambda user: Facts(user=user))(lambda user: user)
    work("ann")
    work("bob")
    with pytest.raises(RateLimited, match="'a'"):
        work("ann")
    for key in (None, "fixed"):
        with pytest.raises(ConfigurationError, match="gives the Facts"):
            limiter.limit(key=key)


def test_methods() -> None:
    """A decorated method gets its instance, and the key function sees it too."""

    class Service:
        def __init__(self, name: str) -> None:
            self.name = name

        @rate_limit("1/minute", key=lambda self: self.name)
        def call(self) -> str:
            return self.name

    assert (Service("a").call(), Service("b").call()) == ("a", "b")
    with pytest.raises(RateLimited):
        Service("a").call()


async def test_a_queue_holds_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that a leaky bucket delays runs after its delay: a coroutine sleeps, a plain function blocks its thread."""
    happened: list[object] = []

    async def sleep(delay_s: float) -> None:
        happened.append(delay_s)

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            happened.append(timeout)
            return False

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(threading, "Event", Event)
    limiter = Limiter.from_quota("2/second", "leaky_bucket", clock=ManualClock())

    @limiter.limit(key="a")
    async def later() -> None:
        happened.append("ran")

    @limiter.limit(key="b")
    def blocking() -> None:
        happened.append("ran")

    await later()
    await later()
    assert happened == ["ran", 0.5, "ran"]
    happened.clear()
    blocking()
    blocking()
    assert happened == ["ran", 0.5, "ran"]


def test_the_error_can_be_pickled() -> None:
    """RateLimited crosses process borders with everything it says."""
    limiter = Limiter.from_quota("1/minute", clock=ManualClock())
    work = limiter.limit()(lambda: None)
    work()
    with pytest.raises(RateLimited) as caught:
        work()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.rule, copy.retry_after_s, copy.decision) == ("quota", 60, caught.value.decision)
    assert str(copy) == str(caught.value) == "refused by 'quota': retry after 60 s"
