"""Questions about counts and detail. Every value is bound; the only words put into SQL are names of our columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from sluicegate.analytics.embedded.cells import LARGEST, Piece, halves, pieces_of, whole
from sluicegate.analytics.embedded.schema import DROPPED_FIELDS
from sluicegate.analytics.model import (
    DIMENSIONS,
    RESOLUTIONS_S,
    SECOND_S,
    CountRow,
    DecisionRow,
    Span,
    Watched,
    WatchLevel,
    Where,
    cells_of,
    check_step,
)
from sluicegate.bounds import DEMAND_ROWS_MAX, TRAFFIC_ROWS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import InvalidRequest
from sluicegate.events import Admission, DecisionSample, Demand, Dropped

__all__ = [
    "clients_kept_us",
    "clients_since_us",
    "counts",
    "decisions",
    "demand",
    "dropped",
    "kept_since_us",
    "nodes",
    "pieces",
    "watched",
]

_TABLES: Final = {"requests": DIMENSIONS, "rules": tuple(name for name in DIMENSIONS if name != "degraded")}
_decision = msgspec.json.Decoder(DecisionSample).decode
_demand = msgspec.json.Decoder(Demand).decode
_admission = msgspec.json.Decoder(Admission).decode


def kept_since_us(connection: sqlite3.Connection) -> dict[int, int]:
    """Since when cells are complete, by their length."""
    rows = connection.execute("SELECT cell_s, since_s FROM kept").fetchall()
    return {cell_s: since_s * US_PER_S for cell_s, since_s in rows}


def clients_since_us(connection: sqlite3.Connection) -> int:
    """Since when the clients of cells of a second are complete: those go long before the counts."""
    row = connection.execute("SELECT value FROM numbers WHERE name = 'clients_since_s'").fetchone()
    # A file of an earlier release, which nothing was written to since, has none.
    return LARGEST if row is None else int(row[0]) * US_PER_S


def clients_kept_us(connection: sqlite3.Connection) -> dict[int, int]:
    """As ``kept_since_us``, of clients."""
    kept = kept_since_us(connection)
    return {**kept, SECOND_S: max(kept[SECOND_S], clients_since_us(connection))}


def pieces(
    connection: sqlite3.Connection, span: Span, step_s: int | None = None, kept_us: Mapping[int, int] | None = None
) -> list[Piece]:
    """What answers for a span. ``kept_us``: since when cells are complete; None: as counts are."""
    finest = cells_of(span, step_s, kept_since_us(connection) if kept_us is None else kept_us)
    fitting = [length for length in RESOLUTIONS_S if step_s is None or step_s % length == 0]
    return pieces_of(span, finest, fitting[-1] if fitting else finest)


def counts(
    connection: sqlite3.Connection, table: str, span: Span, step_s: int | None, by: Sequence[str], where: Where
) -> list[CountRow]:
    """Rows of ``requests`` or ``rules``; see ``Home``. Raises InvalidRequest."""
    check_step(span, step_s)
    for name in by:
        if name not in _TABLES[table] or by.count(name) > 1:
            raise InvalidRequest("by", f"must be of {', '.join(_TABLES[table])}, each once, got {name!r}")
    parts = pieces(connection, span, step_s)
    step = None if step_s is None or not parts else max(step_s, min(part.cell_s for part in parts))
    groups = [*(["step_s"] if step else []), *by]
    condition, values = _condition(where)
    found: dict[tuple[Any, ...], list[int]] = {}
    for part in parts:
        names = [*([f"at_s / {step} * {step} AS step_s"] if step else []), *by]
        columns = ", ".join([*names, halves("decisions"), halves("tokens")])
        text = f"SELECT {columns} FROM {table} WHERE cell_s = ? AND at_s >= ? AND at_s < ?{condition}"  # noqa: S608
        if groups:
            text += f" GROUP BY {', '.join(groups)}"
        for row in connection.execute(text, (*part, *values)):
            key, sums = row[: len(groups)], row[len(groups) :]
            if sums[0] is None:
                continue
            both = found.setdefault(key, [0, 0])
            both[0] += whole(sums[:2])
            both[1] += whole(sums[2:])
    return [_row(groups, key, *found[key]) for key in sorted(found)]


def _row(groups: Sequence[str], key: Sequence[Any], decided: int, tokens: int) -> CountRow:
    fields = dict(zip(groups, key, strict=True))
    step_s = fields.pop("step_s", None)
    if "degraded" in fields:
        fields["degraded"] = bool(fields["degraded"])
    return CountRow(decided, tokens, None if step_s is None else step_s * US_PER_S, **fields)


def _condition(where: Where) -> tuple[str, list[str | int]]:
    text, values = "", list[str | int]()
    for name, allowed in where.given().items():
        text += f" AND {name} IN ({', '.join('?' * len(allowed))})"
        values += allowed
    return text, values


def decisions(
    connection: sqlite3.Connection, span: Span, named: Mapping[str, str | None], subject: str | None, limit: int
) -> list[DecisionRow]:
    """The newest first. ``named``: what columns must be, None: anything."""
    if not 1 <= limit <= TRAFFIC_ROWS_MAX:
        raise InvalidRequest("limit", f"must be 1 to {TRAFFIC_ROWS_MAX}, got {limit}")
    condition, values = _equal(named)
    if subject is not None:
        condition += " AND EXISTS (SELECT 1 FROM json_each(decisions.subjects) WHERE json_each.value = ?)"
        values.append(subject)
    rows = connection.execute(
        f"SELECT node, told FROM decisions WHERE at_us >= ? AND at_us < ?{condition} ORDER BY at_us DESC, id DESC LIMIT ?",  # noqa: S608
        (span.since_us, span.until_us, *values, limit),
    )
    return [DecisionRow(node, _decision(told)) for node, told in rows]


def _equal(named: Mapping[str, str | None]) -> tuple[str, list[str]]:
    given = {name: value for name, value in named.items() if value is not None}
    return "".join(f" AND {name} = ?" for name in given), list(given.values())


def demand(connection: sqlite3.Connection, span: Span, named: Mapping[str, str | None]) -> list[Demand]:
    """By time; of more than DEMAND_ROWS_MAX rows the newest."""
    condition, values = _equal(named)
    rows = connection.execute(
        f"SELECT told FROM demand WHERE at_us >= ? AND at_us < ?{condition} ORDER BY at_us DESC, id DESC LIMIT ?",  # noqa: S608
        (span.since_us, span.until_us, *values, DEMAND_ROWS_MAX),
    ).fetchall()
    return [_demand(told) for (told,) in reversed(rows)]


def watched(connection: sqlite3.Connection, span: Span) -> Watched:
    """Asks in the span, and what was watched in any part of it."""
    asks = connection.execute(
        "SELECT told FROM admissions WHERE at_us >= ? AND at_us < ? ORDER BY at_us, id", (span.since_us, span.until_us)
    )
    levels = connection.execute(
        "SELECT node, at_us, until_us, level FROM watched WHERE until_us > ? AND at_us < ? ORDER BY node, at_us, id",
        (span.since_us, span.until_us),
    )
    return Watched(tuple(_admission(told) for (told,) in asks), tuple(WatchLevel(*row) for row in levels))


def dropped(connection: sqlite3.Connection, span: Span) -> Dropped:
    """Summed over nodes and time."""
    sums = [0] * len(DROPPED_FIELDS)
    columns = ", ".join(map(halves, DROPPED_FIELDS))
    for part in pieces(connection, span):
        text = f"SELECT {columns} FROM dropped WHERE cell_s = ? AND at_s >= ? AND at_s < ?"  # noqa: S608
        row = connection.execute(text, part).fetchone()
        for place in range(len(sums)):
            sums[place] += whole(row[2 * place : 2 * place + 2])
    return Dropped(*sums)


def nodes(connection: sqlite3.Connection, span: Span) -> list[str]:
    """Sorted."""
    found: set[str] = set()
    for part in pieces(connection, span):
        rows = connection.execute("SELECT DISTINCT node FROM dropped WHERE cell_s = ? AND at_s >= ? AND at_s < ?", part)
        found.update(node for (node,) in rows)
    return sorted(found)
