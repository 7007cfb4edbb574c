"""Letting go: of what is past its retention, and of the oldest detail where the file is at its size. In small transactions, for others write too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

from sluicegate.analytics.embedded.connection import transaction
from sluicegate.analytics.embedded.retention import Retention
from sluicegate.analytics.model import HOUR_S, MINUTE_S, SECOND_S
from sluicegate.bounds import (
    ADMISSIONS_KEPT_MAX,
    CLIENT_SECONDS_KEPT_S,
    DECISIONS_KEPT_MAX,
    DEMAND_KEPT_MAX,
    EMBEDDED_HOME_PRUNE_STEPS,
)
from sluicegate.clock import US_PER_S

__all__ = ["prune", "size_bytes", "used_bytes"]

_ROWS_OF_STEP: Final = 5_000
_PAGES_OF_STEP: Final = 500
_DETAIL: Final = ("admissions", "decisions", "demand")
_CELL_TABLES: Final = ("requests", "rules", "dropped", "offenders", "offender_totals")
_CLIENT_TABLES: Final = ("offenders", "offender_totals")
_CELLS: Final = (SECOND_S, MINUTE_S, HOUR_S)
_KEPT: Final = "UPDATE kept SET since_s = max(since_s, ?2) WHERE cell_s = ?1"
_CLIENTS_KEPT: Final = "UPDATE numbers SET value = max(value, ?2) WHERE name = 'clients_since_s' AND ?1 = 1"


def prune(connection: sqlite3.Connection, now_us: int, retention: Retention) -> bool:
    """A bounded number of steps; True where there may be more to do."""
    newest_s = connection.execute("SELECT max(at_s) FROM dropped WHERE cell_s = ?", (HOUR_S,)).fetchone()[0]
    if newest_s is None:
        return False
    # Counted from the newest batch, so that a log of the past that was read in stays; a clock that is ahead must not empty the home.
    newest_s = (
        connection.execute("SELECT max(at_s) FROM dropped WHERE cell_s = ?", (SECOND_S,)).fetchone()[0] or newest_s
    )
    horizon_s = min(now_us // US_PER_S, newest_s)
    steps = _due(connection, horizon_s, retention)
    for done, _ in enumerate(steps, 1):
        if done >= EMBEDDED_HOME_PRUNE_STEPS:
            return True
    _give_back(connection)
    return False


def size_bytes(connection: sqlite3.Connection) -> int:
    """Of the file, without its log."""
    pages: int = connection.execute("PRAGMA page_count").fetchone()[0]
    size: int = connection.execute("PRAGMA page_size").fetchone()[0]
    return pages * size


def used_bytes(connection: sqlite3.Connection) -> int:
    """Of the file, without pages that wait to be used again."""
    free: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    size: int = connection.execute("PRAGMA page_size").fetchone()[0]
    return size_bytes(connection) - free * size


def _due(connection: sqlite3.Connection, horizon_s: int, retention: Retention) -> Iterator[None]:
    """Does one step between two of its values."""
    clients_since_s = horizon_s - min(CLIENT_SECONDS_KEPT_S, retention.seconds_s)
    while _drop_cells(connection, SECOND_S, clients_since_s, tables=_CLIENT_TABLES, note=_CLIENTS_KEPT):
        yield
    for cell_s, kept_s in retention.of_cells.items():
        since_s = -(-(horizon_s - kept_s) // cell_s) * cell_s
        while _drop_cells(connection, cell_s, since_s):
            yield
    lives = {"decisions": retention.decisions_s, "demand": retention.demand_s, "admissions": retention.admissions_s}
    most = {"decisions": DECISIONS_KEPT_MAX, "demand": DEMAND_KEPT_MAX, "admissions": ADMISSIONS_KEPT_MAX}
    for table in _DETAIL:
        while _drop_detail(connection, table, (horizon_s - lives[table]) * US_PER_S, most[table]):
            yield
    while used_bytes(connection) > retention.size_max_bytes and _drop_oldest(connection):
        yield


def _drop_cells(
    connection: sqlite3.Connection,
    cell_s: int,
    since_s: int,
    *,
    tables: Sequence[str] = _CELL_TABLES,
    note: str = _KEPT,
) -> bool:
    """Delete some rows of cells before ``since_s``, the oldest first; True where any were. ``note``: notes since when they are complete."""
    oldest: list[int] = []
    for table in tables:
        text = f"SELECT at_s FROM {table} WHERE cell_s = ? AND at_s < ? ORDER BY at_s LIMIT 1 OFFSET ?"  # noqa: S608
        first = connection.execute(text, (cell_s, since_s, 0)).fetchone()
        if first is not None:
            last = connection.execute(text, (cell_s, since_s, _ROWS_OF_STEP)).fetchone()
            # At least one whole cell, whatever it holds.
            oldest.append(since_s if last is None else max(last[0], first[0] + cell_s))
    if not oldest:
        return False
    before_s = min(oldest)
    with transaction(connection):
        connection.execute(note, (cell_s, before_s))
        for table in tables:
            connection.execute(f"DELETE FROM {table} WHERE cell_s = ? AND at_s < ?", (cell_s, before_s))  # noqa: S608
    return True


def _drop_detail(connection: sqlite3.Connection, table: str, since_us: int, most: int) -> bool:
    """Delete some rows that are too old or too many; True where any were."""
    rows = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
    excess = min(rows - most, _ROWS_OF_STEP)
    if excess > 0:
        return _drop_first(connection, table, excess)
    with transaction(connection):
        gone = connection.execute(
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE at_us < ? ORDER BY at_us LIMIT ?)",  # noqa: S608
            (since_us, _ROWS_OF_STEP),
        ).rowcount
        if table == "admissions":
            gone += connection.execute(
                "DELETE FROM watched WHERE id IN (SELECT id FROM watched WHERE at_us < ? ORDER BY at_us LIMIT ?)",
                (since_us, _ROWS_OF_STEP),
            ).rowcount
    return gone > 0


def _drop_first(connection: sqlite3.Connection, table: str, rows: int) -> bool:
    """Delete the oldest rows, ``rows`` of them or a few more."""
    edge = connection.execute(
        f"SELECT at_us FROM {table} ORDER BY at_us LIMIT 1 OFFSET ?",  # noqa: S608
        (max(rows - 1, 0),),
    ).fetchone()
    if edge is None:
        return False
    with transaction(connection):
        connection.execute(f"DELETE FROM {table} WHERE at_us <= ?", edge)  # noqa: S608
        if table == "admissions":
            # What is not complete any more must not look as if it were.
            connection.execute("DELETE FROM watched WHERE at_us <= ?", edge)
    return True


def _drop_oldest(connection: sqlite3.Connection) -> bool:
    """Make room: some of the oldest of the finest that there is; False where there is nothing left to give."""
    for table in _DETAIL:
        rows = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
        if rows:
            return _drop_first(connection, table, min(-(-rows // 10), _ROWS_OF_STEP))
    return any(_drop_cells(connection, cell_s, 2**62) for cell_s in _CELLS)


def _give_back(connection: sqlite3.Connection) -> None:
    """Give free pages back to the system, some at a time, where there are many."""
    free = connection.execute("PRAGMA freelist_count").fetchone()[0]
    if free > _PAGES_OF_STEP:
        # Each row of the answer is a page that was moved.
        connection.execute(f"PRAGMA incremental_vacuum({_PAGES_OF_STEP})").fetchall()
