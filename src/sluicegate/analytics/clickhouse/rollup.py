"""Minutes and hours, made of seconds so that it may be done any number of times.

A batch's rows are kept under its id, once however often it comes (the largest of what should be equal). A minute of a node is the sum over
its batches; it is made anew from all of them whenever one of them came, and the largest sum stands, as batches only come and never go. So
neither a batch that comes twice, nor an insert that was repeated or cut off half-way, nor two writers at once count anything twice; and a
minute that is made again after its batches are gone keeps what it had. Inserts are not one transaction over tables, hence no counting in
the insert itself, and no reliance on a token that the server would have to know for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.model import HOUR_S, MINUTE_S
from sluicegate.bounds import CLICKHOUSE_INSERT_BATCHES

__all__ = ["LARGEST", "TABLES", "CellTable", "cell_rows", "roll_up", "roll_up_select"]

LARGEST: Final = 2**63 - 1
"""Where the counts of a cell stay when they come so far."""


class CellTable(NamedTuple):
    """A table that is kept by seconds, minutes and hours. ``keys``: beside the time; ``sums``: what is added up; ``least``: of what the least counts."""

    name: str
    keys: tuple[str, ...]
    sums: tuple[str, ...]
    least: tuple[str, ...] = ()


_COUNTED: Final = ("rule", "outcome", "tier", "version", "node")
TABLES: Final = {
    table.name: table
    for table in (
        CellTable("requests", (*_COUNTED, "degraded"), ("decisions", "tokens")),
        CellTable("rules", _COUNTED, ("decisions", "tokens")),
        CellTable("offenders", ("kind", "rule", "subject", "node"), ("times", "error", "untold"), ("sample_rate",)),
        CellTable("offender_totals", ("kind", "rule", "node"), ("total", "untold"), ("sample_rate",)),
    )
}
_SUFFIXES: Final = {1: "seconds", MINUTE_S: "minutes", HOUR_S: "hours"}


def cell_rows(table: CellTable, cell_s: int, condition: str) -> str:
    """A question for the rows of a table's cells, each once, its numbers under the names ``the_NAME``."""
    numbers = [
        *(f"max({name}) AS the_{name}" for name in table.sums),
        *(f"min({name}) AS the_{name}" for name in table.least),
    ]
    keys = ("at_s", *table.keys, *(("batch",) if cell_s == 1 else ()))
    return f"SELECT {', '.join((*keys, *numbers))} FROM {table.name}_{_SUFFIXES[cell_s]} WHERE {condition} GROUP BY {', '.join(keys)}"  # noqa: S608


def roll_up_select(table: CellTable, cell_s: int, condition: str) -> str:
    """A question for the cells of ``cell_s`` of a table, made of the next shorter ones that meet the condition."""
    shorter_s = 1 if cell_s == MINUTE_S else MINUTE_S
    sums = [f"toUInt64(least(sum(toUInt128(the_{name})), {LARGEST})) AS {name}" for name in table.sums]
    least = [f"min(the_{name}) AS {name}" for name in table.least]
    keys = ", ".join(table.keys)
    return (
        f"SELECT intDiv(second_s, {cell_s}) * {cell_s} AS at_s, {keys}, {', '.join(sums + least)} "  # noqa: S608
        f"FROM (SELECT * EXCEPT at_s, at_s AS second_s FROM ({cell_rows(table, shorter_s, condition)})) GROUP BY at_s, {keys}"
    )


def roll_up(connection: Connection, table: CellTable, seconds: Iterable[int]) -> None:
    """Make the minutes and hours of a table that these seconds lie in, of what is kept of them."""
    wanted = set(seconds)
    for cell_s in (MINUTE_S, HOUR_S):
        cells = sorted({second // cell_s * cell_s for second in wanted})
        for start in range(0, len(cells), CLICKHOUSE_INSERT_BATCHES):
            some = cells[start : start + CLICKHOUSE_INSERT_BATCHES]
            values = {"since": some[0], "until": some[-1] + cell_s, "cells": some}
            condition = f"at_s >= {{since:Int64}} AND at_s < {{until:Int64}} AND intDiv(at_s, {cell_s}) * {cell_s} IN {{cells:Array(Int64)}}"
            columns = ", ".join(("at_s", *table.keys, *table.sums, *table.least))
            select = roll_up_select(table, cell_s, condition)
            connection.run(f"INSERT INTO {table.name}_{_SUFFIXES[cell_s]} ({columns}) {select}", values)
