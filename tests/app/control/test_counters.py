"""The ways from a rules service to the counters of its nodes."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluicegate.app.control.node_api import NodeApi
from sluicegate.app.control.settings import ControlSettings
from sluicegate.clock import ManualClock, SystemClock
from sluicegate.control.counters import CounterChange
from sluicegate.control.errors import Unavailable
from sluicegate.control.model import UP_AUTH, Actor, Role
from sluicegate.control.service import RulesService
from sluicegate.control.shared_counters import SharedCounters
from sluicegate.doors.http.door import HttpDoor
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.listen import Address, open_listener
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.document import load_document
from sluicegate.rules.feed import NodeReport, Revisions
from sluicegate.stores.urls import open_store

EDITOR = Actor("eve", "token:1", role=Role.EDITOR)
ADMIN = Actor("ann", "token:2", role=Role.ADMIN)
NODE = Actor("nodes", "token:3", "127.0.0.1", role=Role.NODE)
DOCUMENT = {
    "version": 1,
    "rules": [{"name": "login", "per": ["user"], "quota": "5/hour", "algorithm": "fixed_window"}],
}
FACTS = {"user": "8123"}
LOGIN = {"rule": "login", "subject": "user:8123"}
TOKEN = "of-the-nodes"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[RulesService]:
    async with await RulesService.open(f"sqlite:///{tmp_path / 'control.db'}", SystemClock(), watched=False) as service:
        await service.rulesets.put_ruleset(ADMIN, DOCUMENT, expect=0)
        yield service


@pytest.fixture
async def start_node() -> AsyncIterator[Callable[..., Any]]:
    """Starts a node's API on a store of its own, or one given by URL; gives its limiter and URL."""
    running: list[tuple[Any, Any, Limiter]] = []

    async def start(store: str = "memory://") -> tuple[Limiter, str]:
        clock = SystemClock()
        limiter = Limiter.from_rules(load_document(DOCUMENT, "test", 1), open_store(store, clock), clock)
        door = HttpDoor(
            limiter,
            clock=clock,
            ready=lambda: (True, {}),
            metrics=lambda: ("text/plain", b""),
            settings=HttpSettings(api_token=TOKEN),
        )
        listener = await open_listener(Address("127.0.0.1", 0), door.protocol_factory)
        running.append((door, listener, limiter))
        return limiter, f"http://{listener.address}"

    yield start
    for door, listener, limiter in running:
        listener.close()
        await door.connections.drain(1)
        await limiter.aclose()


async def report(service: RulesService, node: str, url: str, actor: Actor = NODE) -> None:
    listeners = {"api": url} if url else {}
    await service.nodes.report(actor, NodeReport(node, 0, "1", Revisions(), listeners=listeners))


async def decide(url: str, cost: int = 1) -> int:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as client:
        return (await client.post(f"{url}/v1/check", json={"facts": FACTS, "cost": cost})).status_code


async def test_a_reset_is_seen_by_two_nodes_on_redis(
    service: RulesService, start_node: Callable[..., Any], servers: Any, require_program: Callable[[str], str]
) -> None:
    """A client that both nodes refuse passes at both after one reset, and the counters read are those that both charge."""
    url = servers.empty("redis", require_program).url
    shared = SharedCounters(open_store(url, SystemClock()), service.ledger.database, service.snapshot, SystemClock())
    service.counters.store = shared
    try:
        (_, first), (_, second) = await start_node(url), await start_node(url)
        assert [await decide(first, 3), await decide(second, 2)] == [200, 200]
        assert [await decide(first), await decide(second)] == [429, 429]
        read = await service.counters.read(EDITOR, LOGIN)
        assert read.nodes[0].counters[0]["used"] == 5
        answer = await service.counters.change(EDITOR, CounterChange("grant", {**LOGIN, "tokens": 1}))
        assert answer.nodes[0].counters[0]["given"] == 1
        assert [await decide(second), await decide(first)] == [200, 429]
        await service.counters.change(EDITOR, CounterChange("reset", LOGIN))
        assert [await decide(first), await decide(second)] == [200, 200]
    finally:
        shared.close()


async def test_nodes_that_share_nothing_are_asked_each(service: RulesService, start_node: Callable[..., Any]) -> None:
    """A reset reaches the counters of both; what cannot be asked is told, with the reason; receipts are found."""
    (one, first), (_, second) = await start_node(), await start_node()
    await report(service, "one", first)
    await report(service, "two", second)
    await report(service, "mute", "")
    await report(service, "wide", "http://0.0.0.0:8081")
    api = NodeApi(service.nodes, SystemClock(), TOKEN)
    service.counters.nodes = api
    try:
        assert [await decide(first, 5), await decide(second, 5)] == [200, 200]
        answer = await service.counters.change(EDITOR, CounterChange("reset", LOGIN))
        assert {each.node: each.reset for each in answer.nodes} == {"one": 1, "two": 1, "mute": 0, "wide": 0}
        errors = {each.node: each.error for each in answer.nodes}
        assert errors["one"] == errors["two"] == ""
        assert "no API listener" in errors["mute"]
        assert "--api" in errors["wide"]
        assert [await decide(first), await decide(second)] == [200, 200]
        decision = one.check(FACTS, 2, receipt=True)
        assert await service.counters.refund(EDITOR, str(decision.decision_id)) == {"node": "one", "refunded": 1}
        explained = await service.counters.explain(EDITOR, {"facts": FACTS})
        assert {each["node"] for each in explained["nodes"] if each["explanation"]} == {"one", "two"}
    finally:
        await api.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((401, b'{"detail":"this path needs the API token"}'), "API token"),
        ((404, b"not json"), "JSON"),
        ((200, b"[" + b" " * 2_000_000 + b"]"), "bytes"),
        (httpx.ConnectError("connection refused"), "connection refused"),
    ],
    ids=["token", "no json", "too long", "refused"],
)
async def test_what_a_node_does_wrong_is_told(service: RulesService, answer: Any, error: str) -> None:
    """Whatever a node answers, the others are asked, and the reason stands beside its name."""

    def respond(request: httpx.Request) -> httpx.Response:
        if request.url.host == "127.0.0.2":
            return httpx.Response(200, stream=httpx.ByteStream(b'{"counters":[]}'))
        if isinstance(answer, Exception):
            raise answer
        status, content = answer
        return httpx.Response(status, stream=httpx.ByteStream(content))

    await report(service, "bad", "http://127.0.0.1:1")
    await report(service, "good", "http://127.0.0.2:1")
    api = NodeApi(service.nodes, SystemClock(), TOKEN, transport=httpx.MockTransport(respond))
    try:
        bad, good = await (await api.open(LOGIN)).ask("read", LOGIN)
        assert (good.status, good.error) == (200, "")
        assert error in bad.error, json.dumps(bad.error)
    finally:
        await api.close()


async def test_a_node_that_is_gone_is_not_asked(tmp_path: Path) -> None:
    """Half a minute after its last report a node is no longer asked."""
    clock = ManualClock()
    service = await RulesService.open(f"sqlite:///{tmp_path / 'control.db'}", clock, watched=False)
    async with service:
        await report(service, "gone", "http://127.0.0.1:1")
        clock.advance(31_000_000)
        api = NodeApi(
            service.nodes, clock, TOKEN, transport=httpx.MockTransport(lambda _: httpx.Response(200, json={}))
        )
        assert await (await api.open(LOGIN)).ask("read", LOGIN) == []
        await api.close()


def _from(source: str, auth: str = "token:3") -> Actor:
    return replace(NODE, source_ip=source, auth=auth)


@pytest.mark.parametrize(
    ("url", "actor", "asked"),
    [
        ("http://192.0.2.1:8081", _from("192.0.2.1"), "http://192.0.2.1:8081/v1/counters/read"),
        ("http://192.0.2.2:8081", _from("192.0.2.1"), None),
        ("http://192.0.2.2:8081/steal?x=", _from("192.0.2.2"), "http://192.0.2.2:8081/v1/counters/read"),
        ("http://a@192.0.2.2:8081", _from("192.0.2.2"), "http://192.0.2.2:8081/v1/counters/read"),
        ("http://[::ffff:192.0.2.1]:8081", _from("192.0.2.1"), "http://192.0.2.1:8081/v1/counters/read"),
        ("https://[2001:db8::1]:8081", _from("2001:db8::1"), "https://[2001:db8::1]:8081/v1/counters/read"),
        ("http://127.0.0.1:8081", _from("127.0.0.9"), "http://127.0.0.1:8081/v1/counters/read"),
        ("http://localhost:8081", _from("127.0.0.1"), "http://127.0.0.1:8081/v1/counters/read"),
        ("http://127.0.0.1:8081", _from("192.0.2.1"), None),
        ("http://169.254.169.254", _from("127.0.0.1"), None),
        ("http://10.1.2.3:8081", _from("192.0.2.1"), "http://10.1.2.3:8081/v1/counters/read"),
        ("http://127.0.0.1:8081", _from(""), None),
        ("http://127.0.0.1:8081", _from("", UP_AUTH), "http://127.0.0.1:8081/v1/counters/read"),
        ("http://192.0.2.1:8081", _from("", UP_AUTH), None),
        ("http://[::]:8081", _from("", UP_AUTH), None),
    ],
)
async def test_a_node_is_asked_where_its_reports_come_from(
    service: RulesService, url: str, actor: Actor, asked: str | None
) -> None:
    """The API token of all nodes goes where the report came from, or where the operator says that nodes are, and to no other address."""
    seen: list[str] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return httpx.Response(200, stream=httpx.ByteStream(b'{"counters":[]}'))

    await report(service, "one", url, actor)
    allow = [ipaddress.ip_network("10.1.0.0/16")]
    api = NodeApi(service.nodes, SystemClock(), TOKEN, allow=allow, transport=httpx.MockTransport(respond))
    try:
        (answer,) = await (await api.open(LOGIN)).ask("read", LOGIN)
    finally:
        await api.close()
    assert seen == ([] if asked is None else [asked])
    assert bool(answer.error) == (asked is None)


async def test_a_stolen_token_of_a_node_gets_no_api_token(service: RulesService) -> None:
    """What listens at an address that was only reported hears nothing, and the answer says why."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(1_000))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await report(service, "thief", f"http://127.0.0.1:{port}", _from("192.0.2.66"))
        api = NodeApi(service.nodes, SystemClock(), TOKEN)
        service.counters.nodes = api
        try:
            with pytest.raises(Unavailable, match="cannot be asked"):
                await service.counters.read(EDITOR, LOGIN)
        finally:
            await api.close()
    assert heard == []


def test_a_network_that_is_none_is_refused_at_the_start() -> None:
    """--node-api-allow with host bits or words is an error that names it."""
    with pytest.raises(ConfigurationError, match=r"--node-api-allow.*10\.0\.0\.1/8"):
        ControlSettings(node_api_allow=("10.0.0.1/8",))
