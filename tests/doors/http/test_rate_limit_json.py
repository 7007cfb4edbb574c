"""``POST /json`` answers where envoyproxy/ratelimit does, as it does."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.import_envoy import import_envoy_ratelimit
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.flaky import FlakyStore
from sluicegate.testing.later import LaterStore

Start = Callable[..., Awaitable[Any]]

RULES = """
version: 1
rules:
  - {name: keyed, match: {domain: edge}, per: [descriptor.api_key], quota: 2/minute, algorithm: fixed_window}
  - {name: money, match: {domain: bank}, per: [descriptor.user], quota: 2/minute, on_store_failure: closed}
"""


def asks(domain: str, key: str, value: str) -> dict[str, Any]:
    """A request with one descriptor of one entry."""
    return {"domain": domain, "descriptors": [{"entries": [{"key": key, "value": value}]}]}


async def test_it_passes_and_refuses(start: Start) -> None:
    """200 with OK and what is left, then 429 with OVER_LIMIT, header fields and the body that a client is to get."""
    server = await start(rules=RULES)
    client = await server.connect()
    passed = await client.post("/json", asks("edge", "api_key", "a"))
    assert (passed.status, passed.json["overallCode"]) == (200, "OK")
    (status,) = passed.json["statuses"]
    assert status["currentLimit"] == {"requestsPerUnit": 2, "unit": "MINUTE", "name": "keyed"}
    assert (status["code"], status["limitRemaining"], status["durationUntilReset"][-1]) == ("OK", 1, "s")
    await client.post("/json", asks("edge", "api_key", "a"))
    refused = await client.post("/json", asks("edge", "api_key", "a"))
    assert (refused.status, refused.json["overallCode"]) == (429, "OVER_LIMIT")
    assert "limitRemaining" not in refused.json["statuses"][0]
    fields = {field["key"]: field["value"] for field in refused.json["responseHeadersToAdd"]}
    assert json.loads(base64.b64decode(refused.json["rawBody"]))["retry-after"] == int(fields["retry-after"])
    assert server.stats.requests["/json"] == {200: 2, 429: 1}


async def test_what_no_rule_knows_passes(start: Start) -> None:
    """An unknown domain, or a descriptor without a rule, is OK without a limit."""
    client = await (await start(rules=RULES)).connect()
    for asked in (asks("elsewhere", "api_key", "a"), asks("edge", "other", "a")):
        answer = await client.post("/json", asked)
        assert (answer.status, answer.json) == (200, {"overallCode": "OK", "statuses": [{"code": "OK"}]})


async def test_what_cannot_be_decided_is_400(start: Start) -> None:
    """No domain, no descriptors, an empty key, text that is no JSON: 400 naming what is wrong, and nothing is charged."""
    client = await (await start(rules=RULES)).connect()
    for body, field in (
        ({**asks("", "k", "v")}, "domain"),
        ({"domain": "edge"}, "descriptors"),
        (asks("edge", "", "v"), "descriptors[0].entries[0].key"),
        ({**asks("edge", "api_key", "a"), "more": 1}, "more"),
        (b"{", "JSON"),
    ):
        answer = await client.post("/json", body)
        assert (answer.status, field in answer.json["detail"]) == (400, True), (body, answer.json)
    assert (await client.post("/json", asks("edge", "api_key", "a"))).json["statuses"][0]["limitRemaining"] == 1


async def test_a_closed_rule_without_its_counter_is_503(start: Start) -> None:
    """Whoever asks did nothing wrong: 503 with Retry-After, at once or by a store that answers later."""
    for wrap in (lambda store: store, LaterStore):
        clock = ManualClock()
        store = FlakyStore(MemoryStore(clock))
        store.down = True
        limiter = Limiter.from_rules(load_rules(RULES, "rules.yaml"), wrap(store), clock)
        client = await (await start(limiter=limiter)).connect()
        answer = await client.post("/json", asks("bank", "user", "u"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_a_fault_of_ours_is_500(start: Start, monkeypatch: Any) -> None:
    """The request gets a 500, the fault is counted, and the connection serves on."""
    server = await start(rules=RULES)
    client = await server.connect()
    assert (await client.post("/json", asks("edge", "api_key", "a"))).status == 200
    monkeypatch.setattr(server.limiter, "check_plan", None)
    assert (await client.post("/json", asks("edge", "api_key", "b"))).status == 500
    monkeypatch.undo()
    assert (await client.post("/json", asks("edge", "api_key", "b"))).status == 200
    assert server.stats.internal_errors == 1


async def test_it_asks_for_the_token(start: Start) -> None:
    """It decides, so it is guarded as ``/v1/check`` is."""
    client = await (await start(rules=RULES, api_token="secret")).connect()
    assert (await client.post("/json", asks("edge", "api_key", "a"))).status == 401


async def test_imported_limits_are_answered_as_there(start: Start) -> None:
    """Rules that ``rules import`` makes, asked in JSON: the last entry decides which limit a descriptor has."""
    configuration = b"""
domain: edge
descriptors:
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 100}}
  - key: path
    value: /login
    descriptors: [{key: ip, rate_limit: {name: by-ip, unit: hour, requests_per_unit: 1}}]
"""
    client = await (await start(rules=import_envoy_ratelimit([("c", configuration)]).text)).connect()

    async def codes(*entries: tuple[str, str]) -> tuple[int, str | None]:
        listed = [{"key": key, "value": value} for key, value in entries]
        answer = await client.post("/json", {"domain": "edge", "descriptors": [{"entries": listed}]})
        return answer.status, answer.json["statuses"][0].get("currentLimit", {}).get("name")

    login = ("path", "/login"), ("ip", "192.0.2.1")
    assert [await codes(*login) for _ in range(2)] == [(200, "by-ip"), (429, "by-ip")]
    assert await codes(("path", "/login")) == (200, None)
    assert await codes(("path", "/other")) == (200, "edge-path")
    assert await codes(("path", "/other"), ("ip", "192.0.2.1")) == (200, None)
