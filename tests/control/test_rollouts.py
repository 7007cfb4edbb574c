"""Rollouts of the rules service, on both databases."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sluicegate.bounds import ROLLOUT_AHEAD_US
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.audit import Audit
from sluicegate.control.database import Database
from sluicegate.control.errors import (
    Conflict,
    ControlError,
    FileOwned,
    Invalid,
    ManagedBy,
    NotAllowed,
    NotFound,
    PreconditionFailed,
)
from sluicegate.control.hub import Hub
from sluicegate.control.ledger import Ledger
from sluicegate.control.model import Actor, Role
from sluicegate.control.rollout_model import RolloutState, Step
from sluicegate.control.rollouts import Rollouts
from sluicegate.control.rulesets import Rulesets
from sluicegate.control.running import candidate_of
from sluicegate.rules.feed import Candidate, NodeReport, Revisions, RuleCounts

EDITOR = Actor("ann", "token:1", "127.0.0.1", "r1", Role.EDITOR)
VIEWER = Actor("vic", "token:2", role=Role.VIEWER)
GUARD = {"refusal_ratio_max": 0.1, "min_requests": 100, "window_s": 60}


def document(quota: str = "10/minute", **more: Any) -> dict[str, Any]:
    return {"version": 1, "rules": [{"name": "api", "per": ["user"], "quota": quota}], **more}


class Service:
    """What rollouts need of a rules service. Several on one database are several processes."""

    def __init__(self, url: str, clock: ManualClock) -> None:
        self.clock = clock
        self.database = Database(url)
        self.hub = Hub(clock)
        self.ledger = Ledger(self.database, clock, self.hub)
        self.rulesets = Rulesets(self.ledger)
        numbers = itertools.count(1)
        self.rollouts = Rollouts(self.ledger, self.rulesets, salt=lambda: f"salt{next(numbers)}")
        self.audit = Audit(self.ledger)

    async def candidate(self) -> Candidate | None:
        async with self.database.read() as connection:
            return await candidate_of(connection)

    async def actions(self) -> list[tuple[str, str, str, str]]:
        """(action, resource, actor, outcome) of the audit trail, the oldest first; its chain is whole."""
        assert (await self.audit.verify(VIEWER)).faults == ()
        rows = (await self.audit.page(VIEWER, page_size=500)).items
        return [(row.action, row.resource, row.actor, row.outcome) for row in reversed(rows)]

    def observe(self, requests: int, store_errors: int = 0, told: Any = (), **rules: tuple[int, ...]) -> None:
        counts = {name.replace("_at_", "@"): RuleCounts(*row) for name, row in rules.items()}
        self.rollouts.observe(
            NodeReport(
                "n1",
                0,
                "1",
                Revisions(),
                requests=requests,
                store_errors=store_errors,
                rules=counts,
                would_refuse=list(told),
            )
        )


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'control.db'}"
    return request.getfixturevalue("new_database")()


@pytest.fixture
async def service(url: str) -> AsyncIterator[Service]:
    """A service with one version of the rules."""
    made = Service(url, ManualClock())
    await made.database.upgrade()
    await made.rulesets.put_ruleset(EDITOR, document(), expect=0)
    yield made
    await made.database.close()


def wanted(quota: str = "20/minute", kind: str = "canary", **more: Any) -> dict[str, Any]:
    return {"document": document(quota), "kind": kind, **more}


async def test_a_canary_goes_on_by_hand_and_is_promoted(service: Service) -> None:
    """Nodes are told of each share as a new overlay; promoted, the candidate is the next version, in the same change."""
    made = await service.rollouts.create(EDITOR, wanted(basis_points=100, nodes=["n7"]), reason="raise")
    assert (made.id, made.state, made.base_version, made.basis_points) == (1, RolloutState.RUNNING, 1, 100)
    first = await service.candidate()
    assert first is not None
    assert (first.rollout, first.kind, first.salt, first.basis_points, first.nodes) == (
        1,
        "canary",
        "salt1",
        100,
        ("n7",),
    )
    assert first.rules.document == document("20/minute")
    overlay = service.hub.latest.overlay
    await service.rollouts.advance(EDITOR, 1, 5_000)
    assert service.hub.latest.overlay == overlay + 1
    told = await service.candidate()
    assert told is not None
    assert (told.basis_points, told.salt) == (5_000, "salt1")
    applied = await service.rollouts.promote(EDITOR, 1, reason="good")
    assert (applied.version.info.version, applied.changed) == (2, True)
    assert applied.version.document == document("20/minute")
    assert await service.candidate() is None
    assert (service.hub.latest.ruleset, service.hub.latest.overlay) == (2, overlay + 2)
    assert (await service.rollouts.get(1)).state is RolloutState.PROMOTED
    assert await service.actions() == [
        ("ruleset.put", "ruleset", "ann", "accepted"),
        ("rollout.create", "rollout:1", "ann", "accepted"),
        ("rollout.advance", "rollout:1", "ann", "accepted"),
        ("rollout.promote", "rollout:1", "ann", "accepted"),
    ]


async def test_a_guard_undoes_a_rollout_by_itself(service: Service) -> None:
    """Above the bound the rollout ends by the actor ``guard``, with the numbers as reason; below it goes on."""
    await service.rollouts.create(EDITOR, wanted("1/minute", basis_points=1_000, guard=GUARD))
    service.observe(500, api_at_canary=(200, 20), api=(300, 0))
    await service.rollouts.tick()
    assert (await service.rollouts.get(1)).state is RolloutState.RUNNING
    service.observe(500, told=[("api@canary", "user:1", 7)], api_at_canary=(100, 30))
    await service.rollouts.tick()
    assert (await service.rollouts.get(1)).state is RolloutState.ROLLED_BACK
    assert (await service.candidate(), service.rollouts.rolled_back) == (None, 1)
    row = (await service.audit.page(VIEWER, page_size=1)).items[0]
    assert (row.action, row.actor, row.reason) == (
        "rollout.roll_back",
        "guard",
        "api@canary refused 50 of 300 requests in 60 s, above 0.1",
    )
    current = await service.rulesets.current()
    assert current is not None
    assert current.info.version == 1
    with pytest.raises(Conflict, match="it is rolled back"):
        await service.rollouts.promote(EDITOR, 1)


async def test_a_schedule_goes_on_by_time(service: Service) -> None:
    """Each step comes its seconds after the one before it, to the microsecond; a step by hand moves the schedule."""
    steps = [
        {"basis_points": 1_000, "after_s": 60},
        {"basis_points": 5_000, "after_s": 120},
        {"basis_points": 10_000, "after_s": 1},
    ]
    made = await service.rollouts.create(EDITOR, wanted(basis_points=100, steps=steps))
    assert made.step_us == service.clock.now_us() + ROLLOUT_AHEAD_US
    assert (made.next_step, made.next_step_us) == (Step(1_000, 60), made.step_us + 60 * US_PER_S)
    service.clock.advance(ROLLOUT_AHEAD_US + 60 * US_PER_S - 1)
    await service.rollouts.tick()
    assert (await service.rollouts.get(1)).basis_points == 100
    service.clock.advance(1)
    await service.rollouts.tick()
    await service.rollouts.tick()
    assert (await service.rollouts.get(1)).basis_points == 1_000
    service.clock.advance(30 * US_PER_S)
    moved = await service.rollouts.advance(EDITOR, 1, 6_000, reason="looks good")
    assert moved.next_step_us == service.clock.now_us() + ROLLOUT_AHEAD_US + US_PER_S
    service.clock.advance(ROLLOUT_AHEAD_US + US_PER_S)
    await service.rollouts.tick()
    done = await service.rollouts.get(1)
    assert (done.basis_points, done.next_step, done.state) == (10_000, None, RolloutState.RUNNING)
    assert [actor for action, _, actor, _ in await service.actions() if action == "rollout.advance"] == [
        "schedule",
        "ann",
        "schedule",
    ]


async def test_a_step_is_told_ahead(service: Service) -> None:
    """Nodes are told a moment at which a step begins, and the share until then; steps in quick succession go on from the share in force."""
    made = await service.rollouts.create(EDITOR, wanted(basis_points=100))
    begun_us = service.clock.now_us()
    told = await service.candidate()
    assert told is not None
    assert (told.before_basis_points, told.basis_points, told.from_us) == (0, 100, begun_us + ROLLOUT_AHEAD_US)
    service.clock.advance(ROLLOUT_AHEAD_US - 1)
    await service.rollouts.advance(EDITOR, made.id, 1_000)
    told = await service.candidate()
    assert told is not None
    assert (told.before_basis_points, told.basis_points) == (0, 1_000)
    service.clock.advance(ROLLOUT_AHEAD_US)
    await service.rollouts.advance(EDITOR, made.id, 500)
    told = await service.candidate()
    assert told is not None
    assert (told.before_basis_points, told.basis_points) == (1_000, 500)
    await service.rollouts.abort(EDITOR, made.id)
    assert await service.candidate() is None


async def test_a_rollout_survives_restarts(service: Service, url: str) -> None:
    """Another process on the same database has the state, the schedule and what was counted, and two do each step once."""
    steps = [{"basis_points": 5_000, "after_s": 60}]
    await service.rollouts.create(EDITOR, wanted("1/minute", basis_points=100, steps=steps, guard=GUARD))
    service.observe(100, api_at_canary=(90, 9))
    await service.rollouts.tick()
    other = Service(url, service.clock)
    try:
        other.observe(50, api_at_canary=(20, 3))
        await other.rollouts.tick()
        assert (await other.rollouts.get(1)).state is RolloutState.ROLLED_BACK
        await service.rollouts.tick()
        made = await other.rollouts.create(EDITOR, wanted("2/minute", steps=steps))
        assert (made.id, made.salt) == (2, "salt1")
        service.clock.advance(60 * US_PER_S)
        await service.rollouts.tick()
        await other.rollouts.tick()
        assert (await other.rollouts.get(2)).basis_points == 5_000
    finally:
        await other.database.close()
    done = [action for action, *_ in await service.actions()]
    assert done == ["ruleset.put", "rollout.create", "rollout.roll_back", "rollout.create", "rollout.advance"]


async def test_the_report_compares_both_versions(service: Service) -> None:
    """Each rule that differs is told with what changes, what a share cannot cover, and the counts of both versions."""
    candidate = document("5/minute")
    candidate["rules"].append({"name": "floor", "quota": "100/second"})
    await service.rollouts.create(EDITOR, {"document": candidate, "kind": "canary", "basis_points": 100})
    service.observe(
        1_000, 3, [("api@canary", "user:8", 4), ("other", "user:8", 9)], api=(990, 5), api_at_canary=(10, 4)
    )
    service.observe(1_000, api=(10, 0), api_at_canary=(10, 1))
    await service.rollouts.tick()
    report = await service.rollouts.report(1)
    assert (report.requests, report.store_errors) == (2_000, 3)
    api, floor = report.rules
    assert (api.rule, api.change, api.details, api.note) == ("api", "changed", ("quota 10/minute -> 5/minute",), "")
    assert api.old is not None
    assert api.new is not None
    assert (api.old.matched, api.old.refused, api.new.matched, api.new.refused) == (1_000, 5, 20, 5)
    assert (floor.change, floor.old, floor.new) == ("added", None, None)
    assert "at 100 %" in floor.note
    assert report.clients == (("api@canary", "user:8", 4),)


async def test_one_runs_at_a_time_and_other_edits_wait(service: Service) -> None:
    """While one runs no other begins and the rules do not change otherwise; aborted, both are possible again."""
    await service.rollouts.create(EDITOR, wanted())
    with pytest.raises(Conflict, match="rollout 1 runs"):
        await service.rollouts.create(EDITOR, wanted("30/minute"))
    with pytest.raises(Conflict, match="rollout 1 runs"):
        await service.rulesets.put_ruleset(EDITOR, document("30/minute"), expect=1)
    # Another spelling changes nothing for anybody.
    assert (await service.rulesets.put_ruleset(EDITOR, document("10/1m"), expect=1)).version.info.version == 2
    aborted = await service.rollouts.abort(EDITOR, 1, reason="no")
    assert aborted.state is RolloutState.ABORTED
    with pytest.raises(Conflict, match="it is aborted"):
        await service.rollouts.advance(EDITOR, 1, 5)
    await service.rulesets.put_ruleset(EDITOR, document("30/minute"), expect=2)
    assert [row.id for row in (await service.rollouts.page(page_size=5)).items] == [1]
    assert (await service.rollouts.candidate(1)) == document("20/minute")


async def test_the_same_rules_by_another_way_promote(service: Service) -> None:
    """Rules that mean what the candidate means end the rollout as promoted, in whatever way they come into service."""
    await service.rollouts.create(EDITOR, wanted("20/minute"))
    await service.rulesets.put_ruleset(EDITOR, document("20/1m"), expect=1)
    assert (await service.rollouts.get(1)).state is RolloutState.PROMOTED


async def test_a_file_that_owns_the_rules_decides_about_its_rollout(service: Service) -> None:
    """A candidate is tried beside a file's rules and not promoted over it; the file's edit promotes or aborts it."""
    text = b"version: 1\nrules: [{name: api, per: [user], quota: %d/minute}]\n"
    await service.rulesets.take_file(text % 10, "rules.yaml")
    service.rulesets.file = "rules.yaml"
    await service.rollouts.create(EDITOR, wanted("20/minute"))
    with pytest.raises(FileOwned):
        await service.rollouts.promote(EDITOR, 1)
    await service.rulesets.take_file(text % 20, "rules.yaml")
    assert (await service.rollouts.get(1)).state is RolloutState.PROMOTED
    await service.rollouts.create(EDITOR, wanted("30/minute"))
    await service.rulesets.take_file(text % 40, "rules.yaml")
    assert (await service.rollouts.get(2)).state is RolloutState.ABORTED


async def test_promotion_respects_who_manages_the_rules(service: Service) -> None:
    """Rules that something else manages are not replaced by a promotion unless it is forced."""
    await service.rulesets.put_ruleset(EDITOR, document("11/minute"), expect=1, managed_by="git")
    await service.rollouts.create(EDITOR, wanted("20/minute"))
    with pytest.raises(ManagedBy):
        await service.rollouts.promote(EDITOR, 1)
    assert (await service.rollouts.get(1)).state is RolloutState.RUNNING
    await service.rollouts.promote(EDITOR, 1, force=True)


async def test_validation_alone_changes_nothing(service: Service) -> None:
    """``validate_only`` makes all checks, leaves no row and no line in the audit trail, and a refused attempt leaves a line."""
    made = await service.rollouts.create(EDITOR, wanted(), validate_only=True)
    assert made.digest
    assert await service.candidate() is None
    with pytest.raises(NotAllowed):
        await service.rollouts.create(VIEWER, wanted())
    assert await service.actions() == [
        ("ruleset.put", "ruleset", "ann", "accepted"),
        ("rollout.create", "rollout:", "vic", "refused"),
    ]
    await service.rollouts.create(EDITOR, wanted())
    await service.rollouts.promote(EDITOR, 1, validate_only=True)
    assert (await service.rollouts.get(1)).state is RolloutState.RUNNING


@pytest.mark.parametrize(
    "value, pointer, words",
    [
        ([], "", "Expected `object`"),
        ({"kind": "canary"}, "", "missing required field `document`"),
        (wanted(kind="blue"), "/kind", "Invalid enum value"),
        (wanted(colour=1), "", "unknown field `colour`"),
        (wanted(basis_points=10_001), "/basis_points", "0..10000"),
        (wanted(steps=[{"basis_points": 5, "after_s": "1"}]), "/steps/0/after_s", "Expected `int`"),
        (
            wanted(steps=[{"basis_points": 5, "after_s": 1}, {"basis_points": 5, "after_s": 1}]),
            "/steps/1/basis_points",
            "larger",
        ),
        (wanted(steps=[{"basis_points": 5, "after_s": -1}]), "/steps/0/after_s", "seconds"),
        (wanted(nodes=[""]), "/nodes/0", "no name"),
        (wanted(guard={}), "/guard", "looks at nothing"),
        (wanted(guard={**GUARD, "refusal_ratio_max": 2}), "/guard/refusal_ratio_max", "0..1"),
        (wanted(guard={**GUARD, "window_s": 1}), "/guard/window_s", "5..3600"),
        (wanted(guard={**GUARD, "min_requests": 0}), "/guard/min_requests", "1.."),
        (wanted(kind="shadow", basis_points=5), "/basis_points", "every client"),
        (wanted("10/minute"), "/document", "no rule differs"),
        (wanted("ten/minute"), "/document/rules/0/quota", "quota"),
        ({"kind": "canary", "document": document(tiers={"default": "a", "names": ["a"]})}, "/document", "tiers differ"),
    ],
)
async def test_what_is_wrong_is_pointed_to(service: Service, value: Any, pointer: str, words: str) -> None:
    """Every fault of a rollout has a pointer into what was sent."""
    with pytest.raises(Invalid) as caught:
        await service.rollouts.create(EDITOR, value)
    fault = caught.value.faults[0]
    assert fault.pointer == pointer
    assert words in fault.detail


async def test_what_does_not_exist_or_cannot_be_is_refused(service: Service) -> None:
    """An unknown rollout, a share for a shadow and a share out of range are refused, each in its own way."""
    for number in (7, 2**63, -1):
        with pytest.raises(NotFound):
            await service.rollouts.report(number)
        with pytest.raises(NotFound):
            await service.rollouts.promote(EDITOR, number)
    await service.rollouts.create(EDITOR, wanted(kind="shadow"))
    with pytest.raises(Conflict, match="no share"):
        await service.rollouts.advance(EDITOR, 1, 100)
    await service.rollouts.abort(EDITOR, 1)
    await service.rollouts.create(EDITOR, wanted())
    with pytest.raises(Invalid):
        await service.rollouts.advance(EDITOR, 2, -1)
    with pytest.raises(PreconditionFailed):
        await service.rulesets.put_ruleset(EDITOR, document("9/minute"), expect=9)


async def test_without_rules_nothing_can_be_tried(url: str) -> None:
    """Before the first version there is nothing to compare with, and a tick without a rollout does nothing."""
    made = Service(url, ManualClock())
    await made.database.upgrade()
    try:
        made.observe(10)
        await made.rollouts.tick()
        with pytest.raises(ControlError, match="no rules in service"):
            await made.rollouts.create(EDITOR, wanted())
    finally:
        await made.database.close()


async def test_the_examples_of_the_guide_are_accepted(service: Service) -> None:
    """Every rollout that the guide for operators begins with can be begun."""
    page = (Path(__file__).parents[2] / "docs" / "control" / "rollouts.md").read_text()
    examples = [json.loads(text.partition("```")[0]) for text in page.split("```json\n")[1:]]
    assert [example["kind"] for example in examples] == ["shadow", "canary"]
    for example in examples:
        made = await service.rollouts.create(EDITOR, example, validate_only=True)
        assert made.kind == example["kind"]
