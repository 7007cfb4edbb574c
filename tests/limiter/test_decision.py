"""Decisions: what an answer is said to mean."""

from __future__ import annotations

import copy
import pickle

import pytest

from sluicegate.algorithms import LeakyBucket, TokenBucket
from sluicegate.algorithms.verdict import Outcome, Verdict
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.plan import Plan
from sluicegate.stores.base import Counter, Receipt

ALLOWED, DENIED, NEVER, UNDECIDED = Outcome.ALLOWED, Outcome.DENIED, Outcome.NEVER_FITS, Outcome.UNDECIDED


class Answered:
    """A store's answer that counts how often it is asked to describe itself."""

    def __init__(self, admitted: bool, *verdicts: Verdict) -> None:
        self.admitted = admitted
        self.now_us = 1
        self.asked = 0
        self._verdicts = verdicts

    def verdicts(self) -> tuple[Verdict, ...]:
        self.asked += 1
        return self._verdicts

    def receipts(self) -> tuple[Receipt, ...]:
        return ()


def decide(admitted: bool, *charges: tuple[str, Verdict], shadow: tuple[str, ...] = ()) -> Decision:
    """A decision on counters of capacity 10, by name and verdict."""
    counters = [Counter(name, TokenBucket(10, 10, 60_000_000), name, name in shadow) for name, _ in charges]
    plan = Plan([(counter, "*", 1) for counter in counters], "free", 7)
    return Decision(admitted, plan, Answered(admitted, *(verdict for _, verdict in charges)))


def test_allowed_describes_the_rule_with_least_remaining() -> None:
    """On a pass the rule is the one with the smallest absolute remaining, the first of equals; shadow rules do not count."""
    decision = decide(
        True,
        ("a", Verdict(ALLOWED, 5, 0, 50)),
        ("b", Verdict(ALLOWED, 3, 0, 30)),
        ("c", Verdict(ALLOWED, 3, 0, 99)),
        ("d", Verdict(DENIED, 0, 70, 70)),
        shadow=("d",),
    )
    assert decision
    assert decision.allowed
    assert (decision.outcome, decision.rule, decision.limit, decision.remaining) == (ALLOWED, "b", 10, 3)
    assert (decision.retry_after_us, decision.reset_after_us, decision.delay_us) == (0, 30, 0)
    assert (decision.refusal, decision.version, decision.degraded, decision.decision_id) == (None, 7, False, None)
    assert [result.outcome for result in decision.results] == [ALLOWED, ALLOWED, ALLOWED, DENIED]


def test_refused_names_the_first_and_waits_for_the_last() -> None:
    """On a refusal the rule is the first that refuses, retry the maximum over all that do, and reset equals it."""
    decision = decide(
        False,
        ("a", Verdict(ALLOWED, 5, 0, 0)),
        ("b", Verdict(DENIED, 1, 100, 100)),
        ("c", Verdict(DENIED, 0, 900, 900)),
        ("s", Verdict(DENIED, 0, 5_000, 5_000)),
        shadow=("s",),
    )
    assert not decision
    assert (decision.outcome, decision.rule, decision.remaining) == (DENIED, "b", 1)
    assert (decision.retry_after_us, decision.reset_after_us, decision.refusal) == (900, 900, "rate")


def test_what_never_fits_has_no_retry() -> None:
    """If one refusing rule can never admit the cost, waiting for the others does not help."""
    decision = decide(False, ("a", Verdict(DENIED, 0, 100, 100)), ("b", Verdict(NEVER, 10, None, 0)))
    assert (decision.rule, decision.outcome) == ("a", NEVER)
    assert (decision.retry_after_us, decision.reset_after_us) == (None, 0)


@pytest.mark.parametrize(
    ("first", "second", "rule", "outcome", "refusal"),
    [
        (Verdict(UNDECIDED, 0, 1_000, 1_000), Verdict(DENIED, 0, 9, 9), "a", UNDECIDED, "store"),
        (Verdict(DENIED, 0, 9, 9), Verdict(UNDECIDED, 0, 1_000, 1_000), "a", DENIED, "rate"),
        (Verdict(UNDECIDED, 0, 0, 0), Verdict(DENIED, 0, 9, 9), "b", DENIED, "rate"),
        (Verdict(ALLOWED, 1, 0, 0), Verdict(UNDECIDED, 0, 1_000, 1_000), "b", UNDECIDED, "store"),
    ],
)
def test_store_failure_refuses_by_its_place(
    first: Verdict, second: Verdict, rule: str, outcome: Outcome, refusal: str
) -> None:
    """An undecided closed rule gives "store" unless a rule before it refused; an open one (no wait) refuses nobody."""
    decision = decide(False, ("a", first), ("b", second))
    assert (decision.rule, decision.outcome, decision.refusal) == (rule, outcome, refusal)


def test_open_rules_do_not_describe_a_pass() -> None:
    """A rule that was let through undecided has no numbers to show."""
    decision = decide(True, ("a", Verdict(UNDECIDED, 0, 0, 0)), ("b", Verdict(ALLOWED, 4, 0, 1)))
    assert (decision.rule, decision.remaining) == ("b", 4)
    alone = decide(True, ("a", Verdict(UNDECIDED, 0, 0, 0)))
    assert (alone.allowed, alone.rule, alone.limit, alone.outcome) == (True, None, None, ALLOWED)


def test_no_rule_no_numbers() -> None:
    """Where no rule matched, or only shadow rules, there is no rule, limit or remaining."""
    none = Decision(True, Plan([], None, 3))
    shadow = decide(True, ("s", Verdict(ALLOWED, 4, 0, 1)), shadow=("s",))
    for decision in (none, shadow):
        assert decision.allowed
        assert (decision.rule, decision.limit, decision.remaining, decision.reset_after_us) == (None, None, None, 0)
    assert none.results == ()
    assert none.receipts() == ()


def test_delay_is_the_leaky_rules() -> None:
    """The delay comes from the leaky bucket, whichever rule describes the decision; a refusal has none."""
    leaky = Counter("leaky", LeakyBucket(10, 1, 1_000_000), "leaky")
    bucket = Counter("bucket", TokenBucket(10, 10, 60_000_000), "bucket")
    plan = Plan([(leaky, "*", 1), (bucket, "*", 1)])
    verdicts = (Verdict(ALLOWED, 9, 0, 10, 250_000), Verdict(ALLOWED, 1, 0, 20))
    assert Decision(True, plan, Answered(True, *verdicts)).delay_us == 250_000
    refused = (Verdict(ALLOWED, 9, 0, 10, 250_000), Verdict(DENIED, 0, 5, 5))
    assert Decision(False, plan, Answered(False, *refused)).delay_us == 0


def test_description_is_computed_once_and_only_when_asked() -> None:
    """Yes or no never asks the answer to describe itself; every further question asks it once in all."""
    decision = decide(True, ("a", Verdict(ALLOWED, 5, 0, 50)))
    answer = decision.answer
    assert isinstance(answer, Answered)
    assert decision.allowed
    assert bool(decision)
    assert answer.asked == 0
    assert (decision.rule, decision.remaining, len(decision.results), decision.refusal) == ("a", 5, 1, None)
    assert answer.asked == 1


def test_decision_is_immutable() -> None:
    """No attribute can be set, kept or computed."""
    decision = decide(True, ("a", Verdict(ALLOWED, 5, 0, 50)))
    for name in ("allowed", "rule", "degraded", "results", "anything"):
        with pytest.raises(AttributeError):
            setattr(decision, name, True)


def test_equality_is_by_value() -> None:
    """Decisions that say the same are equal and hash alike; one difference makes them differ."""
    one = decide(True, ("a", Verdict(ALLOWED, 5, 0, 50)))
    same = decide(True, ("a", Verdict(ALLOWED, 5, 0, 50)))
    other = decide(True, ("a", Verdict(ALLOWED, 4, 0, 50)))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != Decision(True, one.plan, one.answer, degraded=True)
    assert one != "a"


def test_decision_can_be_pickled_and_copied() -> None:
    """A copy says the same; what it cannot do is give receipts, because the answer stays with the process."""
    decision = decide(False, ("a", Verdict(DENIED, 1, 100, 100)))
    again = pickle.loads(pickle.dumps(decision))
    assert again == decision
    assert (again.rule, again.version, again.results) == ("a", 7, decision.results)
    assert again.receipts() == ()
    assert pickle.loads(pickle.dumps(again)) == decision
    assert copy.copy(decision) == copy.deepcopy(decision) == decision


def test_to_dict_rounds_times_up() -> None:
    """JSON carries milliseconds rounded up, so that a caller who obeys is never early."""
    decision = decide(False, ("a", Verdict(DENIED, 1, 1_001, 1_001)), ("s", Verdict(ALLOWED, 2, 0, 0)), shadow=("s",))
    assert decision.to_dict() == {
        "allowed": False,
        "outcome": "denied",
        "rule": "a",
        "limit": 10,
        "remaining": 1,
        "retry_after_ms": 2,
        "reset_ms": 2,
        "delay_ms": 0,
        "rules": [
            {"rule": "a", "outcome": "denied", "limit": 10, "remaining": 1, "retry_after_ms": 2},
            {"rule": "s", "outcome": "allowed", "limit": 10, "remaining": 2, "retry_after_ms": 0, "shadow": True},
        ],
        "tier": "free",
        "version": 7,
        "degraded": False,
        "refusal": "rate",
    }
    assert Decision(True, Plan([]), None, decision_id="x").to_dict()["decision_id"] == "x"


def test_repr_tells_the_story() -> None:
    """The representation names outcome, rule, numbers and version."""
    assert (
        repr(decide(True, ("a", Verdict(ALLOWED, 5, 0, 50)))) == "<Decision allowed rule='a' remaining=5/10 version=7>"
    )
    refused = repr(decide(False, ("a", Verdict(DENIED, 0, 100, 100))))
    assert refused == "<Decision denied rule='a' remaining=0/10 retry_after_us=100 version=7>"
    assert repr(Decision(True, Plan([], None, 3), degraded=True)) == "<Decision allowed rule=None degraded version=3>"
