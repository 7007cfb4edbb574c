"""Several gates on one request: each rule is charged once, and a request that one of them refuses is charged nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route

from sluicegate.algorithms import Outcome
from sluicegate.clock import ManualClock
from sluicegate.doors.asgi import RateLimitMiddleware, RequestLimits, limit
from sluicegate.doors.web.door import Asked
from sluicegate.doors.web.hold import Holder
from sluicegate.doors.web.request import merge
from sluicegate.errors import ConfigurationError, RateLimited
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

Make = Callable[..., Limiter]
Ask = Callable[..., Awaitable[httpx.Response]]
Statuses = Callable[..., Awaitable[list[int]]]
IP = "203.0.113.9"


async def page(request: Request) -> Response:
    """Tells what remains."""
    limits: RequestLimits = request.state.rate_limit
    return JSONResponse({"rule": limits.rule, "remaining": limits.remaining})


async def test_the_same_limiter_twice_charges_once(by_quota: Make, ask: Ask) -> None:
    """P19: the middleware on an application and on an application mounted in it is one gate; 20 goes 19, 18, 17."""
    limiter = by_quota("20/hour")
    inner = RateLimitMiddleware(Starlette(routes=[Route("/page", page)]), limiter)
    outer = RateLimitMiddleware(Starlette(routes=[Mount("/in", inner)]), limiter)
    answers = [await ask(outer, "/in/page") for _ in range(3)]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["19", "18", "17"]
    assert [len(answer.headers.get_list("X-RateLimit-Limit")) for answer in answers] == [1, 1, 1]


async def test_a_request_waits_once_for_one_decision(by_quota: Make, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates that share a leaky bucket hold a request once, on the event loop as in a thread."""
    taken: list[Holder] = []
    take = Holder.take

    def counted(holder: Holder) -> Any:
        taken.append(holder)
        return take(holder)

    monkeypatch.setattr(Holder, "take", counted)
    limiter = by_quota("1000/second burst 5", algorithm="leaky_bucket")
    app = RateLimitMiddleware(RateLimitMiddleware(Starlette(routes=[Route("/", page)]), limiter), limiter)
    assert [(await ask(app)).json()["remaining"] for _ in range(3)] == [4, 3, 2]
    assert len(taken) == 2  # the first one need not wait
    holder, limits = Holder(), RequestLimits(Facts())
    for _ in range(3):
        assert holder.admit(limits, Asked(limiter, limiter, IP, 1)).allowed
    assert len(taken) == 3


async def test_a_plain_function_on_the_event_loop_is_not_held(by_quota: Make, ask: Ask, clock: ManualClock) -> None:
    """A leaky bucket delays it in a thread; on the loop, where its wait would stop everybody, it is refused and charged nothing."""

    @limit("1000/second burst 5", algorithm="leaky_bucket", name="queue", shared=True)
    def work() -> str:
        return "done"

    async def on_the_loop(_: Request) -> Response:
        return PlainTextResponse(work())

    def in_a_thread(_: Request) -> Response:
        return PlainTextResponse(work())

    routes = [Route("/loop", on_the_loop), Route("/thread", in_a_thread)]
    app = RateLimitMiddleware(Starlette(routes=routes), by_quota("100/second"))
    answers = []
    for path in ("/thread", "/thread", "/loop", "/loop", "/thread"):
        clock.advance(1)  # a place is given back by the time at which it was taken
        answers.append(await ask(app, path))
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 200]
    assert answers[2].headers["Retry-After"] == "1"
    assert answers[4].headers["X-RateLimit-Remaining"] == "2"


async def test_two_limiters_both_apply(by_quota: Make, ask: Ask) -> None:
    """P83: two middlewares with limiters of their own both decide; the headers tell of the nearest limit."""
    site, group = by_quota("5/minute", name="site"), by_quota("2/minute", name="group")
    app = RateLimitMiddleware(RateLimitMiddleware(Starlette(routes=[Route("/", page)]), group), site, headers="ietf")
    first = await ask(app)
    assert first.headers["RateLimit"].startswith('"site";r=4')
    assert '"group";r=1' in first.headers["RateLimit"]
    assert first.json() == {"rule": "group", "remaining": 1}
    await ask(app)
    refused = await ask(app)
    assert refused.status_code == 429
    assert refused.json()["violated-policies"] == ["group"]
    assert site.peek(IP).remaining == 3  # P10: what the inner one refuses is given back by the outer one


async def test_a_refusal_by_a_decorator_costs_nothing(by_quota: Make, ask: Ask) -> None:
    """P10: five quick requests on a route of 2 a minute leave the daily quota with two charges, not five."""

    @limit("2/minute")
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok")

    daily = by_quota("5/day", name="daily")
    app = Starlette(routes=[Route("/", endpoint)])
    app.add_middleware(RateLimitMiddleware, limiter=daily)
    answers = [await ask(app) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429]
    assert answers[2].json()["violated-policies"] == ["endpoint"]
    assert daily.peek(IP).remaining == 3


async def test_stacked_decorators_are_rules_of_their_own(by_quota: Make, statuses: Statuses, ask: Ask) -> None:
    """Two limits on one function are two counters with two names, and the inner refusal gives back the outer charge."""

    @limit("5/hour")
    @limit("2/minute")
    async def endpoint(request: Request) -> Response:
        limits: RequestLimits = request.state.rate_limit
        return JSONResponse([[result.rule, result.remaining] for result in limits.results])

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))
    assert (await ask(app)).json() == [["quota", 49], ["endpoint-2", 4], ["endpoint", 1]]
    assert await statuses(app, ["/"] * 4) == [200, 429, 429, 429]
    refused = await ask(app)
    assert refused.headers["X-RateLimit-Limit"] == "2"


async def test_functions_of_one_name_on_two_routes_are_two_counters(by_quota: Make, statuses: Statuses) -> None:
    """P20: limits belong to routes; functions that share module and name neither share a counter nor count twice."""

    def make(text: str) -> Callable[..., Any]:
        @limit("2/minute")
        async def endpoint(request: Request) -> Response:
            return PlainTextResponse(text)

        return endpoint

    app = RateLimitMiddleware(
        Starlette(routes=[Route("/a/{x}", make("a")), Route("/b", make("b"))]), by_quota("50/minute")
    )
    assert await statuses(app, ["/a/1", "/b", "/a/2", "/b", "/a/3", "/b"]) == [200, 200, 200, 200, 429, 429]


async def test_a_shared_limit_is_one_counter(by_quota: Make, statuses: Statuses) -> None:
    """A limit that is declared as shared counts all its routes together; without a name it is refused, having no identity."""
    both = limit("2/minute", name="both", shared=True)

    @both
    async def one(request: Request) -> Response:
        return PlainTextResponse("1")

    @both
    def two(request: Request) -> Response:
        return PlainTextResponse("2")

    app = RateLimitMiddleware(Starlette(routes=[Route("/1", one), Route("/2", two)]), by_quota("50/minute"))
    assert await statuses(app, ["/1", "/2", "/1", "/2"]) == [200, 200, 429, 429]
    with pytest.raises(ConfigurationError, match="name"):
        limit("2/minute", shared=True)


async def test_a_function_called_twice_in_a_request_is_charged_once(by_quota: Make, statuses: Statuses) -> None:
    """P19: limits are per request: a limited helper may be called often."""

    @limit("2/minute")
    def helper() -> str:
        return "x"

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(helper() + helper() + helper())

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))
    assert await statuses(app, ["/"] * 3) == [200, 200, 429]


async def test_two_functions_of_one_name_in_a_request_both_count(by_quota: Make, statuses: Statuses) -> None:
    """P20: a helper that happens to be called as another one does not go unlimited behind it."""

    def make(quota: str) -> Callable[[], str]:
        @limit(quota)
        def helper() -> str:
            return "x"

        return helper

    loose, tight = make("9/hour"), make("2/minute")

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(loose() + tight())

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))
    assert (await statuses(app, ["/"] * 9)).count(200) <= 2


async def test_no_demand_on_signatures(by_quota: Make, statuses: Statuses) -> None:
    """P77: the limited function takes what it likes, by any name, and returns what it likes."""

    @limit("1/minute")
    def work(*, amount: int = 1) -> dict[str, int]:
        return {"amount": amount}

    async def endpoint(whatever: Request) -> Response:
        return JSONResponse(work(amount=3))

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))
    assert await statuses(app, ["/", "/"]) == [200, 429]


async def test_sync_functions_in_threads(by_quota: Make, ask: Ask) -> None:
    """A plain endpoint, which Starlette runs in a thread, is limited and refused like an async one."""

    @limit("1/minute")
    def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok")

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))
    assert (await ask(app)).text == "ok"
    refused = await ask(app)
    assert refused.status_code == 429
    assert refused.headers["X-RateLimit-Policy"].startswith("endpoint;")


async def test_keys_and_costs_of_decorators(by_quota: Make, ask: Ask) -> None:
    """Key and cost come from functions of the scope, sync or async; each key has a counter of its own."""

    async def tenant(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-tenant", b"").decode() or None

    @limit("4/minute", key=tenant, cost=lambda scope: 2)
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok")

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))

    async def status(name: str, peer: str = IP) -> int:
        return (await ask(app, headers={"X-Tenant": name} if name else {}, peer=peer)).status_code

    assert [await status("a"), await status("a"), await status("a"), await status("b")] == [200, 200, 429, 200]
    # P94: who leaves the key out is counted by address, not let through and not counted with everybody else.
    assert [await status(""), await status(""), await status(""), await status("", "198.51.100.7")] == [
        200,
        200,
        429,
        200,
    ]


async def test_a_missing_key_can_pass_or_be_refused(by_quota: Make, statuses: Statuses) -> None:
    """P94: what happens where the key is unknown is said by ``on_missing``."""

    def build(on_missing: str) -> Any:
        @limit("1/minute", key=lambda scope: None, on_missing=on_missing)
        async def endpoint(request: Request) -> Response:
            return PlainTextResponse("ok")

        return RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))

    assert await statuses(build("skip"), ["/"] * 3) == [200] * 3
    assert await statuses(build("deny"), ["/"] * 2) == [429] * 2
    assert await statuses(build("ip"), ["/"] * 2) == [200, 429]


def test_a_coroutine_function_as_key_of_a_plain_function_is_an_error_at_decoration() -> None:
    """Nobody would await it, and all clients would share one key."""

    async def key(scope: Any) -> str:
        return "k"

    for options in ({"key": key}, {"cost": key}):
        with pytest.raises(ConfigurationError, match="coroutine"):

            @limit("1/minute", **options)
            def endpoint(request: Request) -> Response:
                return PlainTextResponse("never")


async def test_an_awaitable_from_a_plain_key_is_an_error(by_quota: Make, ask: Ask) -> None:
    """A plain function that gives a coroutine all the same is refused when it does."""

    async def late() -> str:
        return "k"

    @limit("1/minute", key=lambda scope: late())
    def endpoint(request: Request) -> Response:
        return PlainTextResponse("never")

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))
    with pytest.raises(ConfigurationError, match="awaitable"):
        await ask(app)


async def test_a_limit_without_the_middleware_is_an_error() -> None:
    """A decorator that nobody serves would be a limit that does not exist; it says so."""

    @limit("1/minute")
    async def endpoint(request: Request) -> None:
        raise AssertionError

    with pytest.raises(ConfigurationError, match="RateLimitMiddleware"):
        await endpoint(None)


async def test_methods_of_a_limit(by_quota: Make, statuses: Statuses) -> None:
    """A limit may be for some methods only."""

    @limit("1/minute", methods=["POST"])
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok")

    routes = [Route("/", endpoint, methods=["GET", "POST"])]
    app = RateLimitMiddleware(Starlette(routes=routes), by_quota("50/minute"))
    assert await statuses(app, ["/"] * 3) == [200] * 3
    assert await statuses(app, ["/"] * 2, method="POST") == [200, 429]


async def test_the_switch_covers_decorators(by_quota: Make, statuses: Statuses) -> None:
    """P101: ``enabled`` of the middleware's limiter switches the limits beside routes, too."""

    @limit("1/minute")
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("ok")

    limiter = by_quota("50/minute")
    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), limiter)
    limiter.enabled = False
    assert await statuses(app, ["/"] * 3) == [200] * 3
    limiter.enabled = True
    assert await statuses(app, ["/"] * 2) == [200, 429]


async def test_refund_by_the_handler(by_quota: Make, ask: Ask) -> None:
    """P82: a login that succeeds gives its charge back, so that only failures count; ten at once cannot all pass a check first."""

    @limit("3/minute")
    async def login(request: Request) -> Response:
        limits: RequestLimits = request.state.rate_limit
        await asyncio.sleep(0)
        if request.query_params["password"] == "right":
            assert await limits.arefund() == 2
            assert await limits.arefund() == 0
            return PlainTextResponse("in")
        return PlainTextResponse("wrong", 403)

    app = RateLimitMiddleware(Starlette(routes=[Route("/login", login)]), by_quota("50/minute"))
    for _ in range(10):
        assert (await ask(app, "/login?password=right")).status_code == 200
    tries = await asyncio.gather(*(ask(app, "/login?password=x") for _ in range(10)))
    assert sorted(answer.status_code for answer in tries) == [403] * 3 + [429] * 7


async def test_a_refusal_that_the_application_answers_itself(by_quota: Make, ask: Ask) -> None:
    """P25: an endpoint that catches the refusal and answers 200 sends no Retry-After; the rate headers still tell the truth."""

    @limit("1/minute")
    def expensive() -> str:
        return "fresh"

    async def endpoint(request: Request) -> Response:
        try:
            return PlainTextResponse(expensive())
        except RateLimited:
            return PlainTextResponse("from yesterday")

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))
    fresh, old = await ask(app), await ask(app)
    assert (fresh.text, old.text, old.status_code) == ("fresh", "from yesterday", 200)
    assert "Retry-After" not in old.headers
    assert old.headers["X-RateLimit-Policy"].startswith("expensive;")
    assert old.headers["X-RateLimit-Remaining"] == "0"


async def test_a_request_that_is_served_all_the_same_is_charged(by_quota: Make, statuses: Statuses) -> None:
    """An endpoint that catches a refusal does not get its clients around the other limits; one that answers a refusal costs nothing."""

    @limit("1/minute", per=[])
    async def expensive() -> None: ...

    @limit("4/minute", per=[], name="after", shared=True)
    async def after() -> None: ...

    async def served(request: Request) -> Response:
        with contextlib.suppress(RateLimited):
            await expensive()
        await after()
        return PlainTextResponse("served")

    async def refused(request: Request) -> Response:
        try:
            await expensive()
        except RateLimited:
            return PlainTextResponse("no", status_code=403)
        return PlainTextResponse("yes")

    app = Starlette(routes=[Route("/served", served), Route("/refused", refused)])
    app.add_middleware(RateLimitMiddleware, limiter=by_quota("6/minute"))
    assert await statuses(app, ["/served"] * 5) == [200, 200, 200, 200, 429]
    assert await statuses(app, ["/refused"] * 5) == [200, 403, 403, 403, 403]
    assert await statuses(app, ["/nothing"] * 2) == [404, 429]


async def test_a_foreign_rate_limited_is_not_answered(by_quota: Make, ask: Ask) -> None:
    """The exception of a limiter that has nothing to do with the request is the application's to handle."""
    other = by_quota("0", name="other")

    async def endpoint(request: Request) -> Response:
        return await other.limit(key="k")(page)(request)

    app = RateLimitMiddleware(Starlette(routes=[Route("/", endpoint)]), by_quota("50/minute"))
    with pytest.raises(RateLimited):
        await ask(app)


def test_requests_that_were_refused_only_look_on(by_quota: Make) -> None:
    """After the first refusal further gates decide without charging, and the wait is the longest of all."""
    first, second, third = by_quota("1/minute", name="a"), by_quota("1/hour", name="b"), by_quota("5/minute", name="c")
    assert first.check("k")
    assert second.check("k")
    limits = RequestLimits(Facts())
    for limiter in (third, first, second):
        limits.decide(limiter, limiter, "k")
    assert limits.decision is not None
    assert (limits.allowed, limits.rule) == (False, "a")
    assert limits.decision.retry_after_us == 3_600_000_000
    assert limits.decision.outcome is Outcome.DENIED
    assert [result.rule for result in limits.results] == ["c", "a", "b"]
    assert third.peek("k").remaining == 5


def test_merged_passes_tell_of_the_nearest(by_quota: Make) -> None:
    """Of decisions that pass, the one with the fewest tokens left describes them all."""
    limiters = [by_quota("9/minute", name="far"), by_quota("2/minute", name="near")]
    merged = merge([limiter.check("k") for limiter in limiters])
    assert (merged.allowed, merged.rule, merged.remaining) == (True, "near", 1)
    never = merge([by_quota("0", name="banned").check("k"), limiters[0].check("k")])
    assert (never.outcome, never.retry_after_us) == (Outcome.NEVER_FITS, None)


def test_refunds_never_raise(clock: ManualClock) -> None:
    """P47, P48: a store that fails while a charge is given back is not an error of the request."""
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_quota("5/minute", store=store, clock=clock)
    limits = RequestLimits(Facts())
    limits.decide(limiter, limiter, "k")
    store.down = True
    assert limits.refund() == 0
    store.down = False
    assert limiter.peek("k").remaining == 4
