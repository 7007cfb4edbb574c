"""The clients of a cell, merged from the summaries of batches, and again from the cells of a span.

A batch's summary says of each client that it lists that it came at most ``times`` and at least ``times - error`` times, and of every other
one at most ``untold`` times. Over several batches a client came at most the sum of its ``times`` where it is listed, and of ``untold`` where it is
not. A cell keeps E, the sum of all ``untold``, and of each client what it has beyond E (``times - untold`` of its batches), so that
those that a batch does not list need not be written: a client's count is what is kept, plus E.

Where a cell has too many clients those with the least go; F, the most that one of them had beyond E, is what a client may have had that is
not in the cell, and what one begins with that comes (back). So a client that is not in the cell came at most E + F times. Over cells these
sums add up in the same way. This is the merge of Agarwal, Cormode, Huang, Phillips, Wei, Yi: Mergeable Summaries, PODS 2012, with the error
told of each client by itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from sluicegate.analytics.embedded.cells import LARGEST, Piece, halves, whole
from sluicegate.analytics.model import HOUR_S, MINUTE_S, SECOND_S, Kind, OffenderRow, Offenders
from sluicegate.bounds import HOUR_OFFENDERS, MINUTE_OFFENDERS, SECOND_OFFENDERS
from sluicegate.clock import US_PER_S
from sluicegate.events import Batch, SubjectTotal

__all__ = ["CELLS_S", "ask", "keep"]

CELLS_S: Final = (SECOND_S, MINUTE_S, HOUR_S)
_LEFT: Final = {SECOND_S: SECOND_OFFENDERS, MINUTE_S: MINUTE_OFFENDERS, HOUR_S: HOUR_OFFENDERS}

_TOTAL: Final = f"""INSERT INTO offender_totals VALUES (?, ?, ?, ?, ?, ?, 0, ?) ON CONFLICT DO UPDATE SET
    total = min(total, {LARGEST} - excluded.total) + excluded.total,
    untold = min(untold, {LARGEST} - excluded.untold) + excluded.untold,
    sample_rate = min(sample_rate, excluded.sample_rate)"""  # noqa: S608


def keep(connection: sqlite3.Connection, batch: Batch) -> None:
    """Merge the summary of one batch into its cells."""
    totals = {(row.kind, row.rule): row for row in batch.totals}
    for one in batch.subjects:
        totals.setdefault((one.kind, one.rule), SubjectTotal(one.rule, one.kind, 0, 0, one.sample_rate))
    for cell_s in CELLS_S:
        at_s = batch.at_us // US_PER_S // cell_s * cell_s
        connection.executemany(
            _TOTAL,
            [(cell_s, at_s, row.kind, row.rule, row.total, row.untold, row.sample_rate) for row in totals.values()],
        )
        evicted: dict[tuple[str, str], int] = {
            key: connection.execute(
                "SELECT evicted FROM offender_totals WHERE cell_s = ? AND at_s = ? AND kind = ? AND rule = ?",
                (cell_s, at_s, *key),
            ).fetchone()[0]
            for key in totals
        }
        connection.executemany(
            f"""INSERT INTO offenders VALUES (?1, ?2, ?3, ?4, ?5, min(?6, {LARGEST} - ?8) + ?8, min(?7, {LARGEST} - ?8) + ?8)
                ON CONFLICT DO UPDATE SET times = min(times, {LARGEST} - max(?6, 0)) + ?6,
                error = min(error, {LARGEST} - max(?7, 0)) + ?7""",  # noqa: S608
            [
                (cell_s, at_s, one.kind, one.rule, one.subject, one.times - untold, one.error - untold, floor)
                for one in batch.subjects
                for untold in (totals[one.kind, one.rule].untold,)
                for floor in (evicted[one.kind, one.rule],)
            ],
        )
        for key in totals:
            _cut(connection, (cell_s, at_s, *key))


_OF_CELL: Final = "FROM offenders WHERE cell_s = ? AND at_s = ? AND kind = ? AND rule = ?"


def _cut(connection: sqlite3.Connection, cell: tuple[int, int, str, str]) -> None:
    """Where a cell has twice as many clients as are kept, leave those with the most."""
    left = _LEFT[cell[0]]
    if connection.execute(f"SELECT count(*) {_OF_CELL}", cell).fetchone()[0] <= 2 * left:
        return
    gone = connection.execute(
        f"SELECT subject, times {_OF_CELL} ORDER BY times DESC, subject LIMIT -1 OFFSET ?", (*cell, left)
    ).fetchall()
    connection.executemany(
        "DELETE FROM offenders WHERE cell_s = ? AND at_s = ? AND kind = ? AND rule = ? AND subject = ?",
        [(*cell, subject) for subject, _ in gone],
    )
    connection.execute(
        "UPDATE offender_totals SET evicted = max(evicted, ?) WHERE cell_s = ? AND at_s = ? AND kind = ? AND rule = ?",
        (gone[0][1], *cell),
    )


def ask(
    connection: sqlite3.Connection,
    pieces: Sequence[Piece],
    *,
    rule: str | None,
    kind: Kind,
    limit: int,
    subject: str | None,
) -> Offenders:
    """The clients of these pieces of time; see ``Home.offenders``."""
    totals: dict[str, list[int]] = {}
    rate = 1.0
    merged: dict[tuple[str, str], list[int]] = {}
    chosen = ("t.rule != ''", ()) if rule is None else ("t.rule = ?", (rule,))
    for piece in pieces:
        span = (piece.cell_s, piece.since_s, piece.until_s, kind, *chosen[1])
        where = f"t.cell_s = ? AND t.at_s >= ? AND t.at_s < ? AND t.kind = ? AND {chosen[0]}"
        for name, least, *sums in connection.execute(
            f"""SELECT t.rule, min(t.sample_rate), {halves("t.total")}, {halves("t.untold")}, {halves("t.evicted")}
                FROM offender_totals t WHERE {where} GROUP BY t.rule""",  # noqa: S608
            span,
        ):
            _add(totals.setdefault(name, [0, 0]), (whole(sums[:2]), whole(sums[2:4]) + whole(sums[4:])))
            rate = min(rate, least)
        only = "" if subject is None else " AND o.subject = ?"
        for name, one, *sums in connection.execute(
            f"""SELECT t.rule, o.subject, {halves("(o.times - t.evicted)")}, {halves("(o.error - t.evicted)")}
                FROM offender_totals t JOIN offenders o USING (cell_s, at_s, kind, rule) WHERE {where}{only}
                GROUP BY t.rule, o.subject""",  # noqa: S608
            span if subject is None else (*span, subject),
        ):
            _add(merged.setdefault((name, one), [0, 0]), (whole(sums[:2]), whole(sums[2:])))
    rows = [
        OffenderRow(name, one, times + totals[name][1], error + totals[name][1])
        for (name, one), (times, error) in merged.items()
    ]
    rows.sort(key=lambda row: (-row.times, row.rule, row.subject))
    return Offenders(
        kind,
        tuple(rows[:limit]),
        sum(total for total, _ in totals.values()),
        max((floor for _, floor in totals.values()), default=0),
        len(rows) > limit,
        rate,
    )


def _add(to: list[int], what: Iterable[int]) -> None:
    for place, number in enumerate(what):
        to[place] += number
