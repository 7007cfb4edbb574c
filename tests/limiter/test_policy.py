"""What happens while the store cannot be reached, in every form of asking."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import Outcome, TokenBucket
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.limiter import outage, policy
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore
from sluicegate.testing.store_contract import counter_for

MINUTE = 60_000_000


def limiter_of(*rules: str) -> tuple[Limiter, FlakyStore]:
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    text = "version: 1\nrules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules)
    return Limiter.from_rules(load_rules(text, "rules.yaml"), store, clock), store


def test_open_lets_pass(site_of) -> None:
    """A rule that fails open lets the request pass; the decision says it is degraded, and how it was decided. P50"""
    site = site_of("name: a, quota: 1/hour, on_store_failure: open")
    site.store.down = True
    for _ in range(3):
        decision = site.ask(Facts())
        assert (decision.allowed, decision.degraded, decision.refusal) == (True, True, None)
        assert [(result.outcome, result.degraded) for result in decision.results] == [(Outcome.UNDECIDED, "open")]
    stats = site.limiter.stats
    assert (stats.degraded, stats.degraded_open, stats.store_errors) == (3, 3, 3)


def test_closed_refuses(site_of) -> None:
    """A rule that fails closed refuses with "store", never as a rate, with a wait above zero, and charges nothing. T74"""
    site = site_of("name: a, quota: 1/hour, on_store_failure: closed")
    site.store.down = True
    decision = site.ask(Facts())
    assert (decision.allowed, decision.degraded, decision.refusal) == (False, True, "store")
    assert (decision.outcome, decision.rule, decision.decisive.degraded) == (Outcome.UNDECIDED, "a", "closed")
    assert decision.retry_after_us
    assert site.limiter.stats.decisions == {("", "allowed"): 0, ("a", "undecided"): 1}
    assert site.limiter.stats.degraded_closed == 1
    site.store.down = False
    assert site.ask(Facts()).allowed


def test_local_keeps_its_own_count(site_of) -> None:
    """A rule that falls back to local counters keeps its numbers: full at the first failure, kept between failures. P51"""
    site = site_of("name: a, quota: 2/hour")
    assert site.ask(Facts()).allowed
    site.store.down = True
    decisions = [site.ask(Facts()) for _ in range(3)]
    assert [d.allowed for d in decisions] == [True, True, False]
    assert all(d.degraded for d in decisions)
    assert (decisions[2].refusal, decisions[2].rule, decisions[2].decisive.degraded) == ("rate", "a", "local")
    assert decisions[2].retry_after_us == 30 * MINUTE
    site.store.down = False
    assert not site.ask(Facts()).allowed
    site.store.down = True
    assert not site.ask(Facts()).allowed
    stats = site.limiter.stats
    assert (stats.degraded, stats.degraded_local, stats.handover_refused) == (5, 3, 2)


def test_each_node_takes_its_share(site_of) -> None:
    """Of 12 an hour each of 5 nodes admits 2 at once and then one every 25 minutes. P51 P64"""
    site = site_of("name: a, quota: 12/hour", nodes=5)
    site.store.down = True
    assert [site.ask(Facts()).allowed for _ in range(3)] == [True, True, False]
    assert site.ask(Facts()).retry_after_us == 25 * MINUTE
    site.clock.advance(25 * MINUTE - 1)
    assert not site.ask(Facts()).allowed
    site.clock.advance(1)
    assert site.ask(Facts()).allowed
    assert site.limiter.fallback_nodes == 5


def test_sticky_takes_the_whole(site_of) -> None:
    """With ``fallback_share: sticky`` a node takes all of the limit, and says so in results and counts."""
    site = site_of("name: a, quota: 4/hour, fallback_share: sticky", nodes=4)
    site.store.down = True
    decisions = [site.ask(Facts()) for _ in range(5)]
    assert [d.allowed for d in decisions] == [True] * 4 + [False]
    assert {d.results[0].degraded for d in decisions} == {"sticky"}
    assert decisions[0].to_dict()["rules"][0]["degraded"] == "sticky"
    assert (site.limiter.stats.degraded_sticky, site.limiter.stats.degraded_local) == (5, 0)


def test_an_empty_start_admits_at_the_rate(site_of) -> None:
    """With ``fallback_start: empty`` there is no token at the beginning of an outage, whenever a client is first seen."""
    site = site_of("name: a, per: [user], quota: 6/minute, fallback_start: empty")
    site.store.down = True
    assert not site.ask(Facts(user="ann")).allowed
    assert site.ask(Facts(user="ann")).retry_after_us == MINUTE // 6
    site.clock.advance(MINUTE // 2)
    assert [site.ask(Facts(user="ann")).allowed for _ in range(4)] == [True] * 3 + [False]
    assert [site.ask(Facts(user="bob")).allowed for _ in range(4)] == [True] * 3 + [False]
    site.clock.advance(MINUTE)
    assert [site.ask(Facts(user="eve")).allowed for _ in range(7)] == [True] * 6 + [False]
    # A client that comes seldom is not taken for a new one each time.
    site.clock.advance(2 * MINUTE)
    assert site.ask(Facts(user="ann")).allowed


def test_a_queue_that_starts_empty_admits_at_the_rate(site_of) -> None:
    """A leaky bucket with ``fallback_start: empty`` begins with as long a queue as one may wait in, and no longer, for every client."""
    leaky = "algorithm: leaky_bucket, max_delay_ms: 2000"
    site = site_of(f"name: a, per: [user], quota: 600/minute, {leaky}, fallback_start: empty")
    site.store.down = True
    assert not site.ask(Facts(user="ann")).allowed
    assert site.ask(Facts(user="ann")).retry_after_us == MINUTE // 600
    site.clock.advance(MINUTE // 120)
    assert [site.ask(Facts(user="ann")).allowed for _ in range(6)] == [True] * 5 + [False]
    assert [site.ask(Facts(user="bob")).allowed for _ in range(6)] == [True] * 5 + [False]


def test_a_cost_above_the_share_is_refused_for_now(site_of) -> None:
    """A cost above a node's share fits when the store is back, so it is denied with a wait; one above the limit never fits."""
    site = site_of("name: a, quota: 10/hour", nodes=5)
    site.store.down = True
    decision = site.ask(Facts(), 3)
    assert (decision.outcome, decision.refusal) == (Outcome.DENIED, "rate")
    assert decision.retry_after_us
    assert site.ask(Facts(), 11).outcome is Outcome.NEVER_FITS
    assert site.ask(Facts(), 2).allowed


def test_a_ban_stays_a_ban(site_of) -> None:
    """A quota of 0 admits nothing without the store either."""
    site = site_of("name: a, quota: 0", nodes=3)
    site.store.down = True
    assert site.ask(Facts()).outcome is Outcome.NEVER_FITS


def test_a_closed_rule_decides_for_all(site_of) -> None:
    """With one closed rule among others the answer is "store", and the local counters are not charged."""
    site = site_of(
        "name: local, quota: 5/hour",
        "name: closed, quota: 5/hour, on_store_failure: closed",
        "name: open, quota: 5/hour, on_store_failure: open",
    )
    site.store.down = True
    for _ in range(7):
        decision = site.ask(Facts())
        assert (decision.allowed, decision.refusal, decision.rule) == (False, "store", "closed")
    assert decision.results[0].remaining == 5
    assert [result.degraded for result in decision.results] == ["local", "closed", "open"]


def test_an_earlier_refusal_comes_before_a_closed_rule(site_of) -> None:
    """Where a local rule before the closed one refuses, the answer is "rate"; one after it does not change "store"."""
    local = "name: local, quota: 1/hour"
    site = site_of(local, "name: closed, match: {path: /x}, quota: 5/hour, on_store_failure: closed")
    site.store.down = True
    assert site.ask(Facts()).allowed  # local alone
    decision = site.ask(Facts(path="/x"))
    assert (decision.refusal, decision.rule) == ("rate", "local")

    closed = "name: closed, quota: 5/hour, on_store_failure: closed"
    site = site_of(closed, "name: later, match: {path: /y}, quota: 0")
    site.store.down = True
    decision = site.ask(Facts(path="/y"))
    assert (decision.refusal, decision.rule) == ("store", "closed")


def test_shadow_rules_refuse_nobody_without_the_store_either(site_of) -> None:
    """A shadow rule is undecided and refuses nobody, whatever its policy."""
    site = site_of("name: a, quota: 1/hour, mode: shadow, on_store_failure: closed", "name: b, quota: 9/hour")
    site.store.down = True
    assert all(site.ask(Facts()).allowed for _ in range(5))
    assert site.limiter.stats.shadow_refused == {}


def test_a_peek_charges_no_local_counter(single_site_of) -> None:
    """A peek during a failure looks at the local counters and leaves them as they are, and the counts of policies too."""
    site = single_site_of("name: a, quota: 2/hour")
    site.store.down = True
    assert [site.ask(Facts(), peek=True).remaining for _ in range(4)] == [2] * 4
    assert (site.limiter.stats.degraded_local, site.limiter.stats.peeks) == (0, 4)


def test_a_lost_reply_is_not_asked_again(site_of) -> None:
    """Where the reply is lost the store may have charged: the call is not repeated, and at most that one cost is lost. P54"""
    site = site_of("name: a, quota: 10/hour")
    site.store.lose_next = 1
    calls = site.store.calls
    assert site.ask(Facts(), 3).degraded
    assert site.store.calls == calls + 1
    assert site.limiter.peek(Facts()).remaining == 7


def test_receipts_of_degraded_charges(single_site_of) -> None:
    """What was charged here is given back here, once, and the store is not asked for it."""
    site = single_site_of("name: a, quota: 4/hour")
    site.store.down = True
    decision = site.ask(Facts(), 3, receipt=True)
    calls = site.store.calls
    assert site.run(site.limiter.arefund(decision)) == 1
    assert site.limiter.refund(decision) == 0
    assert site.store.calls == calls
    assert site.ask(Facts(), peek=True).remaining == 4


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
    assert decisions[2].retry_after_us == 1_800_000_000


@pytest.mark.parametrize(
    "on_store_failure, allowed", [("open", [True] * 3), ("closed", [False] * 3), ("local", [True, False, False])]
)
def test_quota_limiters_have_a_policy_too(on_store_failure: str, allowed: list[bool]) -> None:
    """``from_quota`` takes the failure policy, and ``hit`` follows it."""
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    limiter = Limiter.from_quota("1/hour", store=store, clock=clock, on_store_failure=on_store_failure)
    store.down = True
    assert [limiter.hit("k") for _ in range(3)] == allowed


@pytest.mark.parametrize("nodes", [0, -1, 1.5, True, "2", 100_001])
def test_a_number_of_nodes_that_is_none(nodes: object) -> None:
    """``nodes`` is a whole number from 1 on."""
    with pytest.raises(ConfigurationError, match="nodes"):
        Limiter.from_quota("1/hour", nodes=nodes)  # type: ignore[arg-type]


def test_memory_is_bounded_without_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of clients during an outage fills the local counters to their bound and no further. T77"""
    monkeypatch.setattr(policy, "FALLBACK_COUNTERS_MAX", 100)
    monkeypatch.setattr(outage, "FALLBACK_COUNTERS_MAX", 100)
    limiter, store = limiter_of("name: a, per: [user], quota: 2/hour")
    store.down = True
    for number in range(1_000):
        assert limiter.check(Facts(user=str(number))).degraded
    assert (len(limiter._fallback.store), len(limiter._outage), limiter._outage.forgotten) == (100, 100, 900)
