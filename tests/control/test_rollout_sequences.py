"""Any sequence of rollouts, edits, reports and passing time: what a plain model says, on both databases alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.errors import Conflict, ControlError, Invalid, NotFound
from sluicegate.control.model import Actor, Role
from sluicegate.control.service import RulesService
from sluicegate.rules.feed import NodeReport, Revisions, RuleCounts

pytestmark = pytest.mark.slow

EDITOR = Actor("ann", "token:1", role=Role.EDITOR)
NODE = Actor("node", "token:2", role=Role.NODE)
VIEWER = Actor("vic", "token:3", role=Role.VIEWER)
STEPS = [{"basis_points": 5_000, "after_s": 20}, {"basis_points": 10_000, "after_s": 30}]
GUARD = {"refusal_ratio_max": 0.5, "min_requests": 10, "window_s": 60}

QUOTAS = st.sampled_from([10, 20, 30])
NUMBERS = st.sampled_from([0, 0, 0, 1, 2])  # 0: the newest
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), QUOTAS, st.booleans()),
    st.tuples(st.just("create"), QUOTAS, st.booleans()),
    st.tuples(st.just("advance"), NUMBERS, st.sampled_from([0, 100, 6_000, 10_001])),
    st.tuples(st.just("promote"), NUMBERS),
    st.tuples(st.just("abort"), NUMBERS),
    st.tuples(st.just("edit"), QUOTAS),
    st.tuples(st.just("report"), st.integers(0, 20)),
    st.tuples(st.just("pass"), st.integers(1, 40)),
)


def document(quota: int) -> dict[str, Any]:
    return {"version": 1, "rules": [{"name": "api", "per": ["user"], "quota": f"{quota}/minute"}]}


@dataclass
class Tried:
    quota: int
    scheduled: bool
    share: int = 0
    state: str = "running"
    step_s: int = 0
    counts: list[tuple[int, int]] = field(default_factory=list)


class Model:
    """What a rules service is to do, with one rule whose quota is all there is."""

    def __init__(self) -> None:
        self.now_s = 0
        self.quotas = [10]
        self.rollouts: list[Tried] = []

    @property
    def running(self) -> Tried | None:
        return next((tried for tried in self.rollouts if tried.state == "running"), None)

    def create(self, quota: int, scheduled: bool) -> type[ControlError] | None:
        if self.running is not None:
            return Conflict
        if quota == self.quotas[-1]:
            return Invalid
        self.rollouts.append(Tried(quota, scheduled, step_s=self.now_s))
        return None

    def _one(self, number: int) -> Tried | type[ControlError]:
        if number > len(self.rollouts):
            return NotFound
        tried = self.rollouts[number - 1]
        return tried if tried.state == "running" else Conflict

    def advance(self, number: int, share: int) -> type[ControlError] | None:
        tried = self._one(number)
        if not isinstance(tried, Tried):
            return tried
        if share > 10_000:
            return Invalid
        if share != tried.share:
            self._step(tried, share)
        return None

    def promote(self, number: int) -> type[ControlError] | None:
        tried = self._one(number)
        if not isinstance(tried, Tried):
            return tried
        tried.state = "promoted"
        self.quotas.append(tried.quota)
        return None

    def abort(self, number: int) -> type[ControlError] | None:
        tried = self._one(number)
        if not isinstance(tried, Tried):
            return tried
        tried.state = "aborted"
        return None

    def edit(self, quota: int) -> type[ControlError] | None:
        tried = self.running
        if quota == self.quotas[-1]:
            return None
        if tried is not None and quota != tried.quota:
            return Conflict
        if tried is not None:
            tried.state = "promoted"
        self.quotas.append(quota)
        return None

    def report(self, refused: int) -> None:
        """Twenty requests, so many of which the new version refused; counted by the look that follows at once."""
        if self.running is not None:
            self.running.counts.append((self.now_s, refused))
            self._look()

    def wait(self, seconds: int) -> None:
        """Time passes, and the service looks once at its end."""
        self.now_s += seconds
        tried = self.running
        if tried is not None and tried.scheduled:
            step = next((step for step in STEPS if step["basis_points"] > tried.share), None)
            if step is not None and self.now_s >= tried.step_s + step["after_s"]:
                self._step(tried, step["basis_points"])

    def _look(self) -> None:
        tried = self.running
        assert tried is not None
        # Whole slots of five seconds that begin after the look back does.
        lately = [refused for at_s, refused in tried.counts if at_s - at_s % 5 > self.now_s - 60]
        if sum(lately) > 0.5 * 20 * len(lately):
            tried.state = "rolled_back"

    def _step(self, tried: Tried, share: int) -> None:
        # It begins two seconds after it was asked for.
        tried.share, tried.step_s, tried.counts = share, self.now_s + 2, []


async def play(url: str, operations: list[tuple[Any, ...]]) -> list[Any]:
    """Do all of it and hold it against the model; what is to be seen in the end."""
    clock, model = ManualClock(1_700_000_000 * US_PER_S), Model()
    async with await RulesService.open(url, clock, watched=False) as service:
        await service.rulesets.put_ruleset(EDITOR, document(10), expect=0)
        for name, *given_ in operations:
            if name in ("advance", "promote", "abort"):
                given_[0] = given_[0] or max(1, len(model.rollouts))
            found = None
            try:
                await _do(service, clock, name, *given_)
            except ControlError as error:
                found = type(error)
            expected = getattr(model, "wait" if name == "pass" else name)(*given_)
            assert found == expected, (name, given_)
            rows = list(reversed((await service.rollouts.page(page_size=50)).items))
            assert [(row.state.value, row.basis_points) for row in rows] == [
                (tried.state, tried.share) for tried in model.rollouts
            ]
            assert ((await service.snapshot()).candidate is None) is (model.running is None)
            current = await service.rulesets.current()
            assert current is not None
            assert (current.info.version, current.document) == (len(model.quotas), document(model.quotas[-1]))
        verdict = await service.audit.verify(VIEWER)
        assert verdict.faults == ()
        audit = (await service.audit.page(VIEWER, page_size=500)).items
        ended = [row for row in audit if row.action == "rollout.roll_back"]
        assert [row.actor for row in ended] == ["guard"] * sum(t.state == "rolled_back" for t in model.rollouts)
        return [
            verdict.head,
            [tried.state for tried in model.rollouts],
            (await service.revisions()).etag.split(".")[1:],
        ]


async def _do(service: RulesService, clock: ManualClock, name: str, *given_: Any) -> None:
    rollouts = service.rollouts
    if name == "create":
        quota, scheduled = given_
        steps = STEPS if scheduled else []
        await rollouts.create(EDITOR, {"kind": "canary", "document": document(quota), "steps": steps, "guard": GUARD})
    elif name == "edit":
        current = await service.rulesets.current()
        assert current is not None
        await service.rulesets.put_ruleset(EDITOR, document(given_[0]), expect=current.info.version)
    elif name == "report":
        counts = {"api@canary": RuleCounts(20, given_[0])}
        await service.nodes.report(NODE, NodeReport("n", 0, "1", Revisions(), requests=20, rules=counts))
        await rollouts.tick()
    elif name == "pass":
        clock.advance(given_[0] * US_PER_S)
        await service.watch.once()
    else:
        await getattr(rollouts, name)(EDITOR, *given_)


def test_rollouts_do_what_the_model_says(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """State, share, rules, refusals and the audit trail are those of the model after every call, and the same on both databases."""
    states: set[str] = set()

    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(OPERATIONS, min_size=5, max_size=25))
    def check(operations: list[tuple[Any, ...]]) -> None:
        file: Path = tmp_path_factory.mktemp("rollouts") / "control.db"
        on_sqlite, on_postgresql = (asyncio.run(play(url, operations)) for url in (f"sqlite:///{file}", new_database()))
        assert on_sqlite == on_postgresql
        states.update(on_sqlite[1])

    check()
    assert states == {"running", "promoted", "aborted", "rolled_back"}
