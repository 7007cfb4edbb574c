"""Replays whose result is known from elsewhere: a real log, and a made one counted by a second implementation."""

from __future__ import annotations

import json
import os
import random
import re
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction
from pathlib import Path

import pytest

from sluicegate.replaying import Report
from sluicegate.rules.model import RuleSet

ROOT = Path(__file__).resolve().parents[2]
FIXED = "name: one, per: [ip], quota: 5/minute, algorithm: fixed_window"
BUCKET = "name: one, per: [ip], quota: 10/minute, algorithm: token_bucket"

Rules = Callable[[str], RuleSet]


@pytest.fixture(scope="module")
def real_log() -> str:
    """A public log of 10,000 requests, half of them out of order. It is not part of the repository."""
    path = Path(os.environ.get("SLUICEGATE_ACCESS_LOG") or ROOT.parent / "shared" / "data" / "access.log")
    if not path.exists():
        pytest.skip("the real access log is not here: SLUICEGATE_ACCESS_LOG names it")
    return str(path)


@pytest.mark.parametrize(("rule", "refused"), [(FIXED, 3083), (BUCKET, 1013)])
@pytest.mark.parametrize("log_format", ["auto", "combined", "common"])
def test_real_log(
    real_log: str, rules: Rules, replayed: Callable[..., Report], rule: str, refused: int, log_format: str
) -> None:
    """The real log has no bad line, and one rule refuses the known number of its requests."""
    report = replayed(rules(rule), real_log, log_format=log_format)
    assert (report.requests, report.bad_lines, report.late) == (10_000, 0, 0)
    assert report.refused == refused
    assert report.rules["one"].refused == refused


def test_real_log_several_rules_decide_as_one(real_log: str, rules: Rules, replayed: Callable[..., Report]) -> None:
    """A second rule that never refuses changes nothing, though it takes the way through the memory store."""
    report = replayed(rules(f"name: all, quota: 1000000/second\n{FIXED}"), real_log)
    assert report.refused == 3083
    assert report.rules["all"].matched == 10_000


@pytest.fixture(scope="module")
def made_lines() -> list[str]:
    """3,000 requests of 40 clients, some busy, each up to 100 seconds out of order."""
    rng = random.Random(20260517)
    lines = []
    for number in range(3_000):
        second = 36_000 + number // 3 - rng.choice([0, 0, 0, rng.randrange(100)])
        client = f"192.0.2.{int(rng.paretovariate(0.8)) % 40}"
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        lines.append(f'{client} - - [17/May/2026:{clock} +0000] "GET /{number} HTTP/1.1" 200 1 "-" "-"')
    return lines


def sorted_requests(lines: list[str]) -> list[tuple[int, str]]:
    """Time in seconds and client of each line, in order of time, by nothing but the standard library."""
    found = [re.match(r"(\S+) .*?\[(.*?)\]", line) for line in lines]
    requests = [(int(datetime.strptime(m[2], "%d/%b/%Y:%H:%M:%S %z").timestamp()), m[1]) for m in found]
    return sorted(requests, key=lambda request: request[0])


def naive_fixed_window(lines: list[str]) -> int:
    """How many a count of 5 per client and clock minute refuses."""
    counts: dict[tuple[str, int], int] = defaultdict(int)
    refused = 0
    for second, client in sorted_requests(lines):
        counts[client, second // 60] += 1
        if counts[client, second // 60] > 5:
            refused += 1
    return refused


def naive_token_bucket(lines: list[str]) -> int:
    """How many a bucket of 10 tokens that gains one per 6 seconds refuses, in exact fractions."""
    buckets: dict[str, tuple[Fraction, int]] = {}
    refused = 0
    for second, client in sorted_requests(lines):
        tokens, since = buckets.get(client, (Fraction(10), second))
        tokens = min(Fraction(10), tokens + Fraction(second - since, 6))
        if tokens >= 1:
            tokens -= 1
        else:
            refused += 1
        buckets[client] = (tokens, second)
    return refused


@pytest.mark.parametrize(("rule", "naive"), [(FIXED, naive_fixed_window), (BUCKET, naive_token_bucket)])
def test_made_log(
    made_lines: list[str],
    rules: Rules,
    log: Callable[..., str],
    replayed: Callable[..., Report],
    rule: str,
    naive: Callable[[list[str]], int],
) -> None:
    """A made log is refused as often as a second, simple implementation says."""
    expected = naive(made_lines)
    report = replayed(rules(rule), log(made_lines))
    assert report.refused == expected
    assert 300 < expected < 2_700, "the log would not tell a right answer from a wrong one"


@pytest.mark.parametrize("rule", [FIXED, BUCKET])
def test_order_in_the_file_means_nothing_within_the_window(
    made_lines: list[str], rules: Rules, log: Callable[..., str], replayed: Callable[..., Report], rule: str
) -> None:
    """Sorted, as written and with every line moved by up to 15 seconds again, the log gives one result."""
    rng = random.Random(7)
    ordered = [line for _, line in sorted(enumerate(made_lines), key=lambda entry: entry[1].split("[")[1][:20])]
    moved = [line for _, line in sorted((number + rng.randrange(45), line) for number, line in enumerate(ordered))]
    assert ordered != made_lines != moved
    results = [replayed(rules(rule), log(lines)).to_dict() for lines in (ordered, made_lines, moved)]
    assert results[0] == results[1] == results[2]
    assert results[0]["late_lines"] == 0
    assert json.dumps(results[0])
