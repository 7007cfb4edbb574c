from __future__ import annotations

import dataclasses
import json
import tracemalloc

import pytest

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.clock import ManualClock
from sluicegate.rules.load import load_rules
from sluicegate.rules.report import COUNTER_OVERHEAD_BYTES, bounds_report, render_bounds
from sluicegate.stores.base import Counter
from sluicegate.stores.memory import MemoryStore

S = 1_000_000


def report(*rules: str, head: str = "", **load):
    text = f"version: 1\n{head}rules:\n" + "".join(f"- {{{rule}}}\n" for rule in rules)
    return bounds_report(load_rules(text, "f"), **load)


ADMITTED = [
    # quota and algorithm, interval in s, most admitted in it, at one moment, per second in the long run
    ("quota: 100/minute", 60.0, 199, 100, 100 / 60),
    ("quota: 10/second burst 50", 5.0, 99, 50, 10.0),
    ("quota: 10/second burst 50, algorithm: leaky_bucket, max_delay_ms: 5000", 5.0, 99, 50, 10.0),
    ("quota: 100/minute, algorithm: fixed_window", 60.0, 200, 200, 100 / 60),
    ("quota: 100/minute, algorithm: sliding_window, strict: true", 60.0, 100, 100, 100 / 70),
    ("quota: 100/minute, algorithm: sliding_log", 60.0, 100, 100, 100 / 60),
]


@pytest.mark.parametrize("rule, interval_s, most, at_once, sustained", ADMITTED)
def test_what_a_rule_admits_at_most(rule, interval_s, most, at_once, sustained):
    """The bound of each algorithm in numbers."""
    (row,) = report(f"name: a, per: [ip], {rule}")
    assert (row.interval_s, row.most_admitted, row.at_once) == (interval_s, most, at_once)
    assert row.sustained_per_s == pytest.approx(sustained)


def test_the_numbers_are_those_of_the_specs():
    """Every bound is the spec's own ``most_admitted``, tier by tier and part by part."""
    head = "tiers: {default: free, names: [free, paid]}\n"
    rows = report(
        "name: a, per: [ip], quota: {free: 100/minute, paid: '10/second; 1000/hour'}",
        "name: b, quota: 50/day, algorithm: sliding_window",
        head=head,
    )
    specs = [
        ("a", "free", TokenBucket(100, 100, 60 * S)),
        ("a#1", "paid", TokenBucket(10, 10, S)),
        ("a#2", "paid", TokenBucket(1000, 1000, 3600 * S)),
        ("b", None, SlidingWindow(50, 86_400 * S)),
    ]
    assert [(row.rule, row.tier) for row in rows] == [(name, tier) for name, tier, _ in specs]
    for row, (_, _, spec) in zip(rows, specs, strict=True):
        assert row.most_admitted == spec.most_admitted(spec.window_us)
        assert row.at_once == spec.most_admitted(2)
        assert row.interval_s == spec.window_us / S


def greedy(spec, steps: int, step_us: int) -> list[int]:
    """Times at which a caller who always asks is admitted."""
    state, times = None, []
    for now_us in range(1_700_000_000 * S, 1_700_000_000 * S + steps * step_us, step_us):
        after = spec.admit(state, now_us, 1)
        while after is not None:
            state = after
            times.append(now_us)
            after = spec.admit(state, now_us, 1)
    return times


SPECS = [
    ("quota: 7/second", TokenBucket(7, 7, S)),
    ("quota: 7/second, algorithm: fixed_window", FixedWindow(7, S)),
    ("quota: 7/second, algorithm: sliding_window, strict: 3", SlidingWindow(7, S, 3)),
    ("quota: 7/second, algorithm: sliding_log", SlidingLog(7, S)),
]


@pytest.mark.parametrize("rule, spec", SPECS)
def test_a_greedy_caller_gets_the_long_run_rate(rule, spec):
    """Over a minute, a caller who always asks gets the rate that is printed, give or take one capacity."""
    (row,) = report(f"name: a, per: [ip], {rule}")
    times = greedy(spec, 60 * 50, 20_000)
    assert abs(len(times) - row.sustained_per_s * 60) <= spec.capacity
    window_us = spec.window_us
    most = max(sum(1 for t in times[i : i + 50] if t < times[i] + window_us) for i in range(len(times)))
    assert most <= row.most_admitted


def test_exact_counters_refuse_nothing_wrongly():
    """Only sliding windows err on the side of refusing, and the report says by how much."""
    rules = ["quota: 5/s", "quota: 5/s, algorithm: fixed_window", "quota: 5/s, algorithm: sliding_log"]
    for rule in rules:
        (row,) = report(f"name: a, {rule}")
        assert row.refused_wrongly == 0
    (estimate,) = report("name: a, quota: 5/s, algorithm: sliding_window")
    assert estimate.refused_wrongly == 5
    assert "spread evenly" in estimate.refused_wrongly_why
    (strict,) = report("name: a, quota: 5/s, algorithm: sliding_window, strict: 9")
    assert "9/10 of the limit in the long run" in strict.refused_wrongly_why


def test_what_is_not_enforced_admits_any_number():
    """Unlimited, shadow and off have no bound; off costs nothing, a shadow what it would."""
    unlimited, shadow, off = report(
        "name: a, quota: unlimited", "name: b, quota: 5/s, mode: shadow", "name: c, quota: 5/m, mode: off"
    )
    assert [row.most_admitted for row in (unlimited, shadow, off)] == [None, None, None]
    assert [row.store_calls_per_s for row in (unlimited, shadow, off)] == [0, 1000, 0]
    assert [row.memory_bytes > 0 for row in (unlimited, shadow, off)] == [False, True, False]


def test_a_ban_admits_nothing():
    """The bound of a ban is zero, and it keeps no counter."""
    (row,) = report("name: a, per: [ip], quota: 0")
    assert (row.most_admitted, row.at_once, row.interval_s, row.memory_bytes) == (0, 0, None, 0)


def test_load_and_clients_scale_the_cost():
    """Memory goes with the clients that are told apart, store calls with the requests."""
    each, everybody = report("name: a, per: [ip], quota: 5/s", "name: b, quota: 9/s", rps=250, clients=10)
    assert (each.counters, everybody.counters) == (10, 1)
    assert each.memory_bytes == 10 * each.counter_bytes
    assert each.counter_bytes == COUNTER_OVERHEAD_BYTES + TokenBucket(5, 5, S).state_bytes()
    assert each.store_calls_per_s == 250


ONE, THREE = "counts in this process all of the limit", "each of 3 nodes counts"
FAILURE = [
    ("10/s", "open", 3, None, "admits everything, counted and marked degraded"),
    ("10/s", "closed", 3, 0, "refuses everything with 503"),
    ("0", "local", 3, 0, "still refuses everything"),
    ("unlimited", "closed", 3, 0, "nothing changes"),
    ("10/s", "local", 1, 10, f"{ONE}; starts full, so up to 10 more per outage"),
    (
        "10/s",
        "local",
        3,
        10,
        f"{THREE} 1/3 of the rate, 3 at once; starts full, so up to 10 more per outage over all nodes",
    ),
    (
        "2/s",
        "local",
        3,
        3,
        f"{THREE} 1/3 of the rate, 1 at once; starts full, so up to 3 more per outage over all nodes",
    ),
    ("10/s", "local, fallback_start: empty", 1, 0, f"{ONE}; starts empty, so no burst more"),
    (
        "10/s",
        "local, fallback_start: empty",
        3,
        0,
        f"{THREE} 1/3 of the rate, 3 at once; starts empty, so no burst more",
    ),
    (
        "2/s",
        "local, fallback_start: empty",
        3,
        1,
        f"{THREE} 1/3 of the rate, 1 at once; starts empty, but has a token at least, so up to 1 more per outage over all nodes",
    ),
    ("10/s", "local, fallback_share: sticky", 1, 10, f"{ONE}; starts full, so up to 10 more per outage"),
    (
        "10/s",
        "local, fallback_share: sticky",
        3,
        None,
        f"{THREE} all of the limit; starts full, so up to 30 more per outage over all nodes, and 3 times the rate while it lasts",
    ),
]


@pytest.mark.parametrize("quota, policy, nodes, more, words", FAILURE)
def test_what_a_store_failure_costs(quota, policy, nodes, more, words):
    """Each failure policy has its price, for the given number of nodes."""
    (row,) = report(f"name: a, per: [ip], quota: {quota}, on_store_failure: {policy}", nodes=nodes)
    assert (row.on_store_failure, row.outage_extra, row.store_failure) == (policy.split(",")[0], more, words)


def test_the_report_is_plain_data():
    """Rows become JSON as they are, for scripts."""
    rows = report("name: a, per: {first_of: [user, ip]}, quota: 5/s", "name: b, quota: unlimited")
    again = json.loads(json.dumps([dataclasses.asdict(row) for row in rows]))
    assert [row["per"] for row in again] == ["first of user, ip", "everybody"]


def test_the_report_reads_so():
    """The text has a line for each limit and the reasons below it."""
    text = render_bounds(report("name: a, per: [ip], quota: 100/minute", "name: b, quota: unlimited, mode: shadow"))
    lines = text.splitlines()
    assert lines[0].split("  ")[0] == "rule"
    assert "199 in any 60 s" in lines[2]
    assert "any number" in lines[3]
    assert "a shadow: it counts and refuses nobody" in text
    assert all(len(line) < 200 for line in lines)
    assert render_bounds([]) == "no rules"


MEMORY = [
    TokenBucket(100, 7, 60 * S),
    LeakyBucket(10, 10, S),
    FixedWindow(5, 60 * S),
    SlidingWindow(100, 60 * S),
    SlidingWindow(100, 60 * S, 6),
]


@pytest.mark.parametrize("spec", MEMORY, ids=lambda spec: f"{spec.algorithm}-{getattr(spec, 'sub_windows', '')}")
def test_a_counter_takes_no_more_memory_than_said(spec):
    """Measured on real counters of the memory store: no more than the report says, and not a tenth of it."""
    clock = ManualClock()
    store = MemoryStore(clock)
    counter = Counter("login", spec, f"default:login:{spec.algorithm}:{spec.shape}:0:")
    subjects = [f"{n:032x}" for n in range(10_930)]  # just past a doubling of the table: its worst moment
    tracemalloc.start()
    for subject in subjects:
        clock.advance(1)
        store.decide_one(((counter, subject, 1),))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    each = used / len(subjects)
    assert each <= COUNTER_OVERHEAD_BYTES + spec.state_bytes()
    assert each >= (COUNTER_OVERHEAD_BYTES + spec.state_bytes()) / 10
