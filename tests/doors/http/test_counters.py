"""``/v1/counters/...`` and ``/v1/explain``: what operators ask of a node."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.feed import ListEntry
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.flaky import FlakyStore
from sluicegate.testing.later import LaterStore

Start = Callable[..., Awaitable[Any]]
Request = Callable[..., bytes]
Ask = Callable[..., Awaitable[Any]]

RULES = """
version: 1
rules:
  - name: login
    match: {path: /login, methods: [POST]}
    per: user
    quota: 5/minute
    algorithm: fixed_window
  - name: api
    per: user
    quota: 100/minute
"""
FACTS = {"method": "POST", "path": "/login", "user": "8123"}
TOKEN = "Authorization: Bearer secret"


@pytest.fixture(params=["at once", "later"])
def limiter(request: pytest.FixtureRequest) -> Limiter:
    """A limiter with a store in the process, and one with a store that takes time."""
    clock = ManualClock()
    store = MemoryStore(clock)
    return Limiter.from_rules(
        load_rules(RULES, "rules.yaml"), LaterStore(store) if request.param == "later" else store, clock
    )


@pytest.fixture
def ask(start: Start, make_request: Request, limiter: Limiter) -> Ask:
    """POST to a server with a token, and the answer."""
    servers: list[Any] = []

    async def ask(path: str, body: object, *, status: int = 200) -> Any:
        if not servers:
            servers.append(await start(limiter=limiter, api_token="secret"))
        client = await servers[0].connect()
        await client.send(make_request("POST", path, json.dumps(body).encode(), TOKEN))
        answer = await client.read()
        assert answer.status == status, answer
        return answer.json

    return ask


async def test_read_grant_reset(ask: Ask) -> None:
    """A client that has used up a limit is seen, given two tokens, and then forgotten."""
    for _ in range(5):
        await ask("/v1/check", {"facts": FACTS})
    await ask("/v1/check", {"facts": FACTS}, status=429)
    login = (await ask("/v1/counters/read", {"facts": FACTS}))["counters"][0]
    assert (login["rule"], login["subject"], login["used"], login["remaining"]) == ("login", "user:8123", 5, 0)
    assert 0 < login["wait_ms"] <= 60_000
    target = {"rule": "login", "subject": "user:8123"}
    (granted,) = (await ask("/v1/counters/grant", {**target, "tokens": 2}))["counters"]
    assert (granted["given"], granted["remaining"]) == (2, 2)
    await ask("/v1/check", {"facts": FACTS})
    assert await ask("/v1/counters/reset", {"facts": FACTS, "rule": "api"}) == {"reset": 1}
    assert await ask("/v1/counters/reset", target) == {"reset": 1}
    assert [counter["used"] for counter in (await ask("/v1/counters/read", {"facts": FACTS}))["counters"]] == [0, 0]
    assert await ask("/v1/counters/forget", {}) == {"forgotten": True}
    assert await ask("/v1/counters/forget", target) == {"forgotten": True}


async def test_explain_says_why_and_charges_nothing(ask: Ask, limiter: Limiter) -> None:
    """Every rule with its reason, the counters of those that apply, and the verdict; a second look says the same."""
    for _ in range(5):
        await ask("/v1/check", {"facts": FACTS})
    found = await ask("/v1/explain", {"facts": FACTS})
    assert found == await ask("/v1/explain", {"facts": FACTS})
    assert (found["decision"]["allowed"], found["decision"]["rule"]) == (False, "login")
    login, api = found["rules"]
    assert (login["applies"], login["quota"], login["counters"][0]["used"]) == (True, "5/minute", 5)
    assert api["counters"][0]["remaining"] == 95
    other = await ask("/v1/explain", {"facts": {**FACTS, "method": "GET"}})
    assert not other["rules"][0]["applies"]
    assert other["rules"][0]["reason"]
    assert other["decision"]["allowed"]
    limiter.lists.put(ListEntry("block", "user", "8123", source="waf"))
    blocked = await ask("/v1/explain", {"facts": FACTS})
    assert blocked["rules"][0]["rule"] == "block:user"
    assert blocked["decision"]["rule"] == "block:user"
    assert blocked["rules"][1]["counters"][0]["used"] == 5


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/counters/read", {}, "facts"),
        ("/v1/counters/read", {"rule": "login"}, "facts"),
        ("/v1/counters/read", {"facts": FACTS, "subject": "x"}, "subject"),
        ("/v1/counters/read", {"facts": FACTS, "tokens": 1}, "tokens"),
        ("/v1/counters/read", {"facts": {"user": ""}}, "facts.user"),
        ("/v1/counters/read", {"rule": "nope", "subject": "x"}, "rule"),
        ("/v1/counters/grant", {"facts": FACTS}, "tokens"),
        ("/v1/counters/grant", {"facts": FACTS, "tokens": 0}, "tokens"),
        ("/v1/counters/reset", {"rulle": "login"}, "rulle"),
        ("/v1/explain", {"rule": "login", "subject": "x"}, "facts"),
    ],
)
async def test_what_cannot_be_meant_names_its_field(ask: Ask, path: str, body: object, field: str) -> None:
    """A bad body is answered 400 with the field."""
    found = await ask(path, body, status=400)
    assert field.replace(".", "/") in json.dumps(found["errors"]), found


async def test_they_need_a_token(start: Start, make_request: Request) -> None:
    """Without the token nothing is told, and a server without one does not have them: a client could forget its own limit."""
    body = json.dumps({"facts": FACTS}).encode()
    for settings, status in (({"api_token": "secret"}, 401), ({}, 404)):
        server = await start(rules=RULES, **settings)
        for path in (
            "/v1/counters/read",
            "/v1/counters/grant",
            "/v1/counters/reset",
            "/v1/counters/forget",
            "/v1/explain",
        ):
            client = await server.connect()
            await client.send(make_request("POST", path, body))
            assert (await client.read()).status == status


async def test_a_store_that_is_away(start: Start, make_request: Request) -> None:
    """Counters cannot be told or changed then (503); the explanation says so, with the verdict of the failure policies."""
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_rules(load_rules(RULES, "rules.yaml"), store, clock)
    server = await start(limiter=limiter, api_token="secret")
    store.down = True
    client = await server.connect()
    body = json.dumps({"facts": FACTS}).encode()
    await client.send(make_request("POST", "/v1/counters/read", body, TOKEN))
    assert (await client.read()).status == 503
    await client.send(make_request("POST", "/v1/explain", body, TOKEN))
    found = (await client.read()).json
    assert found["store_answers"] is False
    assert found["decision"]["degraded"] is True
    assert found["rules"][0]["counters"] == []
