"""Trying proposed rules over HTTP."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.model import Actor, Role
from sluicegate.control.service import RulesService
from sluicegate.rules.feed import NodeReport, Revisions, Sample

OCTETS = {"Content-Type": "application/octet-stream"}
LINE = '192.0.2.1 - - [14/Nov/2023:22:13:20 +0000] "POST /login HTTP/1.1" 200 5 "-" "-"\n'


@pytest.fixture
def proposed(login: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "rules": [{**login, "quota": "2/minute"}]}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
async def test_a_log(
    client: httpx.AsyncClient,
    as_role: Callable[[Role], dict[str, str]],
    with_login: httpx.Response,
    proposed: dict[str, Any],
    packed: bool,
) -> None:
    """Rules in the first line and a log after it: what would be newly refused, for whoever may look."""
    del with_login
    log = (LINE * 7).encode()
    body = json.dumps(proposed).encode() + b"\n" + (gzip.compress(log) if packed else log)
    answer = await client.post("/v1/whatif", content=body, headers={**OCTETS, **as_role(Role.VIEWER)})
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert told["version"] == 1
    assert told["sampled"] is None
    assert told["report"]["refused"] == 5
    assert told["report"]["against"]["newly_refused_by_rule"] == {"login": 3}


async def test_samples(
    client: httpx.AsyncClient,
    service: RulesService,
    clock: ManualClock,
    with_login: httpx.Response,
    proposed: dict[str, Any],
) -> None:
    """Without a log: on what nodes told of, with how sure it is."""
    del with_login
    facts = {"ip": "192.0.2.1", "method": "POST", "path": "/login"}
    samples = [Sample(clock.now_us() - US_PER_S, facts)] * 4
    node = Actor("n", "token:9", role=Role.NODE)
    await service.nodes.report(node, NodeReport("n", 0, "1", Revisions(), requests=40, samples=samples, interval_s=5.0))
    answer = await client.post("/v1/whatif", json={"document": proposed, "minutes": 5})
    assert answer.status_code == 200, answer.text
    assert answer.json()["sampled"]["weight"] == 10
    assert answer.json()["report"]["requests"] == 40


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not json\nx", 400),
        (b'{"version": 1, "rules": [{"name": "x"}]}\nx', 422),
        (b'{"version": 1, "rules": []}\n', 422),
        (b'{"version": 1, "rules": []}', 422),
        (b"", 400),
    ],
)
async def test_what_cannot_be_tried(
    client: httpx.AsyncClient, with_login: httpx.Response, body: bytes, status: int
) -> None:
    """Rules that are none, and no log, are refused with what is wrong."""
    del with_login
    answer = await client.post("/v1/whatif", content=body, headers=OCTETS)
    assert answer.status_code == status, answer.text


async def test_it_needs_a_token(client: httpx.AsyncClient) -> None:
    """Nobody tries rules without a token; nodes do not, either."""
    answer = await client.post("/v1/whatif", json={"document": {}}, headers={"Authorization": "Bearer nonsense"})
    assert answer.status_code == 401
