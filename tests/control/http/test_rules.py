from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from sluicegate.control.model import Actor, Role
from sluicegate.control.service import RulesService

MERGE = {"Content-Type": "application/merge-patch+json"}


async def test_create_a_rule(client: httpx.AsyncClient, login: dict[str, Any]) -> None:
    """A new rule answers 201 with its entity tag and where it is; it is read back as it was sent."""
    made = await client.post("/v1/rules", json=login)
    assert (made.status_code, made.headers["etag"], made.headers["location"]) == (201, '"r1"', "/v1/rules/login")
    assert made.json()["changes"][0]["kind"] == "added"
    read = await client.get("/v1/rules/login")
    assert (read.status_code, read.headers["etag"], read.json()) == (200, '"r1"', login)


async def test_create_only(client: httpx.AsyncClient, with_login: httpx.Response, login: dict[str, Any]) -> None:
    """A rule that exists is not made again: 409 by POST, 412 by PUT with If-None-Match."""
    assert (await client.post("/v1/rules", json=login)).status_code == 409
    put = await client.put("/v1/rules/login", json=login, headers={"If-None-Match": "*"})
    assert (put.status_code, put.headers["etag"]) == (412, '"r1"')
    new = await client.put("/v1/rules/api", json={"quota": "9/s"}, headers={"If-None-Match": "*"})
    assert (new.status_code, new.headers["location"]) == (201, "/v1/rules/api")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_a_change_names_what_it_was_made_from(
    client: httpx.AsyncClient, with_login: httpx.Response, method: str
) -> None:
    """Without If-Match 428, with an older or a foreign tag 412, both with the tag of now; with that of now it is done."""
    await client.post("/v1/rules", json={"name": "other", "quota": "1/s"})
    kind = {"Content-Type": "application/json"} if method == "PUT" else MERGE if method == "PATCH" else {}
    body = None if method == "DELETE" else b'{"quota": "6/minute"}'

    async def change(**headers: str) -> httpx.Response:
        return await client.request(method, "/v1/rules/login", content=body, headers={**kind, **headers})

    missing = await change()
    assert (missing.status_code, missing.headers["etag"], missing.json()["etag"]) == (428, '"r1"', '"r1"')
    for tag in ('"r7"', '"somebody-elses"', 'W/"r1"', "r1", '"r01"'):
        stale = await change(**{"If-Match": tag})
        assert (stale.status_code, stale.headers["etag"]) == (412, '"r1"'), tag
    assert (await change(**{"If-Match": '"r1"'})).status_code == 200


async def test_a_change_of_nothing(client: httpx.AsyncClient, with_login: httpx.Response) -> None:
    """Of a rule that does not exist nothing is changed: 404, and 412 where a tag was sent."""
    for headers, status in (({}, 404), ({"If-Match": "*"}, 404), ({"If-Match": '"r1"'}, 412)):
        answer = await client.put("/v1/rules/nope", json={"quota": "1/s"}, headers=headers)
        assert answer.status_code == status, headers


async def test_two_writers_with_one_tag(
    client: httpx.AsyncClient, with_login: httpx.Response, service: RulesService
) -> None:
    """Of many who change a rule from the same state at once exactly one is let through."""
    answers = await asyncio.gather(
        *(
            client.patch(
                "/v1/rules/login",
                content=f'{{"quota": "{number}/hour"}}',
                headers={**MERGE, "If-Match": '"r1"'},
            )
            for number in range(10, 20)
        )
    )
    assert sorted(each.status_code for each in answers) == [200, *[412] * 9]
    won = next(each for each in answers if each.status_code == 200)
    assert won.headers["etag"] == (await client.get("/v1/rules/login")).headers["etag"] == '"r2"'


async def test_merge_patch(client: httpx.AsyncClient, with_login: httpx.Response) -> None:
    """A merge patch merges objects, takes out what is null, and leaves the rest (RFC 7396)."""
    patch = b'{"match": {"methods": null, "host": "a.example"}, "quota": {"capacity": 9, "refill_per_sec": 1}}'
    answer = await client.patch("/v1/rules/login", content=patch, headers={**MERGE, "If-Match": '"r1"'})
    assert answer.status_code == 200, answer.text
    assert (await client.get("/v1/rules/login")).json() == {
        "name": "login",
        "match": {"path": "/login", "host": "a.example"},
        "per": ["ip"],
        "quota": {"capacity": 9, "refill_per_sec": 1},
    }


async def test_the_type_of_a_patch(client: httpx.AsyncClient, with_login: httpx.Response) -> None:
    """Another type than that of merge patches answers 415 and says which it should be."""
    answer = await client.patch("/v1/rules/login", json={"quota": "1/s"}, headers={"If-Match": '"r1"'})
    assert (answer.status_code, answer.headers["accept-patch"]) == (415, "application/merge-patch+json")


async def test_faults_have_pointers(client: httpx.AsyncClient) -> None:
    """Every fault of a rule is told with a pointer into what was sent, and what may have been meant."""
    sent = {"name": "x", "quotta": "5/minute", "match": {"path": ["/a", 7, "nope"]}, "algorithm": "token_buckets"}
    answer = await client.post("/v1/rules", json=sent)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    faults = {each["pointer"]: each["detail"] for each in answer.json()["errors"]}
    assert "did you mean 'quota'?" in faults["#/quotta"]
    assert "did you mean 'token_bucket'?" in faults["#/algorithm"]
    assert any(pointer.startswith("#/match/path") for pointer in faults)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"{", 400),
        (b'{"name": "a", "name": "b", "quota": "1/s"}', 400),
        (b'{"name": "a", "quota": NaN}', 400),
        (b"\xff", 400),
        (b"", 400),
        (b"[" * 2_000 + b"]" * 2_000, 400),
        (b'{"name":' + b"[" * 60 + b"]" * 60 + b"}", 422),
        (b"[]", 422),
        (b"null", 422),
        (b'"x"', 422),
        (b'{"name": "\\ud800", "quota": "1/s"}', 400),
        (b'{"name": "a", "quota": 1e9999999999999999999999}', 400),
        (b'{"name": "a", "quota": 1' + b"0" * 5_000 + b"}", 400),
        (b'{"name": "a", "quota": "1/s", "reason": 7}', 422),
        (b" " * 5_000_000, 413),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, bytes) else None,
)
async def test_bodies_that_are_none(client: httpx.AsyncClient, content: bytes, status: int) -> None:
    """Whatever is sent as a rule gets a problem document, and nothing changes."""
    answer = await client.post("/v1/rules", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert (await client.get("/v1/versions")).json()["versions"] == []


async def test_validate_only(
    client: httpx.AsyncClient, with_login: httpx.Response, login: dict[str, Any], service: RulesService
) -> None:
    """What is only tried says what would happen, leaves no version and no line in the audit trail, and has no tag."""
    rows = (await client.get("/v1/audit")).json()["rows"]
    tried = await client.post("/v1/rules?validate_only=true", json={"name": "api", "quota": "1/s"})
    assert (tried.status_code, tried.json()["validated_only"], tried.json()["version"]) == (200, True, 2)
    assert [each["rule"] for each in tried.json()["changes"]] == ["api"]
    assert "etag" not in tried.headers
    gone = await client.delete("/v1/rules/login?validate_only=true", headers={"If-Match": '"r1"'})
    assert gone.status_code == 422
    assert (await client.get("/v1/rules/login")).status_code == 200
    assert (await client.get("/v1/audit")).json()["rows"] == rows
    assert (await service.revisions()).ruleset == 1


async def test_the_whole_set(client: httpx.AsyncClient, with_login: httpx.Response, login: dict[str, Any]) -> None:
    """The whole set is replaced at once from the version it was read at, or not at all."""
    read = await client.get("/v1/ruleset")
    assert (read.headers["etag"], read.json()) == ('"r1"', {"version": 1, "rules": [login]})
    bad = {"version": 1, "rules": [{"name": "a", "quota": "1/s"}, {"name": "b", "quota": "1/fortnight"}]}
    refused = await client.put("/v1/ruleset", json=bad, headers={"If-Match": '"r1"'})
    assert [each["pointer"] for each in refused.json()["errors"]] == ["#/rules/1/quota"]
    good = {"version": 1, "rules": [{"name": "a", "quota": "1/s"}, {"name": "b", "quota": "1/minute"}]}
    done = await client.put("/v1/ruleset", json={**good, "reason": "new"}, headers={"If-Match": '"r1"'})
    assert (done.status_code, done.headers["etag"]) == (200, '"r2"')
    assert (await client.get("/v1/versions/2")).json()["info"]["reason"] == "new"
    again = await client.put("/v1/ruleset", json=good, headers={"If-Match": '"r2"'})
    assert (again.json()["changed"], again.headers["etag"]) == (False, '"r2"')


async def test_a_reader_that_has_it(client: httpx.AsyncClient, with_login: httpx.Response) -> None:
    """Who has the state already gets 304 with its tag and no body."""
    for path in ("/v1/ruleset", "/v1/rules/login"):
        for tag in ('"r1"', 'W/"r1"', '"x", "r1"', "*"):
            answer = await client.get(path, headers={"If-None-Match": tag})
            assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", '"r1"'), (path, tag)
        assert (await client.get(path, headers={"If-None-Match": '"r2"'})).status_code == 200


async def test_managed_by(client: httpx.AsyncClient, login: dict[str, Any]) -> None:
    """Who manages the rules keeps others from changing them, unless they insist."""
    document = {"version": 1, "rules": [login]}
    put = await client.put("/v1/ruleset?managed_by=pipeline", json=document)
    assert put.status_code == 200, put.text
    refused = await client.put("/v1/rules/login", json={"quota": "1/s"}, headers={"If-Match": '"r1"'})
    assert (refused.status_code, refused.json()["managed_by"]) == (409, "pipeline")
    forced = await client.put("/v1/rules/login?force=true", json={"quota": "1/s"}, headers={"If-Match": '"r1"'})
    assert forced.status_code == 200


async def test_rules_of_a_file(client: httpx.AsyncClient, service: RulesService) -> None:
    """Rules that a file owns are refused 409 with its name; everything else goes on."""
    await service.take_file(b"version: 1\nrules: [{name: a, quota: 1/s}]\n", "rules.yaml")
    service.own_by_file("/etc/rules.yaml")
    answer = await client.post("/v1/rules", json={"name": "b", "quota": "1/s"})
    assert (answer.status_code, answer.json()["file"]) == (409, "/etc/rules.yaml")
    assert (await client.post("/v1/pauses", json={"rule": "a"})).status_code == 201


@pytest.mark.parametrize(
    ("path", "first", "second"),
    [
        ("/v1/tiers", {"default": "free", "names": ["free"]}, {"default": "free", "names": ["free", "paid"]}),
        ("/v1/identity", {"trusted_peers": ["10.0.0.0/8"]}, {"trusted_peers": ["10.0.0.0/9"]}),
    ],
)
async def test_tiers_and_identity(
    client: httpx.AsyncClient, with_login: httpx.Response, path: str, first: object, second: object
) -> None:
    """Tiers and identity settings have tags of their own: made, changed from what was seen, taken out."""
    assert (await client.get(path)).status_code == 404
    made = await client.put(path, json=first, headers={"If-None-Match": "*"})
    assert (made.status_code, made.headers["etag"]) == (200, '"r2"')
    assert (await client.put(path, json=second)).status_code == 428
    assert (await client.put(path, json=second, headers={"If-Match": '"r1"'})).status_code == 412
    assert (await client.put(path, json=second, headers={"If-Match": '"r2"'})).headers["etag"] == '"r3"'
    assert (await client.get(path)).json() == second
    assert (await client.get("/v1/rules/login")).headers["etag"] == '"r1"'
    assert (await client.delete(path, headers={"If-Match": '"r3"'})).status_code == 200
    assert (await client.get(path)).status_code == 404


async def test_pages_are_of_one_version(client: httpx.AsyncClient) -> None:
    """Pages of rules follow one another in the version of the first, whatever is changed in between."""
    names = [f"rule-{number}" for number in range(7)]
    document = {"version": 1, "rules": [{"name": name, "quota": "1/s"} for name in names]}
    await client.put("/v1/ruleset", json=document)
    seen, token = [], ""
    while True:
        page = (await client.get("/v1/rules", params={"page_size": 3, "page_token": token})).json()
        seen += [rule["name"] for rule in page["rules"]]
        assert page["version"] == 1
        token = page["next_page_token"]
        if not token:
            break
        deleted = await client.delete(f"/v1/rules/{seen[-1]}", headers={"If-Match": "*"})
        assert deleted.status_code == 200
    assert seen == names


@pytest.mark.parametrize("token", ["nonsense", "WzEsMiwzXQ", "%00", "€", "W10", "bnVsbA"])
async def test_page_sizes_and_tokens(client: httpx.AsyncClient, with_login: httpx.Response, token: str) -> None:
    """A page size above the most is the most; a token that was not given out is 422, by its name."""
    for path in ("/v1/rules", "/v1/versions", "/v1/audit", "/v1/tokens", "/v1/nodes", "/v1/subjects", "/v1/pauses"):
        assert (await client.get(path, params={"page_size": 999_999})).status_code == 200, path
        answer = await client.get(path, params={"page_token": token})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "#/page_token"), path


async def test_versions(client: httpx.AsyncClient, with_login: httpx.Response) -> None:
    """Versions are listed, shown, compared and gone back to; going back makes a new one from the version that was seen."""
    await client.put("/v1/rules/login", json={"quota": "9/minute"}, headers={"If-Match": '"r1"', "X-Reason": "more"})
    listed = (await client.get("/v1/versions")).json()["versions"]
    assert [(each["version"], each["reason"]) for each in listed] == [(2, "more"), (1, "")]
    difference = (await client.get("/v1/versions/1/diff/2")).json()
    assert [each["rule"] for each in difference["changes"]] == ["login"]
    assert (await client.post("/v1/versions/1/rollback")).status_code == 428
    assert (await client.post("/v1/versions/9/rollback", headers={"If-Match": '"r2"'})).status_code == 404
    back = await client.post("/v1/versions/1/rollback", headers={"If-Match": '"r2"'}, json={"reason": "worse"})
    assert (back.status_code, back.headers["etag"]) == (200, '"r3"')
    assert (await client.get("/v1/versions/3")).json()["info"]["reason"] == "worse"
    assert (await client.get("/v1/rules/login")).json()["quota"] == "5/minute"


async def test_reasons_and_ids_are_kept(
    client: httpx.AsyncClient, with_login: httpx.Response, actors: dict[Role, Actor]
) -> None:
    """Reason and request id of a change stand in the audit trail with who made it, and from where."""
    headers = {"If-Match": '"r1"', "X-Reason": "höher".encode(), "X-Request-Id": "ticket-7"}
    answer = await client.put("/v1/rules/login", json={"quota": "9/minute"}, headers=headers)
    assert answer.headers["x-request-id"] == "ticket-7"
    row = (await client.get("/v1/audit")).json()["rows"][0]
    told = {name: row[name] for name in ("actor", "source_ip", "request_id", "reason", "action", "resource", "outcome")}
    assert told == {
        "actor": "the admin",
        "source_ip": "192.0.2.9",
        "request_id": "ticket-7",
        "reason": "höher",
        "action": "rule.put",
        "resource": "rule:login",
        "outcome": "accepted",
    }
    made = await client.get("/v1/rules", headers={"X-Request-Id": "no spaces allowed"})
    assert len(made.headers["x-request-id"]) == 16
