"""What lists mean for decisions, in every form of asking."""

from __future__ import annotations

import copy
import pickle

import pytest

from sluicegate.algorithms.verdict import Outcome
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry
from sluicegate.rules.load import load_rules

RULE = "name: api, per: [ip], quota: 2/minute"
DAY_US = 86_400 * US_PER_S
EVE = Facts(ip="203.0.113.9", user="eve")


def limiter_of(rule: str = RULE) -> tuple[Limiter, ManualClock]:
    clock = ManualClock()
    return Limiter.from_rules(load_rules(f"version: 1\nrules:\n  - {{{rule}}}\n", "rules.yaml"), clock=clock), clock


def test_the_block_list_refuses_before_the_store_is_asked(site_of) -> None:
    """Who is on the block list is refused by the list, and the store, which is away, does not even notice."""
    site = site_of(RULE)
    site.store.down = True
    site.limiter.lists.put(ListEntry("block", "ip", "203.0.113.0/24", site.clock.now_us() + 90 * US_PER_S, "feed"))
    decision = site.ask(EVE)
    assert not decision.allowed
    assert (decision.rule, decision.outcome, decision.refusal) == ("block:ip", Outcome.DENIED, "rate")
    assert (decision.limit, decision.remaining) == (0, 0)
    assert decision.retry_after_us == decision.reset_after_us == 90 * US_PER_S
    assert (decision.degraded, site.store.calls) == (False, 0)
    assert decision.listed is not None
    assert (decision.listed.list, decision.listed.value, decision.listed.source) == ("block", "203.0.113.0/24", "feed")
    assert [(each.rule, each.refuses) for each in decision.results] == [("block:ip", True)]
    stats = site.limiter.stats
    assert (stats.block_listed, stats.allowed, stats.refused) == (1, 0, {("block:ip", Outcome.DENIED): 1})


def test_the_allow_list_lets_pass_uncharged(site_of) -> None:
    """Who is on the allow list passes as often as he likes, is charged to no counter and has no rate headers."""
    site = site_of(RULE)
    site.limiter.lists.put(ListEntry("allow", "user", "eve"))
    for _ in range(5):
        decision = site.ask(EVE)
        assert decision.allowed
        assert (decision.rule, decision.limit, decision.outcome) == (None, None, Outcome.ALLOWED)
    stats = site.limiter.stats
    assert (stats.allowed, stats.allow_listed, stats.unmatched) == (5, 5, 0)
    assert site.limiter.lists.remove(("allow", "user", "eve"))
    assert site.ask(EVE).remaining == 1


def test_allow_beats_block(site_of) -> None:
    """A client on both lists passes: an entry of the allow list is a deliberate act."""
    site = site_of(RULE)
    site.limiter.lists.put(ListEntry("block", "ip", "203.0.113.9"))
    assert not site.ask(EVE).allowed
    site.limiter.lists.put(ListEntry("allow", "user", "eve", site.clock.now_us() + 5))
    assert site.ask(EVE).allowed
    site.clock.advance(5)
    assert not site.ask(EVE).allowed


def test_a_block_without_end_promises_nothing(site_of) -> None:
    """A block that never ends is answered as a quota of 0: waiting helps nobody."""
    site = site_of(RULE)
    site.limiter.lists.put(ListEntry("block", "api_key", "k1"))
    decision = site.ask(Facts(ip="10.0.0.1", api_key="k1"))
    assert (decision.rule, decision.outcome) == ("block:api_key", Outcome.NEVER_FITS)
    assert (decision.retry_after_us, decision.reset_after_us) == (None, 0)


def test_the_longest_of_several_blocks_is_told(site_of) -> None:
    """A client on the block list by several entries is told the time at which none of them blocks it any more."""
    site = site_of(RULE)
    now_us = site.clock.now_us()
    site.limiter.lists.put(ListEntry("block", "ip", "203.0.113.9", now_us + 10 * US_PER_S))
    site.limiter.lists.put(ListEntry("block", "user", "eve", now_us + 30 * US_PER_S))
    site.limiter.lists.put(ListEntry("block", "ip", "203.0.112.0/20", now_us + 20 * US_PER_S))
    decision = site.ask(EVE)
    assert (decision.rule, decision.retry_after_us) == ("block:user", 30 * US_PER_S)
    site.clock.advance(30 * US_PER_S)
    assert site.ask(EVE).allowed


def test_nobody_is_told_to_wait_longer_than_a_day(site_of) -> None:
    """An entry may be taken off before it ends, so a client of a long block is told to come back tomorrow."""
    site = site_of(RULE)
    site.limiter.lists.put(ListEntry("block", "tenant", "acme", site.clock.now_us() + 30 * DAY_US))
    assert site.ask(Facts(tenant="acme")).retry_after_us == DAY_US


def test_a_batch_has_listed_ones_in_their_places(site_of) -> None:
    """In a batch listed requests are answered in their places and the others by the store."""
    site = site_of(RULE)
    site.limiter.lists.put(ListEntry("block", "user", "eve"))
    site.limiter.lists.put(ListEntry("allow", "user", "root"))
    asked = [Facts(ip="10.0.0.1"), EVE, Facts(ip="10.0.0.1", user="root"), Facts(ip="10.0.0.1"), Facts(ip="10.0.0.1")]
    if site.form == "check_many":
        decisions = site.limiter.check_many(asked)
    elif site.form == "acheck_many":
        decisions = site.run(site.limiter.acheck_many(asked))
    else:
        decisions = [site.ask(each) for each in asked]
    assert [decision.rule for decision in decisions] == ["api", "block:user", None, "api", "api"]
    assert [decision.allowed for decision in decisions] == [True, False, True, True, False]


def test_a_peek_at_a_listed_client_counts_nothing(single_site_of) -> None:
    """A peek says what the lists say and counts as a peek only."""
    site = single_site_of(RULE)
    site.limiter.lists.put(ListEntry("block", "user", "eve"))
    site.limiter.lists.put(ListEntry("allow", "user", "root"))
    assert not site.ask(EVE, 0, peek=True).allowed
    assert site.ask(Facts(user="root"), peek=True).allowed
    stats = site.limiter.stats
    assert (stats.peeks, stats.allowed, stats.allow_listed, stats.block_listed) == (2, 0, 0, 0)


def test_a_receipt_of_an_uncharged_request_gives_nothing_back(single_site_of) -> None:
    """An allowed request that asked for a receipt has one, and a refund by it changes no counter; a refused one has none."""
    site = single_site_of(RULE)
    site.limiter.lists.put(ListEntry("allow", "user", "root"))
    site.limiter.lists.put(ListEntry("block", "user", "eve"))
    decision = site.ask(Facts(user="root", ip="10.0.0.1"), receipt=True)
    assert decision.decision_id is not None
    assert site.limiter.refund(decision) == 0
    assert site.ask(EVE, receipt=True).decision_id is None


def test_what_is_wrong_with_a_request_is_said_on_the_list_or_not(single_site_of) -> None:
    """A bad cost and a fact of the wrong type are errors while there are lists, as they are without."""
    site = single_site_of(RULE)
    site.limiter.lists.put(ListEntry("block", "user", "eve"))
    site.limiter.lists.put(ListEntry("block", "ip", "10.0.0.0/8"))
    for facts, cost, field in (
        (EVE, 0, "cost"),
        (Facts(user=["x"]), 1, "facts.user"),  # type: ignore[arg-type]
        (Facts(ip=7), 1, "facts.ip"),  # type: ignore[arg-type]
        (Facts(ip="nonsense"), 1, "facts.ip"),
        ("key", 1, "facts"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            site.ask(facts, cost)
        assert caught.value.field == field


def test_lists_outlive_the_rules_and_a_switched_off_limiter_ignores_them() -> None:
    """After a change of rules the lists are the same; while the limiter is off everybody passes."""
    limiter, _ = limiter_of()
    limiter.lists.put(ListEntry("block", "user", "eve"))
    limiter.apply(load_rules("version: 1\nrules:\n  - {name: other, per: [ip], quota: 5/minute}\n", "rules.yaml", 2))
    decision = limiter.check(EVE)
    assert (decision.rule, decision.version) == ("block:user", 2)
    limiter.enabled = False
    assert limiter.check(EVE).allowed
    assert limiter.stats.bypassed == 1


def test_a_reset_forgets_the_counters_of_a_listed_client() -> None:
    """A reset is about the counters of the rules, whoever is on a list meanwhile."""
    limiter, _ = limiter_of()
    limiter.check(EVE)
    limiter.lists.put(ListEntry("block", "user", "eve"))
    assert limiter.reset(EVE) == 1
    limiter.lists.remove(("block", "user", "eve"))
    assert limiter.check(EVE).remaining == 1


def test_a_decision_by_a_list_is_a_value() -> None:
    """It can be compared, hashed, copied and pickled, and its document tells list, kind and source."""
    limiter, _ = limiter_of()
    limiter.lists.put(ListEntry("block", "user", "eve", None, "penalty:login"))
    decision = limiter.check(EVE)
    again = pickle.loads(pickle.dumps(decision))
    assert again == decision == limiter.check(EVE) == copy.deepcopy(decision)
    assert hash(again) == hash(decision)
    assert again.listed == decision.listed
    limiter.lists.put(ListEntry("block", "user", "eve", None, "admin"))
    assert limiter.check(EVE) != decision
    document = decision.to_dict()
    assert document["listed"] == {"list": "block", "kind": "user", "source": "penalty:login"}
    assert (document["rule"], document["retry_after_ms"], document["limit"]) == ("block:user", None, 0)
    assert "listed" not in limiter.check(Facts(ip="10.0.0.1")).to_dict()


def test_explain_tells_of_lists_first() -> None:
    """What a list says comes before the rules, and what they would say follows."""
    limiter, clock = limiter_of()
    limiter.lists.put(ListEntry("block", "user", "eve", clock.now_us() + 1_500_000, "feed"))
    listed, api = limiter.engine.explain(EVE)
    assert (listed.rule, listed.mode, listed.matched) == ("block:user", "block", True)
    assert listed.reason == "refused: eve is on the block list, put there by feed, for 2 s more"
    assert (api.rule, api.reason, api.subject) == ("api", "", "ip:203.0.113.9")
    limiter.lists.put(ListEntry("allow", "ip", "203.0.113.9"))
    assert limiter.engine.explain(EVE)[0].reason == "passes uncharged: 203.0.113.9 is on the allow list"


def test_limiters_may_share_their_lists() -> None:
    """A limiter made with what another knows follows every change of its lists."""
    limiter, clock = limiter_of()
    other = Limiter.from_rules(limiter.ruleset, clock=clock, known=limiter.known)
    limiter.lists.put(ListEntry("block", "user", "eve"))
    assert other.check(EVE).rule == "block:user"


def test_rule_counts_hold_no_list() -> None:
    """What rules did is told without what lists did."""
    limiter, _ = limiter_of()
    limiter.lists.put(ListEntry("block", "user", "eve"))
    limiter.check(EVE)
    for _ in range(3):
        limiter.check(Facts(ip="10.0.0.1"))
    assert set(limiter.stats.rule_counts()) == {"api"}
