"""What a table of entries is, for who has it as it was at an earlier revision: the part that lists and subjects have in common.

Each row holds the revision at which it last changed, and stays as a tombstone when its entry is removed. Tombstones are kept up to a
number; ``floor`` is the newest revision of one that is gone. Who stands below it cannot be told what was removed, and gets
everything.

Answers come in pages. Until the last one ``revision`` stays what the caller has, so that one who is interrupted begins again; the cursor
says how far the pages are, and which revision they lead to. Rows that change in between come with the next question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Row, Table, delete, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import CHANGES_PAGE_MAX, TOMBSTONES_KEPT
from sluicegate.control import schema
from sluicegate.control.ledger import Part
from sluicegate.control.paging import read_token, write_token

__all__ = ["Delta", "delta", "prune"]

_FULL: Final = "full"
_SINCE: Final = "since"


class Delta(NamedTuple):
    """One page. ``rows`` with ``deleted`` are removals. Other fields as in ``rules.feed.ListChanges``."""

    since: int
    revision: int
    full: bool
    rows: Sequence[Row[Any]]
    more: bool
    cursor: str


async def delta(connection: AsyncConnection, table: Table, part: Part, since: int, cursor: str) -> Delta:
    """The next page for who stands at ``since``; raises Invalid for a cursor that is none of this table's."""
    kinds = [str] * len(table.primary_key.columns)
    revision, floor = [await _value(connection, name) for name in (part, f"{part}_floor")]
    position = None
    if cursor:
        mode = _FULL if since == 0 else _SINCE
        words = [str, int] if mode == _FULL else [str, int, int]
        read = read_token(cursor, table.name, *words, *kinds, name="cursor") or []
        if read[0] == mode and floor <= read[1] <= revision:
            revision, position = read[1], read[2:]
    # Also one who stands above everything: the database was set back, and nobody knows what he has.
    if since == 0 or not floor <= since <= revision:
        return await _full(connection, table, revision, position if since == 0 else None)
    return await _since(connection, table, since, revision, position)


async def _full(connection: AsyncConnection, table: Table, revision: int, position: list[Any] | None) -> Delta:
    keys = tuple_(*table.primary_key.columns)
    query = select(table).where(table.c.deleted == 0).order_by(*table.primary_key.columns).limit(CHANGES_PAGE_MAX + 1)
    if position is not None:
        query = query.where(keys > tuple_(*position))
    rows = (await connection.execute(query)).all()
    shown, more = rows[:CHANGES_PAGE_MAX], len(rows) > CHANGES_PAGE_MAX
    cursor = write_token(table.name, _FULL, revision, *_key(table, shown[-1])) if more else ""
    return Delta(0, 0 if more else revision, position is None, shown, more, cursor)


async def _since(
    connection: AsyncConnection, table: Table, since: int, revision: int, position: list[Any] | None
) -> Delta:
    order = [table.c.revision, *table.primary_key.columns]
    query = select(table).where(table.c.revision > since, table.c.revision <= revision)
    query = query.order_by(*order).limit(CHANGES_PAGE_MAX + 1)
    if position is not None:
        query = query.where(tuple_(*order) > tuple_(*position))
    rows = (await connection.execute(query)).all()
    shown, more = rows[:CHANGES_PAGE_MAX], len(rows) > CHANGES_PAGE_MAX
    cursor = write_token(table.name, _SINCE, revision, shown[-1].revision, *_key(table, shown[-1])) if more else ""
    return Delta(since, since if more else revision, False, shown, more, cursor)


async def prune(connection: AsyncConnection, table: Table, part: Part) -> None:
    """Forget the oldest tombstones above the number that is kept, within a writing transaction."""
    removed = table.c.deleted == 1
    oldest = select(table.c.revision).where(removed).order_by(table.c.revision.desc()).offset(TOMBSTONES_KEPT).limit(1)
    floor = (await connection.execute(oldest)).scalar_one_or_none()
    if floor is None:
        return
    await connection.execute(delete(table).where(removed, table.c.revision <= floor))
    numbers = schema.revisions
    raised = update(numbers).where(numbers.c.name == f"{part}_floor", numbers.c.value < floor).values(value=floor)
    await connection.execute(raised)


async def _value(connection: AsyncConnection, name: str) -> int:
    numbers = schema.revisions
    value: int = (await connection.execute(select(numbers.c.value).where(numbers.c.name == name))).scalar_one()
    return value


def _key(table: Table, row: Row[Any]) -> list[Any]:
    return [getattr(row, column.name) for column in table.primary_key.columns]
