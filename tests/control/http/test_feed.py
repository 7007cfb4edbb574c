from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from sluicegate.bounds import API_REQUESTS_MAX
from sluicegate.rules.feed import ListChanges, NodeReport, ReportAnswer, Revisions, Snapshot, SubjectChanges

NODE = {"Authorization": "Bearer a-token-of-nodes-in-memory"}


async def read(client: httpx.AsyncClient, path: str, kind: Any) -> Any:
    answer = await client.get(path, headers=NODE)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=kind)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_nodes_are_told(client: httpx.AsyncClient, with_login: httpx.Response) -> None:
    """Nodes read the messages of the feed as they are, with the entity tag of the revisions."""
    await client.put("/v1/subjects/user:1", json={"factor": 2})
    await client.post("/v1/lists/block", json={"kind": "ip", "value": "10.0.0.1"})
    revisions = await read(client, "/v1/feed/revisions", Revisions)
    assert (revisions.ruleset, revisions.lists, revisions.subjects) == (1, 1, 1)
    snapshot = await read(client, "/v1/feed/snapshot", Snapshot)
    assert (snapshot.revisions, snapshot.rules.document["rules"][0]["name"]) == (revisions, "login")
    assert (await read(client, "/v1/feed/lists?since=0", ListChanges)).put[0].value == "10.0.0.1"
    assert (await read(client, "/v1/feed/subjects?since=1", SubjectChanges)).put == []
    for path in ("/v1/feed/revisions", "/v1/feed/snapshot"):
        answer = await client.get(path, headers={**NODE, "If-None-Match": revisions.etag})
        assert (answer.status_code, answer.headers["etag"]) == (304, revisions.etag)
    assert (await client.get("/v1/feed/lists?cursor=x", headers=NODE)).status_code == 422
    assert (await client.get("/v1/feed/lists?since=-1", headers=NODE)).status_code == 422


async def test_reports(client: httpx.AsyncClient) -> None:
    """A report is answered with the revisions, and shows the node; one that is none is refused."""
    report = msgspec.json.encode(NodeReport("gw-1", 1, "0.1.0", Revisions()))
    answer = await client.post("/v1/feed/report", content=report, headers=NODE)
    assert msgspec.json.decode(answer.content, type=ReportAnswer).revisions.ruleset == 0
    assert (await client.get("/v1/nodes")).json()["nodes"][0]["report"]["node"] == "gw-1"
    assert (await client.post("/v1/feed/report", content=b"{}", headers=NODE)).status_code == 422
    assert (await client.post("/v1/feed/report", content=b"{", headers=NODE)).status_code == 400
    assert (await client.delete("/v1/nodes/gw-1?validate_only=true")).status_code == 204
    assert (await client.delete("/v1/nodes/gw-1")).status_code == 204
    assert (await client.delete("/v1/nodes/gw-1")).status_code == 404


@pytest.mark.slow
async def test_a_long_poll_ends_with_a_change(client: httpx.AsyncClient, app: FastAPI) -> None:
    """A long poll is answered as soon as something changes, and with 304 where nothing does."""
    etag = (await client.get("/v1/feed/revisions", headers=NODE)).headers["etag"]
    waiting = {**NODE, "If-None-Match": etag}
    begun = time.monotonic()
    nothing = await client.get("/v1/feed/revisions", headers={**waiting, "Prefer": "respond-async, wait=1"})
    assert (nothing.status_code, nothing.headers["etag"]) == (304, etag)
    assert time.monotonic() - begun >= 0.9
    numbers = app.state.context.numbers
    polls: list[asyncio.Task[httpx.Response]] = []
    for times in range(1, 4):
        polls += [
            asyncio.create_task(client.get("/v1/feed/revisions", headers={**waiting, "Prefer": "wait=50"}))
            for _ in range(API_REQUESTS_MAX // 2)
        ]
        most = times * (API_REQUESTS_MAX // 2)
        async with asyncio.timeout(60):
            while numbers.polls != most:
                await asyncio.sleep(0.01)
    # More of them than may be at work, and yet there is room for a change.
    assert (await client.post("/v1/rules", json={"name": "a", "quota": "1/s"})).status_code == 201
    answers = await asyncio.wait_for(asyncio.gather(*polls), 20)
    assert {each.status_code for each in answers} == {200}
    assert {each.json()["ruleset"] for each in answers} == {1}
    assert (numbers.polls, numbers.at_work) == (0, 0)


@pytest.mark.slow
async def test_a_long_poll_ends_with_the_server(client: httpx.AsyncClient, app: FastAPI) -> None:
    """When the server is to end, long polls end at once and it is no longer ready."""
    etag = (await client.get("/v1/feed/revisions", headers=NODE)).headers["etag"]
    head = {**NODE, "If-None-Match": etag, "Prefer": "wait=50"}
    poll = asyncio.create_task(client.get("/v1/feed/revisions", headers=head))
    await until(lambda: app.state.context.numbers.polls == 1)
    app.state.context.closing.set()
    assert (await asyncio.wait_for(poll, 10)).status_code == 304
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()["failing"]) == (503, ["closing"])


async def test_too_many_at_work(client: httpx.AsyncClient, app: FastAPI) -> None:
    """Beyond the bound of requests at work others get 503 with when to come back; health is told all the same."""
    app.state.context.numbers.at_work = API_REQUESTS_MAX
    answer = await client.get("/v1/rules")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert (await client.get("/livez")).status_code == 200
    assert "sluicegate_control_overloaded_total 1.0" in (await client.get("/metrics")).text


async def test_faults_of_ours(
    client: httpx.AsyncClient, app: FastAPI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of the program is a 500 that tells nothing of it, and is logged and counted."""

    async def broken() -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(app.state.context.service.rulesets, "current", broken)
    answer = await client.get("/v1/rules")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in answer.text
    assert "secret detail" in caplog.text
    assert app.state.context.numbers.internal_errors == 1


async def test_what_the_framework_refuses(client: httpx.AsyncClient) -> None:
    """No such path and no such method are problem documents, too; the methods there are stand in Allow."""
    missing = await client.get("/v1/nothing")
    assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
    method = await client.request("TRACE", "/v1/ruleset")
    assert (method.status_code, method.headers["content-type"]) == (405, "application/problem+json")
    assert "GET" in method.headers["allow"]
