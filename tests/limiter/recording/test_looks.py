"""What is told of some decisions and some clients: samples, heavy hitters, demand, watched counters; and that all of it is bounded."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from sluicegate.bounds import (
    ADMISSIONS_TOLD_MAX,
    DEMAND_CLIENTS_MAX,
    LOOKS_KEPT_MAX,
    RECORDED_CELLS_MAX,
    REFUSALS_TOLD_MAX,
    SAMPLES_TOLD_MAX,
    SUBJECTS_TOLD_MAX,
)
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.events import ALLOWED, ASKED, DENIED, REFUSED
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.recording import Recorder, Taken
from sluicegate.limiter.recording.following import digest_of
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore

RULES = """
version: 1
rules:
  - {name: ip, per: [ip], quota: 5/second}
  - {name: pair, match: {path: /x/7}, per: [user, ip], quota: 1000000/second}
"""


class Site:
    """A recorded limiter on a clock of its own."""

    def __init__(self, *, follow: bool = False, rules: str = RULES) -> None:
        self.clock = ManualClock()
        self.limiter = Limiter.from_rules(load_rules(rules, "r"), MemoryStore(self.clock), self.clock)
        self.recorder = Recorder(self.clock, name_of=lambda subject: f"<{subject}>", follow=follow)
        self.limiter.record(self.recorder)

    def ask(self, number: int, times: int = 1) -> None:
        for _ in range(times):
            self.limiter.check(
                Facts(method="GET", path="/x/7", ip=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
            )

    def take(self, seconds: float = 1, **options: bool) -> Taken:
        now_us = self.clock.now_us()
        self.clock.advance(round(seconds * US_PER_S))
        return self.recorder.take(now_us, self.clock.now_us(), **options)


def test_every_decision_is_told_while_there_are_few() -> None:
    """Up to the cap each decision is a sample that stands for itself, with what was asked and what remained."""
    site = Site()
    site.ask(1, 7)
    samples = site.take().decisions
    assert Counter(sample.outcome for sample in samples) == {ALLOWED: 5, DENIED: 2}
    assert {sample.sample_rate for sample in samples} == {1.0}
    first = next(sample for sample in samples if sample.outcome == DENIED)
    assert (first.rule, first.rules, first.subjects) == ("ip", ("ip",), {"ip": "<ip:10.0.0.1>"})
    assert (first.method, first.endpoint, first.limit, first.remaining) == ("GET", "/x/*", 5, 0)
    assert first.retry_after_ms == 200


def test_samples_stand_for_all() -> None:
    """Beyond the caps the weights of samples add up to about all decisions of their sort, and their number stays bounded."""
    site = Site()
    estimates: Counter[str] = Counter()
    made: Counter[str] = Counter()
    for _ in range(6):
        for number in range(4_000):
            site.ask(number % 700)
        taken = site.take()
        for row in taken.requests:
            made[row.outcome] += row.decisions
        told = Counter(sample.outcome for sample in taken.decisions)
        assert told[ALLOWED] <= SAMPLES_TOLD_MAX
        assert told[DENIED] <= REFUSALS_TOLD_MAX
        for sample in taken.decisions:
            estimates[sample.outcome] += round(1 / sample.sample_rate)
    for outcome, times in made.items():
        assert estimates[outcome] == pytest.approx(times, rel=0.25)


def test_heavy_hitters_keep_their_bounds() -> None:
    """Of refusals, and of what is asked while every decision is looked at: times - error <= true <= times, and who is not told came at most ``untold`` times."""
    site = Site()
    random_ = random.Random(3)
    true: Counter[str] = Counter()
    for _ in range(600):
        number = min(int(random_.paretovariate(0.6)), 3_000)
        true[f"<ip:10.0.{number >> 8}.{number & 255}>"] += 1
        site.ask(number)
    taken = site.take()
    refused = {subject: max(0, times - 5) for subject, times in true.items()}
    for kind, counts in ((ASKED, true), (REFUSED, refused)):
        for rule in ("", "ip"):
            (total,) = [row for row in taken.totals if (row.rule, row.kind) == (rule, kind)]
            assert total.total == sum(counts.values())
            told = {row.subject: row for row in taken.subjects if (row.rule, row.kind) == (rule, kind)}
            for subject, times in counts.items():
                row = told.get(subject)
                if row is None:
                    assert times <= total.untold
                else:
                    assert row.times - row.error <= times <= row.times
    assert len(taken.subjects) <= 2 * SUBJECTS_TOLD_MAX


def test_two_readers_are_told_of_all_refusals() -> None:
    """What a recorder takes is still there for the other reader of refusals."""
    site = Site()
    site.ask(1, 9)
    site.take()
    site.ask(1, 8)
    site.take()
    assert site.limiter.offenders.take() == [("ip", "ip:10.0.0.1", 7)]
    assert site.limiter.offenders.take() == []


def test_demand_of_a_client() -> None:
    """A span tells sums and peaks of what one client asked, refusals included; a longer silence ends a peak."""
    site = Site(follow=True)
    for second in range(61):
        site.ask(1, 6 if second == 3 else 1 if second % 20 == 4 else 0)
        demand = site.take().demand
        assert bool(demand) == (second == 59)
        if demand:
            (row,) = [row for row in demand if row.rule == "ip"]
    assert (row.subject, row.span_s, row.sample_rate) == ("<ip:10.0.0.1>", 60, 1.0)
    assert (row.asked, row.tokens, row.refused, row.peak_1s, row.peak_10s) == (9, 9, 1, 6, 7)


def test_chosen_clients_are_bounded_and_whole() -> None:
    """With too many clients half of them are given up, again and again; of those that stay nothing is missing."""
    site = Site(follow=True)
    for _ in range(2):
        for number in range(5_000):
            site.ask(number)
        taken = site.take()
    taken = site.take(last=True)
    assert 0 < len(taken.demand) <= DEMAND_CLIENTS_MAX
    assert {row.asked for row in taken.demand} == {2}
    share = taken.demand[0].sample_rate
    assert share < 1
    assert all(digest_of(row.subject[1:-1]) < share * 2**32 for row in taken.demand)
    assert len(taken.demand) / share == pytest.approx(5_000, rel=0.3)


def test_watched_counters_are_whole() -> None:
    """Whatever was asked of a watched counter is told, and beyond the cap only of fewer counters."""
    site = Site(follow=True)
    numbers = [
        number
        for number in range(60_000)
        if digest_of(f"ip:10.{number >> 16}.{number >> 8 & 255}.{number & 255}") < 2**22
    ]
    assert len(numbers) > 20
    site.ask(5)
    each = 2 * ADMISSIONS_TOLD_MAX // len(numbers)
    for _ in range(each):
        for number in numbers:
            site.ask(number)
    taken = site.take()
    assert taken.watch is not None
    assert taken.watch.level >= 1
    assert 0 < len(taken.admissions) <= ADMISSIONS_TOLD_MAX
    assert taken.dropped.admissions > 0
    told = Counter(row.subject for row in taken.admissions)
    for number in numbers:
        subject = f"ip:10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        level = 22 - digest_of(subject).bit_length()
        assert told[f"<{subject}>"] == (each if level >= taken.watch.level else 0)
    row = taken.admissions[0]
    assert (row.rule, row.algorithm, row.capacity, row.tokens, row.period_us) == (
        "ip",
        "token_bucket",
        5,
        1,
        US_PER_S // 5,
    )
    assert Counter((row.allowed, row.fits) for row in taken.admissions)[True, True] == 5 * len(told)


def test_memory_is_bounded_when_nobody_takes() -> None:
    """Looks that nobody takes are counted and not kept; policies without end are added up and not kept apart."""
    site = Site(follow=True)
    for number in range(2 * LOOKS_KEPT_MAX):
        site.ask(number)
    assert len(site.recorder._allowed._kept) <= LOOKS_KEPT_MAX
    taken = site.take()
    assert sum(row.decisions for row in taken.requests) == 2 * LOOKS_KEPT_MAX
    cells = site.recorder._cells
    many: list[Any] = []
    for number in range(RECORDED_CELLS_MAX + 50):
        site.limiter.check(Facts(path="/x/7", ip="10.0.0.1"), cost=number % 5 + 1)
        many.append(number)
    assert len(cells.plain) + len(cells._weighed) <= 2 * RECORDED_CELLS_MAX
    assert sum(row.decisions for row in site.take().requests) == len(many)


def test_a_recorder_belongs_to_one_limiter() -> None:
    """A second limiter is refused; after the first let go of it another may have it, and nothing that was not taken is lost."""
    site = Site()
    other = Limiter.from_quota("5/second")
    with pytest.raises(ConfigurationError, match="record"):
        other.record(site.recorder)
    site.ask(1, 7)
    site.limiter.record(None)
    assert site.limiter.recorder is None
    site.ask(1, 7)
    other.record(site.recorder)
    taken = site.take()
    assert sum(row.decisions for row in taken.requests) == 7
    assert [row.total for row in taken.totals if row.kind == REFUSED and row.rule == "ip"] == [2]


def test_counts_survive_a_name_that_cannot_be_made() -> None:
    """Where ``name_of`` raises, so does the take, and the next one tells the counts."""
    site = Site(follow=True)
    site.ask(1, 7)
    name_of, site.recorder._name_of = site.recorder._name_of, lambda subject: f"{1 // 0}"
    with pytest.raises(ZeroDivisionError):
        site.take()
    site.recorder._name_of = name_of
    site.ask(1)
    taken = site.take()
    assert sum(row.decisions for row in taken.requests) == 8
    assert sum(row.decisions for row in taken.rules if row.rule == "ip") == 8


def test_a_peek_is_no_decision() -> None:
    """Peeks leave nothing behind."""
    site = Site(follow=True)
    site.limiter.peek(Facts(ip="10.0.0.1"))
    assert site.take(last=True).empty
