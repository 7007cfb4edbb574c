"""Any sequence of calls ends in the same state on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.control.errors import ControlError
from sluicegate.control.model import ANY, Actor, Role
from sluicegate.control.service import RulesService
from sluicegate.rules.feed import NodeReport, Revisions, RuleCounts

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["api", "login", "search"])
QUOTAS = st.sampled_from(["1/second", "5/minute", "5/minuet", "unlimited"])
RULES = st.builds(lambda name, quota: {"name": name, "per": ["ip"], "quota": quota}, NAMES, QUOTAS)
EXPECTS = st.sampled_from([None, 0, ANY, 1, 2, 3, 4])
SUBJECTS = st.sampled_from(["user:1", "user:Ä", "tenant:a", "bad"])
VALUES = st.sampled_from(["192.0.2.1", "192.0.2.0/24", "2001:DB8::1", "u", "ü", ""])
KINDS = st.sampled_from(["ip", "user", "host"])
LISTS = st.sampled_from(["allow", "block"])
TIMES = st.none() | st.integers(-1, 5)
ROLES = st.sampled_from([Role.EDITOR, Role.EDITOR, Role.EDITOR, Role.ADMIN, Role.VIEWER, Role.NODE])
TIERS = st.sampled_from([None, {"default": "free", "names": ["free", "paid"]}, {"default": "x", "names": []}])
FEEDS = st.lists(VALUES, max_size=4)
SHARES = st.sampled_from([0, 0, 100, 20_000])
GUARD = {"refusal_ratio_max": 0.5, "min_requests": 10}

CALLS = st.one_of(
    st.tuples(st.just("put_ruleset"), st.lists(RULES, max_size=3), EXPECTS),
    st.tuples(st.just("create_rule"), RULES),
    st.tuples(st.just("put_rule"), NAMES, RULES, EXPECTS),
    st.tuples(
        st.just("patch_rule"),
        NAMES,
        st.sampled_from([{"quota": "7/second"}, {"per": None}, {"name": "x y"}, 5]),
        EXPECTS,
    ),
    st.tuples(st.just("delete_rule"), NAMES, EXPECTS),
    st.tuples(st.just("put_tiers"), TIERS, EXPECTS),
    st.tuples(st.just("rollback"), st.integers(0, 5), EXPECTS),
    st.tuples(st.just("list_put"), LISTS, KINDS, VALUES, TIMES),
    st.tuples(st.just("list_remove"), LISTS, KINDS, VALUES),
    st.tuples(st.just("import"), LISTS, KINDS, FEEDS, st.booleans(), TIMES),
    st.tuples(st.just("remove_source"), LISTS),
    st.tuples(st.just("subject_put"), SUBJECTS, st.sampled_from([{"tier": "paid"}, {"factor": 2}, {}]), TIMES),
    st.tuples(st.just("subject_remove"), SUBJECTS),
    st.tuples(st.just("pause"), st.none() | NAMES, TIMES),
    st.tuples(st.just("resume"), st.integers(1, 3)),
    st.tuples(st.just("report"), st.sampled_from(["n1", "n2"]), st.integers(0, 20)),
    st.tuples(st.just("try"), st.sampled_from(["canary", "canary", "shadow"]), st.lists(RULES, max_size=3), SHARES),
    st.tuples(st.just("advance"), st.integers(1, 3), st.sampled_from([0, 100, 10_000, 10_001])),
    st.tuples(st.just("promote"), st.integers(1, 3)),
    st.tuples(st.just("abort"), st.integers(1, 3)),
    st.tuples(st.just("token"), ROLES),
    st.tuples(st.just("revoke"), st.integers(1, 3)),
    st.tuples(st.just("pass"), st.integers(1, 4)),
)


async def lines(values: list[str]):
    yield "\n".join(values).encode()


def call(service: RulesService, clock: ManualClock, actor: Actor, name: str, *given: Any):
    """The call of a step."""

    def ahead(seconds: int | None) -> int | None:
        return None if seconds is None else clock.now_us() + seconds * US_PER_S

    rules, lists, pauses, tokens = service.rulesets, service.lists, service.pauses, service.tokens
    rollouts = service.rollouts
    calls: dict[str, Callable[..., Any]] = {
        "put_ruleset": lambda found, expect: rules.put_ruleset(actor, {"version": 1, "rules": found}, expect=expect),
        "create_rule": lambda rule: rules.create_rule(actor, rule, reason="r"),
        "put_rule": lambda name, rule, expect: rules.put_rule(actor, name, rule, expect=expect),
        "patch_rule": lambda name, patch, expect: rules.patch_rule(actor, name, patch, expect=expect),
        "delete_rule": lambda name, expect: rules.delete_rule(actor, name, expect=expect),
        "put_tiers": lambda tiers, expect: rules.put_tiers(actor, tiers, expect=expect),
        "rollback": lambda to, expect: rules.rollback(actor, to, expect=expect),
        "list_put": lambda name, kind, value, end: lists.put(actor, name, kind, value, expires_us=ahead(end)),
        "list_remove": lambda *key: lists.remove(actor, key),
        "import": lambda name, kind, values, replace, end: lists.import_entries(
            actor, name, lines(values), kind=kind, source="feed", replace=replace, expires_us=ahead(end)
        ),
        "remove_source": lambda name: lists.remove_source(actor, name, "feed"),
        "subject_put": lambda subject, value, end: service.subjects.put(
            actor, subject, {**value, "until_us": ahead(end)}
        ),
        "subject_remove": lambda subject: service.subjects.remove(actor, subject),
        "pause": lambda rule, end: pauses.pause(actor, rule, until_us=ahead(end)),
        "resume": lambda pause: pauses.resume(actor, pause),
        "report": lambda name, refused: service.nodes.report(
            actor, NodeReport(name, 1, "0", Revisions(), rules={"api@canary": RuleCounts(20, refused)}, requests=20)
        ),
        "try": lambda kind, found, share: rollouts.create(
            actor,
            {
                "kind": kind,
                "document": {"version": 1, "rules": found},
                "basis_points": share,
                "guard": GUARD,
                "steps": [{"basis_points": 5_000, "after_s": 2}] if kind == "canary" else [],
            },
        ),
        "advance": lambda number, share: rollouts.advance(actor, number, share),
        "promote": lambda number: rollouts.promote(actor, number),
        "abort": lambda number: rollouts.abort(actor, number),
        "token": lambda role: tokens.create(actor, "t", role),
        "revoke": lambda token: tokens.revoke(actor, token),
        "pass": lambda _seconds: service.watch.once(),
    }
    return calls[name](*given)


async def run(url: str, steps: list[tuple[Role, tuple[Any, ...]]]) -> dict[str, Any]:
    """Make all calls on a database; what came of them, and everything that is to be seen afterwards."""
    clock = ManualClock()
    viewer = Actor("v", "local", role=Role.ADMIN)
    outcomes, fed = [], []
    async with await RulesService.open(url, clock, watched=False) as service:
        version = 0
        for role, step in steps:
            if step[0] == "pass":
                clock.advance(step[1] * US_PER_S)
            lists = (await service.revisions()).lists
            try:
                await call(service, clock, Actor("a", "local", role=role), *step)
                outcomes.append("done")
            except ControlError as error:
                outcomes.append(f"{type(error).__name__}: {error}")
            told = await service.lists.changes(lists)
            fed.append((told.since, told.revision, told.full, told.put, told.remove))
            assert (await service.revisions()).ruleset - version in (0, 1)
            version = (await service.revisions()).ruleset
        verdict = await service.audit.verify(viewer)
        assert verdict.faults == ()
        versions = (await service.rulesets.versions(page_size=500)).items
        assert [info.version for info in versions] == list(range(version, 0, -1))
        audit = (await service.audit.page(viewer, page_size=500)).items
        audited = [row.after_version for row in audit if row.outcome == "accepted" and row.after_version]
        assert audited == [info.version for info in versions]
        full = await service.lists.changes(0)
        return {
            "outcomes": outcomes,
            "fed": fed,
            "versions": versions,
            "current": await service.rulesets.current(),
            "audit": audit,
            "head": verdict.head,
            "lists": [(await service.lists.page(name, page_size=500)).items for name in ("allow", "block")],
            "full": (full.revision, full.put),
            "subjects": (await service.subjects.page(page_size=500)).items,
            "pauses": (await service.pauses.page(page_size=500, ended=True)).items,
            "tokens": (await service.tokens.page(viewer, page_size=500)).items,
            "nodes": (await service.nodes.page(page_size=500)).items,
            # The salt is drawn, and differs.
            "rollouts": [replace(row, salt="") for row in (await service.rollouts.page(page_size=500)).items],
            "revisions": (await service.revisions()).etag.partition(".")[2],
        }


def test_the_same_state_everywhere(new_database, tmp_path_factory):
    """Whatever is called, both databases answer the same, hold the same afterwards, and their audit trails have the same head."""
    count = 0

    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.tuples(ROLES, CALLS), min_size=1, max_size=20))
    def check(steps):
        nonlocal count
        count += 1
        file: Path = tmp_path_factory.mktemp("same") / "control.db"
        found = [asyncio.run(run(url, steps)) for url in (f"sqlite:///{file}", new_database())]
        for name, value in found[0].items():
            assert value == found[1][name], name

    check()
    assert count >= 25
