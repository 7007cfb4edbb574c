"""The lines of a feed, checked and staged in a table of the connection's own, while everything else goes on. See ``list_steps`` for the rest."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import IMPORT_BATCH_LINES, IMPORT_FAULTS_SHOWN, IMPORT_LINE_BYTES_MAX, LIST_ENTRIES_MAX
from sluicegate.control.errors import Fault, Invalid
from sluicegate.control.list_values import NotAnEntry, check_width, read_line

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
_DROP_ALL: Final = (_DROP, "DROP TABLE IF EXISTS steps")


@dataclass(frozen=True, slots=True)
class Import:
    """What is imported into where, and how. ``expires_us`` None: for good, where a line does not say otherwise.

    ``force``: networks may be of any size.
    """

    list: str
    source: str
    kind: str
    form: str
    replace: bool
    expires_us: int | None
    now_us: int
    force: bool = False


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
    """Drop what was staged on a connection, at the end. With a connection that is broken it is gone already."""
    try:
        yield
    finally:
        with contextlib.suppress(SQLAlchemyError, OSError):
            async with connection.begin():
                for statement in _DROP_ALL:
                    await connection.execute(text(statement))


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
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            row = read_line(line, settings.form, settings.kind, settings.expires_us)
            if row is not None:
                _check_end(row[2], settings.now_us)
                if not settings.force:
                    check_width(row[0], row[1])
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
