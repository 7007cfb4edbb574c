"""Live accuracy: a thread that judges every few seconds what watched counters admitted, as far as a home knows it by then.

It reads a home, not what comes by: so it is the same whoever brought the batches, and several that judge one home find the same.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sluicegate.analytics.accuracy import Judge, Worst
from sluicegate.analytics.home import Home
from sluicegate.analytics.model import Span, Watched
from sluicegate.bounds import (
    ACCURACY_BACK_US,
    ACCURACY_EVERY_S,
    ACCURACY_MARGIN_US,
    ACCURACY_PIECE_US,
    ACCURACY_RECENT_US,
)
from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import AnalyticsError
from sluicegate.events import ASK

__all__ = ["AccuracyWatch", "accuracy_metrics", "counter_digest"]

_LOG: Final = logging.getLogger("sluicegate.analytics")


def counter_digest(rule: str, subject: str) -> str:
    """How a counter is named in logs: sixteen hexadecimal digits, the same wherever the counter is told under the same subject."""
    return hashlib.sha256(f"{rule}\n{subject}".encode("utf-8", "surrogatepass")).hexdigest()[:16]


class AccuracyWatch:
    """Judges what ``home`` holds from now on, a margin behind the clock. ``step`` does it once; ``start`` does so every few seconds on a thread.

    Numbers may be read from any thread. ``judged_us``: up to when all was judged. ``late``: asks that came into the home after that. ``failures``: times
    the home could not be asked; what was not read then is read later, as long as the home keeps it. Only ``close`` closes the home.
    ``known_us``: up to when the home was told; None: up to now.
    """

    def __init__(self, home: Home, clock: Clock, known_us: Callable[[], int] | None = None) -> None:
        self.judge = Judge()
        self.judged_us = max(0, clock.now_us() - ACCURACY_MARGIN_US)
        self.late = 0
        self.failures = 0
        self._home = home
        self._clock = clock
        self._known_us = known_us or clock.now_us
        self._seen: tuple[int, int] = (self.judged_us, 0)
        self._recent: deque[tuple[int, str, int]] = deque()
        self._failing = self._begun = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. Called once."""
        self._thread = threading.Thread(target=self._run, name="accuracy", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """End after the step under way, if that ends in time. Twice is once."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            self._thread = None

    def close(self) -> None:
        """``stop``, and close the home."""
        self.stop()
        self._home.close()

    @property
    def lag_s(self) -> float:
        """How far what was judged is behind the clock."""
        return max(0, self._clock.now_us() - self.judged_us) / US_PER_S

    def recent(self) -> dict[str, int]:
        """The worst overshoot of each rule that has some, of the last minutes."""
        since_us = self._clock.now_us() - ACCURACY_RECENT_US
        found: dict[str, int] = {}
        for at_us, rule, tokens in list(self._recent):
            if at_us >= since_us:
                found[rule] = max(found.get(rule, 0), tokens)
        return found

    def step(self) -> list[Worst]:
        """Judge what is new; the breaches found. Raises AnalyticsError where the home cannot be asked."""
        ends_us = min(self._clock.now_us(), self._known_us()) - ACCURACY_MARGIN_US
        found: list[Worst] = []
        while self.judged_us < ends_us and not self._ending.is_set():
            until_us = min(ends_us, self.judged_us + ACCURACY_PIECE_US)
            # Of what is later only resets matter, and of what is earlier how much of it is new.
            since_us = max(0, min(self._seen[0], self.judged_us - self.judge.slack_us))
            watched = self._home.admissions(Span(since_us, until_us + ACCURACY_BACK_US))
            found += self._judge(watched, until_us)
        return found

    def _judge(self, watched: Watched, until_us: int) -> list[Worst]:
        since_us, seen = self._seen
        asks = [each.at_us for each in watched.admissions if each.kind == ASK]
        self.late += max(0, sum(since_us <= at_us < self.judged_us for at_us in asks) - seen)
        new = tuple(each for each in watched.admissions if each.kind != ASK or each.at_us >= self.judged_us)
        levels = tuple(each for each in watched.levels if each.at_us < until_us)
        found = self.judge.judge(Watched(new, levels), until_us)
        since_us = max(0, until_us - ACCURACY_MARGIN_US)
        self._seen = (since_us, sum(since_us <= at_us < until_us for at_us in asks))
        self.judged_us = until_us
        for worst in found:
            self._tell(worst)
        return found

    def _tell(self, worst: Worst) -> None:
        rule, now_us = worst.rule.partition("#")[0], self._clock.now_us()
        self._recent.append((now_us, rule, worst.overshoot_tokens))
        while self._recent[0][0] < now_us - ACCURACY_RECENT_US:
            self._recent.popleft()
        fields = {
            "rule": worst.rule,
            "counter": counter_digest(worst.rule, worst.subject),
            "overshoot_tokens": worst.overshoot_tokens,
            "at_us": worst.at_us,
        }
        _LOG.error("accuracy_overshoot", extra={"fields": fields})

    def _run(self) -> None:
        while not self._ending.wait(ACCURACY_EVERY_S):
            try:
                self.step()
            except AnalyticsError as error:
                if error.transient or self._begun:
                    self._failed(error, None)
                else:
                    # Nobody has written to the home yet.
                    self.judged_us = max(self.judged_us, self._clock.now_us() - ACCURACY_MARGIN_US)
            except Exception as error:  # noqa: BLE001
                # A fault here is told and tried again; it is no matter of those who ask or bring batches.
                self._failed(error, error)
            else:
                self._failing, self._begun = False, True

    def _failed(self, error: Exception, fault: Exception | None) -> None:
        self.failures += 1
        if not self._failing:
            self._failing = True
            _LOG.warning("accuracy_failing", exc_info=fault, extra={"fields": {"error": str(error)}})


def accuracy_metrics(watch: AccuracyWatch) -> Iterator[Metric]:
    """The families, in order. Rules have values once one of their counters was judged."""
    rules = watch.judge.rules()
    recent = watch.recent()
    worst = GaugeMetricFamily(
        "sluicegate_overshoot_tokens",
        "Tokens that a watched counter admitted too many, at worst since the start",
        labels=["rule"],
    )
    lately = GaugeMetricFamily(
        "sluicegate_overshoot_recent_tokens", "The same, found in the last ten minutes", labels=["rule"]
    )
    stranded = CounterMetricFamily(
        "sluicegate_stranded_tokens", "Tokens that watched counters refused although they had them", labels=["rule"]
    )
    asks = CounterMetricFamily("sluicegate_accuracy_asks", "Asks of watched counters that were judged", labels=["rule"])
    for each in rules:
        worst.add_metric([each.rule], each.overshoot_tokens)
        lately.add_metric([each.rule], recent.get(each.rule, 0))
        stranded.add_metric([each.rule], each.stranded_tokens)
        asks.add_metric([each.rule], each.asks)
    yield from (worst, lately, stranded, asks)
    for name, text, value in (
        ("late", "Asks that were told too late to be judged", watch.late + watch.judge.late),
        ("let_go", "Watched counters that were let go for want of room", watch.judge.let_go),
        ("failures", "Times that what was asked of watched counters could not be read", watch.failures),
    ):
        yield CounterMetricFamily(f"sluicegate_accuracy_{name}", text, value)
    yield GaugeMetricFamily(
        "sluicegate_accuracy_lag_seconds", "How far what was judged is behind the clock", watch.lag_s
    )
