"""What the rules service says of traffic, from the home beside its database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluicegate.analytics.offenders import Names
from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.control.traffic import traffic_kept
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.http.app import build_app
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.model import Actor, Role
from sluicegate.control.offenders import OffendersQuestion
from sluicegate.control.service import RulesService
from sluicegate.events import (
    SCHEMA_VERSION,
    Batch,
    Dropped,
    RequestCount,
    RuleCount,
    SubjectCount,
    SubjectTotal,
    batch_id,
    encode,
)

ADMIN = Actor("ann", "token:2", "192.0.2.8", "req-2", Role.ADMIN)
BASE_US = 1_700_000_040_000_000
NDJSON = {"Content-Type": "application/x-ndjson"}


def batch(number: int, node: str = "n", second: int = 0) -> Batch:
    """Three decisions of a second."""
    at_us = BASE_US + second * US_PER_S
    return Batch(
        SCHEMA_VERSION,
        batch_id(node, 1, number),
        node,
        at_us,
        at_us + US_PER_S,
        requests=[RequestCount("", "allowed", "pro", 4, 2, 5), RequestCount("api", "denied", "", 4, 1, 1)],
        rules=[RuleCount("api", "denied", "", 4, 1, 1)],
        dropped=Dropped(decisions=number),
    )


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[RulesService]:
    """A rules service in a folder, whose clock stands a minute after the batches."""
    clock = ManualClock(BASE_US + 60 * US_PER_S)
    opened = await RulesService.open(f"sqlite:///{tmp_path / 'control.db'}", clock, watched=False)
    async with opened, traffic_kept(opened, ControlSettings(data=tmp_path), clock):
        yield opened


@pytest.fixture
async def clients(service: RulesService) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """Clients by the roles of their tokens."""
    app = build_app(service, ApiSettings(), ManualClock(BASE_US + 60 * US_PER_S))
    transport = httpx.ASGITransport(app=app, client=("192.0.2.9", 40_000))
    made = {}
    for role in (Role.NODE, Role.VIEWER):
        _, token = await service.tokens.create(ADMIN, f"the {role}", role)
        headers = {"Authorization": f"Bearer {token}"}
        made[role.value] = httpx.AsyncClient(transport=transport, base_url="http://control", headers=headers)
    yield made
    for client in made.values():
        await client.aclose()


async def told(client: httpx.AsyncClient, **query: Any) -> dict[str, Any]:
    """The answer about traffic."""
    answer = await client.get("/v1/traffic", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_batches_of_nodes_are_counted_once(clients: dict[str, httpx.AsyncClient]) -> None:
    """What nodes send is told, each batch once however often it was sent."""
    lines = b"\n".join(encode(batch(number, second=number)) for number in range(3))
    for _ in range(2):
        answer = await clients["node"].post("/v1/feed/traffic", content=lines, headers=NDJSON)
        assert (answer.status_code, answer.json()) == (200, {"batches": 3})
    got = await told(clients["viewer"], window="5m")
    assert got["rows"] == [
        {"decisions": 6, "tokens": 15, "outcome": "allowed"},
        {"decisions": 3, "tokens": 3, "outcome": "denied"},
    ]
    assert (got["nodes"], got["dropped_decisions"], got["cell_s"], got["step_s"]) == (["n"], 3, 60, None)


async def test_series_and_filters(clients: dict[str, httpx.AsyncClient]) -> None:
    """Steps, groups and filters of a query are those of the answer."""
    lines = b"\n".join(encode(batch(number, second=40 * number)) for number in range(2))
    await clients["node"].post("/v1/feed/traffic", content=lines, headers=NDJSON)
    got = await told(clients["viewer"], since_us=BASE_US, until_us=BASE_US + 60 * US_PER_S, by="rule,tier", step="30s")
    assert got["rows"] == [
        {"decisions": 2, "tokens": 5, "at_us": BASE_US + step_us, "rule": "", "tier": "pro"}
        if not rule
        else {"decisions": 1, "tokens": 1, "at_us": BASE_US + step_us, "rule": rule, "tier": ""}
        for step_us in (0, 30 * US_PER_S)
        for rule in ("", "api")
    ]
    assert (await told(clients["viewer"], of="rules", by="", rule="api"))["rows"] == [{"decisions": 2, "tokens": 2}]
    assert (await told(clients["viewer"], by="", version=3))["rows"] == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ({"window": "5 parsecs"}, "#/window"),
        ({"window": "5m", "since_us": 1}, "#/window"),
        ({"since_us": 10, "until_us": 5}, "#/until_us"),
        ({"by": "client"}, "#/by"),
        ({"step": "1ms"}, "#/step"),
        ({"step": "never"}, "#/step"),
        ({"window": "90d", "step": "1s"}, "#/step"),
        ({"steps": "1m"}, "#/steps"),
    ],
)
async def test_bad_questions(clients: dict[str, httpx.AsyncClient], query: dict[str, Any], pointer: str) -> None:
    """A question that cannot be answered gets 422 and a pointer to its fault."""
    await clients["node"].post("/v1/feed/traffic", content=encode(batch(0)), headers=NDJSON)
    answer = await clients["viewer"].get("/v1/traffic", params=query)
    assert answer.status_code == 422, answer.text
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 422), (b"[]", 422), (encode(batch(0)) + b"\n{}", 422), (b"\n".join([b"{}"] * 101), 422)],
)
async def test_what_is_no_batch(clients: dict[str, httpx.AsyncClient], content: bytes, status: int) -> None:
    """Of a body with something that is no batch nothing is kept."""
    answer = await clients["node"].post("/v1/feed/traffic", content=content, headers=NDJSON)
    assert answer.status_code == status, answer.text
    assert (await clients["viewer"].get("/v1/traffic")).status_code == 409


async def test_roles(clients: dict[str, httpx.AsyncClient]) -> None:
    """Only nodes bring batches, and a node's token reads nothing."""
    assert (await clients["viewer"].post("/v1/feed/traffic", content=b"", headers=NDJSON)).status_code == 403
    assert (await clients["node"].get("/v1/traffic")).status_code == 403


async def test_a_service_without(service: RulesService, clients: dict[str, httpx.AsyncClient]) -> None:
    """A service that keeps nothing says so."""
    service.traffic = None
    answer = await clients["viewer"].get("/v1/traffic")
    assert answer.status_code == 409
    assert "--analytics off" in answer.json()["detail"]


async def test_nothing_is_made_by_asking(clients: dict[str, httpx.AsyncClient], tmp_path: Path) -> None:
    """Where no node has told anything the answer says so, and no file comes of it."""
    assert (await clients["viewer"].get("/v1/traffic")).status_code == 409
    assert not (tmp_path / "analytics.db").exists()


async def test_clients_by_the_secret_of_a_file(tmp_path: Path) -> None:
    """A service looks clients up by the secret of the file that it is told, not by that of its directory."""
    clock = ManualClock(BASE_US + 60 * US_PER_S)
    shared = tmp_path / "shared.secret"
    shared.write_text("a secret of several machines\n")
    (tmp_path / "analytics.secret").write_text("another secret, of this one\n")
    name = Names([b"a secret of several machines"])("user:1")
    told = Batch(
        SCHEMA_VERSION,
        batch_id("n", 1, 0),
        "n",
        BASE_US,
        BASE_US + US_PER_S,
        subjects=[SubjectCount("api", name, "refused", 7)],
        totals=[SubjectTotal("api", "refused", 7)],
    )
    question = OffendersQuestion(900 * US_PER_S, None, "", "refused", "user:1", 10)
    for file, found in ((shared, [7]), (None, [])):
        opened = await RulesService.open(f"sqlite:///{tmp_path / 'control.db'}", clock, watched=False)
        settings = ControlSettings(data=tmp_path, analytics_secret_file=file)
        async with opened, traffic_kept(opened, settings, clock):
            assert opened.traffic is not None
            await opened.traffic.take([encode(told)])
            answer = await opened.traffic.offenders(question, clock.now_us())
            assert [row.times for row in answer.rows] == found
