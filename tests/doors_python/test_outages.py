"""What the log of an application says while its store is away."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.doors.asgi import RateLimitMiddleware, limit, no_rules
from sluicegate.doors.wsgi import RateLimitMiddleware as WsgiMiddleware
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

Make = Callable[..., Limiter]
Ask = Callable[..., Awaitable[httpx.Response]]

RULES = """
rules:
  - {name: all, per: [ip], quota: 99/minute}
  - {name: money, per: [ip], quota: 99/minute, on_store_failure: closed}
  - {name: off, per: [ip], quota: 99/minute, mode: off}
"""


async def page(request: Request) -> Response:
    """The smallest page."""
    return PlainTextResponse("page")


@pytest.fixture
def store(clock: ManualClock) -> FlakyStore:
    """A store that fails when told to."""
    return FlakyStore(MemoryStore(clock))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The warnings that are new."""

    def take() -> list[str]:
        found = [f"{record.levelname} {record.getMessage()}" for record in caplog.records if "sluice" in record.name]
        caplog.clear()
        return found

    return take


async def test_an_outage_is_two_lines(
    by_rules: Make, store: FlakyStore, clock: ManualClock, ask: Ask, said: Any
) -> None:
    """A store that goes away is one warning with the policies, however many requests fail; that it is back is another."""
    app = RateLimitMiddleware(Starlette(routes=[Route("/", page)]), by_rules(RULES, store=store))
    assert (await ask(app)).status_code == 200
    assert said() == []
    store.down = True
    assert [(await ask(app)).status_code for _ in range(5)] == [503] * 5
    (away,) = said()
    assert away.startswith("WARNING the store FlakyStore(")
    assert away.endswith(
        "until it answers, rules 'all' count in this process (local), rules 'money' refuse everything (closed)"
    )
    clock.advance(30 * US_PER_S)
    store.down = False
    assert [(await ask(app)).status_code for _ in range(3)] == [200] * 3
    (back,) = said()
    assert back.startswith("WARNING the store")
    assert back.endswith("answers again, after 30 s")


def test_a_store_that_comes_and_goes(
    by_rules: Make, store: FlakyStore, clock: ManualClock, call_wsgi: Any, said: Any
) -> None:
    """Outages in quick succession are told every ten seconds at most, and none that lasts is kept quiet."""

    def served(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"page"]

    app = WsgiMiddleware(served, by_rules(RULES, store=store))
    for _ in range(20):
        for store.down in (True, False):
            call_wsgi(app)
        clock.advance(US_PER_S)
    lines = said()
    assert len(lines) == 4
    assert ["again" in line for line in lines] == [False, True] * 2
    store.down = True
    call_wsgi(app)
    assert len(said()) == 1, "ten seconds have gone by"
    store.down = False
    call_wsgi(app)
    store.down = True
    call_wsgi(app)
    assert len(said()) == 1, "that it was back"
    clock.advance(9 * US_PER_S)
    call_wsgi(app)
    assert said() == []
    clock.advance(US_PER_S)
    call_wsgi(app)
    assert len(said()) == 1, "it is still away"


async def test_limits_beside_routes(store: FlakyStore, clock: ManualClock, ask: Ask, said: Any) -> None:
    """All limits of an application are one voice, and it names the policy of the limit that found out."""

    @limit("9/minute", name="one", on_store_failure="open")
    async def one(request: Request) -> Response:
        return PlainTextResponse("one")

    @limit("9/minute", name="two")
    async def two(request: Request) -> Response:
        return PlainTextResponse("two")

    inner = Starlette(routes=[Route("/one", one), Route("/two", two)])
    app = RateLimitMiddleware(inner, no_rules(store, clock))
    await ask(app, "/one")
    store.down = True
    for path in ("/one", "/two", "/one"):
        assert (await ask(app, path)).status_code == 200
    (away,) = said()
    assert away.endswith("until it answers, rules 'one' let everything pass (open)")
    store.down = False
    for path in ("/one", "/two"):
        await ask(app, path)
    assert len(said()) == 1


async def test_many_rules_are_counted(by_rules: Make, store: FlakyStore, ask: Ask, said: Any) -> None:
    """A log line names a few rules of each policy and the number of the others."""
    rules = "".join(f"  - {{name: r{n}, match: {{path: /{n}}}, per: [ip], quota: 9/minute}}\n" for n in range(30))
    app = RateLimitMiddleware(Starlette(), by_rules(f"rules:\n{rules}", store=store))
    store.down = True
    await ask(app, "/1")
    (away,) = said()
    assert "rules 'r0', 'r1', 'r2', 'r3', 'r4' and 25 more count in this process (local)" in away


async def test_a_program_that_starts_without_its_store(ask: Ask, said: Any) -> None:
    """A store that is away from the start is told of when the door is made, before any request; its password is not."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"redis://:secret@127.0.0.1:{taken.getsockname()[1]}/0"
        limiter = await asyncio.to_thread(Limiter.from_quota, "9/minute", store=url)
        app = RateLimitMiddleware(Starlette(routes=[Route("/", page)]), limiter)
        (away,) = said()
        assert away.startswith("WARNING the store RedisStore('127.0.0.1:")
        assert "rules 'quota' count in this process (local)" in away
        assert "secret" not in away
        RateLimitMiddleware(Starlette(), limiter)
        assert (await ask(app)).status_code == 200
        assert said() == []
        await limiter.aclose()
