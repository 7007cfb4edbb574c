"""What is recorded of a replay is what it decided, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from sluicegate.analytics.embedded import EmbeddedHome
from sluicegate.analytics.model import Span
from sluicegate.analytics.offenders import merged_batches
from sluicegate.events import Batch, decode, encode
from sluicegate.replaying import Recording, Replay, Report, replay
from sluicegate.rules.model import RuleSet

Rules = Callable[[str], RuleSet]
Line = Callable[..., str]
Log = Callable[..., str]

RULES = """name: login, match: {methods: [POST], path: /login}, per: [ip], quota: 3/minute, algorithm: fixed_window
name: everybody, quota: 40/minute, algorithm: fixed_window
name: watched, per: [ip], quota: 2/minute, algorithm: fixed_window, mode: shadow"""
EVER = Span(0, 2**52)


@pytest.fixture
def recorded() -> Callable[..., tuple[list[Batch], Report]]:
    """Replay a log and give its batches with the report."""

    def run(rules: RuleSet, *logs: str, name_of: Callable[[str], str] = str) -> tuple[list[Batch], Report]:
        batches: list[Batch] = []
        recording = Recording(b"rules", rules.version, name_of, batches.append)
        report = replay(Replay(rules=rules, logs=logs), lambda _: None, lambda _: None, recording)
        assert recording.batches == len(batches)
        assert recording.decisions == report.requests
        return batches, report

    return run


Recorded = Callable[..., tuple[list[Batch], Report]]


@pytest.fixture
def busy_log(line: Line, log: Log) -> str:
    """Ten minutes of a few hundred requests of twenty clients."""
    random = Random(7)
    lines = []
    for second in sorted(random.uniform(0, 600) for _ in range(900)):
        client = f"10.0.0.{min(int(random.expovariate(0.3)), 19)}"
        request = random.choice(["POST /login HTTP/1.1", "GET / HTTP/1.1"])
        lines.append(line(second, client, request))
    return log(lines)


def test_every_decision_is_told_once(rules: Rules, busy_log: str, recorded: Recorded) -> None:
    """Decisions, refusals by rule and shadow refusals add up to what the report says."""
    batches, report = recorded(rules(RULES), busy_log)
    assert sum(batch.decided for batch in batches) == report.requests == 900
    refused: Counter[str] = Counter()
    by_rule: Counter[tuple[str, str]] = Counter()
    for batch in batches:
        for row in batch.requests:
            refused[row.rule] += row.decisions
        for rule in batch.rules:
            by_rule[rule.rule, rule.outcome] += rule.decisions
    assert report.refused
    for name, counts in report.rules.items():
        assert refused[name] == counts.refused
        assert by_rule[name, "denied"] == counts.refused + counts.also_refused
        assert by_rule[name, "shadow_denied"] == counts.shadow_refused
        told = sum(times for (rule, _), times in by_rule.items() if rule == name)
        assert told == counts.matched


def test_clients_are_those_that_were_refused(rules: Rules, busy_log: str, recorded: Recorded) -> None:
    """Merged over the minutes, clients of a rule are exact, and those of a counter of everybody are in the total only."""
    batches, report = recorded(rules(RULES), busy_log)
    found = merged_batches(batches)
    login = found["login", "refused"]
    assert sum(bounds.times for bounds in login.clients.values()) == login.total
    assert not any(bounds.error for bounds in login.clients.values())
    assert found["everybody", "refused"].clients == {}
    counts = report.rules["everybody"]
    assert found["everybody", "refused"].total == counts.refused + counts.also_refused
    assert found["", "asked"].total == report.requests


def test_demand_is_all_that_clients_asked(rules: Rules, busy_log: str, recorded: Recorded) -> None:
    """While there is room every client is followed: its asks add up to what the rule matched, and peaks are no more than that."""
    batches, report = recorded(rules(RULES), busy_log)
    rows = [row for batch in batches for row in batch.demand if row.rule == "login"]
    assert sum(row.asked for row in rows) == report.rules["login"].matched
    counts = report.rules["login"]
    assert sum(row.refused for row in rows) == counts.refused + counts.also_refused
    assert all(row.sample_rate == 1 and 1 <= row.peak_1s <= row.peak_10s <= row.tokens for row in rows)


def test_same_log_makes_the_same_batches(rules: Rules, busy_log: str, recorded: Recorded) -> None:
    """The same log under the same rules has the same batches, byte for byte, and what clients are called changes no id."""
    first, _ = recorded(rules(RULES), busy_log)
    again, _ = recorded(rules(RULES), busy_log)
    named, _ = recorded(rules(RULES), busy_log, name_of=lambda subject: f"x{hash(subject)}")
    assert [encode(batch) for batch in first] == [encode(batch) for batch in again]
    assert [batch.id for batch in first] == [batch.id for batch in named]
    assert len({batch.id for batch in first}) == len(first) == 10
    assert [decode(encode(batch)) for batch in first] == first


def test_names_replace_clients_everywhere(rules: Rules, busy_log: str, recorded: Recorded) -> None:
    """Where clients are told under other names, no batch has one of them anywhere."""
    batches, _ = recorded(rules(RULES), busy_log, name_of=lambda _: "somebody")
    assert not any(b"10.0.0." in encode(batch) for batch in batches)


def test_twice_in_a_home_is_once(rules: Rules, busy_log: str, recorded: Recorded, tmp_path: Path) -> None:
    """A home that has the batches counts nothing twice."""
    batches, report = recorded(rules(RULES), busy_log)
    home = EmbeddedHome(tmp_path / "analytics.db")
    home.ingest(batches)
    home.ingest(batches)
    assert sum(row.decisions for row in home.requests(EVER)) == report.requests
    home.close()


def test_other_rules_are_other_batches(rules: Rules, busy_log: str) -> None:
    """Rules that differ make batches of other ids, even of minutes in which they decide alike."""
    found = []
    for text in (b"one", b"two"):
        batches: list[Batch] = []
        recording = Recording(text, 1, str, batches.append)
        replay(Replay(rules=rules(RULES), logs=[busy_log]), lambda _: None, lambda _: None, recording)
        found.append({batch.id for batch in batches})
    assert not found[0] & found[1]


def test_unmatched_and_never_fitting(rules: Rules, line: Line, log: Log, recorded: Recorded) -> None:
    """What no rule applies to is unmatched; a dimension that must be known and is not never fits."""
    strict = "name: strict, match: {path: /api}, per: [user], on_missing: deny, quota: 5/minute"
    batches, _ = recorded(rules(strict), log([line(0), line(1, request="GET /api HTTP/1.1")]))
    assert {(row.rule, row.outcome): row.decisions for row in batches[0].requests} == {
        ("", "unmatched"): 1,
        ("strict", "never_fits"): 1,
    }


def test_more_clients_than_are_told(rules: Rules, line: Line, log: Log, recorded: Recorded, monkeypatch) -> None:
    """Of more clients than a batch tells of the bounds hold still, and the rest is bounded by what it says."""
    monkeypatch.setattr("sluicegate.replaying.recording.REPLAY_RECORDED_CLIENTS_MAX", 8)
    monkeypatch.setattr("sluicegate.replaying.recording.REPLAY_RECORDED_CLIENTS_TOLD", 4)
    random = Random(3)
    clients = [f"10.0.{int(random.expovariate(0.2))}.1" for _ in range(600)]
    batches, _ = recorded(
        rules("name: all, per: [ip], quota: 1000/minute"), log([line(i / 3, ip) for i, ip in enumerate(clients)])
    )
    exact = Counter(f"ip:{ip}" for ip in clients)
    found = merged_batches(batches, 4)["all", "asked"]
    assert found.total == 600
    assert found.untold <= 600 // 4
    for name, times in exact.items():
        if name in found.clients:
            told = found.clients[name]
            assert told.times - told.error <= times <= told.times
        else:
            assert times <= found.untold
