"""Live accuracy from the limiter to the alert: a limiter that keeps its promise shows 0, one that breaks it is told of at once."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric

from sluicegate.analytics.embedded import EmbeddedHome, EmbeddedSink
from sluicegate.analytics.model import Span
from sluicegate.app.analytics.accuracy import AccuracyWatch, accuracy_metrics, counter_digest
from sluicegate.app.analytics.flusher import Flusher
from sluicegate.bounds import ACCURACY_MARGIN_US, ACCURACY_RECENT_US
from sluicegate.cli.analytics_accuracy import accuracy_report
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.events import Admission, Batch, Watching
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.recording import Recorder
from sluicegate.limiter.recording.following import digest_of
from sluicegate.rules.load import load_rules
from sluicegate.stores.base import Answer, Request, Store
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

RULES = """
version: 1
rules:
  - {name: bucket, match: {path: /b}, per: [ip], quota: 50/second}
  - {name: window, match: {path: /w}, per: [ip], quota: 50/second, algorithm: fixed_window}
"""
WATCHED = [ip for n in range(65_536) if digest_of(f"ip:{(ip := f'10.0.{n >> 8}.{n & 255}')}") >> 22 == 0][:8]


class TooMuch(FlakyStore):
    """A store that charges nothing for one request in ``every``: it admits more than the limit."""

    def __init__(self, store: Store, every: int) -> None:
        super().__init__(store)
        self.asked, self.every = 0, every

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        self.asked += 1
        return super().decide_one(request, peek=self.asked % self.every == 0)


def tenth_free(clock: ManualClock) -> Store:
    return TooMuch(MemoryStore(clock), 10)


class Site:
    """A limiter under load, told to an embedded home that is judged, on a clock that is moved."""

    def __init__(self, folder: Path, made: Callable[[ManualClock], Store] = MemoryStore) -> None:
        self.clock = ManualClock()
        self.store = made(self.clock)
        self.limiter = Limiter.from_rules(load_rules(RULES, "r", 1), self.store, self.clock)
        recorder = Recorder(self.clock, name_of=str, follow=True)
        self.limiter.record(recorder)
        self.home = EmbeddedHome(folder / "analytics.db")
        self.flusher = Flusher(recorder, EmbeddedSink(self.home, self.clock), self.clock, "n")
        self.watch = AccuracyWatch(self.home, self.clock)
        self.drawn = random.Random(1)

    def load(self, seconds: int, also: Any = None) -> None:
        for _ in range(seconds * 10):
            self.clock.advance(US_PER_S // 10)
            for _ in range(40):
                facts = {"ip": self.drawn.choice(WATCHED[:2]), "path": self.drawn.choice(("/b", "/w"))}
                self.limiter.check(facts)
                if also is not None:
                    also(self.limiter, facts)
            self.flusher.flush()

    def settle(self) -> list[Any]:
        self.clock.advance(ACCURACY_MARGIN_US + US_PER_S)
        return self.watch.step()

    def metrics(self) -> dict[tuple[str, str], float]:
        found: list[Metric] = list(accuracy_metrics(self.watch))
        return {(s.name, s.labels.get("rule", "")): s.value for each in found for s in each.samples}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.home.close()


def test_a_limiter_under_load_keeps_its_promise(site: Site) -> None:
    """More is asked than the limits allow: nothing is admitted too much and nothing stranded, and every ask was judged."""
    site.load(4)
    assert site.settle() == []
    told = site.metrics()
    assert told["sluicegate_accuracy_asks_total", "bucket"] + told["sluicegate_accuracy_asks_total", "window"] == 1_600
    assert [
        told[name, rule]
        for name in ("sluicegate_overshoot_tokens", "sluicegate_stranded_tokens_total")
        for rule in ("bucket", "window")
    ] == [0] * 4
    assert told["sluicegate_accuracy_late_total", ""] == told["sluicegate_accuracy_failures_total", ""] == 0


def _refunding(limiter: Limiter, facts: dict[str, object]) -> None:
    decision = limiter.check(facts, 3, receipt=True)
    if decision.allowed:
        limiter.refund(decision)


def _granting(limiter: Limiter, facts: dict[str, object]) -> None:
    limiter.grant(facts, 2)


def _resetting(limiter: Limiter, facts: dict[str, object]) -> None:
    limiter.reset(facts)


@pytest.mark.parametrize("also", [_refunding, _granting, _resetting], ids=lambda also: also.__name__)
def test_what_is_given_back_under_load_is_no_overshoot(site: Site, also: Any) -> None:
    """Refunds, grants and resets between the asks let more pass than the limit, rightly."""
    site.load(4, also)
    assert site.settle() == []
    assert site.metrics().get(("sluicegate_overshoot_tokens", "bucket"), 0) == 0


def test_what_is_changed_elsewhere_is_no_overshoot(site: Site) -> None:
    """Counters reset in the store by the rules service, of which the node hears a second later, are no overshoot."""
    other = Limiter.from_rules(load_rules(RULES, "r", 1), site.store, site.clock)
    for _ in range(3):
        site.load(2)
        for ip in WATCHED[:2]:
            other.reset({"ip": ip, "path": "/b"})
        site.load(1)
        site.limiter.forget()
    assert site.settle() == []
    assert site.metrics().get(("sluicegate_overshoot_tokens", "bucket"), 0) == 0


def test_a_limiter_that_admits_a_tenth_too_much_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The metric rises, the log names rule, counter and how much, ``analytics accuracy`` shows it; after a while it is recent no more."""
    site = Site(tmp_path, tenth_free)
    begin_us = site.clock.now_us()
    site.load(10)
    with caplog.at_level(logging.ERROR, "sluicegate.analytics"):
        worst = site.settle()[0]
    told = site.metrics()
    assert told["sluicegate_overshoot_tokens", "bucket"] > 10
    assert told["sluicegate_overshoot_recent_tokens", "bucket"] == told["sluicegate_overshoot_tokens", "bucket"]
    fields = [vars(record)["fields"] for record in caplog.records if record.message == "accuracy_overshoot"]
    assert {"rule": worst.rule, "counter": counter_digest(worst.rule, worst.subject)}.items() <= fields[0].items()
    assert not any(ip in str(fields) for ip in WATCHED)
    report = accuracy_report(site.home, Span(begin_us, site.clock.now_us()))
    assert {row["rule"] for row in report["rules"]} == {"bucket", "window"}
    assert report["worst"][0]["overshoot_tokens"] == max(row["overshoot_tokens"] for row in report["rules"])
    site.clock.advance(ACCURACY_RECENT_US + US_PER_S)
    assert site.metrics()["sluicegate_overshoot_recent_tokens", "bucket"] == 0
    assert site.metrics()["sluicegate_overshoot_tokens", "bucket"] > 10
    site.home.close()


def test_what_comes_late_is_counted(site: Site) -> None:
    """Asks that reach the home after their time was judged are late, and judged no more."""
    site.load(2)
    site.settle()
    at_us = site.watch.judged_us - US_PER_S
    ask = Admission("bucket", "x", "token_bucket", 50, 50, US_PER_S, US_PER_S, at_us, 1, allowed=True, version=1)
    late = Batch(1, "m/0/0", "m", at_us, at_us + 1, admissions=[ask], watch=Watching())
    site.home.ingest([late])
    asks = site.metrics()["sluicegate_accuracy_asks_total", "bucket"]
    site.settle()
    assert site.metrics()["sluicegate_accuracy_late_total", ""] == 1
    assert site.metrics()["sluicegate_accuracy_asks_total", "bucket"] == asks


def test_what_is_not_known_yet_waits(site: Site) -> None:
    """Where a consumer is behind, nothing is judged before the home was told of it; then it is."""
    known_us = site.clock.now_us()
    watch = AccuracyWatch(site.home, site.clock, lambda: known_us)
    site.load(3)
    site.clock.advance(60 * US_PER_S)
    watch.step()
    assert watch.judge.rules() == []
    known_us = site.clock.now_us()
    watch.step()
    assert sum(rule.asks for rule in watch.judge.rules()) == 1_200
    assert watch.late == 0
