"""Rollouts: rules on trial beside those in service, for a share of the clients, on some nodes, or as a shadow.

A rollout is a row that nodes are told of; what it means for a request is made of it on each node (``rules.effective``). It goes on by
hand, by a schedule, or is undone by its guard. Everything it needs is in the row, times included: a service that starts again,
or another one on the same database, goes on where it was.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Unpack

import msgspec
from sqlalchemy import Select, func, select, update

from sluicegate.bounds import ROLLOUT_AHEAD_US, ROLLOUT_CLIENTS_TOLD, ROLLOUT_REPORTS_PENDING, ROLLOUT_RULES_TOLD
from sluicegate.control import running, schema
from sluicegate.control.errors import Conflict, Fault, Invalid, Unavailable
from sluicegate.control.guard import Tally
from sluicegate.control.ledger import Change, Ledger
from sluicegate.control.model import Actor, Applied, Page, Role
from sluicegate.control.paging import page_of, read_token, rows_of_page
from sluicegate.control.rollout_model import (
    RolloutReport,
    RolloutRow,
    RolloutState,
    RuleOnTrial,
    Wanted,
    read_wanted,
    share_fault,
)
from sluicegate.control.rulesets import How, Rulesets
from sluicegate.control.running import RolloutData, change_row, data_of, end, found, rollout_of, running_one
from sluicegate.rules.diff import diff_rules
from sluicegate.rules.document import canonical, load_document
from sluicegate.rules.effective import CANARY, SHADOW
from sluicegate.rules.feed import NodeReport
from sluicegate.rules.model import RuleSet
from sluicegate.rules.trials import coverage_of, differences, trial_problems

__all__ = ["Rollouts"]

_TABLE: Final = schema.rollouts
_GUARD: Final = Actor("guard", "local", role=Role.EDITOR)
_SCHEDULE: Final = Actor("schedule", "local", role=Role.EDITOR)
_SALT_BYTES: Final = 8


class Rollouts:
    """Rules on trial; at most one rollout runs. Writes need the role editor.

    While one runs, other changes of the rules are refused (Conflict), unless a file owns them: then an edit that means the same as the
    candidate promotes it, and any other aborts it. ``rolled_back``: how many rollouts this process has undone by their guard.
    ``salt``: draws what tells the early clients of one rollout from those of the next.
    """

    def __init__(
        self, ledger: Ledger, rulesets: Rulesets, salt: Callable[[], str] = lambda: secrets.token_hex(_SALT_BYTES)
    ) -> None:
        self.rolled_back = 0
        self._ledger = ledger
        self._rulesets = rulesets
        self._salt = salt
        self._pending: deque[NodeReport] = deque(maxlen=ROLLOUT_REPORTS_PENDING)

    async def create(self, actor: Actor, value: Any, *, reason: str = "", validate_only: bool = False) -> RolloutRow:
        """``value``: as ``rollout_model.Wanted``. Raises Invalid with pointers; Conflict where one runs, or there are no rules yet."""
        begun = self._ledger.change(
            actor, Role.EDITOR, "rollout.create", "rollout:", reason=reason, validate_only=validate_only
        )
        async with begun as change:
            wanted = read_wanted(value)
            other = await running.running(change.connection)
            if other is not None:
                raise Conflict(f"rollout {other['id']} runs: promote or abort it first")
            row = await self._row(change, actor, wanted, reason)
            await change.touch("overlay")
            await change.connection.execute(_TABLE.insert(), row)
            told = {
                name: msgspec.to_builtins(getattr(wanted, name))
                for name in ("kind", "basis_points", "nodes", "steps", "guard")
            }
            told |= {"digest": row["digest"], "rules": json.loads(row["report"])["rules"]}
            change.record(told, resource=f"rollout:{row['id']}", before_version=row["base_version"])
        return rollout_of(row)

    async def get(self, rollout: int) -> RolloutRow:
        """Raises NotFound."""
        async with self._ledger.database.read() as connection:
            return rollout_of(await found(connection, rollout))

    async def candidate(self, rollout: int) -> dict[str, Any]:
        """The rules on trial, a rules file as JSON. Raises NotFound."""
        async with self._ledger.database.read() as connection:
            document: dict[str, Any] = json.loads((await found(connection, rollout))["candidate"])
        return document

    async def page(self, *, page_size: int, page_token: str = "") -> Page[RolloutRow]:
        """The newest first."""
        query: Select[Any] = select(_TABLE).order_by(_TABLE.c.id.desc()).limit(rows_of_page(page_size))
        before = read_token(page_token, "rollouts", int)
        if before is not None:
            query = query.where(_TABLE.c.id < before[0])
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return page_of([data_of(row) for row in rows], page_size, "rollouts", rollout_of, lambda row: (row["id"],))

    async def advance(
        self, actor: Actor, rollout: int, basis_points: int, *, reason: str = "", validate_only: bool = False
    ) -> RolloutRow:
        """Another share of the clients, larger or smaller; a schedule goes on from there. Raises NotFound, Conflict, Invalid."""
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        async with self._ledger.change(
            actor, Role.EDITOR, "rollout.advance", f"rollout:{rollout}", **options
        ) as change:
            row = await running_one(change.connection, rollout)
            fault = share_fault(basis_points)
            if fault is not None:
                raise Invalid([fault])
            if row["kind"] != "canary":
                raise Conflict(f"rollout {rollout} is a {row['kind']}, which has no share of the clients")
            if row["basis_points"] != basis_points:
                await _take_step(change, row, basis_points)
            return rollout_of(await found(change.connection, rollout))

    async def promote(self, actor: Actor, rollout: int, **how: Unpack[How]) -> Applied:
        """The candidate becomes the next version. Raises NotFound; Conflict where it does not run; FileOwned, ManagedBy."""
        return await self._rulesets.promote(actor, rollout, **how)

    async def abort(self, actor: Actor, rollout: int, *, reason: str = "", validate_only: bool = False) -> RolloutRow:
        """All clients are back with the rules in service. Raises NotFound; Conflict where it does not run."""
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        async with self._ledger.change(actor, Role.EDITOR, "rollout.abort", f"rollout:{rollout}", **options) as change:
            await running_one(change.connection, rollout)
            await end(change, rollout, RolloutState.ABORTED)
            change.record({"state": RolloutState.ABORTED.value})
            return rollout_of(await found(change.connection, rollout))

    async def report(self, rollout: int) -> RolloutReport:
        """How it does, by what nodes have reported until a second ago. Raises NotFound."""
        async with self._ledger.database.read() as connection:
            row = await found(connection, rollout)
        base = await self._rulesets.version(row["base_version"])
        rules = await asyncio.to_thread(_compared, base.document, json.loads(row["candidate"]), row)
        tally = _tally(row)
        clients = tuple((*client, times) for client, times in tally.most_refused(ROLLOUT_CLIENTS_TOLD))
        return RolloutReport(rollout_of(row), tally.requests, tally.store_errors, rules, clients)

    def observe(self, report: NodeReport) -> None:
        """Take notice of what a node reports; it is counted by the next ``tick``."""
        self._pending.append(msgspec.structs.replace(report, samples=[], penalties=[]))

    async def tick(self) -> None:
        """Count what was reported, undo what is above the bounds of its guard, go on where a schedule says so.

        To be called about once a second, by every service on the database.
        """
        async with self._ledger.database.read() as connection:
            row = await running.running(connection)
        if row is None:
            self._pending.clear()
            return
        fault = await self._count()
        if fault is not None:
            await self._roll_back(row["id"], fault)
            return
        due_us = rollout_of(row).next_step_us
        if due_us is not None and self._ledger.clock.now_us() >= due_us:
            await self._go_on(row["id"])

    async def _row(self, change: Change, actor: Actor, wanted: Wanted, reason: str) -> dict[str, Any]:
        current = await self._rulesets.current_in(change.connection)
        if current is None:
            raise Conflict("there are no rules in service that others could be tried beside")
        try:
            document, digest = await self._rulesets.candidate(wanted.document)
        except Invalid as error:
            faults = [Fault(fault.detail, f"/document{fault.pointer}") for fault in error.faults]
            raise Invalid(faults, error.problems) from None
        base, candidate = await asyncio.to_thread(_both, current.document, document)
        problems = trial_problems(base, candidate, wanted.kind)
        if problems:
            raise Invalid([Fault(problem, "/document") for problem in problems])
        names = frozenset(each.name for each in differences(base, candidate)[:ROLLOUT_RULES_TOLD])
        last = (await change.connection.execute(select(func.max(_TABLE.c.id)))).scalar_one()
        return {
            "id": (last or 0) + 1,
            "kind": wanted.kind,
            "base_version": current.info.version,
            "candidate": canonical(document),
            "digest": digest,
            "salt": self._salt(),
            "basis_points": wanted.basis_points,
            "before_basis_points": 0,
            "nodes": canonical(wanted.nodes),
            "steps": canonical(wanted.steps),
            "guard": canonical(wanted.guard),
            "state": RolloutState.RUNNING.value,
            "created_us": change.now_us,
            "updated_us": change.now_us + (ROLLOUT_AHEAD_US if wanted.basis_points else 0),
            "actor": actor.name,
            "reason": reason,
            "report": canonical(Tally(names).to_data()),
        }

    async def _count(self) -> str | None:
        """Count what is pending; why the rollout is to be undone."""
        reports = [self._pending.popleft() for _ in range(len(self._pending))]
        if not reports:
            return None
        try:
            return await self._count_in(reports)
        except Unavailable:
            # They are counted when the database is back: what happens meanwhile is what the guard is for.
            self._pending.extendleft(reversed(reports))
            raise

    async def _count_in(self, reports: list[NodeReport]) -> str | None:
        now_us = self._ledger.clock.now_us()
        async with self._ledger.database.write() as connection:
            row = await running.running(connection)
            if row is None:
                return None
            guard, tally = rollout_of(row).guard, _tally(row)
            for report in reports:
                tally.add(report, now_us, _WINDOW_S if guard is None else guard.window_s)
            counted = update(_TABLE).where(_TABLE.c.id == row["id"]).values(report=canonical(tally.to_data()))
            await connection.execute(counted)
        return None if guard is None else tally.judge(guard, now_us)

    async def _roll_back(self, rollout: int, fault: str) -> None:
        async with self._ledger.change(
            _GUARD, Role.EDITOR, "rollout.roll_back", f"rollout:{rollout}", reason=fault
        ) as change:
            row = await running.running(change.connection)
            if row is None or row["id"] != rollout:
                return
            await end(change, rollout, RolloutState.ROLLED_BACK)
            change.record({"state": RolloutState.ROLLED_BACK.value, "basis_points": row["basis_points"]})
        self.rolled_back += 1

    async def _go_on(self, rollout: int) -> None:
        async with self._ledger.change(_SCHEDULE, Role.EDITOR, "rollout.advance", f"rollout:{rollout}") as change:
            row = await running.running(change.connection)
            if row is None or row["id"] != rollout:
                return
            current = rollout_of(row)
            step, due_us = current.next_step, current.next_step_us
            # Another service may have been here first.
            if step is not None and due_us is not None and change.now_us >= due_us:
                await _take_step(change, row, step.basis_points)


_WINDOW_S: Final = 60
"""How long counts are kept in slots for a rollout without a guard, which looks at none of them."""


async def _take_step(change: Change, row: RolloutData, basis_points: int) -> None:
    tally = _tally(row)
    tally.begin_step()
    await change_row(
        change,
        row["id"],
        basis_points=basis_points,
        before_basis_points=row["basis_points" if change.now_us >= row["updated_us"] else "before_basis_points"],
        updated_us=change.now_us + ROLLOUT_AHEAD_US,
        report=canonical(tally.to_data()),
    )
    change.record({"basis_points": [row["basis_points"], basis_points]})


def _tally(row: RolloutData) -> Tally:
    return Tally.of_data(json.loads(row["report"]))


def _both(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[RuleSet, RuleSet]:
    return load_document(base, "rules in service", 1), load_document(candidate, "candidate", 1)


def _compared(base: Mapping[str, Any], candidate: Mapping[str, Any], row: RolloutData) -> tuple[RuleOnTrial, ...]:
    """Each rule that differs, with what both versions did."""
    before, after = _both(base, candidate)
    changes = {change.rule: change for change in diff_rules(before, after)}
    total = _tally(row).total
    suffix = CANARY if row["kind"] == "canary" else SHADOW
    rules = []
    for each in differences(before, after):
        change = changes[each.name]
        rules.append(
            RuleOnTrial(
                each.name,
                change.kind.value,
                change.details,
                change.worst_case,
                coverage_of(each, row["kind"]),
                total.get(each.name),
                total.get(each.name + suffix),
            )
        )
    return tuple(rules)
