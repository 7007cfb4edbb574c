"""All that was decided for one request: what is charged, given back and told, gate after gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sluicegate.algorithms import Outcome
from sluicegate.clock import ManualClock
from sluicegate.doors.asgi import RateLimitMiddleware, RequestLimits, limit
from sluicegate.doors.asgi.middleware import current
from sluicegate.doors.web.door import Door
from sluicegate.doors.web.request import merge
from sluicegate.errors import RateLimited
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore, LaterStore

Make = Callable[..., Limiter]
Ask = Callable[..., Awaitable[httpx.Response]]
IP = "203.0.113.9"


@pytest.mark.parametrize("awaited", [False, True])
async def test_gates_after_a_refusal_charge_nothing(by_quota: Make, awaited: bool) -> None:
    """A gate that would pass is only looked at once another one has refused; what was charged before is given back."""
    before, refusing, after = by_quota("5/minute"), by_quota("0"), by_quota("7/minute")
    limits = RequestLimits(Facts())
    for limiter in (before, refusing, after):
        if awaited:
            await limits.adecide(limiter, limiter, "k")
        else:
            limits.decide(limiter, limiter, "k")
    assert [decision.allowed for decision in limits.decisions] == [True, False, True]
    assert (before.peek("k").remaining, after.peek("k").remaining) == (5, 7)


async def test_a_refund_is_good_once(by_quota: Make) -> None:
    """What was given back is not given back again, by a coroutine either."""
    limiter = by_quota("9/minute")
    limiter.check("k", 5)
    limits = RequestLimits(Facts())
    for other in (limiter, by_quota("5/minute")):
        limits.decide(other, other, "k", 2)
    assert (limits.refund(), limits.refund(), await limits.arefund()) == (2, 0, 0)
    assert limiter.peek("k").remaining == 4


def test_charges_without_the_store_are_not_given_back_to_it(clock: ManualClock, by_quota: Make) -> None:
    """What a local counter was charged during an outage is no charge of the store's, which nobody asks to return it."""
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_quota("5/minute", store=store, clock=clock)
    limits = RequestLimits(Facts())
    store.down = True
    assert limits.decide(limiter, limiter, "k").degraded
    store.down = False
    asked = store.calls
    refusing = by_quota("0")
    assert not limits.decide(refusing, refusing, "k").allowed
    assert (limits.refund(), store.calls) == (0, asked)
    assert limits.decision is not None
    assert limits.decision.degraded


def test_several_decisions_are_one(by_quota: Make) -> None:
    """The wait is the longest, none where one never passes; of passes the longest delay holds, and a refusal delays nobody."""
    minute, hour, banned = by_quota("1/minute"), by_quota("1/hour"), by_quota("0")
    slow = by_quota("1/second burst 5", algorithm="leaky_bucket")
    fast = by_quota("10/second burst 5", algorithm="leaky_bucket")
    for limiter in (minute, hour, slow, fast):
        limiter.check("k")
    refused = {name: limiter.check("k") for name, limiter in (("m", minute), ("h", hour), ("b", banned))}
    for order, wait_us in (("mh", 3_600_000_000), ("hm", 3_600_000_000), ("hb", None), ("bh", None)):
        merged = merge([refused[name] for name in order])
        assert (merged.allowed, merged.retry_after_us) == (False, wait_us)
        assert merged.outcome is (Outcome.DENIED if wait_us else Outcome.NEVER_FITS)
        assert merged.reset_after_us == (wait_us or 0)
    held = merge([fast.check("k"), slow.check("k")])
    assert (held.allowed, held.delay_us) == (True, 1_000_000)
    assert merge([fast.check("k"), refused["m"]]).delay_us == 0


def test_what_is_told_follows_what_is_decided(by_quota: Make) -> None:
    """Whoever reads between two gates sees both states, of the decision and of what a client is told with jitter."""
    minute, hour = by_quota("1/minute", name="minute"), by_quota("1/hour", name="hour")
    for limiter in (minute, hour):
        limiter.check("k")
    door = Door(by_quota("9/minute"), retry_jitter_s=1000, random=Random(3))
    limits = RequestLimits(Facts())
    for limiter, rules in (
        (door.limiter, ["quota"]),
        (minute, ["quota", "minute"]),
        (hour, ["quota", "minute", "hour"]),
    ):
        limits.decide(limiter, limiter, "k")
        assert [result.rule for result in limits.results] == rules
        told = door.told(limits)
        assert told is not None
        assert told is door.told(limits)
    assert limits.decision is not None
    assert (told.retry_after_us or 0) > 3_600_000_000 == limits.decision.retry_after_us


async def test_a_request_that_cannot_be_held_is_given_back(clock: ManualClock, ask: Ask) -> None:
    """Where no more may wait, the place in the queue is free again at once, in the store over there too."""
    for store in (MemoryStore(clock), LaterStore(MemoryStore(clock))):
        limiter = Limiter.from_quota("1/second burst 5", "leaky_bucket", store, clock)
        app = RateLimitMiddleware(
            Starlette(routes=[Route("/", lambda _: PlainTextResponse("ok"))]), limiter, held_max=0
        )
        assert (await ask(app)).status_code == 200
        for _ in range(3):
            clock.advance(1)  # a place is given back by the time at which it was taken
            assert (await ask(app)).status_code == 429
            assert limiter.peek(IP).remaining == 1  # of the five places those further back are beyond ``max_delay_ms``


async def test_an_answer_of_the_applications_own_may_be_any(by_quota: Make, ask: Ask) -> None:
    """What ``on_refused`` answers is sent as it is, a 500 as well; fields that contradict a refusal are not kept."""
    own = PlainTextResponse("no", 500, {"X-RateLimit-Reset": "7", "Retry-After": "3", "X-Own": "kept"})
    app = RateLimitMiddleware(Starlette(), by_quota("0"), on_refused=lambda *_: own)
    answer = await ask(app)
    assert (answer.status_code, answer.text, answer.headers["X-Own"]) == (500, "no", "kept")
    assert answer.headers["X-RateLimit-Limit"] == "0"
    assert "X-RateLimit-Reset" not in answer.headers
    assert "Retry-After" not in answer.headers


async def test_a_refusal_after_the_answer_began_is_an_error(by_quota: Make, wire: Any) -> None:
    """An answer that has begun cannot become another one: the exception goes to the server, and nothing more is sent."""

    @limit("0", name="later", shared=True)
    async def later() -> None:
        """Never runs."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await later()

    connection = wire()
    with pytest.raises(RateLimited):
        await connection.run(RateLimitMiddleware(app, by_quota("5/minute")))
    assert connection.kinds == ["http.response.start"]


async def test_a_request_leaves_nothing_behind(by_quota: Make, wire: Any) -> None:
    """After a request, served or failed, code outside is in no request."""

    async def seen(request: Request) -> Response:
        assert current.get() is not None
        if request.url.path == "/fails":
            raise ZeroDivisionError
        return PlainTextResponse("ok")

    app = RateLimitMiddleware(Starlette(routes=[Route("/", seen), Route("/fails", seen)]), by_quota("5/minute"))
    await wire("/").run(app)
    assert current.get() is None
    with pytest.raises(ZeroDivisionError):
        await wire("/fails").run(app)
    assert current.get() is None
