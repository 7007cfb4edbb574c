"""Questions. Every value goes to the server beside the statement; the only words put into SQL are names of our own columns and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.clickhouse.retention import kept_since_us
from sluicegate.analytics.clickhouse.rollup import TABLES, cell_rows
from sluicegate.analytics.embedded.cells import Piece, pieces_of
from sluicegate.analytics.model import (
    DIMENSIONS,
    RESOLUTIONS_S,
    CountRow,
    DecisionRow,
    Kind,
    OffenderRow,
    Offenders,
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

__all__ = ["counts", "decisions", "demand", "dropped", "nodes", "offenders", "watched"]

_DIMENSIONS: Final = {"requests": DIMENSIONS, "rules": tuple(name for name in DIMENSIONS if name != "degraded")}
_TYPES: Final = {"version": "Array(Int64)"}
_DROPPED: Final = Dropped.__struct_fields__
_SPAN: Final = "at_us >= {since:Int64} AND at_us < {until:Int64}"
_ONCE: Final = "ORDER BY at_us DESC, batch DESC, place DESC LIMIT 1 BY batch, place"


def _pieces(connection: Connection, span: Span, step_s: int | None = None) -> list[Piece]:
    """What answers for a span."""
    finest = cells_of(span, step_s, kept_since_us(connection))
    fitting = [length for length in RESOLUTIONS_S if step_s is None or step_s % length == 0]
    return pieces_of(span, finest, fitting[-1] if fitting else finest)


def _union(table: str, parts: Sequence[Piece], condition: str, values: dict[str, Any]) -> str:
    """A question for the rows of all pieces; adds their borders to ``values``."""
    found = []
    for number, part in enumerate(parts):
        values |= {f"since{number}": part.since_s, f"until{number}": part.until_s}
        within = f"at_s >= {{since{number}:Int64}} AND at_s < {{until{number}:Int64}}"
        columns = ", ".join(
            ("at_s", *TABLES[table].keys, *(f"the_{name}" for name in TABLES[table].sums + TABLES[table].least))
        )
        found.append(f"SELECT {columns} FROM ({cell_rows(TABLES[table], part.cell_s, within + condition)})")  # noqa: S608
    return " UNION ALL ".join(found)


def counts(
    connection: Connection, table: str, span: Span, step_s: int | None, by: Sequence[str], where: Where
) -> list[CountRow]:
    """Rows of ``requests`` or ``rules``; see ``Home``. Raises InvalidRequest."""
    check_step(span, step_s)
    for name in by:
        if name not in _DIMENSIONS[table] or by.count(name) > 1:
            raise InvalidRequest("by", f"must be of {', '.join(_DIMENSIONS[table])}, each once, got {name!r}")
    parts = _pieces(connection, span, step_s)
    condition, values = "", dict[str, Any]()
    for name, allowed in where.given().items():
        condition += f" AND {name} IN {{in_{name}:{_TYPES.get(name, 'Array(String)')}}}"
        values[f"in_{name}"] = list(allowed)
    if not parts or not all(where.given().values()):
        return []
    step = None if step_s is None else max(step_s, min(part.cell_s for part in parts))
    groups = [*(["step_s"] if step else []), *by]
    names = [*([f"intDiv(at_s, {step}) * {step} AS step_s"] if step else []), *by]
    columns = ", ".join([*names, "sum(toUInt128(the_decisions))", "sum(toUInt128(the_tokens))", "count()"])
    statement = f"SELECT {columns} FROM ({_union(table, parts, condition, values)})"  # noqa: S608
    if groups:
        statement += f" GROUP BY {', '.join(groups)}"
    rows = connection.rows(statement, values)
    return [_count(groups, row) for row in sorted(tuple(row) for row in rows) if row[-1]]


def _count(groups: Sequence[str], row: Sequence[Any]) -> CountRow:
    fields = dict(zip(groups, row, strict=False))
    step_s = fields.pop("step_s", None)
    decided, tokens, _ = row[len(groups) :]
    return CountRow(int(decided), int(tokens), None if step_s is None else step_s * US_PER_S, **fields)


def offenders(
    connection: Connection, span: Span, *, rule: str | None, kind: Kind, limit: int, subject: str | None
) -> Offenders:
    """See ``Home``. A client came as often as its batches say, and in each other batch at most as often as that batch's ``untold``."""
    if not 1 <= limit <= TRAFFIC_ROWS_MAX:
        raise InvalidRequest("limit", f"must be 1 to {TRAFFIC_ROWS_MAX}, got {limit}")
    parts = _pieces(connection, span)
    if not parts:
        return Offenders(kind, (), 0, 0)
    values: dict[str, Any] = {"kind": kind, "limit": limit + 1}
    condition = " AND kind = {kind:String} AND " + ("rule != ''" if rule is None else "rule = {rule:String}")
    if rule is not None:
        values["rule"] = rule
    summed = connection.rows(
        "SELECT rule, sum(toUInt128(the_total)), sum(toUInt128(the_untold)), min(the_sample_rate) "  # noqa: S608
        f"FROM ({_union('offender_totals', parts, condition, values)}) GROUP BY rule",
        values,
    )
    totals = {name: (int(total), int(untold)) for name, total, untold, _ in summed}
    if subject is not None:
        condition += " AND subject = {subject:String}"
        values["subject"] = subject
    found = connection.rows(
        "SELECT rule, subject, sum(toInt256(the_times)) - sum(toInt256(the_untold)) AS beyond, "  # noqa: S608
        "sum(toInt256(the_error)) - sum(toInt256(the_untold)), min(the_sample_rate) "
        f"FROM ({_union('offenders', parts, condition, values)}) GROUP BY rule, subject "
        "ORDER BY beyond DESC, subject LIMIT {limit:UInt64} BY rule",
        values,
    )
    floors = {name: untold for name, (_, untold) in totals.items()}
    rows = [
        OffenderRow(name, one, int(beyond) + floors.get(name, 0), int(error) + floors.get(name, 0))
        for name, one, beyond, error, _ in found
    ]
    rows.sort(key=lambda row: (-row.times, row.rule, row.subject))
    return Offenders(
        kind,
        tuple(rows[:limit]),
        sum(total for total, _ in totals.values()),
        max(floors.values(), default=0),
        len(rows) > limit,
        min((row[-1] for row in (*summed, *found)), default=1.0),
    )


def _fields(kind: type[DecisionSample | Demand | Admission]) -> str:
    return ", ".join(f"`{name}`" for name in kind.__struct_fields__)


def _span(span: Span) -> dict[str, Any]:
    return {"since": min(span.since_us, 2**63 - 1), "until": min(span.until_us, 2**63 - 1)}


def _equal(named: Mapping[str, str | None]) -> tuple[str, dict[str, Any]]:
    given = {name: value for name, value in named.items() if value is not None}
    return "".join(f" AND {name} = {{is_{name}:String}}" for name in given), {
        f"is_{name}": value for name, value in given.items()
    }


def decisions(
    connection: Connection, span: Span, named: Mapping[str, str | None], subject: str | None, limit: int
) -> list[DecisionRow]:
    """The newest first. ``named``: what columns must be, None: anything."""
    if not 1 <= limit <= TRAFFIC_ROWS_MAX:
        raise InvalidRequest("limit", f"must be 1 to {TRAFFIC_ROWS_MAX}, got {limit}")
    condition, values = _equal(named)
    if subject is not None:
        condition += " AND has(mapValues(subjects), {subject:String})"
        values["subject"] = subject
    rows = connection.rows(
        f"SELECT node, {_fields(DecisionSample)} FROM decisions WHERE {_SPAN}{condition} {_ONCE} LIMIT {{limit:UInt64}}",  # noqa: S608
        {**values, **_span(span), "limit": limit},
    )
    made = (dict(zip(DecisionSample.__struct_fields__, told, strict=True)) for _, *told in rows)
    return [
        DecisionRow(
            row[0], DecisionSample(**{**told, "rules": tuple(told["rules"]), "subjects": dict(told["subjects"])})
        )
        for row, told in zip(rows, made, strict=True)
    ]


def demand(connection: Connection, span: Span, named: Mapping[str, str | None]) -> list[Demand]:
    """By time; of more than DEMAND_ROWS_MAX rows the newest."""
    condition, values = _equal(named)
    rows = connection.rows(
        f"SELECT {_fields(Demand)} FROM demand WHERE {_SPAN}{condition} {_ONCE} LIMIT {DEMAND_ROWS_MAX}",  # noqa: S608
        {**values, **_span(span)},
    )
    return [Demand(*row) for row in reversed(rows)]


def watched(connection: Connection, span: Span) -> Watched:
    """Asks in the span, and what was watched in any part of it."""
    asks = connection.rows(f"SELECT {_fields(Admission)} FROM admissions WHERE {_SPAN} {_ONCE}", _span(span))  # noqa: S608
    levels = connection.rows(
        "SELECT node, at_us, until_us, watch_level FROM batches WHERE until_us > {since:Int64} AND at_us < {until:Int64} "
        "ORDER BY node, at_us, batch LIMIT 1 BY at_us, batch",
        _span(span),
    )
    return Watched(
        tuple(Admission(*row) for row in reversed(asks)),
        tuple(WatchLevel(node, at, until, None if level < 0 else level) for node, at, until, level in levels),
    )


def dropped(connection: Connection, span: Span) -> Dropped:
    """Summed over nodes and time."""
    condition, values = _told_in(connection, span)
    sums = ", ".join(f"sum(toUInt128(the_{name}))" for name in _DROPPED)
    largest = ", ".join(f"max(dropped_{name}) AS the_{name}" for name in _DROPPED)
    rows = connection.rows(
        f"SELECT {sums} FROM (SELECT at_us, batch, {largest} FROM batches WHERE {condition} GROUP BY at_us, batch)",  # noqa: S608
        values,
    )
    return Dropped(*map(int, rows[0]))


def nodes(connection: Connection, span: Span) -> list[str]:
    """Sorted."""
    condition, values = _told_in(connection, span)
    text = f"SELECT DISTINCT node FROM batches WHERE {condition} ORDER BY node"  # noqa: S608
    return [name for (name,) in connection.rows(text, values)]


def _told_in(connection: Connection, span: Span) -> tuple[str, dict[str, Any]]:
    """A condition for batches, of the same widened span as counts are."""
    wide = span.in_cells_of(cells_of(span, None, kept_since_us(connection)))
    return _SPAN, _span(wide)
