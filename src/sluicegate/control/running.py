"""The rollout that runs, as the tables hold it: at most one."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import RowMapping, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.control import schema
from sluicegate.control.errors import Conflict, NotFound
from sluicegate.control.guard import Guard
from sluicegate.control.ledger import Change
from sluicegate.control.model import Actor
from sluicegate.control.rollout_model import RolloutRow, RolloutState, Step
from sluicegate.rules.feed import Candidate, RulesDocument

__all__ = [
    "RolloutData",
    "candidate_of",
    "change_row",
    "data_of",
    "end",
    "found",
    "rollout_of",
    "running",
    "running_one",
    "settle",
]


RolloutData: TypeAlias = dict[str, Any]
"""A row of the table of rollouts, by the names of its columns."""


async def running(connection: AsyncConnection) -> RolloutData | None:
    """The row of the rollout that runs."""
    table = schema.rollouts
    rows = await connection.execute(select(table).where(table.c.state == RolloutState.RUNNING.value))
    row = rows.mappings().first()
    return None if row is None else data_of(row)


async def found(connection: AsyncConnection, rollout: int) -> RolloutData:
    """The row of a rollout; raises NotFound."""
    table = schema.rollouts
    if abs(rollout) < 2**63:
        row = (await connection.execute(select(table).where(table.c.id == rollout))).mappings().first()
        if row is not None:
            return data_of(row)
    raise NotFound("rollout", str(rollout))


async def running_one(connection: AsyncConnection, rollout: int) -> RolloutData:
    """The row of a rollout that runs; raises NotFound, and Conflict where it does not run."""
    row = await found(connection, rollout)
    if row["state"] != RolloutState.RUNNING.value:
        raise Conflict(f"rollout {rollout} does not run: it is {row['state'].replace('_', ' ')}")
    return row


def rollout_of(row: RolloutData) -> RolloutRow:
    """A row as it is told."""
    guard = json.loads(row["guard"])
    return RolloutRow(
        id=row["id"],
        kind=row["kind"],
        base_version=row["base_version"],
        digest=row["digest"],
        salt=row["salt"],
        basis_points=row["basis_points"],
        before_basis_points=row["before_basis_points"],
        nodes=tuple(json.loads(row["nodes"])),
        steps=msgspec.json.decode(row["steps"], type=tuple[Step, ...]),
        guard=None if guard is None else msgspec.convert(guard, Guard),
        state=RolloutState(row["state"]),
        created_us=row["created_us"],
        step_us=row["updated_us"],
        actor=row["actor"],
        reason=row["reason"],
    )


async def candidate_of(connection: AsyncConnection) -> Candidate | None:
    """What nodes are told of the rollout that runs. Its rules are no version yet, and are told as version 0."""
    row = await running(connection)
    if row is None:
        return None
    rollout = rollout_of(row)
    document = RulesDocument(0, rollout.digest, json.loads(row["candidate"]))
    return Candidate(
        rollout.id,
        rollout.kind,
        document,
        rollout.salt,
        rollout.basis_points,
        rollout.nodes,
        rollout.before_basis_points,
        rollout.step_us,
    )


async def change_row(change: Change, rollout: int, **values: Any) -> None:
    """Change a rollout, and tell the nodes."""
    await change.touch("overlay")
    table = schema.rollouts
    await change.connection.execute(update(table).where(table.c.id == rollout).values(**values))


async def end(change: Change, rollout: int, state: RolloutState) -> None:
    """The rollout runs no longer."""
    await change_row(change, rollout, state=state.value, updated_us=change.now_us)


async def settle(change: Change, actor: Actor, before: str, digest: str) -> dict[str, Any] | None:
    """What becomes of a running rollout when rules of this digest come into service in place of those of the digest ``before``.

    To be called by whoever puts them there. Rules that mean the same as the candidate promote it. Others end it where a file owns the rules, whose edits nobody can
    refuse; else Conflict is raised, because a share of the clients would be moved by a change that was never tried on them.
    Returns a line for the audit trail, None where nothing runs, or goes on.
    """
    row = await running(change.connection)
    if row is None or digest == before:
        return None
    if row["digest"] == digest:
        state = RolloutState.PROMOTED
    elif actor.auth == "file":
        state = RolloutState.ABORTED
    else:
        raise Conflict(f"rollout {row['id']} runs: promote or abort it before the rules are changed otherwise")
    await end(change, row["id"], state)
    return {"rollout": row["id"], "state": state.value}


def data_of(row: RowMapping) -> RolloutData:
    """A row as it was read."""
    return {column.name: row[column.name] for column in schema.rollouts.columns}
