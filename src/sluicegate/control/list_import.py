"""A feed of many entries, taken in one transaction: first staged in a table of the connection's own, then merged by the database.

While the lines come in, nobody waits: the lock of changes is held from the merge on only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import IMPORT_BATCH_LINES, IMPORT_FAULTS_SHOWN, IMPORT_LINE_BYTES_MAX, LIST_ENTRIES_MAX
from sluicegate.control.errors import Fault, Invalid
from sluicegate.control.list_values import NotAnEntry, read_line
from sluicegate.control.model import ImportResult

__all__ = ["Import", "stage", "unstage"]

Staged = tuple[str, str, int | None]

_MAKE: Final = {
    "sqlite": "CREATE TEMPORARY TABLE staged (kind TEXT, value TEXT, expires_us BIGINT, PRIMARY KEY (kind, value)) WITHOUT ROWID",
    "postgresql": 'CREATE TEMPORARY TABLE staged (kind TEXT COLLATE "C", value TEXT COLLATE "C", expires_us BIGINT, '
    "PRIMARY KEY (kind, value)) ON COMMIT PRESERVE ROWS",
}
_FILL: Final = {
    "sqlite": "INSERT OR IGNORE INTO staged VALUES (?, ?, ?)",
    "postgresql": "INSERT INTO staged SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[]) ON CONFLICT DO NOTHING",
}
_DROP: Final = "DROP TABLE IF EXISTS staged"

_ENTRY: Final = "e.list = :list AND e.kind = s.kind AND e.value = s.value AND e.deleted = 0"
_ALIVE: Final = "(e.expires_us IS NULL OR e.expires_us > :now_us)"
_COUNT: Final = f"SELECT count(*) FROM staged s JOIN list_entries e ON {_ENTRY} AND {_ALIVE}"  # noqa: S608 - fixed words only
# Only what differs is written: PostgreSQL would lock, and so write, every row that meets one that is there. In order, because
# that is the order of the indexes as well.
_MERGE: Final = """
INSERT INTO list_entries (list, kind, value, expires_us, source, reason, created_us, actor, revision, deleted)
SELECT :list, s.kind, s.value, s.expires_us, :source, :reason, :now_us, :actor, :revision, 0
FROM staged s LEFT JOIN list_entries e ON e.list = :list AND e.kind = s.kind AND e.value = s.value
WHERE e.value IS NULL OR e.deleted = 1 OR e.expires_us <= :now_us
    OR (e.source = :source AND COALESCE(e.expires_us, -1) <> COALESCE(s.expires_us, -1))
ORDER BY s.kind, s.value
ON CONFLICT (list, kind, value) DO UPDATE SET
    expires_us = excluded.expires_us, source = excluded.source, reason = excluded.reason, created_us = excluded.created_us,
    actor = excluded.actor, revision = excluded.revision, deleted = 0
"""
_REMOVE: Final = """
UPDATE list_entries SET deleted = 1, revision = :revision WHERE list = :list AND source = :source AND deleted = 0
AND NOT EXISTS (SELECT 1 FROM staged s WHERE s.kind = list_entries.kind AND s.value = list_entries.value)
"""


@dataclass(frozen=True, slots=True)
class Import:
    """What is imported into where, and how. ``expires_us`` None: for good, where a line does not say otherwise."""

    list: str
    source: str
    kind: str
    form: str
    replace: bool
    expires_us: int | None
    now_us: int

    async def merge(
        self, connection: AsyncConnection, lines: int, revision: int, actor: str, reason: str
    ) -> ImportResult:
        """Make the staged entries part of the list, within a writing transaction."""
        names = {"list": self.list, "source": self.source, "now_us": self.now_us, "revision": revision}
        before = (await connection.execute(text(_COUNT), {"list": self.list, "now_us": self.now_us})).scalar_one()
        merged = (await connection.execute(text(_MERGE), {**names, "reason": reason, "actor": actor})).rowcount
        removed = 0
        if self.replace:
            del names["now_us"]
            removed = (await connection.execute(text(_REMOVE), names)).rowcount
        if connection.dialect.name == "postgresql" and merged + removed >= IMPORT_BATCH_LINES:
            # The next import of this feed comes sooner than the server would count by itself.
            await connection.execute(text("ANALYZE list_entries"))
        added = lines - before
        return ImportResult(lines, added, merged - added, removed, lines - merged, revision)


async def stage(connection: AsyncConnection, chunks: AsyncIterable[bytes], settings: Import) -> int:
    """Check all lines and keep them on the connection; how many entries they are. Raises Invalid with the first bad lines."""
    database = connection.dialect.name
    async with connection.begin():
        await connection.execute(text(_DROP))
        await connection.execute(text(_MAKE[database]))
        faults: list[Fault] = []
        first = 1
        async for lines in _batches(chunks):
            rows = await asyncio.to_thread(_read, lines, first, settings, faults)
            first += len(lines)
            if len(faults) >= IMPORT_FAULTS_SHOWN:
                break
            if rows and not faults:
                await _fill(connection, rows)
        if faults:
            raise Invalid(faults[:IMPORT_FAULTS_SHOWN])
        if database == "postgresql":
            # Without it the server takes the table for a small one, and joins it row by row.
            await connection.execute(text("ANALYZE staged"))
        count: int = (await connection.execute(text("SELECT count(*) FROM staged"))).scalar_one()
        if count > LIST_ENTRIES_MAX:
            raise Invalid([Fault(f"has {count} entries; the lists hold at most {LIST_ENTRIES_MAX}")])
    return count


@contextlib.asynccontextmanager
async def unstage(connection: AsyncConnection) -> AsyncIterator[None]:
    """Drop what was staged on a connection, at the end."""
    try:
        yield
    finally:
        async with connection.begin():
            await connection.execute(text(_DROP))


async def _fill(connection: AsyncConnection, rows: list[Staged]) -> None:
    statement = _FILL[connection.dialect.name]
    if connection.dialect.name == "postgresql":
        columns = tuple([row[at] for row in rows] for at in range(3))
        await connection.exec_driver_sql(statement, columns)
    else:
        await connection.exec_driver_sql(statement, rows)


def _read(lines: list[bytes], first: int, settings: Import, faults: list[Fault]) -> list[Staged]:
    rows: list[Staged] = []
    for number, line in enumerate(lines, first):
        try:
            row = read_line(line, settings.form, settings.kind, settings.expires_us)
            if row is not None:
                _check_end(row[2], settings.now_us)
        except NotAnEntry as error:
            faults.append(Fault(f"line {number}: {error}", f"/{number}"))
            if len(faults) >= IMPORT_FAULTS_SHOWN:
                break
        else:
            if row is not None:
                rows.append(row)
    return rows


def _check_end(expires_us: int | None, now_us: int) -> None:
    if expires_us is not None and not now_us < expires_us < 2**63:
        raise NotAnEntry(f"expires_us {expires_us} is not ahead")


async def _batches(chunks: AsyncIterable[bytes]) -> AsyncIterator[list[bytes]]:
    """Lines without their ends, some thousand at a time. A line that is too long comes cut, longer than what is allowed."""
    lines: list[bytes] = []
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[: IMPORT_LINE_BYTES_MAX + 2]
        lines += whole
        while len(lines) >= IMPORT_BATCH_LINES:
            yield [line.removesuffix(b"\r") for line in lines[:IMPORT_BATCH_LINES]]
            del lines[:IMPORT_BATCH_LINES]
    if rest:
        lines.append(rest)
    if lines:
        yield [line.removesuffix(b"\r") for line in lines]
