"""Requests that nodes drew at random, kept for a while, to try other rules on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from sluicegate.bounds import SAMPLES_KEPT_MAX, SAMPLES_KEPT_US, WHATIF_LINES_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.rules.feed import NodeReport, Sample

__all__ = ["Recent", "Samples", "lines_of"]


class _Report(NamedTuple):
    """``requests`` were decided in ``span_us`` before ``at_us``, of which ``samples`` are kept, as JSON."""

    at_us: int
    span_us: int
    requests: int
    samples: list[bytes]


class Recent(NamedTuple):
    """``requests``: that were decided in the time asked for. ``samples``: those drawn of them. ``weight``: how many requests each stands for."""

    requests: int
    samples: int
    weight: int
    reports: list[_Report]


class Samples:
    """The samples of the last ``SAMPLES_KEPT_US``, at most ``SAMPLES_KEPT_MAX``. For one thread. In this process's memory: a restart begins anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reports: deque[_Report] = deque()
        self.kept = 0
        self.forgotten = 0

    def observe(self, report: NodeReport) -> None:
        """Take what a node reports. Reports without requests say nothing."""
        now_us = self._clock.now_us()
        if report.requests or report.samples:
            samples = [msgspec.json.encode(sample) for sample in report.samples]
            span_us = max(round(report.interval_s * US_PER_S), US_PER_S)
            # A node that counts no requests has told all of them.
            self._reports.append(_Report(now_us, span_us, max(report.requests, len(samples)), samples))
            self.kept += len(samples)
        while self._reports and (self.kept > SAMPLES_KEPT_MAX or self._reports[0].at_us < now_us - SAMPLES_KEPT_US):
            gone = self._reports.popleft()
            self.kept -= len(gone.samples)
            self.forgotten += len(gone.samples)

    def recent(self, span_us: int) -> Recent:
        """Of the reports that came in the last ``span_us``."""
        since_us = self._clock.now_us() - span_us
        reports = [report for report in self._reports if report.at_us >= since_us and report.samples]
        requests = sum(report.requests for report in reports)
        samples = sum(len(report.samples) for report in reports)
        weight = 1 if not samples else max(1, round(requests / samples))
        return Recent(requests, samples, max(1, min(weight, WHATIF_LINES_MAX // max(samples, 1))), reports)


def lines_of(recent: Recent) -> Iterator[bytes]:
    """The samples as lines of a log in JSON, each as often as it stands for requests of its report.

    The copies are spread over the time in which, on average, no other request was drawn at the node. So a client comes as often as it did, to
    the limits of chance; it is not a burst where it was none.
    """
    for report in recent.reports:
        copies = max(1, round(report.requests / len(report.samples)))
        copies = min(copies, max(1, WHATIF_LINES_MAX // max(recent.samples, 1)))
        gap_us = report.span_us // len(report.samples)
        for raw in report.samples:
            sample = msgspec.json.decode(raw, type=Sample)
            facts = {("descriptor" if name == "descriptors" else name): value for name, value in sample.facts.items()}
            for copy in range(copies):
                yield msgspec.json.encode({**facts, "time": sample.at_us + copy * gap_us // copies}) + b"\n"
