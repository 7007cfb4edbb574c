"""Who comes most: one answer from one home, the same over HTTP, of a file and on a terminal.

Counts of clients are kept by seconds for the last minutes, by minutes, and by hours where those are past their retention. The window is
widened to the shortest that there are, and everything in the answer is of the window so widened. What is told as being now is of the last
RECENT_S seconds that nodes told of; where there are none by seconds, of the last whole minute and what there is of the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluicegate.analytics.home import Home
from sluicegate.analytics.model import (
    ANYTHING,
    MINUTE_S,
    SECOND_S,
    CountRow,
    HomeStatus,
    Offenders,
    Span,
    Where,
    cells_of,
)
from sluicegate.analytics.model import OffenderRow as Found
from sluicegate.analytics.offenders import Names
from sluicegate.bounds import TOP_ROWS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.control.offenders import OVERALL, OffenderRow, OffenderRule, OffendersAnswer, OffendersQuestion
from sluicegate.events import ALLOWED, BYPASSED, SHADOW_DENIED, UNDECIDED, UNMATCHED

__all__ = ["RECENT_S", "answer"]

RECENT_S: Final = 10
"""Of how many seconds the rates of now are."""

_LISTS = ("block:", "allow:")
_PASSED = frozenset({ALLOWED, UNMATCHED, BYPASSED})


def answer(home: Home, query: OffendersQuestion, now_us: int, names: Names | None = None) -> OffendersAnswer:
    """Ask a home. ``names``: by which a client is looked up under its digests; None: only as it is written.

    Raises AnalyticsError and InvalidRequest as homes do.
    """
    status = home.status()
    until_us = now_us if query.until_us is None else query.until_us
    window = Span(max(0, until_us - query.window_us), until_us)
    span = window.in_cells_of(cells_of(window, None, status.clients_kept_us))
    recent = _recent(span, status, now_us)
    recent_s = max(recent.length_us / US_PER_S, 1.0)
    found = _found(home, span, query, names)
    lately = _lately(home, recent, query, found)
    now = {} if lately is None else {(row.rule, row.subject): row.times for row in lately.rows}
    is_complete = lately is not None and not lately.error and not lately.more
    counts = home.requests(span, by=("rule", "outcome"))
    passed = sum(row.decisions for row in counts if row.outcome in _PASSED)
    requests = sum(row.decisions for row in counts)
    where = Where(rule=(query.rule,)) if query.rule not in {"", OVERALL} else ANYTHING
    return OffendersAnswer(
        kind=query.kind,
        rule=query.rule,
        now_us=now_us,
        since_us=span.since_us,
        until_us=span.until_us,
        rows=[
            _row(row, found.total, now.get((row.rule, row.subject), 0 if is_complete else None), recent_s)
            for row in found.rows
        ],
        total=found.total,
        error=found.error,
        more=found.more,
        sample_rate=found.sample_rate,
        requests=requests,
        allowed=passed,
        refused=requests - passed,
        per_s=sum(row.decisions for row in home.requests(recent)) / recent_s,
        rules=_rules([*home.rules(span, by=("rule", "outcome"), where=where), *_lists(counts, query.rule)]),
        nodes=home.nodes(span),
        dropped=home.dropped(span),
        newest_us=status.last_us,
    )


def _recent(span: Span, status: HomeStatus, now_us: int) -> Span:
    """What rates are of: of a span up to now the last seconds that nodes told of, of one that is over its last minute."""
    until_us = min(span.until_us, now_us) // US_PER_S * US_PER_S
    if status.last_us is not None and until_us - RECENT_S * US_PER_S < status.last_us < until_us:
        until_us = status.last_us
    since_us = max(min(span.since_us, until_us), until_us - RECENT_S * US_PER_S)
    is_over = span.until_us + RECENT_S * US_PER_S < now_us
    if not is_over and status.clients_kept_us.get(SECOND_S, 0) <= since_us:
        return Span(since_us, until_us)
    minutes = 2 if span.until_us > now_us else 1
    since_us = max(span.since_us, span.until_us - minutes * MINUTE_S * US_PER_S)
    return Span(since_us, max(since_us, min(span.until_us, now_us)))


def _found(home: Home, span: Span, query: OffendersQuestion, names: Names | None) -> Offenders:
    rule = None if not query.rule else "" if query.rule == OVERALL else query.rule
    if not query.subject:
        return home.offenders(span, rule=rule, kind=query.kind, limit=query.limit)
    candidates: Sequence[str] = (query.subject,) if names is None else names.candidates(query.subject)
    answers = [home.offenders(span, rule=rule, kind=query.kind, limit=query.limit, subject=each) for each in candidates]
    rows = sorted((row for each in answers for row in each.rows), key=lambda row: (-row.times, row.rule, row.subject))
    first = answers[0]
    more = len(rows) > query.limit or any(each.more for each in answers)
    return Offenders(first.kind, tuple(rows[: query.limit]), first.total, first.error, more, first.sample_rate)


def _lately(home: Home, recent: Span, query: OffendersQuestion, found: Offenders) -> Offenders | None:
    """The clients of now; None where nobody is looked for."""
    if not found.rows or recent.since_us == recent.until_us:
        return None
    rule = None if not query.rule else "" if query.rule == OVERALL else query.rule
    if not query.subject:
        return home.offenders(recent, rule=rule, kind=query.kind, limit=TOP_ROWS_MAX)
    rows: list[Found] = []
    error = 0
    for subject in dict.fromkeys(row.subject for row in found.rows):
        each = home.offenders(recent, rule=rule, kind=query.kind, limit=TOP_ROWS_MAX, subject=subject)
        rows += each.rows
        error = max(error, each.error)
    return Offenders(query.kind, tuple(rows), None, error)


def _row(row: Found, total: int | None, times_now: int | None, recent_s: float) -> OffenderRow:
    share = min(1.0, row.times / total) if total else None
    return OffenderRow(
        row.rule, row.subject, row.times, row.error, share, None if times_now is None else times_now / recent_s
    )


def _lists(counts: Sequence[CountRow], rule: str) -> list[CountRow]:
    """What block and allow lists decided, before any rule: with the rules, so that whose the refusals are is told of all."""
    return [row for row in counts if (row.rule or "").startswith(_LISTS) and rule in {"", OVERALL, row.rule}]


def _rules(counts: Sequence[CountRow]) -> list[OffenderRule]:
    by_rule: dict[str, dict[str, int]] = {}
    for row in counts:
        outcomes = by_rule.setdefault(row.rule or "", {})
        name = row.outcome or ""
        kind = ALLOWED if name in _PASSED else name if name in {SHADOW_DENIED, UNDECIDED} else "refused"
        outcomes[kind] = outcomes.get(kind, 0) + row.decisions
    made = [
        OffenderRule(rule, of.get(ALLOWED, 0), of.get("refused", 0), of.get(SHADOW_DENIED, 0), of.get(UNDECIDED, 0))
        for rule, of in by_rule.items()
    ]
    return sorted(made, key=lambda one: (-one.refused - one.shadow_refused, -one.allowed, one.rule))
