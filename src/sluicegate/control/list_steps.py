"""A change of very many entries, made in steps, so that no other change waits long: each step is a transaction and a revision of its own.

What is to be done is found first, beside everything else, and kept in a table of the connection's own. Entries are put first, in order;
those that are to go, go in the last steps. The first step of several has a line of the audit trail that says what is to come, the last one a
line with what was done.

The feed belongs to the last one that began: its mark stands in ``meta``, each step looks whether it is still there, and one that finds
another gives up. So two imports of one feed at the same time end as the one that began last. A mark without anybody is what
is left of a process that ended; the next import of the feed finds what is missing, and does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import delete, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import IMPORT_REST_S, IMPORT_STEP_ROWS_MAX, IMPORT_STEP_ROWS_MIN, IMPORT_STEP_US
from sluicegate.control import schema
from sluicegate.control.deltas import prune
from sluicegate.control.errors import Conflict, ControlError, Unavailable
from sluicegate.control.ledger import Change, Ledger
from sluicegate.control.list_import import Import
from sluicegate.control.model import Actor, ImportResult, Role
from sluicegate.control.room import Room

__all__ = ["Job", "in_steps"]

_NEW: Final = 1
_CHANGED: Final = 0
_GONE: Final = -1

_MAKE: Final = {
    "sqlite": "CREATE TEMPORARY TABLE steps (place INTEGER PRIMARY KEY, kind TEXT, value TEXT, expires_us BIGINT, what INTEGER)",
    "postgresql": 'CREATE TEMPORARY TABLE steps (place BIGINT PRIMARY KEY, kind TEXT COLLATE "C", value TEXT COLLATE "C", '
    "expires_us BIGINT, what BIGINT) ON COMMIT PRESERVE ROWS",
}
_DROP: Final = "DROP TABLE IF EXISTS steps"

# An entry that is there, has not ended and is another source's is left alone.
_PLAN_PUT: Final = f"""
INSERT INTO steps SELECT row_number() OVER (ORDER BY s.kind, s.value), s.kind, s.value, s.expires_us,
    CASE WHEN e.value IS NULL OR e.deleted = 1 OR e.expires_us <= :now_us THEN {_NEW} ELSE {_CHANGED} END
FROM staged s LEFT JOIN list_entries e ON e.list = :list AND e.kind = s.kind AND e.value = s.value
WHERE e.value IS NULL OR e.deleted = 1 OR e.expires_us <= :now_us
    OR (e.source = :source AND COALESCE(e.expires_us, -1) <> COALESCE(s.expires_us, -1))
"""  # noqa: S608 - fixed words only
_PLAN_REMOVE: Final = f"""
INSERT INTO steps SELECT :after + row_number() OVER (ORDER BY e.kind, e.value), e.kind, e.value, NULL, {_GONE}
FROM list_entries e WHERE e.list = :list AND e.source = :source AND e.deleted = 0
AND NOT EXISTS (SELECT 1 FROM staged s WHERE s.kind = e.kind AND s.value = e.value)
"""  # noqa: S608 - fixed words only
# Others may have changed these entries since the plan was made, so what decided there decides here as well.
_PUT: Final = f"""
INSERT INTO list_entries (list, kind, value, expires_us, source, reason, created_us, actor, revision, deleted)
SELECT :list, kind, value, expires_us, :source, :reason, :now_us, :actor, :revision, 0
FROM steps WHERE place BETWEEN :first AND :last AND what <> {_GONE} ORDER BY place
ON CONFLICT (list, kind, value) DO UPDATE SET
    expires_us = excluded.expires_us, source = excluded.source, reason = excluded.reason, created_us = excluded.created_us,
    actor = excluded.actor, revision = excluded.revision, deleted = 0
WHERE list_entries.deleted = 1 OR list_entries.expires_us <= excluded.created_us OR (list_entries.source = excluded.source
    AND COALESCE(list_entries.expires_us, -1) <> COALESCE(excluded.expires_us, -1))
"""  # noqa: S608 - fixed words only
_REMOVE: Final = f"""
UPDATE list_entries SET deleted = 1, revision = :revision FROM steps
WHERE steps.place BETWEEN :first AND :last AND steps.what = {_GONE} AND list_entries.list = :list
    AND list_entries.kind = steps.kind AND list_entries.value = steps.value
    AND list_entries.source = :source AND list_entries.deleted = 0
"""  # noqa: S608 - fixed words only
_COUNT_CHANGED: Final = f"SELECT count(*) FROM steps WHERE place BETWEEN :first AND :last AND what = {_CHANGED}"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done in steps, for whom, and as what it stands in the audit trail. ``most``: entries the lists may hold."""

    settings: Import
    actor: Actor
    action: str
    resource: str
    reason: str
    most: int


class _Work(NamedTuple):
    new: int
    changed: int
    gone: int

    @property
    def total(self) -> int:
        return sum(self)


async def in_steps(
    ledger: Ledger, connection: AsyncConnection, job: Job, lines: int, *, validate_only: bool = False
) -> ImportResult:
    """Make what is staged on a connection from ``Database.scratch`` part of the list. ``lines``: how many entries that are.

    Raises Conflict where the lists have no room for it before anything is done; and later, where another one begins with the same feed,
    or others use up the room: what was done until then stays, and the audit trail says how much that is.
    """
    steps = _Steps(ledger, connection, job)
    if validate_only:
        return await steps.tried(lines)
    await steps.claim()
    try:
        return await steps.run(lines)
    except ControlError as error:
        if not isinstance(error, Unavailable):
            await steps.release()
        raise


class _Steps:
    def __init__(self, ledger: Ledger, connection: AsyncConnection, job: Job) -> None:
        self._ledger = ledger
        self._connection = connection
        self._job = job
        self._room = Room(schema.list_entries, counted_each=job.most)
        self._mark = uuid.uuid4().hex
        self._key = f"import:{job.settings.list}:{job.settings.source}"
        self._marked = schema.meta.c.key == self._key
        self._follows_unfinished = False
        self._new = self._changed = self._gone = self._revision = 0

    async def tried(self, lines: int) -> ImportResult:
        """What it would do."""
        work = await self._plan()
        async with self._change(self._job.action, validate_only=True) as change:
            await self._check_room(change, work)
            revision = change.revisions.lists + (1 if work.total else 0)
        return ImportResult(lines, *work, lines - work.new - work.changed, revision)

    async def claim(self) -> None:
        """From now on the feed is this one's: who was at it gives up."""
        async with self._ledger.database.write_on(self._connection):
            found = await self._connection.execute(delete(schema.meta).where(self._marked))
            self._follows_unfinished = found.rowcount > 0
            await self._connection.execute(schema.meta.insert(), {"key": self._key, "value": self._mark})

    async def release(self) -> None:
        """Give the feed up, where it is still this one's."""
        with contextlib.suppress(Unavailable):
            async with self._ledger.database.write() as connection:
                await connection.execute(delete(schema.meta).where(self._marked, schema.meta.c.value == self._mark))

    async def run(self, lines: int) -> ImportResult:
        work = await self._plan()
        rows, first = IMPORT_STEP_ROWS_MIN, 1
        while True:
            last = min(first + rows - 1, work.total)
            took_us = await self._step(work, first, last, lines)
            if last == work.total:
                break
            rows, first = _next_rows(rows, took_us), last + 1
            if not self._ledger.database.is_postgresql:
                # SQLite has no queue: who waits in another process looks again some time apart.
                await asyncio.sleep(IMPORT_REST_S)
        if self._ledger.database.is_postgresql and work.total >= IMPORT_STEP_ROWS_MAX:
            # The next import of this feed comes sooner than the server would count by itself.
            async with self._connection.begin():
                await self._connection.execute(text("ANALYZE list_entries"))
        return ImportResult(
            lines, self._new, self._changed, self._gone, lines - self._new - self._changed, self._revision
        )

    async def _plan(self) -> _Work:
        connection, settings = self._connection, self._job.settings
        names = {"list": settings.list, "source": settings.source}
        postgresql = self._ledger.database.is_postgresql
        async with connection.begin():
            await connection.execute(text(_DROP))
            await connection.execute(text(_MAKE[connection.dialect.name]))
            put = await connection.execute(text(_PLAN_PUT), {**names, "now_us": self._ledger.clock.now_us()})
            if settings.replace:
                await connection.execute(text(_PLAN_REMOVE), {**names, "after": put.rowcount})
            if postgresql:
                await connection.execute(text("ANALYZE steps"))
            counted = await connection.execute(text("SELECT what, count(*) FROM steps GROUP BY what"))
            counts = {row[0]: row[1] for row in counted.all()}
        return _Work(counts.get(_NEW, 0), counts.get(_CHANGED, 0), counts.get(_GONE, 0))

    async def _step(self, work: _Work, first: int, last: int, lines: int) -> int:
        """Do what stands from ``first`` to ``last``; how long it has kept others waiting."""
        is_first, is_last = first == 1, last == work.total
        begins = is_first and not is_last
        async with self._change(self._job.action + (".begin" if begins else "")) as change:
            began_us = self._ledger.clock.monotonic_us()
            await self._check_mark(change, work)
            if is_first:
                self._revision = change.revisions.lists
                await self._check_room(change, work)
            new, changed, gone = await self._do(change, work, first, last)
            if new and not await self._room.fits(change.connection, self._job.most, new):
                raise Conflict(f"the lists would hold more than {self._job.most} entries{self._so_far(work)}")
            self._note(change, work, (new, changed, gone), lines, begins=begins, ends=is_last)
            if is_last:
                await change.connection.execute(delete(schema.meta).where(self._marked))
            change.keep()
        self._new, self._changed, self._gone = self._new + new, self._changed + changed, self._gone + gone
        return self._ledger.clock.monotonic_us() - began_us

    async def _do(self, change: Change, work: _Work, first: int, last: int) -> tuple[int, int, int]:
        """Counted are what was changed in truth; whether as new or not by how it was when the plan was made."""
        if last < first:
            return 0, 0, 0
        self._revision = await change.touch("lists")
        settings, span = self._job.settings, {"first": first, "last": last}
        names = {"list": settings.list, "source": settings.source, "revision": self._revision, **span}
        merged = changed = gone = 0
        if first <= work.new + work.changed:
            told = {"now_us": change.now_us, "reason": self._job.reason, "actor": self._job.actor.name}
            merged = (await change.connection.execute(text(_PUT), names | told)).rowcount
            planned: int = (await change.connection.execute(text(_COUNT_CHANGED), span)).scalar_one()
            changed = min(planned, merged)
        if last > work.new + work.changed:
            gone = (await change.connection.execute(text(_REMOVE), names)).rowcount
            await prune(change.connection, schema.list_entries, "lists")
        return merged - changed, changed, gone

    def _note(
        self, change: Change, work: _Work, done: tuple[int, int, int], lines: int, *, begins: bool, ends: bool
    ) -> None:
        """The lines of the audit trail: with what is to come, and with what was done."""
        follows = {"follows_unfinished": True} if self._follows_unfinished else {}
        if begins:
            change.record(
                {"lines": lines, "to_add": work.new, "to_change": work.changed, "to_remove": work.gone} | follows
            )
        elif ends:
            new, changed, gone = self._new + done[0], self._changed + done[1], self._gone + done[2]
            if new or changed or gone:
                change.record({"lines": lines, "added": new, "changed": changed, "removed": gone} | follows)

    async def _check_mark(self, change: Change, work: _Work) -> None:
        mark = (await change.connection.execute(select(schema.meta.c.value).where(self._marked))).scalar_one_or_none()
        if mark != self._mark:
            feed = self._job.settings.source
            raise Conflict(f"another import or removal of {feed!r} began after this one{self._so_far(work)}")

    async def _check_room(self, change: Change, work: _Work) -> None:
        if work.new and await self._room.left(change.connection, self._job.most) < work.new:
            raise Conflict(f"the lists would hold more than {self._job.most} entries")

    def _so_far(self, work: _Work) -> str:
        done = self._new + self._changed + self._gone
        return f"; {done} of {work.total} entries were done" if done else ""

    def _change(self, action: str, *, validate_only: bool = False) -> Any:
        job = self._job
        options: dict[str, Any] = {"reason": job.reason, "validate_only": validate_only, "on": self._connection}
        return self._ledger.change(job.actor, Role.EDITOR, action, job.resource, **options)


def _next_rows(rows: int, took_us: int) -> int:
    """How large the next step is, by how long the last one took."""
    if took_us > IMPORT_STEP_US:
        return max(IMPORT_STEP_ROWS_MIN, rows // 2)
    return min(IMPORT_STEP_ROWS_MAX, rows * 2) if took_us < IMPORT_STEP_US // 2 else rows
