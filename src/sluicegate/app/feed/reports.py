"""What a node says of itself to its rules service.

Counts, refused clients and penalties are kept until a report with them was answered. An answer that is lost on its way makes them be told
twice: a count at the service may be too high after a fault of the network, and is too low only by what a process that ends had not told
yet. Samples are not kept: those of a report that was not answered are lost, and the next are as good.
"""

from __future__ import annotations

from collections import Counter
from importlib.metadata import version
from math import ceil

from sluicegate.bounds import (
    OFFENDERS_IN_REPORT_MAX,
    PENALTIES_IN_REPORT_MAX,
    REPORT_ERROR_CHARS_MAX,
    RULES_IN_REPORT_MAX,
    SAMPLES_IN_REPORT_MAX,
)
from sluicegate.clock import Clock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.feed import NodeReport, ReportAnswer, Revisions, RuleCounts

__all__ = ["Reports"]


class Reports:
    """Makes the reports of one node, one at a time: after each ``make`` either ``answered`` or ``failed``."""

    def __init__(self, limiter: Limiter, clock: Clock, node: str, interval_s: float) -> None:
        self.node = node
        self.interval_s = interval_s
        self.sent = 0
        self._limiter = limiter
        self._started_us = clock.now_us()
        self._release = version("sluicegate")
        self._requests = 0
        self._store_errors = 0
        self._rules: dict[str, RuleCounts] = {}
        """What the service knows already."""
        self._offenders: Counter[tuple[str, str]] = Counter()

    def make(
        self, applied: Revisions, applied_us: int, error: str | None, listeners: dict[str, str] | None = None
    ) -> NodeReport:
        """What is to be told now."""
        limiter = self._limiter
        for rule, subject, times in limiter.offenders.take():
            self._offenders[rule, subject] += times
        if len(self._offenders) > OFFENDERS_IN_REPORT_MAX:
            self._offenders = Counter(dict(self._offenders.most_common(OFFENDERS_IN_REPORT_MAX)))
        penalties = limiter.penalties.take()
        limiter.penalties.give_back(penalties[PENALTIES_IN_REPORT_MAX:])
        return NodeReport(
            node=self.node,
            started_us=self._started_us,
            release=self._release,
            applied=applied,
            digest=limiter.ruleset.digest,
            applied_us=applied_us,
            error=None if error is None else error[:REPORT_ERROR_CHARS_MAX],
            requests=self._decided() - self._requests,
            store_errors=limiter.stats.store_errors - self._store_errors,
            rules=self._rule_counts(),
            would_refuse=[(*client, times) for client, times in self._offenders.most_common()],
            samples=limiter.known.sampler.take() if limiter.known.sampler.on else [],
            penalties=penalties[:PENALTIES_IN_REPORT_MAX],
            interval_s=self.interval_s,
            listeners=dict(listeners or {}),
        )

    def answered(self, report: NodeReport, answer: ReportAnswer) -> None:
        """The service knows what is in the report."""
        self.sent += 1
        self._requests += report.requests
        self._store_errors += report.store_errors
        for name, counts in report.rules.items():
            self._rules[name] = _sum(self._rules.get(name, RuleCounts()), counts)
        self._offenders.clear()
        wanted = (
            ceil(max(0.0, answer.sample_per_s) * self.interval_s)
            if answer.sample_per_s < SAMPLES_IN_REPORT_MAX
            else SAMPLES_IN_REPORT_MAX
        )
        self._limiter.known.sampler.resize(min(wanted, SAMPLES_IN_REPORT_MAX))

    def failed(self, report: NodeReport) -> None:
        """Nobody knows whether it does."""
        self._limiter.penalties.give_back(report.penalties)

    def _decided(self) -> int:
        stats = self._limiter.stats
        return stats.allowed + sum(stats.refused.copy().values())

    def _rule_counts(self) -> dict[str, RuleCounts]:
        """Of each rule what the service does not know. Rules that find no room come with the next report."""
        found: dict[str, RuleCounts] = {}
        for name, counts in self._limiter.stats.rule_counts().items():
            known = self._rules.get(name)
            fresh = counts if known is None else _difference(counts, known)
            if fresh != RuleCounts():
                found[name] = fresh
                if len(found) >= RULES_IN_REPORT_MAX:
                    break
        return found


def _sum(one: RuleCounts, other: RuleCounts) -> RuleCounts:
    return RuleCounts(
        one.matched + other.matched, one.refused + other.refused, one.shadow_refused + other.shadow_refused
    )


def _difference(counts: RuleCounts, known: RuleCounts) -> RuleCounts:
    # A peek is counted and taken back, so a count may be one too high for a moment.
    return RuleCounts(
        max(0, counts.matched - known.matched),
        max(0, counts.refused - known.refused),
        max(0, counts.shadow_refused - known.shadow_refused),
    )
