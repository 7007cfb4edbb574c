"""Problem documents."""

from __future__ import annotations

import json

import pytest

from sluicegate.algorithms import Ban, FixedWindow, TokenBucket
from sluicegate.algorithms.verdict import Outcome, Verdict
from sluicegate.clock import ManualClock
from sluicegate.doors.problem import FieldError, problem, quota_exceeded, temporary_reduced_capacity
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.plan import Plan
from sluicegate.stores.base import Counter, Receipt
from sluicegate.stores.memory import MemoryStore


def decide(*counters: Counter, times: int = 1) -> Decision:
    store = MemoryStore(ManualClock())
    charges = [(counter, "s", 1) for counter in counters]
    for _ in range(times):
        answer = store.decide_one(charges)
    return Decision(answer.admitted, Plan(charges), answer)


def test_plain_problem_has_the_registered_members() -> None:
    """A plain problem has type, title, status and detail, and whatever extension members are given."""
    assert json.loads(problem(404, "nothing here", hint="look elsewhere")) == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "nothing here",
        "hint": "look elsewhere",
    }


@pytest.mark.parametrize(
    ("field", "pointer"),
    [("", "#"), ("cost", "#/cost"), ("policy.capacity", "#/policy/capacity"), ("a/b.c~d", "#/a~1b/c~0d")],
)
def test_field_errors_point_into_the_body(field: str, pointer: str) -> None:
    """A dotted field becomes a JSON pointer in fragment form, escaped."""
    document = json.loads(problem(400, "bad", [FieldError.of(field, "is wrong")]))
    assert document["errors"] == [{"detail": "is wrong", "pointer": pointer}]


def test_quota_exceeded_names_every_refusing_rule() -> None:
    """The 429 body lists the rules that refused, in order, and says when to come back; shadow rules are not named."""
    one = Counter("one", FixedWindow(1, 3_600_000_000), "a:")
    two = Counter("two", TokenBucket(1, 1, 5_000_000), "b:")
    wide = Counter("wide", TokenBucket(10, 1, 1_000_000), "c:")
    shadow = Counter("watch", FixedWindow(1, 3_600_000_000), "d:", shadow=True)
    decision = decide(one, wide, two, shadow, times=2)
    document = json.loads(quota_exceeded(decision))
    assert document["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert document["status"] == 429
    assert document["violated-policies"] == ["one", "two"]
    assert document["retry-after"] * 1_000_000 >= (decision.retry_after_us or 0) > 5_000_000


def test_quota_exceeded_of_a_ban_has_no_retry_after() -> None:
    """Where waiting is useless the document does not suggest it."""
    document = json.loads(quota_exceeded(decide(Counter("ban", Ban(), "a:"))))
    assert "retry-after" not in document
    assert "never" in document["detail"]


class _Unreachable:
    """The answer about a fail-closed rule whose store is down."""

    admitted = False
    unanimous = False
    now_us = 0

    def verdicts(self) -> tuple[Verdict, ...]:
        return (Verdict(Outcome.UNDECIDED, 0, None, 0),)

    def receipts(self) -> tuple[Receipt, ...]:
        return ()


def test_reduced_capacity_names_the_undecided_rule() -> None:
    """The 503 body has its own type and names the rule that could not be decided."""
    charges = [(Counter("closed", FixedWindow(1, 1_000_000), "a:"), "s", 1)]
    document = json.loads(temporary_reduced_capacity(Decision(False, Plan(charges), _Unreachable())))
    assert document["type"].endswith("#temporary-reduced-capacity")
    assert (document["status"], document["violated-policies"]) == (503, ["closed"])
