"""Counters of the nodes over HTTP."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from sluicegate.clock import ManualClock
from sluicegate.control.model import Role
from sluicegate.control.service import RulesService
from sluicegate.control.shared_counters import SharedCounters
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore

FACTS = {"method": "POST", "path": "/login", "ip": "203.0.113.9"}
WHICH = {"rule": "login", "subject": "ip:203.0.113.9"}
As = Callable[[Role], dict[str, str]]


@pytest.fixture
async def node(service: RulesService, clock: ManualClock, with_login: httpx.Response) -> Limiter:
    """A node on the store that the service reaches; a client there has used up its limit."""
    store = MemoryStore(clock)
    shared = SharedCounters(store, service.ledger.database, service.snapshot, clock)
    service.counters.store = shared
    ruleset = await shared._rules()
    assert ruleset is not None
    limiter = Limiter.from_rules(ruleset, store, clock)
    limiter.check(FACTS, 5)
    return limiter


async def test_read_grant_reset(client: httpx.AsyncClient, as_role: As, node: Limiter) -> None:
    """A viewer reads, an editor gives back and forgets, and the node decides accordingly."""
    assert not node.check(FACTS).allowed
    read = await client.post("/v1/counters/read", json=WHICH, headers=as_role(Role.VIEWER))
    assert read.status_code == 200, read.text
    (place,) = read.json()["nodes"]
    assert (read.json()["shared"], place["node"], place["counters"][0]["used"]) == (True, "", 5)
    grant = await client.post(
        "/v1/counters/grant", json={**WHICH, "tokens": 2, "reason": "ticket 12"}, headers=as_role(Role.EDITOR)
    )
    assert grant.json()["nodes"][0]["counters"][0]["given"] == 2
    assert node.check(FACTS, 2).allowed
    reset = await client.post("/v1/counters/reset", json={"facts": FACTS}, headers=as_role(Role.EDITOR))
    assert reset.json()["nodes"][0]["reset"] == 1
    audit = (await client.get("/v1/audit", params={"action": "counters.grant"})).json()
    assert audit["rows"][0]["reason"] == "ticket 12"


@pytest.mark.parametrize("operation", ["grant", "reset", "refund"])
async def test_viewers_change_nothing(client: httpx.AsyncClient, as_role: As, node: Limiter, operation: str) -> None:
    """Changes need the role editor."""
    body = (
        {"decision_id": "d"} if operation == "refund" else {**WHICH, **({"tokens": 1} if operation == "grant" else {})}
    )
    answer = await client.post(f"/v1/counters/{operation}", json=body, headers=as_role(Role.VIEWER))
    assert answer.status_code == 403, answer.text
    assert not node.check(FACTS).allowed


@pytest.mark.parametrize(
    ("operation", "body", "pointer"),
    [
        ("read", {}, "/facts"),
        ("read", {"rule": "nope", "subject": "x"}, "/rule"),
        ("grant", {**WHICH, "tokens": 0}, "/tokens"),
        ("grant", {**WHICH, "tokens": 10**30}, "/tokens"),
        ("reset", {"facts": {**FACTS, "ip": "nonsense"}}, "/facts/ip"),
        ("reset", {**WHICH, "colour": 1}, "/colour"),
    ],
)
async def test_faults_have_pointers(
    client: httpx.AsyncClient, node: Limiter, operation: str, body: object, pointer: str
) -> None:
    """What is wrong with a body is told with a pointer to it."""
    del node
    answer = await client.post(f"/v1/counters/{operation}", json=body)
    assert answer.status_code == 422, answer.text
    assert pointer in answer.text


async def test_explain(client: httpx.AsyncClient, as_role: As, node: Limiter) -> None:
    """Why the client is refused: the rule, its counter, and when to come back; asking changes nothing."""
    del node
    for _ in range(2):
        answer = await client.post("/v1/explain", json={"facts": FACTS}, headers=as_role(Role.VIEWER))
        assert answer.status_code == 200, answer.text
        (place,) = answer.json()["nodes"]
        decision = place["explanation"]["decision"]
        assert (decision["allowed"], decision["rule"]) == (False, "login")
        assert place["explanation"]["rules"][0]["counters"][0]["used"] == 5


async def test_without_a_way_to_counters(client: httpx.AsyncClient) -> None:
    """409 says which options the service lacks."""
    answer = await client.post("/v1/counters/read", json=WHICH)
    assert answer.status_code == 409
    assert "--store" in answer.json()["detail"]
