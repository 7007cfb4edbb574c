"""``GET /v1/offenders`` on a service that keeps traffic in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.offenders import Names, load_secrets
from sluicegate.app.control.traffic import HomeTraffic
from sluicegate.bounds import TOP_ROWS_MAX
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.model import Role
from sluicegate.control.service import RulesService
from sluicegate.events import Batch, Dropped, RequestCount, RuleCount, SubjectCount, SubjectTotal

SECRET = b"a secret of tests, long enough"
HOSTILE = "r'; DROP TABLE offenders; --\x00\u202e"


def batch(node: str, at_us: int, *told: tuple[str, str, int, int], untold: int = 0) -> Batch:
    """A second of a node: clients that were refused, as (rule, subject, times, error)."""
    counts: dict[str, int] = {}
    for rule, _, times, _ in told:
        counts[rule] = counts.get(rule, 0) + times
    return Batch(
        v=1,
        id=f"{node}/{at_us}",
        node=node,
        at_us=at_us,
        until_us=at_us + US_PER_S,
        requests=[RequestCount("login", "denied", "", 1, 30, 30), RequestCount("", "allowed", "", 1, 70, 70)],
        rules=[RuleCount("login", "denied", "", 1, 30, 30), RuleCount("login", "allowed", "", 1, 70, 70)],
        subjects=[SubjectCount(rule, subject, "refused", times, error) for rule, subject, times, error in told],
        totals=[SubjectTotal(rule, "refused", total, untold) for rule, total in counts.items()],
        dropped=Dropped(decisions=2),
    )


@pytest.fixture
def home(tmp_path: Path, service: RulesService) -> Iterator[EmbeddedHome]:
    """Where the service asks. Its secret is ``SECRET``."""
    made = EmbeddedHome(tmp_path / "analytics.db")
    traffic = HomeTraffic(made, lambda: (SECRET,))
    service.traffic = traffic
    yield made
    service.traffic = None
    traffic.close()


@pytest.fixture
def filled(home: EmbeddedHome, clock: ManualClock) -> Callable[[str], str]:
    """Two nodes told of clients a minute ago; gives the digest of a subject."""
    name = Names([SECRET])
    at_us = clock.now_us() - 60 * US_PER_S
    one, two = name("user:1"), name("user:2")
    home.ingest(
        [
            batch("a", at_us, ("login", one, 20, 2), ("login", two, 10, 0), ("", one, 20, 2), untold=3),
            batch("b", at_us, ("login", one, 25, 0), (HOSTILE, two, 5, 0), untold=4),
        ]
    )
    return name


@pytest.fixture
def listed(home: EmbeddedHome, clock: ManualClock) -> None:
    """A node told of what lists decided, beside a rule."""
    at_us = clock.now_us() - 60 * US_PER_S
    told = [
        RequestCount("block:ip", "denied", "", 1, 7, 7),
        RequestCount("allow:ip", "allowed", "", 1, 2, 2),
        RequestCount("", "allowed", "", 1, 3, 3),
    ]
    rules = [RuleCount("login", "allowed", "", 1, 3, 3)]
    home.ingest([Batch(1, f"c/{at_us}", "c", at_us, at_us + US_PER_S, requests=told, rules=rules)])


async def ask(client: httpx.AsyncClient, **params: Any) -> dict[str, Any]:
    """What it answers."""
    answer = await client.get("/v1/offenders", params=params)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_merged_over_nodes(client: httpx.AsyncClient, filled: Callable[[str], str]) -> None:
    """Clients of several nodes are one row each, with what a node that does not tell of them may have seen."""
    told = await ask(client, rule="login")
    one, two = filled("user:1"), filled("user:2")
    assert [(row["subject"], row["times"], row["error"]) for row in told["rows"]] == [(one, 45, 2), (two, 14, 4)]
    assert (told["total"], told["error"], told["nodes"]) == (55, 7, ["a", "b"])
    assert (told["requests"], told["allowed"], told["refused"]) == (200, 140, 60)
    assert told["dropped"]["decisions"] == 4
    assert told["rules"] == [{"rule": "login", "allowed": 140, "refused": 60, "shadow_refused": 0, "undecided": 0}]


async def test_each_rule_one_rule_and_all(client: httpx.AsyncClient, filled: Callable[[str], str]) -> None:
    """Without a rule those of each rule are told, ``*`` counts over all; a rule of any name can be asked for."""
    assert {row["rule"] for row in (await ask(client))["rows"]} == {"login", HOSTILE}
    assert [(row["rule"], row["subject"]) for row in (await ask(client, rule="*"))["rows"]] == [("", filled("user:1"))]
    assert [row["times"] for row in (await ask(client, rule=HOSTILE))["rows"]] == [5]
    assert (await ask(client, rule="nothing"))["rows"] == []
    assert (await ask(client, kind="asked"))["rows"] == []


async def test_limit_says_that_there_are_more(client: httpx.AsyncClient, filled: Callable[[str], str]) -> None:
    """Rows are cut at the limit, and that is told."""
    told = await ask(client, rule="login", limit=1)
    assert ([row["subject"] for row in told["rows"]], told["more"]) == ([filled("user:1")], True)
    assert (await ask(client, rule="login", limit=TOP_ROWS_MAX))["more"] is False


async def test_lookup_of_a_candidate(client: httpx.AsyncClient, filled: Callable[[str], str]) -> None:
    """A candidate is hashed and its row shown; a digest is taken as it is; others have no row."""
    for subject in ("user:2", filled("user:2")):
        told = await ask(client, rule="login", subject=subject)
        assert [row["times"] for row in told["rows"]] == [14]
    assert (await ask(client, subject="user:3"))["rows"] == []


async def test_now_is_the_last_seconds(client: httpx.AsyncClient, home: EmbeddedHome, clock: ManualClock) -> None:
    """NOW/S is over the last ten seconds that nodes told of; a window of seconds is answered for just those."""
    at_us = clock.now_us() - 40 * US_PER_S
    home.ingest([batch(f"n{ago}", at_us + ago * US_PER_S, ("login", "user:1", 10 + ago, 0)) for ago in range(38)])
    told = await ask(client, rule="login", window="20s")
    assert [row["times"] for row in told["rows"]] == [sum(10 + ago for ago in range(20, 38))]
    assert [row["per_s"] for row in told["rows"]] == [sum(10 + ago for ago in range(28, 38)) / 10]
    assert told["until_us"] - told["since_us"] == 20 * US_PER_S
    clock.advance(60 * US_PER_S)
    told = await ask(client, rule="login", window="15m")
    assert [row["per_s"] for row in told["rows"]] == [0.0]


async def test_windows(client: httpx.AsyncClient, filled: Callable[[str], str], clock: ManualClock) -> None:
    """A window ends now or at a time; it is widened to whole seconds where there are such, and says to which."""
    assert (await ask(client, window="10s", rule="login"))["rows"] == []
    assert len((await ask(client, window="61s", rule="login"))["rows"]) == 2
    told = await ask(client, window="1h", until_us=clock.now_us() - 3_600 * US_PER_S + 1)
    assert told["rows"] == []
    assert told["until_us"] == (clock.now_us() // US_PER_S - 3_599) * US_PER_S
    assert told["until_us"] - told["since_us"] == 3_601 * US_PER_S
    assert told["newest_us"] > told["until_us"] - US_PER_S
    since = await ask(client, since_us=0, until_us=2 * 86_400 * US_PER_S)
    assert (since["since_us"], since["rows"]) == (0, [])
    assert filled("user:1")


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, "limit"),
    ({"limit": TOP_ROWS_MAX + 1}, "limit"),
    ({"limit": "many"}, "limit"),
    ({"kind": "loved"}, "kind"),
    ({"window": "soon"}, "window"),
    ({"window": "9999 days"}, "window"),
    ({"window": "1h", "since_us": 5}, "window"),
    ({"since_us": 9, "until_us": 5}, "until_us"),
    ({"until_us": -1}, "until_us"),
    ({"until_us": 2**53}, "until_us"),
    ({"rule": "r" * 257}, "rule"),
    ({"subject": "s" * 1025}, "subject"),
    ({"windw": "1h"}, "windw"),
]


async def test_faults_name_the_field(client: httpx.AsyncClient, home: EmbeddedHome) -> None:
    """What cannot be answered is 422 with a pointer to the parameter."""
    home.ingest([batch("a", 0)])
    for params, pointer in FAULTS:
        answer = await client.get("/v1/offenders", params=params)
        assert answer.status_code == 422, answer.text
        assert any(pointer in each["pointer"] for each in answer.json()["errors"]), answer.text


async def test_roles(
    client: httpx.AsyncClient, filled: Callable[[str], str], as_role: Callable[[Role], dict[str, str]]
) -> None:
    """A viewer may look, nodes may not, and nobody without a token."""
    assert filled("user:1")
    for role, status in ((Role.VIEWER, 200), (Role.EDITOR, 200), (Role.NODE, 403)):
        answer = await client.get("/v1/offenders", headers=as_role(role))
        assert answer.status_code == status, role
    assert (await client.get("/v1/offenders", headers={"Authorization": ""})).status_code == 401


async def test_nothing_kept_is_a_conflict(client: httpx.AsyncClient, home: EmbeddedHome, service: RulesService) -> None:
    """Where no traffic was ever kept, or the service keeps none, it is 409 and says so."""
    assert (await client.get("/v1/offenders")).status_code == 409
    assert not home.path.exists()
    service.traffic, kept = None, service.traffic
    try:
        assert (await client.get("/v1/offenders")).status_code == 409
    finally:
        service.traffic = kept


async def test_a_secrets_file_that_is_wrong_is_named(
    client: httpx.AsyncClient, service: RulesService, tmp_path: Path
) -> None:
    """A secret that cannot be read stops lookups with 409, which names the file and shows nothing of it; without one rows still come."""
    (tmp_path / "analytics.secret").write_text("short\n")
    home = EmbeddedHome(tmp_path / "analytics.db")
    home.ingest([batch("a", 0)])
    traffic = HomeTraffic(home, lambda: load_secrets(tmp_path, make=False))
    service.traffic = traffic
    try:
        answer = await client.get("/v1/offenders", params={"subject": "user:1"})
        assert (answer.status_code, "analytics.secret" in answer.text, "short" in answer.text) == (409, True, False)
        assert (await client.get("/v1/offenders")).status_code == 200
    finally:
        service.traffic = None
        traffic.close()


async def test_what_lists_decided_is_told_beside_the_rules(listed: None, client: httpx.AsyncClient) -> None:
    """Refusals by a block list have a row of their own, so that the refusals of the rows are all that there were."""
    found = await ask(client)
    rows = {row["rule"]: (row["allowed"], row["refused"]) for row in found["rules"]}
    assert rows == {"block:ip": (0, 7), "allow:ip": (2, 0), "login": (3, 0)}
    assert (found["requests"], found["refused"]) == (12, 7)
    assert [row["rule"] for row in (await ask(client, rule="login"))["rules"]] == ["login"]
    assert [row["rule"] for row in (await ask(client, rule="block:ip"))["rules"]] == ["block:ip"]
