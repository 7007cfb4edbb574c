"""Deciding at the times of the log: both ways agree, and what is counted is what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.replaying import deciding
from sluicegate.replaying.counting import Minute, Minutes, TopClients
from sluicegate.replaying.deciding import CounterDecider, RuleCounts, Side, StoreDecider
from sluicegate.replaying.planner import Item
from sluicegate.replaying.request_line import Client
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import RuleSet

S = 1_000_000
START_US = 1_700_000_000 * S
Rules = Callable[[str], RuleSet]

QUOTAS = (
    "quota: 3/minute, algorithm: fixed_window",
    "quota: 3/minute",
    "quota: 2/second burst 5",
    "quota: 3/minute, algorithm: sliding_window",
    "quota: 3/minute, algorithm: sliding_window, strict: true",
    "quota: 3/minute, algorithm: sliding_log",
    "quota: 1/second burst 3, algorithm: leaky_bucket",
    "quota: 0",
    "quota: 5/minute, cost: 2",
    "quota: 5/minute, cost: 6",
)


def items_of(side: Side, requests: list[tuple[int, Facts]]) -> list[Item]:
    """Requests planned by a side, at these times after the start."""
    return [(START_US + us, side.plan(facts, Client(facts.ip))) for us, facts in requests]


@given(
    st.sampled_from(QUOTAS),
    st.lists(st.tuples(st.integers(0, 30 * S), st.sampled_from(["10.0.0.1", "10.0.0.2", None])), max_size=60),
    st.integers(1, 60),
)
def test_both_ways_agree(quota: str, steps: list[tuple[int, str | None]], batch: int) -> None:
    """For one rule with one quota the short way refuses exactly the requests the memory store refuses."""
    side = Side(load_rules(f"version: 1\nrules:\n  - {{name: one, per: [ip], {quota}}}\n", "r"))
    assert isinstance(side._decider, CounterDecider)
    requests, now_us = [], 0
    for step_us, ip in steps:
        now_us += step_us
        requests.append((now_us, Facts(ip=ip)))
    items = items_of(side, requests)
    store = StoreDecider()
    for begin in range(0, len(items), batch):
        part = items[begin : begin + batch]
        tally = deciding._Tally(lambda counter: counter.name)
        short = CounterDecider.decide(side._decider, part, tally)
        assert short == store.decide(part, deciding._Tally(lambda counter: counter.name))
        assert tally.refused.total() == len(short)


@pytest.mark.parametrize(
    "text",
    [
        "name: one, per: [ip], quota: 3/minute, mode: shadow",
        "name: one, per: [ip], quota: 3/minute, denied_counts: true",
        "name: one, per: {first_of: [ip], on_missing: deny}, quota: 3/minute",
        "name: one, per: [ip], quota: 1/second; 100/hour",
        "name: one, per: [ip], quota: 3/minute\nname: two, per: [ip], quota: 3/minute",
    ],
)
def test_other_rules_take_the_store(rules: Rules, text: str) -> None:
    """Whatever is not one plain counter per request is decided by the memory store."""
    text = text.replace("quota: 1/second; 100/hour", 'quota: "1/second; 100/hour"')
    assert isinstance(Side(rules(text))._decider, StoreDecider)


def test_rules_that_are_off_do_not_count(rules: Rules) -> None:
    """One rule beside others that are off is one rule; the others are in the table with nothing."""
    side = Side(rules('name: off, quota: 1/hour, mode: "off"\nname: one, per: [ip], quota: 1/minute'))
    assert isinstance(side._decider, CounterDecider)
    side.decide(items_of(side, [(0, Facts(ip="10.0.0.1"))] * 3))
    assert side.counts() == {"off": RuleCounts(0, 0, 0, 0), "one": RuleCounts(3, 2, 0, 0)}


def test_first_refusing_rule_counts_the_others_also(rules: Rules) -> None:
    """A refusal belongs to the first rule in order of evaluation; later ones that refuse too are counted apart, nothing is charged."""
    side = Side(
        rules(
            "name: late, per: [ip], quota: 1/minute, algorithm: fixed_window\n"
            "name: floor, scope: global, quota: 2/minute, algorithm: fixed_window"
        )
    )
    one, two = Facts(ip="10.0.0.1"), Facts(ip="10.0.0.2")
    refusals = side.decide(items_of(side, [(0, one), (0, one), (0, two), (0, one), (60 * S, one)]))
    assert [(refusal.place, side.rule_of(refusal)) for refusal in refusals] == [(1, "late"), (3, "floor")]
    assert list(side.counts().items()) == [("floor", RuleCounts(5, 1, 0, 0)), ("late", RuleCounts(5, 1, 1, 0))]


def test_parts_of_one_quota_are_one_rule(rules: Rules) -> None:
    """A quota of several parts refuses a request once, whichever parts refuse."""
    side = Side(rules('name: both, per: [ip], quota: "1/second; 1/minute", algorithm: fixed_window'))
    side.decide(items_of(side, [(0, Facts(ip="10.0.0.1")), (0, Facts(ip="10.0.0.1")), (2 * S, Facts(ip="10.0.0.1"))]))
    assert side.counts() == {"both": RuleCounts(3, 2, 0, 0)}


def test_shadow_rules_refuse_nobody(rules: Rules) -> None:
    """What a shadow rule would refuse is counted apart, where the request passes and where it does not."""
    side = Side(
        rules(
            "name: trial, per: [ip], quota: 1/minute, algorithm: fixed_window, mode: shadow\n"
            "name: real, per: [ip], quota: 2/minute, algorithm: fixed_window"
        )
    )
    refusals = side.decide(items_of(side, [(0, Facts(ip="10.0.0.1"))] * 4))
    assert [refusal.place for refusal in refusals] == [2, 3]
    assert side.counts() == {"trial": RuleCounts(4, 0, 0, 3), "real": RuleCounts(4, 2, 0, 0)}


def test_rules_that_deny_the_unknown(rules: Rules) -> None:
    """``on_missing: deny`` refuses a request without the dimension, for everybody and in shadow."""
    side = Side(
        rules(
            "name: members, per: {first_of: [user], on_missing: deny}, quota: 5/minute\n"
            "name: trial, per: {first_of: [api_key], on_missing: deny}, quota: 5/minute, mode: shadow"
        )
    )
    refusals = side.decide(items_of(side, [(0, Facts(ip="10.0.0.1")), (0, Facts(user="alice"))]))
    assert [(refusal.place, side.rule_of(refusal), refusal.subject) for refusal in refusals] == [(0, "members", "*")]
    assert side.counts() == {"members": RuleCounts(2, 1, 0, 0), "trial": RuleCounts(2, 0, 0, 2)}


def test_tiers_share_a_counter(rules: Rules) -> None:
    """A client that changes tier keeps what it has used, as on a server."""
    ruleset = load_rules(
        "version: 1\ntiers: {default: free, names: [free, paid]}\nrules:\n"
        "  - {name: api, per: [user], quota: {free: 2/minute, paid: 3/minute}, algorithm: fixed_window}\n",
        "r",
    )
    side = Side(ruleset)
    free, paid = Facts(user="a"), Facts(user="a", tier="paid")
    refusals = side.decide(items_of(side, [(0, free), (0, free), (0, free), (0, paid), (0, paid)]))
    assert [refusal.place for refusal in refusals] == [2, 4]


def test_counters_are_bounded(rules: Rules, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expired counters go; live ones only above the bound, the oldest first, and their number is told."""
    monkeypatch.setattr(deciding, "REPLAY_PURGE_MIN", 10)
    monkeypatch.setattr(deciding, "REPLAY_COUNTERS_MAX", 100)
    side = Side(rules("name: one, per: [ip], quota: 1/minute, algorithm: fixed_window"))
    decider: Any = side._decider
    for number in range(2_000):
        side.decide(items_of(side, [(number * 10 * S, Facts(ip=f"10.0.{number // 256}.{number % 256}"))]))
        assert len(decider._states) <= 24
    assert side.forgotten == 0
    last_us = 1_000_000 * S
    side.decide(items_of(side, [(last_us, Facts(ip=f"10.1.{number // 256}.{number % 256}")) for number in range(150)]))
    assert (len(decider._states), side.forgotten) == (100, 50)
    kept, lost = Facts(ip="10.1.0.149"), Facts(ip="10.1.0.0")
    assert [refusal.place for refusal in side.decide(items_of(side, [(last_us, kept), (last_us, lost)]))] == [0]


def test_top_clients_are_exact_up_to_the_bound() -> None:
    """Few clients are counted exactly; the order is by count, then by name."""
    top = TopClients(clients_max=10)
    for client in "abcabcabbd":
        top.add(client)
    assert top.top(3) == [("b", 4), ("a", 3), ("c", 2)]
    assert top.error == 0


@given(st.lists(st.integers(0, 40), max_size=400), st.integers(1, 8))
def test_top_clients_are_bounded_and_say_their_error(clients: list[int], clients_max: int) -> None:
    """With too many clients each count is too small by at most ``error``, and no client with more than that is lost."""
    top = TopClients(clients_max)
    for client in clients:
        top.add(str(client))
        assert len(top._counts) <= 2 * clients_max
    shown = dict(top.top(1_000))
    for client in set(clients):
        true = clients.count(client)
        assert shown.get(str(client), 0) <= true <= shown.get(str(client), 0) + top.error


def test_busiest_minutes() -> None:
    """Minutes are counted across batches; of equal ones the earlier is named first."""
    minutes = Minutes(shown=2)
    side: Any = None
    minutes.add([(0, side), (59 * S, side), (60 * S, side)], [1, 2])
    minutes.add([(61 * S, side), (62 * S, side), (600 * S, side), (601 * S, side)], [3])
    minutes.add([], [])
    assert minutes.busiest() == [Minute(60 * S, 3, 1), Minute(0, 2, 1)]
