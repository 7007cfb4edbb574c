from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from sluicegate.bounds import IMPORT_BYTES_MAX
from sluicegate.clock import US_PER_S, ManualClock

TEXT = {"Content-Type": "text/plain"}


async def test_an_entry(client: httpx.AsyncClient, clock: ManualClock) -> None:
    """An entry is made once, read by any spelling, changed and removed from the state that was seen, and ends by its time."""
    made = await client.post(
        "/v1/lists/block", json={"kind": "ip", "value": "10.1.0.0/16", "expires_s": 60, "reason": "bots"}
    )
    assert (made.status_code, made.headers["etag"]) == (201, '"r1"')
    place = made.headers["location"]
    assert place == "/v1/lists/block/entries/ip/10.1.0.0%2F16"
    assert (await client.post("/v1/lists/block", json={"kind": "ip", "value": "10.1.0.0/16"})).status_code == 409
    assert (await client.get(place)).json()["expires_us"] == clock.now_us() + 60 * US_PER_S
    assert (await client.get("/v1/lists/block/entries/ip/10.1.0.0/16")).status_code == 200
    assert (await client.put(place, json={})).status_code == 428
    assert (await client.put(place, json={"source": "waf"}, headers={"If-Match": '"r1"'})).headers["etag"] == '"r2"'
    assert (await client.delete(place)).status_code == 428
    assert (await client.delete(place, headers={"If-Match": '"r1"'})).status_code == 412
    assert (await client.delete(place + "?validate_only=true", headers={"If-Match": '"r2"'})).status_code == 204
    assert (await client.delete(place, headers={"If-Match": '"r2"'})).status_code == 204
    assert (await client.delete(place)).status_code == 404
    assert (await client.put(place, json={"expires_s": 1})).status_code == 200
    clock.advance(US_PER_S)
    assert (await client.get(place)).status_code == 404


@pytest.mark.parametrize(
    ("sent", "pointer"),
    [
        ({"kind": "ip", "value": "300.1.1.1"}, "#/value"),
        ({"kind": "cidr", "value": "10.0.0.0/8"}, "#/kind"),
        ({"kind": "ip", "valeu": "10.0.0.1"}, "#/valeu"),
        ({"kind": "user", "value": "x", "expires_us": 1}, "#/expires_us"),
        ({"kind": "user", "value": "x", "expires_us": 2**62, "expires_s": 1}, "#/expires_s"),
        ({"kind": "user", "value": "x", "expires_s": -1}, "#/expires_s"),
        ({"kind": "user", "value": "x", "expires_s": 1e300}, "#/expires_s"),
        ({"kind": "user", "value": ""}, "#/value"),
        ({"kind": "user", "value": "x", "source": "\n\x00"}, "#/source"),
    ],
)
async def test_entries_that_are_none(client: httpx.AsyncClient, sent: dict[str, object], pointer: str) -> None:
    """What is wrong with an entry is told by its field, and nothing is kept."""
    answer = await client.post("/v1/lists/block", json=sent)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, pointer)
    assert (await client.get("/v1/lists")).json()["block"]["entries"] == 0


async def test_an_address_within_a_network(client: httpx.AsyncClient) -> None:
    """The 404 of an address without an entry of its own names the networks of the list that cover it."""
    assert (await client.post("/v1/lists/block", json={"kind": "ip", "value": "203.0.113.0/24"})).status_code == 201
    answer = await client.get("/v1/lists/block/entries/ip/203.0.113.9")
    assert (answer.status_code, answer.json()["covered_by"]) == (404, ["203.0.113.0/24"])
    assert "covered_by" not in (await client.get("/v1/lists/block/entries/ip/198.51.100.9")).json()


async def test_an_import(client: httpx.AsyncClient) -> None:
    """A feed is taken as text or NDJSON, in pieces of any size; it replaces what it brought before, and nothing else."""
    await client.post("/v1/lists/block", json={"kind": "ip", "value": "10.0.0.1", "reason": "by hand"})

    async def pieces(text: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(text), 3):
            yield text[start : start + 3]

    feed = b"# a feed\n10.0.0.1\n10.0.0.2 ; bot\n\n2001:db8::/32\r\n"
    first = await client.post("/v1/lists/block/import?source=waf", content=pieces(feed), headers=TEXT)
    assert (first.status_code, first.json()["lines"], first.json()["added"]) == (200, 3, 2), first.text
    lines = b'{"value": "u1", "kind": "user"}\n{"value": "10.0.0.3"}\n'
    second = await client.post(
        "/v1/lists/block/import?source=waf&replace=true&expires_s=60",
        content=lines,
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert (second.json()["added"], second.json()["removed"]) == (2, 2)
    assert (await client.get("/v1/lists")).json()["block"] == {"entries": 3, "sources": {"": 1, "waf": 2}}
    gone = await client.delete("/v1/lists/block/sources/waf")
    assert gone.json() == {"removed": 2}
    assert [each["value"] for each in (await client.get("/v1/lists/block")).json()["entries"]] == ["10.0.0.1"]


async def test_an_import_with_a_bad_line(client: httpx.AsyncClient) -> None:
    """One bad line, and nothing of the feed is taken; the line is told by its number."""
    answer = await client.post("/v1/lists/block/import?source=waf", content=b"10.0.0.1\n10.0.0.1/8\n", headers=TEXT)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#/2")
    assert (await client.get("/v1/lists")).json()["block"]["entries"] == 0


async def test_imports_that_are_none(client: httpx.AsyncClient) -> None:
    """A feed needs a name, a known type and something in it, may only be tried, and has a bound."""
    assert (await client.post("/v1/lists/block/import", content=b"10.0.0.1", headers=TEXT)).status_code == 422
    assert (await client.post("/v1/lists/block/import?source=waf", json=[])).status_code == 415
    await client.post("/v1/lists/allow/import?source=waf", content=b"10.0.0.1", headers=TEXT)
    empty = await client.post("/v1/lists/allow/import?source=waf&replace=true", content=b"", headers=TEXT)
    assert (empty.status_code, (await client.get("/v1/lists")).json()["allow"]["entries"]) == (422, 1)
    assert (await client.post("/v1/lists/grey/import?source=waf", content=b"", headers=TEXT)).status_code == 422
    large = {**TEXT, "Content-Length": str(IMPORT_BYTES_MAX + 1)}
    assert (await client.post("/v1/lists/block/import?source=waf", content=b"1", headers=large)).status_code == 413
    tried = await client.post("/v1/lists/block/import?source=waf&validate_only=true", content=b"10.0.0.1", headers=TEXT)
    assert tried.json()["added"] == 1
    assert (await client.get("/v1/lists")).json()["block"]["entries"] == 0


async def test_pages_of_entries(client: httpx.AsyncClient) -> None:
    """Pages of entries follow one another by key, whatever comes and goes in between, filtered by kind and source."""
    text = "\n".join(f"10.0.0.{number}" for number in range(10)).encode()
    await client.post("/v1/lists/allow/import?source=a", content=text, headers=TEXT)
    await client.post("/v1/lists/allow", json={"kind": "user", "value": "u"})
    seen, token = [], ""
    while True:
        page = (
            await client.get(
                "/v1/lists/allow", params={"page_size": 4, "kind": "ip", "source": "a", "page_token": token}
            )
        ).json()
        seen += [each["value"] for each in page["entries"]]
        token = page["next_page_token"]
        if not token:
            break
        await client.delete(f"/v1/lists/allow/entries/ip/{seen[-1]}", headers={"If-Match": "*"})
    assert seen == [f"10.0.0.{number}" for number in range(10)]


async def test_a_subject(client: httpx.AsyncClient, with_login: httpx.Response, clock: ManualClock) -> None:
    """A subject is made freely, changed and removed from the state that was seen only; its name may hold slashes."""
    place = "/v1/subjects/user:a/b"
    made = await client.put(
        place, json={"factor": "10x", "until_us": clock.now_us() + 1, "rules": ["login"], "reason": "vip"}
    )
    assert (made.status_code, made.headers["etag"]) == (200, '"r1"')
    assert (await client.get(place)).json()["factor_numerator"] == 10
    assert (await client.get(place, headers={"If-None-Match": '"r1"'})).status_code == 304
    assert (await client.put(place, json={"factor": 2})).status_code == 428
    assert (await client.put(place, json={"factor": 2}, headers={"If-None-Match": "*"})).status_code == 412
    assert (await client.put(place, json={"factor": 2}, headers={"If-Match": '"r1"'})).headers["etag"] == '"r2"'
    assert (await client.get("/v1/subjects?prefix=user:")).json()["subjects"][0]["subject"] == "user:a/b"
    assert (await client.delete(place)).status_code == 428
    assert (await client.delete(place, headers={"If-Match": "*"})).status_code == 204
    assert (await client.delete(place)).status_code == 404
    unknown = await client.put(place, json={"factor": 2, "rules": ["logn"]})
    assert "did you mean 'login'?" in unknown.json()["errors"][0]["detail"]


async def test_pauses(client: httpx.AsyncClient, with_login: httpx.Response, clock: ManualClock) -> None:
    """A pause of a rule holds for a time, or until it is resumed; one of nothing is refused."""
    made = await client.post("/v1/pauses", json={"rule": "login", "for_s": 900, "reason": "incident"})
    assert made.status_code == 201
    assert made.json()["until_us"] == clock.now_us() + 900 * US_PER_S
    assert (await client.get(made.headers["location"])).json()["reason"] == "incident"
    assert (await client.post("/v1/pauses", json={"rule": "nope"})).status_code == 404
    assert (await client.post("/v1/pauses", json={"ruel": "login"})).status_code == 422
    assert (await client.delete(made.headers["location"])).json()["ended_us"] == clock.now_us()
    assert (await client.delete(made.headers["location"])).status_code == 409
    assert (await client.get("/v1/pauses")).json()["pauses"] == []
    assert len((await client.get("/v1/pauses?ended=true")).json()["pauses"]) == 1


async def test_rollouts(client: httpx.AsyncClient, with_login: httpx.Response) -> None:
    """A rollout is made, moved, reported and promoted; while it runs other changes of the rules are refused."""
    candidate = {"version": 1, "rules": [{"name": "login", "per": ["ip"], "quota": "9/minute"}]}
    wanted = {"kind": "canary", "document": candidate, "basis_points": 100, "reason": "more"}
    made = await client.post("/v1/rollouts", json=wanted)
    assert (made.status_code, made.json()["reason"]) == (201, "more"), made.text
    place = made.headers["location"]
    assert (await client.post("/v1/rollouts", json=wanted)).status_code == 409
    assert (await client.get(f"{place}/candidate")).json()["rules"][0]["quota"] == "9/minute"
    assert (await client.post(f"{place}/advance", json={"basis_points": 5_000})).json()["basis_points"] == 5_000
    assert (await client.post(f"{place}/advance", json={"basis_points": 10_001})).status_code == 422
    assert (await client.get(f"{place}/report")).json()["rules"][0]["rule"] == "login"
    assert (await client.post("/v1/rules", json={"name": "b", "quota": "1/s"})).status_code == 409
    promoted = await client.post(f"{place}/promote")
    assert (promoted.status_code, promoted.headers["etag"]) == (200, '"r2"')
    assert (await client.post(f"{place}/abort")).status_code == 409
    bad = {**wanted, "document": {"version": 1, "rules": [{"name": "login", "quotta": "1/s"}]}}
    faults = (await client.post("/v1/rollouts", json=bad)).json()["errors"]
    assert "#/document/rules/0/quotta" in [each["pointer"] for each in faults]


async def test_the_audit_trail_is_exported(client: httpx.AsyncClient, with_login: httpx.Response) -> None:
    """The audit trail is exported line by line, the export itself last, and is whole."""
    answer = await client.get("/v1/audit/export")
    assert answer.headers["content-type"] == "application/x-ndjson"
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["id"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["action"] == "audit.export"
    after = await client.get(f"/v1/audit/export?after={len(rows)}")
    assert len(after.text.splitlines()) == 1
    verdict = (await client.get("/v1/audit/verify", params={"head": f"{rows[-1]['id']}:{rows[-1]['hash']}"})).json()
    assert (verdict["faults"], verdict["rows"]) == ([], len(rows) + 1)
    assert (await client.get("/v1/audit/verify?head=nonsense")).status_code == 422


async def test_adopting(client: httpx.AsyncClient) -> None:
    """A database that was set back begins a new life, unless it was only tried."""
    before = (await client.post("/v1/adopt?validate_only=true")).json()["incarnation"]
    after = (await client.post("/v1/adopt", json={"reason": "restored"})).json()["incarnation"]
    again = (await client.post("/v1/adopt?validate_only=true")).json()["incarnation"]
    assert before != after == again


async def test_force_for_wide_networks(client: httpx.AsyncClient) -> None:
    """A network wider than /8 needs `force` on every way onto a list."""
    wide = {"kind": "ip", "value": "0.0.0.0/1"}
    refused = await client.post("/v1/lists/block", json=wide)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "#/value")
    assert (await client.post("/v1/lists/block?force=true", json=wide)).status_code == 201
    place = "/v1/lists/allow/entries/ip/0.0.0.0%2F1"
    assert (await client.put(place, json={})).status_code == 422
    assert (await client.put(place + "?force=true", json={})).status_code == 200
    path = "/v1/lists/block/import?source=waf"
    answer = await client.post(path, content=b"128.0.0.0/1", headers=TEXT)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#/1")
    assert (await client.post(path + "&force=true", content=b"128.0.0.0/1", headers=TEXT)).status_code == 200


async def test_a_replacement_of_comments_only(client: httpx.AsyncClient) -> None:
    """A feed of comments is refused as an empty one where it would remove everything."""
    path = "/v1/lists/block/import?source=waf"
    assert (await client.post(path, content=b"192.0.2.1", headers=TEXT)).status_code == 200
    assert (await client.post(path + "&replace=true", content=b"# gone\n", headers=TEXT)).status_code == 422
    assert (await client.get("/v1/lists")).json()["block"]["entries"] == 1
