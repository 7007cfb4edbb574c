"""What a hostile or clumsy client sends: heads with two meanings, bodies that never end; and what a server that ends still says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from fastapi import FastAPI

from sluicegate.control.http import bodies, health
from sluicegate.control.model import Role
from sluicegate.control.service import RulesService

JSON = {"Content-Type": "application/json"}
As = Callable[[Role], dict[str, str]]


@pytest.mark.parametrize(
    "head",
    [
        [("Content-Length", "2"), ("Transfer-Encoding", "chunked")],
        [("Authorization", "Bearer one"), ("Authorization", "Bearer two")],
        [("Content-Type", "application/json"), ("Content-Type", "text/plain")],
        [("If-Match", '"r1"'), ("If-Match", '"r2"')],
        [("X-Reason", "one"), ("X-Reason", "two")],
    ],
    ids=lambda head: head[-1][0],
)
async def test_heads_with_two_meanings(app: FastAPI, head: list[tuple[str, str]]) -> None:
    """A head that a proxy in front may understand differently is refused, and nothing after it is read as a request."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://control") as client:
        answer = await client.request("PUT", "/v1/ruleset", headers=head, content=b"{}")
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert answer.headers["content-type"] == "application/problem+json"
    assert head[-1][0] in answer.json()["detail"]


@pytest.mark.measured
async def test_bodies_that_never_end_hold_up_nobody_else(
    app: FastAPI, client: httpx.AsyncClient, as_role: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token has a bounded number of bodies that are waited for; they are no work, and everybody else is served."""
    monkeypatch.setattr(bodies, "API_BODIES_PER_TOKEN_MAX", 2)
    numbers, go_on = app.state.context.numbers, asyncio.Event()

    async def unfinished() -> AsyncIterator[bytes]:
        yield b"{"
        await go_on.wait()
        yield b"}"

    head = {**JSON, **as_role(Role.VIEWER)}
    slow = [asyncio.create_task(client.post("/v1/counters/read", content=unfinished(), headers=head)) for _ in range(2)]
    async with asyncio.timeout(60):
        while numbers.bodies.total() < 2:
            await asyncio.sleep(0)
    assert numbers.at_work == 0
    third = await client.post("/v1/counters/read", content=unfinished(), headers=head)
    assert (third.status_code, third.headers["retry-after"]) == (429, "1")
    assert (await client.post("/v1/tokens", json={"name": "x", "role": "viewer"})).status_code == 201
    go_on.set()
    assert {answer.status_code for answer in await asyncio.gather(*slow)} == {409}
    assert (numbers.at_work, numbers.bodies) == (0, {})


async def test_a_body_that_trickles(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte every now and then does not keep a body alive: it must come with some speed on average."""
    monkeypatch.setattr(bodies, "API_BODY_S_MAX", 0.2)
    sent = 0

    async def trickling() -> AsyncIterator[bytes]:
        nonlocal sent
        for sent in range(10_000):  # noqa: B007 - how far it came is looked at below
            yield b" "
            await asyncio.sleep(0.01)

    answer = await client.post("/v1/rules", content=trickling(), headers=JSON)
    assert (answer.status_code, answer.headers["connection"]) == (408, "close")
    assert sent < 1_000


async def test_a_request_that_the_end_cuts_off(app: FastAPI, client: httpx.AsyncClient) -> None:
    """A request that is cut off because the service ends is told so, and is no fault of ours."""
    context = app.state.context

    async def unfinished() -> AsyncIterator[bytes]:
        yield b"192.0.2.1\n"
        await asyncio.Event().wait()

    url = "/v1/lists/block/import?source=feed"
    cut = asyncio.create_task(client.post(url, content=unfinished(), headers={"Content-Type": "text/plain"}))
    async with asyncio.timeout(60):
        while not context.numbers.bodies:
            await asyncio.sleep(0)
    context.closing.set()
    cut.cancel()
    answer = await cut
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert (context.numbers.internal_errors, context.numbers.at_work) == (0, 0)
    assert (await client.get("/v1/lists")).json()["block"] == {"entries": 0, "sources": {}}


async def test_a_database_that_says_nothing(
    client: httpx.AsyncClient, service: RulesService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that neither answers nor refuses makes the service unready within seconds."""

    async def silent() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(service, "ping", silent)
    monkeypatch.setattr(health, "CONTROL_READY_S", 0.01)
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["failing"]) == (503, ["database"])
