"""A rollout from the rules service to the decisions of nodes and back, without a network between them."""

from __future__ import annotations

from collections import Counter

import pytest

from sluicegate.bounds import ROLLOUT_AHEAD_US
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.model import Actor
from sluicegate.control.rollout_model import RolloutState
from sluicegate.control.service import RulesService
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.document import load_document
from sluicegate.rules.effective import effective
from sluicegate.rules.feed import NodeReport, Revisions, RuleCounts, Snapshot
from sluicegate.rules.model import RuleSet
from sluicegate.rules.trials import bucket_of
from sluicegate.stores.memory import MemoryStore

CLIENTS = [str(number) for number in range(300)]


def document(quota: str) -> dict[str, object]:
    return {"version": 1, "rules": [{"name": "api", "per": ["user"], "quota": quota, "algorithm": "fixed_window"}]}


class Node:
    """A process that decides. It takes what the service says, and reports what it did since the last report."""

    def __init__(self, name: str, service: RulesService, actor: Actor, store: MemoryStore, clock: ManualClock) -> None:
        self.name = name
        self.changes_at_us: int | None = None
        self._service, self._actor, self._clock = service, actor, clock
        self._store = store
        self._snapshot = Snapshot(Revisions(), None)
        self._limiter: Limiter | None = None
        self._reported: dict[str, RuleCounts] = {}

    async def catch_up(self) -> None:
        self._snapshot = await self._service.snapshot()
        self.remake()

    def remake(self) -> None:
        """Make the rules of now out of what the service said last."""
        snapshot = self._snapshot
        assert snapshot.rules is not None
        base = load_document(snapshot.rules.document, "rules", snapshot.rules.version)
        trial = snapshot.candidate
        candidate = None if trial is None else load_document(trial.rules.document, "candidate", 0)
        found = effective(base, candidate, trial, snapshot.pauses, self.name, self._clock.now_us())
        self.changes_at_us = found.changes_at_us
        self._apply(found.ruleset)

    def _apply(self, ruleset: RuleSet) -> None:
        if self._limiter is None:
            self._limiter = Limiter.from_rules(ruleset, self._store, self._clock)
        else:
            self._limiter.apply(ruleset)

    @property
    def limiter(self) -> Limiter:
        assert self._limiter is not None
        return self._limiter

    async def report(self) -> None:
        counts = self.limiter.stats.rule_counts()
        none = RuleCounts()
        fresh = {
            name: RuleCounts(
                row.matched - (before := self._reported.get(name, none)).matched,
                row.refused - before.refused,
                row.shadow_refused - before.shadow_refused,
            )
            for name, row in counts.items()
        }
        self._reported = counts
        requests = sum(row.matched for row in fresh.values())
        told = self.limiter.offenders.take(10)
        revisions = await self._service.revisions()
        report = NodeReport(self.name, 0, "1", revisions, requests=requests, rules=fresh, would_refuse=told)
        await self._service.nodes.report(self._actor, report)


@pytest.fixture
async def fleet(service: RulesService, editor: Actor, node: Actor, clock: ManualClock) -> list[Node]:
    """Two nodes on one store, by the first version of the rules."""
    await service.rulesets.put_ruleset(editor, document("10/minute"), expect=0)
    store = MemoryStore(clock)
    nodes = [Node(name, service, node, store, clock) for name in ("n1", "n2")]
    for each in nodes:
        await each.catch_up()
    return nodes


def traffic(fleet: list[Node], times: int) -> Counter[tuple[str, str]]:
    """Every client asks ``times``, in turns on both nodes; what was admitted by (client, version that said so)."""
    admitted: Counter[tuple[str, str]] = Counter()
    for turn in range(times):
        for client in CLIENTS:
            decision = fleet[turn % len(fleet)].limiter.check({"user": client})
            admitted[client, decision.rule or ""] += decision.allowed
    return admitted


async def begin(fleet: list[Node], clock: ManualClock) -> None:
    """Nodes hear of a step and go on as before; when its time has come they take it without another word."""
    for each in fleet:
        await each.catch_up()
        before = {rule.name: rule.trial for rule in each.limiter.ruleset.rules}
        assert each.changes_at_us == clock.now_us() + ROLLOUT_AHEAD_US
    clock.advance(ROLLOUT_AHEAD_US)
    for each in fleet:
        each.remake()
        assert each.changes_at_us is None
        assert {rule.name: rule.trial for rule in each.limiter.ruleset.rules} != before


async def look(service: RulesService, fleet: list[Node]) -> None:
    """Nodes report, the service looks, nodes catch up."""
    for each in fleet:
        await each.report()
    await service.watch.once()
    for each in fleet:
        await each.catch_up()


async def test_a_bad_candidate_is_gone_before_it_reaches_many(
    service: RulesService, editor: Actor, clock: ManualClock, fleet: list[Node]
) -> None:
    """A tenth of the clients meets a limit that is far too strict; the guard undoes it, and then nobody does."""
    guard = {"refusal_ratio_max": 0.2, "min_requests": 50, "window_s": 30}
    value = {"kind": "canary", "document": document("1/minute"), "basis_points": 1_000, "guard": guard}
    made = await service.rollouts.create(editor, value)
    await begin(fleet, clock)
    inside = {client for client in CLIENTS if bucket_of(made.salt, f"user:{client}") < 1_000}
    admitted = traffic(fleet, 4)
    assert {client for client, rule in admitted if rule == "api@canary"} == inside
    assert all(admitted[client, "api@canary"] == 1 for client in inside)
    assert all(admitted[client, "api"] == 4 for client in CLIENTS if client not in inside)
    await look(service, fleet)
    assert (await service.rollouts.get(1)).state is RolloutState.ROLLED_BACK
    report = await service.rollouts.report(1)
    (rule,) = report.rules
    assert rule.old is not None
    assert rule.new is not None
    assert (rule.new.matched, rule.new.refused) == (4 * len(inside), 3 * len(inside))
    assert (rule.old.matched, rule.old.refused) == (4 * (len(CLIENTS) - len(inside)), 0)
    assert {subject.removeprefix("user:") for _, subject, _ in report.clients} <= inside
    assert {rule for _, rule in traffic(fleet, 1)} == {"api"}


async def test_a_good_candidate_reaches_everybody(
    service: RulesService, editor: Actor, clock: ManualClock, fleet: list[Node]
) -> None:
    """By its schedule a raise reaches a tenth, half and all, early clients stay in, and promotion changes nothing for anybody."""
    steps = [{"basis_points": 5_000, "after_s": 10}, {"basis_points": 10_000, "after_s": 10}]
    value = {"kind": "canary", "document": document("20/minute"), "basis_points": 1_000, "steps": steps}
    await service.rollouts.create(editor, value)
    inside: list[set[str]] = []
    for _ in range(3):
        await begin(fleet, clock)
        inside.append({client for client, rule in traffic(fleet, 1) if rule == "api@canary"})
        clock.advance(10 * US_PER_S)
        await look(service, fleet)
    assert inside[0] < inside[1] < inside[2] == set(CLIENTS)
    await service.rollouts.promote(editor, 1)
    for each in fleet:
        await each.catch_up()
    assert {each.limiter.version for each in fleet} == {2}
    clock.advance(60 * US_PER_S)
    assert set(traffic(fleet, 25).values()) == {20}


async def test_a_pause_ends_on_nodes_without_the_service(
    service: RulesService, editor: Actor, clock: ManualClock, fleet: list[Node]
) -> None:
    """A paused rule refuses nobody until its end, which nodes know beforehand; the snapshot they have is enough to end it."""
    until_us = clock.now_us() + 15 * US_PER_S
    await service.pauses.pause(editor, "api", until_us=until_us)
    for each in fleet:
        await each.catch_up()
    assert [each.changes_at_us for each in fleet] == [until_us, until_us]
    assert sum(traffic(fleet, 15).values()) == 15 * len(CLIENTS)
    clock.advance(15 * US_PER_S)
    for each in fleet:
        each.remake()
    assert [each.changes_at_us for each in fleet] == [None, None]
    assert set(traffic(fleet, 15).values()) == {10}
