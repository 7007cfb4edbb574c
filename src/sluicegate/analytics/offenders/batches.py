"""From what nodes tell to summaries, and from summaries to the rows of an answer."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from sluicegate.analytics.model import Kind, OffenderRow, Offenders
from sluicegate.analytics.offenders.merge import Bounds, Merger, Summary
from sluicegate.bounds import OFFENDERS_MERGED_MAX
from sluicegate.events import Batch, SubjectTotal

__all__ = ["merged_batches", "offenders_of", "summaries_of"]


def summaries_of(batch: Batch) -> dict[tuple[str, str], Summary]:
    """What one batch tells of clients, by (rule, kind); rule "": over all rules."""
    clients: dict[tuple[str, str], dict[str, Bounds]] = {}
    rates: dict[tuple[str, str], float] = {}
    for row in batch.subjects:
        key = (row.rule, row.kind)
        clients.setdefault(key, {})[row.subject] = Bounds(row.times, row.error)
        rates[key] = min(rates.get(key, 1.0), row.sample_rate)
    totals: dict[tuple[str, str], SubjectTotal] = {(each.rule, each.kind): each for each in batch.totals}
    found: dict[tuple[str, str], Summary] = {}
    for key in clients.keys() | totals.keys():
        told = totals.get(key)
        rate = rates.get(key, 1.0)
        if told is None:
            found[key] = Summary(clients[key], None, 0, rate)
        else:
            found[key] = Summary(clients.get(key, {}), told.total, told.untold, min(rate, told.sample_rate))
    return found


def merged_batches(batches: Iterable[Batch], size: int = OFFENDERS_MERGED_MAX) -> dict[tuple[str, str], Summary]:
    """Batches of any nodes and intervals, each once, by (rule, kind); at most ``size`` clients of each."""
    mergers: dict[tuple[str, str], Merger] = {}
    for batch in batches:
        for key, summary in summaries_of(batch).items():
            mergers.setdefault(key, Merger(size)).add(summary)
    return {key: merger.summary() for key, merger in mergers.items()}


def offenders_of(by_rule: Mapping[str, Summary], kind: Kind, *, limit: int, subject: str | None = None) -> Offenders:
    """The answer of a home whose merged summaries these are, by their rules. ``subject``: of that client only.

    Events of several rules are added up, so a request that two rules refused is two.
    """
    rows = [
        OffenderRow(rule, name, bounds.times, bounds.error)
        for rule, summary in by_rule.items()
        for name, bounds in summary.clients.items()
        if subject is None or name == subject
    ]
    first = heapq.nsmallest(limit, rows, key=lambda row: (-row.times, row.rule, row.subject))
    total: int | None = 0
    for summary in by_rule.values():
        total = None if total is None or summary.total is None else total + summary.total
    return Offenders(
        kind,
        tuple(first),
        total,
        max((summary.untold for summary in by_rule.values()), default=0),
        more=len(rows) > len(first),
        sample_rate=min((summary.sample_rate for summary in by_rule.values()), default=1.0),
    )
