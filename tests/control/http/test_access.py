from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from fastapi import FastAPI

from sluicegate.bounds import FAILED_LOGINS_PER_MINUTE, WRITES_PER_MINUTE
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.http.openapi import complete
from sluicegate.control.model import Role
from sluicegate.control.service import RulesService

Head = Callable[[Role], dict[str, str]]
OPEN = {"/livez", "/readyz", "/healthz", "/metrics"}


def operations(app: FastAPI) -> list[tuple[str, str]]:
    return [
        (method.upper(), path) for path, item in complete(app)["paths"].items() for method in item if path not in OPEN
    ]


def filled(path: str) -> str:
    for name, value in (
        ("{name}", "login"), ("{version}", "1"), ("{old}", "1"), ("{new}", "1"), ("{subject}", "user:1"),
        ("{list}", "block"), ("{kind}", "ip"), ("{value}", "10.0.0.1"), ("{source}", "waf"), ("{pause}", "1"),
        ("{rollout}", "1"), ("{token}", "1"), ("{node}", "n"), ("{line}", "1"),
    ):  # fmt: skip
        path = path.replace(name, value)
    assert "{" not in path
    return path


async def test_everything_needs_a_token(app: FastAPI, client: httpx.AsyncClient) -> None:
    """No operation but health answers without a valid token, and none says why it is not valid."""
    for method, path in operations(app):
        for headers in ({"Authorization": ""}, {"Authorization": "Basic eDp5"}, {"Authorization": "Bearer"}):
            answer = await client.request(method, filled(path), headers=headers)
            assert answer.status_code == 401, (method, path, headers)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["content-type"] == "application/problem+json"


async def test_health_needs_none(client: httpx.AsyncClient) -> None:
    """Health and the description of the interface are for everybody."""
    for path in (*OPEN, "/openapi.json"):
        assert (await client.get(path, headers={"Authorization": ""})).status_code == 200, path


READS_BY_POST = {"/v1/counters/read", "/v1/explain", "/v1/whatif"}


async def test_roles(app: FastAPI, client: httpx.AsyncClient, as_role: Head, with_login: httpx.Response) -> None:
    """A viewer reads and changes nothing; an editor makes no tokens; a node asks the feed only; nobody else asks the feed."""
    for method, path in operations(app):
        viewer = await client.request(
            method, filled(path) + query(path), headers=as_role(Role.VIEWER), **body(method, path)
        )
        reads = (
            (method == "GET" or path in READS_BY_POST)
            and not path.startswith("/v1/feed")
            and not path.startswith("/v1/tokens")
            and path != "/v1/audit/export"
        )
        assert (viewer.status_code == 403) == (not reads), (method, path, viewer.text)
        node = await client.request(
            method, filled(path) + query(path), headers=as_role(Role.NODE), **body(method, path)
        )
        assert (node.status_code != 403) == path.startswith("/v1/feed"), (method, path, node.text)
    for method, path in (
        ("GET", "/v1/tokens"),
        ("POST", "/v1/tokens"),
        ("DELETE", "/v1/tokens/1"),
        ("GET", "/v1/audit/export"),
        ("POST", "/v1/adopt"),
    ):
        editor = await client.request(method, path, headers=as_role(Role.EDITOR), **body(method, path))
        assert (editor.status_code, editor.json()["role"]) == (403, "admin"), (method, path)


def query(path: str) -> str:
    return "?source=waf" if path.endswith("/import") else ""


def body(method: str, path: str) -> dict[str, object]:
    """A body that is right, so that the role is what is wrong."""
    if method in ("GET", "DELETE"):
        return {}
    if path.endswith("/import"):
        return {"content": b"10.0.0.1\n"}
    known: dict[str, object] = {
        "/v1/rules": {"name": "x", "quota": "1/s"},
        "/v1/ruleset": {"version": 1, "rules": [{"name": "x", "quota": "1/s"}]},
        "/v1/tiers": {"default": "a", "names": ["a"]},
        "/v1/lists/{list}": {"kind": "ip", "value": "10.0.0.1"},
        "/v1/pauses": {"rule": None},
        "/v1/counters/read": {"facts": {"ip": "10.0.0.1"}},
        "/v1/counters/grant": {"facts": {"ip": "10.0.0.1"}, "tokens": 1},
        "/v1/counters/reset": {"facts": {"ip": "10.0.0.1"}},
        "/v1/counters/refund": {"decision_id": "none"},
        "/v1/explain": {"facts": {"ip": "10.0.0.1"}},
        "/v1/tokens": {"name": "x", "role": "viewer"},
        "/v1/rollouts/{rollout}/advance": {"basis_points": 1},
        "/v1/feed/report": {"node": "n", "started_us": 1, "release": "1", "applied": {}},
    }
    if method == "PATCH":
        return {"content": b"{}"}
    return {"json": known.get(path, {})}


async def test_refused_writes_are_audited(client: httpx.AsyncClient, as_role: Head, with_login: httpx.Response) -> None:
    """What a role does not allow has its line in the audit trail, with who it was."""
    await client.put("/v1/subjects/user:1", json={"factor": 2}, headers=as_role(Role.VIEWER))
    row = (await client.get("/v1/audit")).json()["rows"][0]
    assert (row["actor"], row["outcome"], row["resource"]) == ("the viewer", "refused", "subject:user:1")


async def test_wrong_tokens_are_limited_and_lock_nobody_out(
    client: httpx.AsyncClient, clock: ManualClock, service: RulesService, app: FastAPI
) -> None:
    """After ten wrong tokens in a minute an address gets 429 with when to come back, but a valid token passes from there."""
    wrong = {"Authorization": "Bearer sgt_guess"}
    for _ in range(FAILED_LOGINS_PER_MINUTE):
        assert (await client.get("/v1/rules", headers=wrong)).status_code == 401
    limited = await client.get("/v1/rules", headers=wrong)
    assert limited.status_code == 429
    assert limited.headers["x-ratelimit-limit"] == "10"
    wait_s = int(limited.headers["retry-after"])
    assert 1 <= wait_s <= 6
    assert (await client.get("/v1/rules")).status_code == 200
    transport = httpx.ASGITransport(app=app, client=("192.0.2.10", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://control") as other:
        assert (await other.get("/v1/rules", headers=wrong)).status_code == 401
    clock.advance(wait_s * US_PER_S)
    assert (await client.get("/v1/rules", headers=wrong)).status_code == 401


async def test_a_network_of_ipv6_is_one_client(app: FastAPI, texts: dict[Role, str]) -> None:
    """Wrong tokens are counted by the /64 of an IPv6 address, of which one client has all."""
    statuses = []
    for number in range(FAILED_LOGINS_PER_MINUTE + 1):
        transport = httpx.ASGITransport(app=app, client=(f"2001:db8::{number:x}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
            statuses.append((await client.get("/v1/rules", headers={"Authorization": "Bearer x"})).status_code)
    assert statuses == [*[401] * FAILED_LOGINS_PER_MINUTE, 429]


async def test_a_mapped_address_is_that_of_ipv4(app: FastAPI, texts: dict[Role, str]) -> None:
    """IPv4 addresses are counted each for itself, also where a socket for both families writes them as IPv6."""
    statuses = []
    for number in range(FAILED_LOGINS_PER_MINUTE + 1):
        transport = httpx.ASGITransport(app=app, client=(f"::ffff:192.0.2.{number}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://control") as client:
            statuses.append((await client.get("/v1/rules", headers={"Authorization": "Bearer x"})).status_code)
    assert statuses == [401] * (FAILED_LOGINS_PER_MINUTE + 1)


async def test_wrong_tokens_are_noted_together(
    client: httpx.AsyncClient, clock: ManualClock, service: RulesService
) -> None:
    """A flood of wrong tokens is a few lines in the audit trail, with addresses and without tokens."""
    for number in range(30):
        await client.get("/v1/rules", headers={"Authorization": f"Bearer secret-guess-{number}"})
    clock.advance(61 * US_PER_S)
    await service.tokens.sweep()
    rows = (await client.get("/v1/audit?action=login")).json()["rows"]
    assert sum(row["diff"]["attempts"] for row in rows) == 30
    assert len(rows) == 2
    assert "secret-guess" not in str(rows)


async def test_writes_of_a_token_are_limited(client: httpx.AsyncClient, clock: ManualClock, as_role: Head) -> None:
    """A token that changes too much gets 429; it still reads, and others still write."""
    clock.advance(60 * US_PER_S)
    entry = {"kind": "ip", "value": "10.0.0.1"}
    for _ in range(WRITES_PER_MINUTE):
        assert (await client.post("/v1/lists/block?validate_only=true", json=entry)).status_code == 200
    limited = await client.post("/v1/lists/block?validate_only=true", json=entry)
    assert (limited.status_code, limited.json()["type"].rpartition("#")[2]) == (429, "quota-exceeded")
    assert (await client.get("/v1/lists")).status_code == 200
    other = await client.post("/v1/lists/block?validate_only=true", json=entry, headers=as_role(Role.EDITOR))
    assert other.status_code == 200


async def test_a_token_that_ends(client: httpx.AsyncClient, clock: ManualClock) -> None:
    """A token is good until its time is over, or it is revoked."""
    texts = []
    for name in ("short", "long"):
        made = await client.post(
            "/v1/tokens", json={"name": name, "role": "viewer", "expires_s": 60 if name == "short" else 600}
        )
        assert made.status_code == 201
        texts.append(made.json())
    heads = [{"Authorization": f"Bearer {each['text']}"} for each in texts]
    assert [(await client.get("/v1/rules", headers=head)).status_code for head in heads] == [200, 200]
    clock.advance(61 * US_PER_S)
    assert [(await client.get("/v1/rules", headers=head)).status_code for head in heads] == [401, 200]
    assert (await client.delete(f"/v1/tokens/{texts[1]['token']['id']}")).status_code == 200
    assert (await client.get("/v1/rules", headers=heads[1])).status_code == 401


async def test_namespaces(client: httpx.AsyncClient) -> None:
    """A token of another namespace reads and writes nothing here."""
    made = (await client.post("/v1/tokens", json={"name": "x", "role": "admin", "namespaces": ["other"]})).json()
    head = {"Authorization": f"Bearer {made['text']}"}
    assert (await client.get("/v1/rules", headers=head)).status_code == 403
    assert (await client.put("/v1/subjects/user:1", json={"factor": 2}, headers=head)).status_code == 403


async def test_the_last_admin_stays(client: httpx.AsyncClient) -> None:
    """The last token of an admin cannot be revoked."""
    number = next(each["id"] for each in (await client.get("/v1/tokens")).json()["tokens"] if each["role"] == "admin")
    assert (await client.delete(f"/v1/tokens/{number}")).status_code == 409


async def test_the_token_of_nodes_in_memory(client: httpx.AsyncClient) -> None:
    """The token that nodes were started with asks the feed, and nothing else."""
    head = {"Authorization": "Bearer a-token-of-nodes-in-memory"}
    assert (await client.get("/v1/feed/snapshot", headers=head)).status_code == 200
    assert (await client.get("/v1/rules", headers=head)).status_code == 403


@pytest.mark.parametrize("path", ["/v1/rules?quux=1", "/v1/rules?page_sizes=1", "/v1/rules?page_size=1&page_size=2"])
async def test_query_parameters_that_are_unknown(client: httpx.AsyncClient, path: str) -> None:
    """A query parameter that does nothing, or is there twice, is refused and not ignored."""
    answer = await client.get(path)
    assert answer.status_code == 422
    if "page_sizes" in path:
        assert "did you mean 'page_size'?" in answer.json()["detail"]
