"""What ``sluicegate analytics accuracy`` tells."""

from __future__ import annotations

from typing import Any, Final

from sluicegate.analytics.accuracy import Judge, Worst
from sluicegate.analytics.home import Home
from sluicegate.analytics.model import Span, Watched
from sluicegate.app.analytics.accuracy import counter_digest
from sluicegate.bounds import ACCURACY_BACK_US, ACCURACY_PIECE_US
from sluicegate.cli.remote.render import pairs, print_json, table, when
from sluicegate.events import ASK

__all__ = ["accuracy_report", "show_accuracy"]

_WORST_MAX: Final = 20


def accuracy_report(home: Home, span: Span) -> dict[str, Any]:
    """Judge what the home holds of a span, from nothing known before it. ``worst``: the counters with the most tokens too many. Raises AnalyticsError."""
    judge, since_us = Judge(), span.since_us
    worst: dict[tuple[str, str], Worst] = {}
    while since_us < span.until_us:
        until_us = min(since_us + ACCURACY_PIECE_US, span.until_us)
        watched = home.admissions(Span(max(0, since_us - judge.slack_us), until_us + ACCURACY_BACK_US))
        new = tuple(each for each in watched.admissions if each.kind != ASK or each.at_us >= since_us)
        levels = tuple(each for each in watched.levels if each.at_us < until_us)
        for found in judge.judge(Watched(new, levels), until_us):
            key = (found.rule, found.subject)
            if key not in worst or worst[key].overshoot_tokens < found.overshoot_tokens:
                worst[key] = found
        since_us = until_us
    rows = sorted(worst.values(), key=lambda each: (-each.overshoot_tokens, each.rule, each.subject))[:_WORST_MAX]
    return {
        "since_us": span.since_us,
        "until_us": span.until_us,
        "rules": [
            {
                "rule": each.rule,
                "asks": each.asks,
                "admitted_tokens": each.admitted_tokens,
                "overshoot_tokens": each.overshoot_tokens,
                "stranded_tokens": each.stranded_tokens,
            }
            for each in judge.rules()
        ],
        "worst": [
            {
                "rule": each.rule,
                "subject": each.subject,
                "counter": counter_digest(each.rule, each.subject),
                "at_us": each.at_us,
                "overshoot_tokens": each.overshoot_tokens,
            }
            for each in rows
        ],
    }


def show_accuracy(report: dict[str, Any], *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        print_json(report)
        return
    pairs({"since": when(report["since_us"]), "until": when(report["until_us"])})
    headings = ("rule", "asks", "admitted_tokens", "overshoot_tokens", "stranded_tokens")
    table(headings, ([row[name] for name in headings] for row in report["rules"]), "no watched counter was asked")
    if report["worst"]:
        names = ("rule", "subject", "counter", "at_us", "overshoot_tokens")
        told = ([when(row[name]) if name == "at_us" else row[name] for name in names] for row in report["worst"])
        table(names, told, "")
