"""What happens while the store cannot be reached."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import Outcome, TokenBucket
from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore
from sluicegate.testing.store_contract import counter_for


def limiter_of(*rules: str) -> tuple[Limiter, FlakyStore]:
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    text = "version: 1\nrules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules)
    return Limiter.from_rules(load_rules(text, "rules.yaml"), store, clock), store


def test_open_lets_pass() -> None:
    """A rule that fails open lets the request pass; the decision says it is degraded and no rule is described."""
    limiter, store = limiter_of("name: a, quota: 1/hour, on_store_failure: open")
    store.down = True
    for _ in range(3):
        decision = limiter.check(Facts())
        assert (decision.allowed, decision.degraded, decision.refusal) == (True, True, None)
        assert [result.outcome for result in decision.results] == [Outcome.UNDECIDED]
    assert (limiter.stats.degraded, limiter.stats.store_errors) == (3, 3)


def test_closed_refuses() -> None:
    """A rule that fails closed refuses with "store" and a wait above zero, and charges nothing."""
    limiter, store = limiter_of("name: a, quota: 1/hour, on_store_failure: closed")
    store.down = True
    decision = limiter.check(Facts())
    assert (decision.allowed, decision.degraded, decision.refusal) == (False, True, "store")
    assert (decision.outcome, decision.rule) == (Outcome.UNDECIDED, "a")
    assert decision.retry_after_us
    assert limiter.stats.decisions == {("", "allowed"): 0, ("a", "undecided"): 1}
    store.down = False
    assert limiter.check(Facts()).allowed


def test_local_keeps_its_own_count() -> None:
    """A rule that falls back to local counters keeps its numbers: full at the first failure, kept between failures."""
    limiter, store = limiter_of("name: a, quota: 2/hour")
    assert limiter.check(Facts()).allowed
    store.down = True
    decisions = [limiter.check(Facts()) for _ in range(3)]
    assert [d.allowed for d in decisions] == [True, True, False]
    assert all(d.degraded for d in decisions)
    assert (decisions[2].refusal, decisions[2].rule) == ("rate", "a")
    store.down = False
    assert limiter.check(Facts()).remaining == 0
    store.down = True
    assert not limiter.check(Facts()).allowed


def test_a_closed_rule_decides_for_all() -> None:
    """With one closed rule among others the answer is "store", and the local counters are not charged."""
    limiter, store = limiter_of(
        "name: local, quota: 5/hour",
        "name: closed, quota: 5/hour, on_store_failure: closed",
        "name: open, quota: 5/hour, on_store_failure: open",
    )
    store.down = True
    for _ in range(7):
        decision = limiter.check(Facts())
        assert (decision.allowed, decision.refusal, decision.rule) == (False, "store", "closed")
    assert decision.results[0].remaining == 5


def test_an_earlier_refusal_comes_before_a_closed_rule() -> None:
    """Where a local rule before the closed one refuses, the answer is "rate"; one after it does not change "store"."""
    local = "name: local, quota: 1/hour"
    closed = "name: closed, match: {path: /x}, quota: 5/hour, on_store_failure: closed"
    limiter, store = limiter_of(local, closed)
    store.down = True
    assert limiter.check(Facts()).allowed  # local alone
    decision = limiter.check(Facts(path="/x"))
    assert (decision.refusal, decision.rule) == ("rate", "local")

    limiter, store = limiter_of(closed.replace("match: {path: /x}, ", ""), "name: later, match: {path: /y}, quota: 0")
    store.down = True
    decision = limiter.check(Facts(path="/y"))
    assert (decision.refusal, decision.rule) == ("store", "closed")


def test_shadow_rules_refuse_nobody_without_the_store_either() -> None:
    """A shadow rule is undecided and refuses nobody, whatever its policy."""
    limiter, store = limiter_of(
        "name: a, quota: 1/hour, mode: shadow, on_store_failure: closed", "name: b, quota: 9/hour"
    )
    store.down = True
    assert all(limiter.check(Facts()).allowed for _ in range(5))
    assert limiter.stats.shadow_refused == {}


def test_a_peek_charges_no_local_counter() -> None:
    """A peek during a failure looks at the local counters and leaves them as they are."""
    limiter, store = limiter_of("name: a, quota: 2/hour")
    store.down = True
    assert [limiter.peek(Facts()).remaining for _ in range(4)] == [2] * 4


def test_a_lost_reply_is_not_asked_again() -> None:
    """Where the reply is lost the store may have charged: the call is not repeated, and at most that one cost is lost."""
    limiter, store = limiter_of("name: a, quota: 10/hour")
    store.lose_next = 1
    calls = store.calls
    assert limiter.check(Facts(), 3).degraded
    assert store.calls == calls + 1
    assert limiter.peek(Facts()).remaining == 7


def test_a_batch_falls_back_as_a_whole() -> None:
    """If the one store call of a batch fails, each request is decided by policy, in order; unmatched ones still pass."""
    limiter, store = limiter_of(
        "name: a, match: {path: /a}, quota: 1/hour",
        "name: b, match: {path: /b}, quota: 1/hour, on_store_failure: closed",
    )
    store.fail_next = 1
    decisions = limiter.check_many([Facts(path=path) for path in ("/a", "/a", "/b", "/c")])
    assert [(d.allowed, d.degraded, d.refusal) for d in decisions] == [
        (True, True, None),
        (False, True, "rate"),
        (False, True, "store"),
        (True, False, None),
    ]


@pytest.mark.parametrize("form", ["one", "many", "singles"])
def test_counters_of_no_rule_are_local(form: str) -> None:
    """Inline policies, which no rule names, are decided by local counters."""
    limiter, store = limiter_of("name: a, quota: 1/hour")
    counter = counter_for(TokenBucket(2, 2, 3_600_000_000))
    store.down = True
    charge = (counter, "s", 1)
    if form == "one":
        decisions = [limiter.check_counter(*charge) for _ in range(3)]
    elif form == "many":
        decisions = limiter.check_counters_many([charge] * 3)
    else:
        _, singles, degraded = limiter.decide_counters([charge] * 3)
        assert degraded
        assert [admitted for admitted, _ in singles] == [True, True, False]
        return
    assert [(d.allowed, d.degraded) for d in decisions] == [(True, True), (True, True), (False, True)]


@pytest.mark.parametrize(
    "policy, allowed", [("open", [True] * 3), ("closed", [False] * 3), ("local", [True, False, False])]
)
def test_quota_limiters_have_a_policy_too(policy: str, allowed: list[bool]) -> None:
    """``from_quota`` takes the failure policy, and ``hit`` follows it."""
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_quota("1/hour", store=store, clock=clock, on_store_failure=policy)
    store.down = True
    assert [limiter.hit("k") for _ in range(3)] == allowed
