"""What a rollout is watched by."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import GUARD_SLOTS, ROLLOUT_CLIENTS_KEPT
from sluicegate.clock import US_PER_S
from sluicegate.control.guard import Counts, Guard, Tally
from sluicegate.rules.feed import NodeReport, Revisions, RuleCounts

NOW_US = 1_700_000_000 * US_PER_S


def report(
    requests: int = 0, store_errors: int = 0, told: list[tuple[str, str, int]] | None = None, **rules: tuple[int, ...]
) -> NodeReport:
    counts = {name.replace("_at_", "@"): RuleCounts(*row) for name, row in rules.items()}
    return NodeReport(
        "n1", 0, "1", Revisions(), requests=requests, store_errors=store_errors, rules=counts, would_refuse=told or []
    )


def tally(*reports: NodeReport, at_us: int = NOW_US, window_s: int = 60) -> Tally:
    made = Tally(frozenset(("a",)))
    for each in reports:
        made.add(each, at_us, window_s)
    return made


@pytest.mark.parametrize(
    "matched, refused, tripped",
    [(100, 10, False), (100, 11, True), (99, 99, False), (1_000, 100, False), (1_000, 101, True)],
)
def test_refusals_above_the_bound_are_a_fault(matched: int, refused: int, tripped: bool) -> None:
    """A new version is at fault above its share of refusals, not at it, and never on fewer requests than the guard waits for."""
    guard = Guard(refusal_ratio_max=0.1, min_requests=100)
    fault = tally(report(a_at_canary=(matched, refused))).judge(guard, NOW_US)
    assert (fault is not None) is tripped
    if tripped:
        assert fault == f"a@canary refused {refused} of {matched} requests in 60 s, above 0.1"


def test_the_old_version_and_other_rules_are_not_judged() -> None:
    """Only new versions of rules on trial can be at fault; a shadow is by what it would have refused."""
    guard = Guard(refusal_ratio_max=0.1)
    counts = tally(report(a=(500, 400), b_at_canary=(500, 400)))
    assert counts.judge(guard, NOW_US) is None
    assert counts.total == {"a": Counts(500, 400)}
    shadow = tally(report(a_at_shadow=(200, 0, 100)))
    assert shadow.judge(guard, NOW_US) == "a@shadow would have refused 100 of 200 requests in 60 s, above 0.1"


def test_store_errors_are_judged_over_all_nodes() -> None:
    """Requests whose store call failed count over all reports."""
    guard = Guard(store_error_ratio_max=0.05, min_requests=100)
    counts = tally(report(50, 2), report(50, 3))
    assert counts.judge(guard, NOW_US) is None
    counts.add(report(0, 1), NOW_US, 60)
    assert counts.judge(guard, NOW_US) == "the store failed 6 of 100 requests in 60 s, above 0.05"


@given(st.lists(st.tuples(st.integers(0, 90_000_000), st.integers(0, 50)), max_size=30), st.integers(5, 90))
def test_the_guard_looks_back_its_window(history: list[tuple[int, int]], window_s: int) -> None:
    """What is older than the window is never judged, what is younger by a twelfth of it always is, and slots do not pile up."""
    counts, at_us = Tally(frozenset(("a",))), NOW_US
    times: list[tuple[int, int]] = []
    for gap_us, refused in history:
        at_us += gap_us
        counts.add(report(a_at_canary=(refused, refused)), at_us, window_s)
        times.append((at_us, refused))
    assert len(counts.slots) <= GUARD_SLOTS + 2
    young_us = at_us - window_s * US_PER_S * (GUARD_SLOTS - 1) // GUARD_SLOTS
    least = sum(refused for when_us, refused in times if when_us > young_us)
    most = sum(refused for when_us, refused in times if when_us > at_us - window_s * US_PER_S)
    for needed, tripped in ((max(least, 1), least > 0), (most + 1, False)):
        guard = Guard(refusal_ratio_max=0.0, min_requests=needed, window_s=window_s)
        assert (counts.judge(guard, at_us) is not None) is tripped


def test_a_step_begins_with_an_empty_look_back() -> None:
    """After a step the guard judges what the new share brings; the totals go on."""
    guard = Guard(refusal_ratio_max=0.1)
    counts = tally(report(a_at_canary=(1_000, 900)))
    counts.begin_step()
    assert counts.judge(guard, NOW_US) is None
    assert counts.total["a@canary"].refused == 900


def test_a_tally_is_data() -> None:
    """What was counted comes back out of JSON as it was, and what is told of it is bounded."""
    counts = tally(report(10, 1, [("a@canary", "user:1", 3), ("b", "user:1", 9)], a_at_canary=(5, 3), a=(4, 1)))
    again = Tally.of_data(json.loads(json.dumps(counts.to_data())))
    assert again == counts
    assert again.most_refused(5) == [(("a@canary", "user:1"), 3)]
    again.add(report(told=[("a@canary", f"user:x{n}", 1) for n in range(ROLLOUT_CLIENTS_KEPT + 5)]), NOW_US, 60)
    assert len(again.clients) == ROLLOUT_CLIENTS_KEPT
    assert again.most_refused(1) == [(("a@canary", "user:1"), 3)]
