"""What the rules service proposes, from the home beside its database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.control.traffic import traffic_kept
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.http.app import build_app
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.model import Actor, Role
from sluicegate.control.service import RulesService
from sluicegate.events import SCHEMA_VERSION, Batch, Demand, RuleCount, batch_id, encode

ADMIN = Actor("ann", "token:2", "192.0.2.8", "req-2", Role.ADMIN)
BASE_US = 1_700_000_040_000_000
DAY_US = 86_400 * US_PER_S
RULES = {
    "version": 1,
    "rules": [
        {
            "name": "api",
            "match": {"path": "/api/**"},
            "per": ["user"],
            "quota": "40/minute",
            "algorithm": "fixed_window",
        },
        {"name": "all", "scope": "global", "quota": "500/second"},
    ],
}


def told() -> list[bytes]:
    """Two days of 300 clients, of which 30 ask 60 a minute and are held at 40."""
    rows = [
        Demand("api", "", f"c{number:03}", BASE_US + day * DAY_US, 60, asked, asked, max(0, asked - 40), 2, 10)
        for number in range(300)
        for day in range(3)
        for asked in (60 if number < 30 else 5,)
    ]
    counts = [RuleCount("api", "allowed", "", 1, 5_000, 5_000), RuleCount("api", "denied", "", 1, 1_800, 1_800)]
    batch = Batch(SCHEMA_VERSION, batch_id("n", 1, 0), "n", BASE_US, BASE_US + US_PER_S, demand=rows, rules=counts)
    return [encode(batch)]


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[RulesService]:
    """A rules service in a folder, three days after the first traffic."""
    clock = ManualClock(BASE_US + 3 * DAY_US)
    opened = await RulesService.open(f"sqlite:///{tmp_path / 'control.db'}", clock, watched=False)
    async with opened, traffic_kept(opened, ControlSettings(data=tmp_path), clock):
        yield opened


@pytest.fixture
async def viewer(service: RulesService) -> AsyncIterator[httpx.AsyncClient]:
    """Somebody who may look."""
    app = build_app(service, ApiSettings(), ManualClock(BASE_US + 3 * DAY_US))
    _, token = await service.tokens.create(ADMIN, "viewer", Role.VIEWER)
    transport = httpx.ASGITransport(app=app, client=("192.0.2.9", 40_000))
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://control", headers=headers) as client:
        yield client


async def asked(viewer: httpx.AsyncClient, **params: Any) -> httpx.Response:
    """The answer to a question."""
    return await viewer.get("/v1/suggestions", params=params)


async def test_proposal_with_its_evidence(service: RulesService, viewer: httpx.AsyncClient) -> None:
    """The rule that holds a tenth of its clients is to be raised; the shared one is left alone; the version is told."""
    await service.rulesets.put_ruleset(ADMIN, RULES, expect=0)
    assert service.traffic is not None
    await service.traffic.take(told())
    answer = (await asked(viewer)).json()
    assert answer["version"] == 1
    api, shared = answer["suggestions"]
    assert (api["rule"], api["verdict"], api["current"], api["proposed"]) == ("api", "raise", "40/minute", "80/minute")
    assert (api["evidence"]["clients"], api["evidence"]["refused"]) == (300, 1_800)
    assert (shared["rule"], shared["verdict"]) == ("all", "keep")
    only = (await asked(viewer, rule="api", window="4d", target=0.999)).json()["suggestions"]
    assert [(one["rule"], one["verdict"]) for one in only] == [("api", "raise")]


async def test_floor_holds(service: RulesService, viewer: httpx.AsyncClient) -> None:
    """What was promised holds over HTTP as well."""
    await service.rulesets.put_ruleset(ADMIN, RULES, expect=0)
    answer = await asked(viewer, floor="api=70/minute")
    assert answer.status_code == 409, "nothing was recorded yet"
    assert service.traffic is not None
    await service.traffic.take(told())
    assert (await asked(viewer, floor="api=70/minute, all=1/second")).json()["suggestions"][0][
        "proposed"
    ] == "80/minute"


@pytest.mark.parametrize(
    ("params", "pointer", "word"),
    [
        ({"rule": "absent"}, "/rule", "absent"),
        ({"floor": "api"}, "/floor", "RULE=QUOTA"),
        ({"floor": "api=x"}, "/floor", "api"),
        ({"floor": "nobody=1/second"}, "/floor", "nobody"),
        ({"target": "nan"}, "/target", "nan"),
        ({"target": "2"}, "/target", "0.9999"),
        ({"window": "soon"}, "/window", "soon"),
        ({"since_us": "9", "until_us": "5"}, "/until_us", "before"),
    ],
)
async def test_wrong_question_is_told(
    service: RulesService, viewer: httpx.AsyncClient, params: dict[str, str], pointer: str, word: str
) -> None:
    """What is wrong with a question is told with a pointer to it."""
    await service.rulesets.put_ruleset(ADMIN, RULES, expect=0)
    answer = await asked(viewer, **params)
    assert answer.status_code == 422, answer.text
    assert word in answer.text
    assert pointer in [error["pointer"].removeprefix("#") for error in answer.json()["errors"]]


async def test_nothing_to_propose_for(service: RulesService, viewer: httpx.AsyncClient) -> None:
    """Without rules, and in a service that keeps nothing about traffic, 409 says why."""
    answer = await asked(viewer)
    assert (answer.status_code, "no rules in service" in answer.text) == (409, True)
    await service.rulesets.put_ruleset(ADMIN, RULES, expect=0)
    service.traffic, kept = None, service.traffic
    answer = await asked(viewer)
    assert (answer.status_code, "--analytics off" in answer.text) == (409, True)
    service.traffic = kept
