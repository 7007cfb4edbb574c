"""Penalties: who is refused again and again is blocked for a while."""

from __future__ import annotations

import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.limiter import penalties as penalties_module
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.penalties import client_of
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry
from sluicegate.rules.load import load_rules
from sluicegate.stores.keys import subject_of

RULE = "name: login, per: [ip], quota: 1/day, penalty: {after: 3 refusals/1m, block: 15m}"
EVE = Facts(ip="203.0.113.9")
MINUTE_US = 60 * US_PER_S


def limiter_of(*rules: str, head: str = "") -> tuple[Limiter, ManualClock]:
    clock = ManualClock()
    text = f"version: 1\n{head}rules:\n" + "".join(f"  - {{{rule}}}\n" for rule in rules)
    return Limiter.from_rules(load_rules(text, "rules.yaml"), clock=clock), clock


def test_the_refusal_that_is_one_too_many_blocks(site_of) -> None:
    """After as many refusals as the rule says the client is on the block list, for as long as it says, by every form of asking."""
    site = site_of(RULE)
    assert [site.ask(EVE).rule for _ in range(6)] == ["login"] * 4 + ["block:ip"] * 2
    decision = site.ask(EVE)
    assert decision.retry_after_us == 15 * MINUTE_US
    assert decision.listed is not None
    assert decision.listed.source == "penalty:login"
    assert site.ask(Facts(ip="203.0.113.10")).allowed
    assert site.limiter.penalties.given == 1


def test_the_block_ends_and_is_not_prolonged_by_itself(site_of) -> None:
    """Who goes on asking while blocked is blocked no longer for it; afterwards the rule decides again, and its count starts anew."""
    site = site_of(RULE)
    for _ in range(5):
        site.ask(EVE)
        site.clock.advance(1)
    for _ in range(50):
        site.clock.advance(15 * US_PER_S)
        assert site.ask(EVE).rule == "block:ip"
    site.clock.advance(150 * US_PER_S)
    assert [site.ask(EVE).rule for _ in range(4)] == ["login", "login", "login", "block:ip"]


def test_refusals_that_are_further_apart_block_nobody() -> None:
    """Fewer refusals within the time than the rule says are no reason, however long it goes on; who goes on faster is caught."""
    limiter, clock = limiter_of(RULE)
    limiter.check(EVE)
    for _ in range(40):
        assert limiter.check(EVE).rule == "login"
        clock.advance(31 * US_PER_S)
    assert [limiter.check(EVE).rule for _ in range(5)][-1] == "block:ip"


def test_the_window_ends_to_the_microsecond() -> None:
    """Three refusals within one microsecond less than a minute block; where the third is a minute after the first they do not."""
    for wait_us, rule in ((MINUTE_US - 1, "block:ip"), (MINUTE_US, "login")):
        limiter, clock = limiter_of(RULE)
        for _ in range(3):
            limiter.check(EVE)
        clock.advance(wait_us)
        limiter.check(EVE)
        assert limiter.check(EVE).rule == rule


def test_a_step_of_the_wall_clock_blocks_nobody() -> None:
    """The refusals' times are monotonic: a clock that is set back makes no old refusal new."""
    limiter, clock = limiter_of("name: login, per: [ip], quota: 0, penalty: {after: 3 refusals/1m, block: 15m}")
    for _ in range(2):
        limiter.check(EVE)
    clock.advance(MINUTE_US)
    clock.set(clock.now_us() - MINUTE_US)
    limiter.check(EVE)
    assert limiter.check(EVE).rule == "login"


def test_allowed_shadow_and_peeked_requests_count_for_nothing() -> None:
    """Only refusals by an enforced rule count: not what passes, what a shadow rule would refuse, a peek, or another rule's refusal."""
    penalty = "penalty: {after: 1 refusals/1m, block: 15m}"
    limiter, _ = limiter_of(
        f"name: shadow, per: [ip], quota: 0, mode: shadow, {penalty}",
        f"name: wide, per: [ip], quota: 100/day, {penalty}",
        "name: plain, per: [ip], quota: 1/day",
    )
    assert limiter.check(EVE).allowed
    for _ in range(5):
        assert limiter.check(EVE).rule == "plain"
    limiter.peek(EVE, 200)
    assert limiter.penalties.take() == []
    assert not limiter.lists.active


def test_what_is_decided_without_the_store_counts_for_nothing(site_of) -> None:
    """While the store is away a client has only a share of its limit, so its refusals are no reason to block it."""
    site = site_of(RULE)
    site.store.down = True
    assert [site.ask(EVE).rule for _ in range(8)] == ["login"] * 8
    assert not site.limiter.lists.active


@pytest.mark.parametrize(
    "per, facts, kind, value",
    [
        ("[user]", Facts(user="a|b:c"), "user", "a|b:c"),
        ("[user, endpoint]", Facts(user="bob", method="GET", path="/x"), "user", "bob"),
        ("[ip, user]", Facts(user="bob", ip="10.0.0.1"), "user", "bob"),
        ("{first_of: [api_key, user, ip]}", Facts(ip="10.0.0.1"), "ip", "10.0.0.1"),
        ("{first_of: [api_key, user, ip]}", Facts(ip="10.0.0.1", api_key="k 1"), "api_key", "k 1"),
        ("[tenant]", Facts(tenant="acmé"), "tenant", "acmé"),
        ("[header.x-client], on_missing: ip", Facts(ip="2001:db8::7"), "ip", "2001:db8::/64"),
        ("[ip]", Facts(ip="::ffff:10.0.0.1"), "ip", "10.0.0.1"),
    ],
)
def test_the_client_is_the_one_that_the_rule_counts(per: str, facts: Facts, kind: str, value: str) -> None:
    """What is blocked is the identity in the rule's key: the API key, else the user, the address as the rules cut it, the tenant."""
    limiter, clock = limiter_of(f"name: r, per: {per}, quota: 0, penalty: {{after: 2 refusals/1m, block: 1h}}")
    for _ in range(2):
        limiter.check(facts)
    assert limiter.penalties.take() == [ListEntry("block", kind, value, clock.now_us() + 60 * MINUTE_US, "penalty:r")]  # type: ignore[arg-type]
    assert limiter.check(facts).rule == f"block:{kind}"


def test_a_client_with_a_long_name_is_blocked_too() -> None:
    """An identity whose key holds only its digest is blocked by the digest, and nobody else is."""
    limiter, _ = limiter_of("name: r, per: [user], quota: 0, penalty: {after: 2 refusals/1m, block: 1h}")
    facts = Facts(user="é" * 200)
    for _ in range(2):
        limiter.check(facts)
    assert limiter.check(facts).rule == "block:user"
    assert limiter.check(Facts(user="é" * 201)).rule == "r"


def test_a_subject_without_a_client_is_nobody() -> None:
    """A counter of everybody, and one by a header that stood in for what is missing, block nobody."""
    assert client_of("*") is None
    assert client_of(subject_of((("header.x", "user:eve"),))) is None
    limiter, _ = limiter_of(
        "name: r, per: {first_of: [header.x, ip]}, quota: 0, penalty: {after: 1 refusals/1m, block: 1h}"
    )
    limiter.check(Facts(headers={"x": "1"}))
    assert not limiter.lists.active


def test_a_refusal_counts_once_for_a_rule_of_several_parts() -> None:
    """A request that two parts of one quota refuse is one refusal; two rules with penalties count each for itself."""
    limiter, _ = limiter_of(
        "name: a, per: [ip], quota: 1/second; 1/hour, penalty: {after: 3 refusals/1m, block: 5m}",
        "name: b, per: [ip], quota: 1/hour, penalty: {after: 2 refusals/1m, block: 9m}",
    )
    limiter.check(EVE)
    limiter.check(EVE)
    assert not limiter.lists.active
    limiter.check(EVE)
    assert [entry.source for entry in limiter.penalties.take()] == ["penalty:b"]


def test_the_allow_list_protects_from_penalties() -> None:
    """Who is on the allow list is refused by no rule and so never blocked."""
    limiter, _ = limiter_of("name: r, per: [ip], quota: 0, penalty: {after: 1 refusals/1m, block: 1h}")
    limiter.lists.put(ListEntry("allow", "ip", "203.0.113.0/24"))
    for _ in range(5):
        assert limiter.check(EVE).allowed
    assert limiter.penalties.take() == []


def test_penalties_are_told_once_and_can_be_put_back() -> None:
    """What was taken is not told again, unless it is given back; then it comes first, as before."""
    limiter, _ = limiter_of("name: r, per: [user], quota: 0, penalty: {after: 1 refusals/1m, block: 1h}")
    for user in ("a", "b"):
        limiter.check(Facts(user=user))
    taken = limiter.penalties.take()
    assert [entry.value for entry in taken] == ["a", "b"]
    assert limiter.penalties.take() == []
    limiter.check(Facts(user="c"))
    limiter.penalties.give_back(taken)
    assert [entry.value for entry in limiter.penalties.take()] == ["a", "b", "c"]


def test_a_flood_of_clients_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the count that began first is forgotten, and of untold penalties the oldest; both are counted."""
    monkeypatch.setattr(penalties_module, "PENALTY_CLIENTS_MAX", 3)
    monkeypatch.setattr(penalties_module, "PENALTIES_UNTOLD_MAX", 2)
    limiter, clock = limiter_of("name: r, per: [user], quota: 0, penalty: {after: 2 refusals/1m, block: 1h}")
    for user in "abcd":
        limiter.check(Facts(user=user))
        clock.advance(1)
    assert limiter.penalties.forgotten == 1
    for user in "dcba":
        limiter.check(Facts(user=user))
    assert [limiter.check(Facts(user=user)).rule for user in "dcb"] == ["block:user"] * 3
    assert limiter.penalties.given == 3
    assert [entry.value for entry in limiter.penalties.take()] == ["c", "b"]
    assert limiter.penalties.dropped == 1
    assert limiter.check(Facts(user="a")).rule == "r"
    assert limiter.check(Facts(user="a")).rule == "block:user"


def test_full_lists_take_no_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the lists are full the rule goes on refusing, and the penalty that could not act is counted."""
    monkeypatch.setattr("sluicegate.limiter.lists.LIST_ENTRIES_MAX", 1)
    limiter, _ = limiter_of("name: r, per: [user], quota: 0, penalty: {after: 1 refusals/1m, block: 1h}")
    limiter.lists.put(ListEntry("block", "user", "other"))
    assert [limiter.check(Facts(user="eve")).rule for _ in range(3)] == ["r"] * 3
    assert (limiter.penalties.dropped, limiter.penalties.given) == (3, 0)
