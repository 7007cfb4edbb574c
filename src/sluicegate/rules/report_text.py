"""The bounds of rules as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluicegate.rules.report_row import RuleBounds

__all__ = ["render_bounds"]

_HEAD: Final = (
    "rule",
    "tier",
    "per",
    "algorithm",
    "quota",
    "most admitted",
    "at once",
    "long run",
    "refused wrongly",
    "bytes each",
    "memory",
    "calls/s",
)


def render_bounds(rows: Sequence[RuleBounds]) -> str:
    """A table with a line for each limit, then the reasons: formula, wrong refusals, store failure."""
    if not rows:
        return "no rules"
    table = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(_HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join([*lines, "", *_reasons(rows)])


def _cells(row: RuleBounds) -> tuple[str, ...]:
    return (
        row.rule,
        row.tier or "all",
        row.per,
        row.algorithm if row.mode == "enforce" else f"{row.algorithm} ({row.mode})",
        row.quota,
        _admitted(row),
        "any number" if row.at_once is None else f"{row.at_once:,}",
        "any rate" if row.sustained_per_s is None else f"{_number(row.sustained_per_s)}/s",
        f"{row.refused_wrongly:,}",
        f"{row.counter_bytes:,}",
        _bytes(row.memory_bytes),
        _number(row.store_calls_per_s),
    )


def _admitted(row: RuleBounds) -> str:
    if row.most_admitted is None:
        return "any number"
    if row.interval_s is None:
        return f"{row.most_admitted:,} ever"
    return f"{row.most_admitted:,} in any {_number(row.interval_s)} s"


def _reasons(rows: Sequence[RuleBounds]) -> list[str]:
    lines: list[str] = []
    for row in rows:
        name = row.rule if row.tier is None else f"{row.rule} ({row.tier})"
        lines += [
            name,
            f"  admits         {row.formula}",
            f"  refuses wrong  {row.refused_wrongly_why}",
            f"  store away     {row.on_store_failure}: {row.store_failure}",
            *_shared(row),
        ]
    return [
        *lines,
        "",
        "Numbers are tokens of one counter. Memory is that of all counters at the given number of clients, in the memory",
        "store. All rules of one request share one store call. While only some nodes are cut off from the store, each of",
        "them admits its share on top of what the store admits. Writes are lost by a failover to a replica that is behind, a",
        "restart without them or an eviction; an old master that goes on admits by itself until its clients leave it.",
        *_trusted(rows),
    ]


def _shared(row: RuleBounds) -> list[str]:
    """What is different where processes share the store; nothing of what is not enforced."""
    shared = row.shared
    if row.mode != "enforce" or not shared.decided:
        return []
    lines = [f"  {shared.precision:<13}  {shared.decided}"]
    whys = (shared.over_admitted_why, shared.refused_wrongly_why)
    lines += [f"                 {why}" for why in whys if why]
    if shared.regions:
        lines.append(f"  regions        {shared.regions}")
    return [*lines, f"  writes lost    {shared.lost_writes}"]


def _trusted(rows: Sequence[RuleBounds]) -> list[str]:
    trusted_s = max(row.shared.trusted_s for row in rows)
    if not trusted_s:
        return []
    stretched_s = max(row.shared.stretched_s for row in rows)
    more = (
        f", or {stretched_s:g} s where several processes are hammered for one counter"
        if stretched_s > trusted_s
        else ""
    )
    return [
        "A refusal by a shared store is repeated in the process for as long as it was said to last; a reset, a refund or a",
        f"raised limit of which the news was lost is seen after {trusted_s:g} s at most{more}. It never admits anybody.",
    ]


def _number(value: float) -> str:
    """At most six significant digits, no exponent below a billion."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.6g}" if value < 1_000 else f"{value:,.1f}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
