"""Proxies that ask: what they are told, and that their clients cannot mislead the door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.later import LaterStore

Start = Callable[..., Awaitable[Any]]
Request = Callable[..., bytes]

RULES = """
version: 1
identity:
  trusted_peers: [127.0.0.0/8]
  api_key: {header: X-API-Key}
  ip: {header: X-Forwarded-For}
rules:
  - {name: login, match: {methods: [POST], path: /login}, per: [ip], quota: 2/minute, algorithm: fixed_window}
  - {name: keyed, match: {path: /keyed}, per: [api_key], quota: 1/minute, algorithm: fixed_window}
  - {name: hosted, match: {path: /hosted, host: api.example}, per: [ip], quota: 1/minute, algorithm: fixed_window}
  - {name: queue, match: {path: /queue}, per: [ip], quota: 2/second, algorithm: leaky_bucket}
  - {name: asks, match: {path: /asks}, per: [ip], quota: 0, respond: challenge}
  - {name: money, match: {path: /money}, per: [ip], quota: 5/minute, on_store_failure: closed}
"""
DISTRUSTFUL = RULES.replace("127.0.0.0/8", "192.0.2.1/32")


def nginx(make_request: Request, method: str, uri: str, *fields: str) -> bytes:
    """What nginx sends with the configuration of the page."""
    return make_request("GET", "/authz/nginx", b"", f"X-Original-Method: {method}", f"X-Original-URI: {uri}", *fields)


async def test_envoy_is_told_to_pass_or_what_its_client_is_to_get(start: Start, make_request: Request) -> None:
    """200 without a body and with rate headers; 429 with them, Retry-After and a problem document."""
    server = await start(rules=RULES)
    client = await server.connect()
    ask = make_request("POST", "/authz/envoy/login?next=/")
    passed = await client.ask(ask)
    assert (passed.status, passed.body, passed.headers["x-ratelimit-remaining"]) == (200, b"", "1")
    assert "retry-after" not in passed.headers
    await client.ask(ask)
    refused = await client.ask(ask)
    assert (refused.status, refused.headers["content-type"]) == (429, "application/problem+json")
    assert int(refused.headers["retry-after"]) == refused.json["retry-after"] > 0
    assert refused.json["violated-policies"] == ["login"]
    assert server.stats.requests["/authz/envoy"] == {200: 2, 429: 1}


async def test_nginx_is_told_its_own_status_and_the_true_one(start: Start, make_request: Request) -> None:
    """A refusal is 403, which auth_request understands, with the status that is meant beside it."""
    client = await (await start(rules=RULES)).connect()
    ask = nginx(make_request, "POST", "/login")
    assert [(await client.ask(ask)).status for _ in range(3)] == [200, 200, 403]
    refused = await client.ask(ask)
    assert refused.headers["x-sluicegate-status"] == "429"
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json["status"] == 429


async def test_the_deny_status_is_a_setting_of_the_server(start: Start, make_request: Request) -> None:
    """``nginx_deny_status`` changes the status for nginx and no other."""
    client = await (await start(rules=RULES, nginx_deny_status=401)).connect()
    assert (await client.ask(nginx(make_request, "GET", "/asks"))).status == 401
    assert (await client.ask(make_request("GET", "/authz/envoy/asks"))).status == 429


async def test_nothing_a_client_sends_changes_what_is_asked_about(start: Start, make_request: Request) -> None:
    """Query, X-Original-*, method overrides and a deny_status are not looked at: the request line alone counts."""
    server = await start(rules=RULES)
    client = await server.connect()
    lies = (
        "X-Original-URI: /free", "X-Original-Method: GET", "X-HTTP-Method-Override: GET", "X-Envoy-Original-Path: /free",
        "X-Forwarded-Uri: /free", "X-Forwarded-Method: GET", "deny_status: 200", "X-Sluicegate-Status: 200",
    )  # fmt: skip
    targets = ["/login?deny_status=200&path=/free", "//login", "/./login", "/free/../login", "/%6cogin", "/login#/free"]
    statuses = [
        (await client.ask(make_request("POST", f"/authz/envoy{target}", b"", *lies))).status for target in targets
    ]
    assert statuses == [200, 200, 429, 429, 429, 429]
    refused = await client.ask(nginx(make_request, "POST", "/login?deny_status=200#x", *lies[2:]))
    assert refused.status == 403


async def test_other_paths_are_not_reached_through_the_door(start: Start, make_request: Request) -> None:
    """What stands behind the prefix is the client's path, even where it reads like one of the door's own."""
    server = await start(rules=RULES)
    client = await server.connect()
    for target in ("/livez", "/v1/check", "/authz/nginx", "/../nginx", "", "/", "*"):
        assert (await client.ask(make_request("OPTIONS", f"/authz/envoy{target}"))).status == 200, target
    assert (await client.ask(make_request("GET", "/authz/envoyx"))).status == 404
    assert (await client.ask(make_request("GET", "/livez?x=/authz/envoy"))).status == 200
    assert server.stats.requests["/authz/envoy"] == {200: 7}


async def test_identity_counts_from_a_trusted_proxy_only(start: Start, make_request: Request) -> None:
    """From a proxy among ``trusted_peers`` key and address are its client's; from another one they do not exist."""
    trusting = await (await start(rules=RULES)).connect()
    for key, statuses in (("a", [200, 429]), ("b", [200, 429])):
        ask = make_request("GET", "/authz/envoy/keyed", b"", f"X-API-Key: {key}")
        assert [(await trusting.ask(ask)).status for _ in range(2)] == statuses
    for address in ("203.0.113.1", "203.0.113.2"):
        ask = nginx(make_request, "POST", "/login", f"X-Forwarded-For: 198.51.100.9, {address}")
        assert [(await trusting.ask(ask)).status for _ in range(3)] == [200, 200, 403]
    distrustful = await (await start(rules=DISTRUSTFUL)).connect()
    ask = make_request("GET", "/authz/envoy/keyed", b"", "X-API-Key: a")
    assert [(await distrustful.ask(ask)).status for _ in range(3)] == [200, 200, 200]
    addresses = [f"X-Forwarded-For: 203.0.113.{n}" for n in range(3)]
    asks = [make_request("POST", "/authz/envoy/login", b"", field) for field in addresses]
    assert [(await distrustful.ask(ask)).status for ask in asks] == [200, 200, 429]


async def test_heads_that_differ_in_one_field_are_not_confused(start: Start, make_request: Request) -> None:
    """The memo of heads, which leaves out fields that its own routes ignore, has no part in requests of proxies."""
    client = await (await start(rules=RULES)).connect()
    bare = make_request("GET", "/authz/envoy/keyed")
    with_key = make_request("GET", "/authz/envoy/keyed", b"", "X-API-Key: a")
    statuses = [(await client.ask(each)).status for each in (bare, with_key, bare, with_key, bare)]
    assert statuses == [200, 200, 200, 429, 200]


async def test_the_host_is_the_one_of_the_request(start: Start, make_request: Request) -> None:
    """Rules by host see the Host field that the proxy passes on."""
    client = await (await start(rules=RULES)).connect()
    ask = make_request("GET", "/authz/envoy/hosted")
    hosted = ask.replace(b"Host: localhost", b"Host: api.example")
    assert [(await client.ask(each)).status for each in (ask, ask, hosted, hosted)] == [200, 200, 200, 429]


async def test_a_proxy_that_does_not_say_what_it_asks_about_is_told_so(start: Start, make_request: Request) -> None:
    """Without X-Original-URI, or with two, it is 400: a fault of the proxy's configuration, never an answer about some path."""
    client = await (await start(rules=RULES)).connect()
    for fields in (
        (),
        ("X-Original-URI: /login",),
        ("X-Original-Method: POST",),
        ("X-Original-Method: POST", "X-Original-URI: /login", "X-Original-URI: /free"),
        ("X-Original-Method: POST", "X-Original-Method: GET", "X-Original-URI: /login"),
        ("X-Original-Method: POST", "X-Original-URI: login"),
    ):
        answer = await client.ask(make_request("GET", "/authz/nginx", b"", *fields))
        assert (answer.status, "X-Original-URI" in answer.json["detail"]) == (400, True), fields


async def test_what_cannot_be_decided_is_refused(start: Start, make_request: Request) -> None:
    """A path that is too long to be looked at does not pass as a fault that a proxy may ignore."""
    client = await (await start(rules=RULES)).connect()
    path = "/" + "x" * 5_000
    assert (await client.ask(make_request("GET", f"/authz/envoy{path}"))).status == 400
    refused = await client.ask(nginx(make_request, "GET", path))
    assert (refused.status, refused.headers["x-sluicegate-status"]) == (403, "400")


async def test_a_request_that_would_be_held_is_refused_and_costs_nothing(start: Start, make_request: Request) -> None:
    """A leaky bucket's second request at once is refused with the time to wait, and its place in the queue is given back."""
    server = await start(rules=RULES)
    client = await server.connect()
    ask = make_request("GET", "/authz/envoy/queue")
    assert (await client.ask(ask)).status == 200
    server.clock.advance(1_000)  # a leaky bucket gives back the last slot, which it knows by its time
    refused = await client.ask(ask)
    assert (refused.status, refused.headers["retry-after"]) == (429, "1")
    server.clock.advance(499_000)
    assert (await client.ask(ask)).status == 200


async def test_a_rule_says_how_its_refusals_look(start: Start, make_request: Request) -> None:
    """``respond`` shapes the body here as at other doors."""
    client = await (await start(rules=RULES)).connect()
    refused = await client.ask(make_request("GET", "/authz/envoy/asks"))
    assert (refused.status, refused.json["challenge"]) == (429, True)


async def test_the_token_of_the_proxy_is_apart_from_its_clients(start: Start, make_request: Request) -> None:
    """With an API token the proxy proves itself in X-Sluicegate-Token; a client's Authorization is no such proof."""
    client = await (await start(rules=RULES, api_token="secret")).connect()
    for fields, status in (
        ((), 401),
        (("Authorization: Bearer secret",), 401),
        (("X-Sluicegate-Token: wrong",), 401),
        (("X-Sluicegate-Token: secret", "X-Sluicegate-Token: secret"), 401),
        (("X-Sluicegate-Token: secret", "Authorization: Bearer of-the-client"), 200),
    ):
        assert (await client.ask(make_request("GET", "/authz/envoy/x", b"", *fields))).status == status, fields


async def test_any_method_and_coding_is_asked_about(start: Start, make_request: Request) -> None:
    """HEAD is answered without a body, and a coding of the client's own body does not matter."""
    client = await (await start(rules=RULES)).connect()
    await client.send(make_request("HEAD", "/authz/envoy/asks"))
    assert (await client.read(bodiless=True)).status == 429
    for method in ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"):
        ask = make_request(method, "/authz/envoy/x", b"", "Content-Encoding: gzip", "Content-Length: 0")
        assert (await client.ask(ask)).status == 200


async def test_answers_that_take_time_come_in_order(start: Start, make_request: Request) -> None:
    """With a store elsewhere pipelined questions ride together and are answered in their order; an outage closes what is to close."""
    clock = ManualClock()
    store = LaterStore(MemoryStore(clock))
    limiter = Limiter.from_rules(load_rules(RULES, "rules.yaml"), store, clock)
    server = await start(limiter=limiter)
    client = await server.connect()
    store.hold()
    login = make_request("POST", "/authz/envoy/login")
    await client.send(login + login + make_request("GET", "/authz/envoy/asks") + login)
    async with asyncio.timeout(60):
        while store.waiting < 4:
            await asyncio.sleep(0.001)
    store.release()
    assert [(await client.read()).status for _ in range(4)] == [200, 200, 429, 429]
    store.hold()
    await client.send(make_request("GET", "/authz/envoy/money") + nginx(make_request, "GET", "/money"))
    async with asyncio.timeout(60):
        while store.waiting < 2:
            await asyncio.sleep(0.001)
    store.release(error=StoreError("gone"))
    closed, told = await client.read(), await client.read()
    assert (closed.status, told.status, told.headers["x-sluicegate-status"]) == (503, 403, "503")


async def test_a_queue_is_given_back_where_the_store_is_elsewhere(start: Start, make_request: Request) -> None:
    """The charge of a request that would be held is undone in the store, after the answer."""
    clock = ManualClock()
    store = LaterStore(MemoryStore(clock))
    limiter = Limiter.from_rules(load_rules(RULES, "rules.yaml"), store, clock)
    client = await (await start(limiter=limiter)).connect()
    ask = make_request("GET", "/authz/envoy/queue")
    assert (await client.ask(ask)).status == 200
    clock.advance(1_000)
    assert (await client.ask(ask)).status == 429
    clock.advance(1_000)
    queue = Facts(method="GET", path="/queue", ip="127.0.0.1")
    async with asyncio.timeout(60):
        while limiter.peek(queue).remaining != 1:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("line", ["GET http://x/authz/envoy/asks", "GET /authz/envoy/asks"])
async def test_both_forms_of_a_target_are_understood(start: Start, line: str) -> None:
    """A target with scheme and authority is the same request."""
    client = await (await start(rules=RULES)).connect()
    refused = await client.ask(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (refused.status, json.loads(refused.body)["challenge"]) == (429, True)


async def test_other_proxies_name_what_they_ask_about(start: Start, make_request: Request) -> None:
    """``/authz/forward`` reads X-Forwarded-Method, -Uri and -Host, once each, and refuses with the status that is meant."""
    client = await (await start(rules=RULES)).connect()

    def ask(*fields: str) -> bytes:
        return make_request("GET", "/authz/forward", b"", *fields)

    login = ask("X-Forwarded-Method: POST", "X-Forwarded-Uri: /login?x", "X-Original-URI: /free")
    assert [(await client.ask(login)).status for _ in range(3)] == [200, 200, 429]
    refused = await client.ask(login)
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["content-type"] == "application/problem+json"
    assert "x-sluicegate-status" not in refused.headers
    hosted = ask("X-Forwarded-Method: GET", "X-Forwarded-Uri: /hosted", "X-Forwarded-Host: api.example")
    elsewhere = hosted.replace(b"api.example", b"other.example")
    assert [(await client.ask(each)).status for each in (elsewhere, elsewhere, hosted, hosted)] == [200, 200, 200, 429]
    for fields in (
        (),
        ("X-Forwarded-Method: GET",),
        ("X-Forwarded-Method: GET", "X-Forwarded-Uri: /login", "X-Forwarded-Uri: /free"),
        ("X-Original-Method: GET", "X-Original-URI: /free"),
    ):
        answer = await client.ask(ask(*fields))
        assert (answer.status, "X-Forwarded-Uri" in answer.json["detail"]) == (400, True), fields
