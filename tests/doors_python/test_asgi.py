"""The ASGI middleware on applications in this process: what passes, what is refused, and what clients are told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sluicegate.clock import ManualClock
from sluicegate.doors.asgi import RateLimitMiddleware, RequestLimits
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

Ask = Callable[..., Awaitable[httpx.Response]]
Statuses = Callable[..., Awaitable[list[int]]]
Make = Callable[..., Limiter]

served: list[str] = []


async def home(request: Request) -> Response:
    """Counts what reaches the application."""
    served.append(request.url.path)
    return PlainTextResponse("home", headers={"X-RateLimit-Limit": "999", "X-Own": "kept"})


async def state(request: Request) -> Response:
    """Shows what a handler finds."""
    limits: RequestLimits = request.state.rate_limit
    return JSONResponse(
        {
            "allowed": limits.allowed,
            "rule": limits.rule,
            "limit": limits.limit,
            "remaining": limits.remaining,
            "reset_after_s": limits.reset_after_s,
            "results": [result.rule for result in limits.results],
            "ip": limits.facts.ip,
            "same": request.scope["sluicegate.rate_limit"] is limits,
        }
    )


def site(limiter: Limiter, **options: Any) -> Starlette:
    """An application inside the middleware."""
    served.clear()
    app = Starlette(routes=[Route("/", home), Route("/state", state)])
    app.add_middleware(RateLimitMiddleware, limiter=limiter, **options)
    return app


async def test_pass_and_refusal(by_quota: Make, ask: Ask, clock: ManualClock) -> None:
    """A quota is counted per address; what is over it gets 429, a problem document and the time to come back, and does not reach the application."""
    app = site(by_quota("2/minute"))
    first, second, third = [await ask(app) for _ in range(3)]
    assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
    assert first.text == "home"
    assert first.headers["X-RateLimit-Remaining"] == "1"
    assert first.headers["X-RateLimit-Reset"] == "30"
    assert third.headers["Content-Type"] == "application/problem+json"
    assert third.json()["violated-policies"] == ["quota"]
    assert third.headers["Retry-After"] == third.headers["X-RateLimit-Reset"] == "30"
    assert int(third.headers["Content-Length"]) == len(third.content)
    assert served == ["/", "/"]
    assert (await ask(app, peer="198.51.100.1")).status_code == 200
    clock.advance(29_999_999)
    assert (await ask(app)).status_code == 429
    clock.advance(1)
    assert (await ask(app)).status_code == 200  # P22: whoever waits as told passes


async def test_retry_after_is_only_on_refusals(by_quota: Make, ask: Ask) -> None:
    """P25: an answer that passed has no Retry-After, and every number in the headers is a whole one."""
    app = site(by_quota("7/minute"))
    passed = await ask(app)
    assert "Retry-After" not in passed.headers
    for _ in range(6):
        await ask(app)
    refused = await ask(app)
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    for answer in (passed, refused):
        for name in ("Limit", "Remaining", "Reset"):
            assert answer.headers[f"X-RateLimit-{name}"].isdecimal()


async def test_headers_of_the_application_are_replaced_not_doubled(by_quota: Make, ask: Ask) -> None:
    """Rate headers of the application's own would contradict ours; its other headers stay."""
    answer = await ask(site(by_quota("2/minute")))
    assert answer.headers.get_list("X-RateLimit-Limit") == ["2"]
    assert answer.headers["X-Own"] == "kept"


@pytest.mark.parametrize("dialect", ["ietf", "ietf-legacy", "x-ratelimit-epoch", "off"])
async def test_dialects(by_quota: Make, ask: Ask, dialect: str) -> None:
    """The dialect is a switch; Retry-After is sent with each."""
    app = site(by_quota("1/minute"), headers=dialect)
    await ask(app)
    refused = await ask(app)
    assert refused.headers["Retry-After"] == "60"
    fields = {name for name in refused.headers if "ratelimit" in name}
    assert (
        fields
        == {
            "ietf": {"ratelimit", "ratelimit-policy"},
            "ietf-legacy": {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "ratelimit-policy"},
            "x-ratelimit-epoch": {f"x-ratelimit-{n}" for n in ("limit", "remaining", "reset", "policy")},
            "off": set(),
        }[dialect]
    )


async def test_handlers_find_the_result(by_rules: Make, ask: Ask) -> None:
    """``request.state.rate_limit`` and the scope hold everything that was decided."""
    app = site(
        by_rules(
            "rules: [{name: all, quota: 100/second}, {name: mine, per: [ip], quota: 5/minute, algorithm: fixed_window}]"
        )
    )
    found = (await ask(app, "/state")).json()
    assert found.pop("reset_after_s") > 0
    assert found == {
        "allowed": True,
        "rule": "mine",
        "limit": 5,
        "remaining": 4,
        "results": ["all", "mine"],
        "ip": "203.0.113.9",
        "same": True,
    }


async def test_unmatched_paths_and_errors_are_covered(by_quota: Make, statuses: Statuses) -> None:
    """A path that no route serves is counted like any other, so that scanning is limited too."""
    assert await statuses(site(by_quota("2/minute")), ["/nothing", "/nothing/else", "/third"]) == [404, 404, 429]


async def test_exempt_by_rule_only(by_rules: Make, ask: Ask) -> None:
    """OPTIONS and health checks are limited unless a rule leaves them out."""
    plain = site(by_rules("rules: [{name: all, per: [ip], quota: 1/minute}]"))
    assert [(await ask(plain, "/", "OPTIONS")).status_code for _ in range(2)] == [405, 429]
    apart = site(
        by_rules(
            "rules: [{name: all, match: {not: {methods: [OPTIONS]}}, per: [ip], quota: 1/minute},"
            " {name: none, match: {path: /state}, quota: unlimited}]"
        )
    )
    assert [(await ask(apart, "/", "OPTIONS")).status_code for _ in range(3)] == [405, 405, 405]


async def test_switched_off(by_quota: Make, ask: Ask) -> None:
    """P101: ``limiter.enabled`` is looked at with every request; switched off, nothing is counted and no headers are sent."""
    limiter = by_quota("1/minute")
    app = site(limiter)
    limiter.enabled = False
    answers = [await ask(app) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert "X-RateLimit-Policy" not in answers[0].headers
    limiter.enabled = True
    assert [(await ask(app)).status_code for _ in range(2)] == [200, 429]


async def test_custom_refusal(by_quota: Make, ask: Ask) -> None:
    """A handler, sync or async, gives the answer itself, which gets the rate headers; None leaves the usual one."""

    def page(scope: Any, limits: RequestLimits) -> Response | None:
        return PlainTextResponse(f"slow down, {limits.rule}", 429) if scope["path"] == "/" else None

    async def apage(scope: Any, limits: RequestLimits) -> Response | None:
        return page(scope, limits)

    for handler in (page, apage):
        app = site(by_quota("1/minute"), on_refused=handler)
        await ask(app)
        own = await ask(app)
        assert (own.status_code, own.text) == (429, "slow down, quota")
        assert own.headers["Retry-After"] == "60"
        assert (await ask(app, "/other")).headers["Content-Type"] == "application/problem+json"


async def test_templates_and_challenges(by_rules: Make, ask: Ask) -> None:
    """The rule that refused says what the body is: a template with the numbers filled in, or a document that asks for a challenge."""
    app = site(
        by_rules(
            """
rules:
  - {name: page, match: {path: /}, per: [ip], quota: 1/minute, respond: {template: 'Rule {rule}: {limit} a minute. {retry_after_s} s.'}}
  - {name: json, match: {path: /json}, per: [ip], quota: 1/minute, respond: {template: '{"wait": {retry_after_s}}', content_type: application/json}}
  - {name: login, match: {path: /state}, per: [ip], quota: 1/minute, respond: challenge}
  - {name: never, match: {path: /never}, per: [ip], quota: 0, respond: {template: '[{retry_after_s}]', content_type: application/json}}
"""
        )
    )
    for path in ("/", "/json", "/state"):
        await ask(app, path)
    page, json, login = [await ask(app, path) for path in ("/", "/json", "/state")]
    assert {answer.status_code for answer in (page, json, login)} == {429}
    assert (page.text, page.headers["Content-Type"]) == ("Rule page: 1 a minute. 60 s.", "text/plain; charset=utf-8")
    assert (json.json(), json.headers["Content-Type"]) == ({"wait": 60}, "application/json")
    assert login.json()["challenge"] is True
    assert login.json()["violated-policies"] == ["login"]
    assert login.headers["Content-Type"] == "application/problem+json"
    assert (await ask(app, "/never")).json() == [None]


async def test_jitter_spreads_clients(by_quota: Make, ask: Ask, clock: ManualClock) -> None:
    """With jitter a client is told to come later than it may, never sooner; header, Reset and body say the same."""
    app = site(by_quota("1/minute"), retry_jitter_s=30, random=Random(7))
    waits = set()
    for number in range(40):
        await ask(app, peer=f"198.51.100.{number}")
        refused = await ask(app, peer=f"198.51.100.{number}")
        wait_s = int(refused.headers["Retry-After"])
        assert refused.headers["X-RateLimit-Reset"] == str(wait_s) == str(refused.json()["retry-after"])
        waits.add(wait_s)
    assert min(waits) >= 60
    assert max(waits) <= 90
    assert len(waits) > 10


@pytest.mark.parametrize("dialect", ["x-ratelimit-epoch", "ietf", "ietf-legacy"])
async def test_jitter_in_every_dialect(by_quota: Make, ask: Ask, clock: ManualClock, dialect: str) -> None:
    """Whatever tells of the wait tells of the same one as Retry-After, by the limiter's clock; it is drawn once per request."""
    app = site(by_quota("1/minute"), headers=dialect, retry_jitter_s=1000, random=Random(7))
    await ask(app)
    refused = await ask(app)
    wait_s = int(refused.headers["Retry-After"])
    assert 60 < wait_s <= 1060
    told = {
        "x-ratelimit-epoch": ("X-RateLimit-Reset", str(clock.now_us() // 1_000_000 + wait_s)),
        "ietf": ("RateLimit", f'"quota";r=0;t={wait_s}'),
        "ietf-legacy": ("RateLimit-Reset", str(wait_s)),
    }
    name, value = told[dialect]
    assert refused.headers[name] == value
    assert refused.json()["retry-after"] == wait_s


async def test_a_store_that_fails_is_never_a_500(by_rules: Make, ask: Ask, clock: ManualClock) -> None:
    """P47, P48, P50: without its store the rule's policy decides; only ``closed`` refuses, with 503, and no exception reaches anybody."""
    store = FlakyStore(MemoryStore(clock))
    app = site(
        by_rules(
            """
rules:
  - {name: local, match: {path: /}, per: [ip], quota: 2/minute, on_store_failure: local}
  - {name: closed, match: {path: /state}, per: [ip], quota: 2/minute, on_store_failure: closed}
  - {name: open, match: {path: /open}, per: [ip], quota: 2/minute, on_store_failure: open}
""",
            store,
        )
    )
    store.down = True
    assert [(await ask(app, "/")).status_code for _ in range(3)] == [200, 200, 429]
    assert [(await ask(app, "/open")).status_code for _ in range(4)] == [404] * 4
    closed = await ask(app, "/state")
    assert closed.status_code == 503
    assert closed.json()["type"].endswith("#temporary-reduced-capacity")
    assert int(closed.headers["Retry-After"]) >= 1


async def test_what_cannot_be_decided_is_a_bad_request(by_rules: Make, ask: Ask) -> None:
    """A path longer than any rule can look at is 400, neither a pass nor an error of the server."""
    app = site(by_rules("rules: [{name: api, match: {path: /api/**}, per: [ip], quota: 5/minute}]"))
    answer = await ask(app, "/api/" + "x" * 5_000)
    assert answer.status_code == 400
    assert "facts.path" in answer.json()["detail"]
    assert served == []


async def test_head_refusals_have_no_body(by_quota: Make, wire: Any) -> None:
    """The answer to HEAD is that to GET without its body."""
    app = RateLimitMiddleware(home, by_quota("0"))
    refused = wire(method="HEAD")
    await refused.run(app)
    assert refused.sent[0]["status"] == 429
    assert int(refused.headers()["content-length"]) > 0
    assert refused.sent[1]["body"] == b""


async def test_lifespan_passes_through(by_quota: Make, wire: Any) -> None:
    """Startup and shutdown are the application's business."""
    happened: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        happened.append(scope["type"])
        happened.append((await receive())["type"])
        await send({"type": "lifespan.startup.complete"})

    start = wire(kind="lifespan", inbox=[{"type": "lifespan.startup"}])
    await start.run(RateLimitMiddleware(app, by_quota("0")))
    assert happened == ["lifespan", "lifespan.startup"]
    assert start.kinds == ["lifespan.startup.complete"]
    assert "sluicegate.rate_limit" not in start.scope


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"endpoint": "template"}, "endpoint"),
        ({"headers": "x-forwarded"}, "headers"),
        ({"identify": lambda scope: None}, "identify"),
        ({"retry_jitter_s": -1}, "retry_jitter_s"),
        ({"retry_jitter_s": 1.5}, "retry_jitter_s"),
        ({"messages": "many"}, "quota"),
    ],
)
def test_wrong_settings_fail_at_construction(by_quota: Make, options: dict[str, Any], field: str) -> None:
    """What cannot work is refused before the first request, by name."""
    with pytest.raises(ConfigurationError, match=field):
        RateLimitMiddleware(home, by_quota("1/minute"), **options)


def test_the_limiter_must_be_one() -> None:
    """A quota in the place of a limiter is an error, not a limiter that limits nothing."""
    with pytest.raises(ConfigurationError, match="limiter"):
        RateLimitMiddleware(home, "100/minute")


async def test_rules_change_while_requests_come(by_quota: Make, statuses: Statuses) -> None:
    """The next request is decided by the rules in force."""
    limiter = by_quota("1/minute")
    app = site(limiter)
    assert await statuses(app, ["/", "/"]) == [200, 429]
    limiter.apply("3/minute")
    assert await statuses(app, ["/", "/", "/"]) == [200, 200, 429]


async def test_spellings_of_a_path_are_one(by_rules: Make, ask: Ask) -> None:
    """A path that is written in another way is limited by the rules of the path that the application serves."""
    app = site(by_rules("rules: [{name: state, match: {path: /state}, per: [ip], quota: 2/minute}]"))
    paths = ["/state", "/%73tate", "/st%61te"]
    assert [(await ask(app, path)).status_code for path in paths] == [200, 200, 429]


async def test_a_leaky_bucket_holds_requests(by_quota: Make, ask: Ask) -> None:
    """A request waits for its turn without a thread; where as many wait as may, the next is refused with the time of its turn."""
    app = site(by_quota("1000/second burst 5", algorithm="leaky_bucket"))
    assert [(await ask(app)).status_code for _ in range(3)] == [200, 200, 200]
    none = site(by_quota("1/second burst 5", algorithm="leaky_bucket"), held_max=0)
    assert (await ask(none)).status_code == 200
    refused = await ask(none)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert served == ["/"]
