"""How anything is changed: one transaction with the check of the actor, the change, its line of the audit trail and the word to the nodes.

A change that is refused leaves no trace but a line of the audit trail that says so, in a transaction of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final, Literal, TypeAlias

import msgspec
from sqlalchemy import func, literal, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.clock import Clock
from sluicegate.control import chain, schema
from sluicegate.control.database import Database
from sluicegate.control.errors import ControlError, NotAllowed, Unavailable
from sluicegate.control.hub import Hub
from sluicegate.control.model import DEFAULT_NAMESPACE, Actor, Publisher, Role
from sluicegate.control.paging import check_text
from sluicegate.rules.feed import POSTGRES_CHANNEL, Revisions

__all__ = ["Change", "Ledger", "Part", "read_revisions"]

Part: TypeAlias = Literal["overlay", "lists", "subjects", "epoch"]

_RULESET: Final = "ruleset"


class Change:
    """A change under way. ``connection`` is in a writing transaction; ``now_us`` is the one time of the change.

    ``revisions`` are those before it. What is not noted by ``record``, nor kept by ``keep``, was no change: its transaction is given up.
    """

    def __init__(self, connection: AsyncConnection, revisions: Revisions, now_us: int) -> None:
        self.connection = connection
        self.revisions = revisions
        self.now_us = now_us
        self.recorded: dict[str, Any] | None = None
        self.kept = False
        self.touched: dict[str, int] = {}

    async def touch(self, part: Part) -> int:
        """The next revision of a part of what nodes hold; to be written into the rows that change."""
        if part not in self.touched:
            table = schema.revisions
            raised = update(table).where(table.c.name == part).values(value=table.c.value + 1).returning(table.c.value)
            self.touched[part] = (await self.connection.execute(raised)).scalar_one()
        return self.touched[part]

    def touch_ruleset(self, version: int) -> None:
        """The rule set has this version from now on."""
        self.touched[_RULESET] = version

    def keep(self) -> None:
        """Keep it, recorded or not: for a part of a larger change, whose first and last parts are recorded."""
        self.kept = True

    def record(
        self,
        diff: Any = None,
        *,
        resource: str | None = None,
        before_version: int | None = None,
        after_version: int | None = None,
    ) -> None:
        """What the audit trail is to say of it. ``resource`` in place of the one the change began with."""
        self.kept = True
        self.recorded = {"diff": diff, "before_version": before_version, "after_version": after_version}
        if resource is not None:
            self.recorded["resource"] = resource


class Ledger:
    """The one way to change the database of a rules service."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        hub: Hub,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        publisher: Publisher | None = None,
    ) -> None:
        self.database = database
        self.clock = clock
        self.hub = hub
        self.namespace = namespace
        self.publisher = publisher
        self.publish_failures = 0

    def allow(self, actor: Actor, needed: Role) -> None:
        """Raises NotAllowed where the role or the namespaces of the actor do not reach."""
        if actor.namespaces is not None and self.namespace not in actor.namespaces:
            raise NotAllowed(f"{actor.name!r} may not act in the namespace {self.namespace!r}")
        if not actor.role.covers(needed):
            raise NotAllowed(f"this needs the role {needed}; {actor.name!r} has the role {actor.role}", needed)

    @contextlib.asynccontextmanager
    async def change(
        self,
        actor: Actor,
        needed: Role,
        action: str,
        resource: str,
        *,
        reason: str = "",
        validate_only: bool = False,
        on: AsyncConnection | None = None,
    ) -> AsyncIterator[Change]:
        """A change by an actor who needs a role. ``on``: a connection from ``Database.scratch`` that it is to happen on."""
        try:
            self.allow(actor, needed)
            check_text("reason", reason)
            entered = self.database.write() if on is None else self.database.write_on(on)
            with contextlib.suppress(_NothingToKeep):
                async with entered as connection:
                    change = Change(connection, await read_revisions(connection), self.clock.now_us())
                    yield change
                    if validate_only or not change.kept:
                        raise _NothingToKeep
                    if change.recorded is not None:
                        row = {"resource": resource, "reason": reason, **change.recorded}
                        await chain.append(connection, actor, change.now_us, action, outcome="accepted", **row)
                    after = msgspec.structs.replace(change.revisions, **change.touched)
                    await self._notify(connection, change, after)
        except ControlError as error:
            if not validate_only and not isinstance(error, Unavailable):
                await self._refused(actor, action, resource, reason, error)
            raise
        if not validate_only and change.kept:
            await self._tell(change, after)

    async def note(self, actor: Actor, action: str, resource: str, outcome: str, diff: Any = None) -> None:
        """A line of the audit trail about something that changed nothing."""
        async with self.database.write() as connection:
            await chain.append(connection, actor, self.clock.now_us(), action, resource, outcome, diff=diff)

    async def refresh(self) -> None:
        """Look into the database for what others changed."""
        async with self.database.read() as connection:
            self.hub.tell(await read_revisions(connection))

    async def _notify(self, connection: AsyncConnection, change: Change, after: Revisions) -> None:
        if self.database.is_postgresql and change.touched:
            # It is delivered when the transaction is kept, and not at all when it is not.
            told = {"channel": POSTGRES_CHANNEL, "payload": msgspec.json.encode(after).decode()}
            await connection.execute(text("SELECT pg_notify(:channel, :payload)"), told)

    async def _tell(self, change: Change, after: Revisions) -> None:
        if not change.touched:
            return
        self.hub.tell(after)
        if self.publisher is not None:
            try:
                await self.publisher.publish(after)
            except Exception:  # noqa: BLE001 - a hint; nodes ask by themselves, whatever keeps it from them
                self.publish_failures += 1

    async def _refused(self, actor: Actor, action: str, resource: str, reason: str, error: ControlError) -> None:
        """The reason is kept where it could be one: a text that is too long is what was refused."""
        with contextlib.suppress(Unavailable):
            async with self.database.write() as connection:
                diff = {"refused": str(error)[:_REFUSAL_CHARS]}
                kept = reason if _is_text(reason) else ""
                await chain.append(
                    connection, actor, self.clock.now_us(), action, _safe(resource), "refused", reason=kept, diff=diff
                )


_REFUSAL_CHARS: Final = 2_000


async def read_revisions(connection: AsyncConnection) -> Revisions:
    """Where the database stands, in one statement."""
    table, meta = schema.revisions, schema.meta
    version = select(literal(_RULESET), func.coalesce(func.max(schema.versions.c.version), 0))
    rows = (await connection.execute(select(table.c.name, table.c.value).union_all(version))).all()
    numbers = {name: value for name, value in rows if not name.endswith("_floor")}
    incarnation = (await connection.execute(select(meta.c.value).where(meta.c.key == "incarnation"))).scalar_one()
    return Revisions(incarnation, **numbers)


class _NothingToKeep(Exception):
    """Leaves a transaction that is to be given up."""


def _is_text(value: str) -> bool:
    try:
        check_text("reason", value)
    except ControlError:
        return False
    return True


def _safe(value: str) -> str:
    """A resource as it can be kept: its name may be what is wrong with it."""
    return "".join(char if char.isprintable() else "?" for char in value[:_REFUSAL_CHARS])
