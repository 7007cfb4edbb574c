"""Dimensions: what makes two requests the same client."""

from __future__ import annotations

import pytest

from sluicegate.algorithms.verdict import Outcome
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.engine import Engine
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules


def engine_of(per: str, more: str = "", head: str = "") -> Engine:
    """An engine with one rule per ``per``."""
    text = f"version: 1\n{head}\nrules:\n  - {{name: r{per and f', per: {per}'}, quota: 5/minute{more}}}\n"
    return Engine(load_rules(text, "test.yaml"))


def subject(engine: Engine, **facts: object) -> str | None:
    """The subject of the one charge, None where there is none."""
    charges = engine.plan(Facts(**facts)).charges  # type: ignore[arg-type]
    return charges[0][1] if charges else None


SUBJECTS: list[tuple[str, dict[str, object], str | None]] = [
    ("", {}, "*"),
    ("[ip]", {"ip": "203.0.113.9"}, "ip:203.0.113.9"),
    ("[ip]", {"ip": "::ffff:203.0.113.9"}, "ip:203.0.113.9"),
    ("[ip]", {"ip": "203.0.113.9:5678"}, "ip:203.0.113.9"),
    ("[ip]", {"ip": "2001:DB8:1:2:3::9"}, "ip:2001:db8:1:2::/64"),
    ("[ip]", {}, None),
    ("[ip]", {"ip": ""}, None),
    ("[user]", {"user": "8123"}, "user:8123"),
    ("[user]", {"user": ""}, None),
    ("[user]", {"api_key": "8123"}, None),
    ("[api_key]", {"api_key": "k1"}, "api_key:k1"),
    ("[tenant]", {"tenant": "acme"}, "tenant:acme"),
    ("[domain]", {"domain": "edge"}, "domain:edge"),
    ("[host]", {"host": "Example.com:80"}, "host:example.com"),
    ("[host]", {}, None),
    ("[method]", {"method": "get"}, "method:GET"),
    ("[method]", {"method": "GEX"}, "method:OTHER"),
    ("[method]", {}, None),
    ("[path]", {"path": "/A//b/?q"}, "path:/a/b"),
    ("[path]", {"path": "/a%2Fb"}, "path:/a/b"),
    ("[path]", {}, None),
    ("[endpoint]", {"method": "GET", "path": "/a"}, "endpoint:GET /**"),
    ("[header.X-Device]", {"headers": {"x-device": "7"}}, "header.x-device:7"),
    ("[header.X-Device]", {"headers": {}}, None),
    ("[header.X-Device]", {}, None),
    ("[descriptor.plan]", {"descriptors": {"plan": "pro"}}, "descriptor.plan:pro"),
    ("[descriptor.plan]", {"descriptors": {"Plan": "pro"}}, None),
    ("[descriptor.plan]", {"descriptors": {"plan": ""}}, "descriptor.plan:"),
    ("[descriptor.plan, user]", {"descriptors": {"plan": ""}, "user": "u"}, "descriptor.plan:|user:u"),
    ("{first_of: [descriptor.plan, ip]}", {"descriptors": {"plan": ""}, "ip": "10.0.0.1"}, "descriptor.plan:"),
    ("[header.X-Device]", {"headers": {"x-device": ""}}, None),
    ("[attrs.device]", {"attrs": {"device": "d"}}, "attrs.device:d"),
    ("[user, ip]", {"user": "u", "ip": "10.0.0.1"}, "user:u|ip:10.0.0.1"),
    ("[ip, user]", {"user": "u", "ip": "10.0.0.1"}, "ip:10.0.0.1|user:u"),
    ("[user, ip]", {"user": "u"}, None),
    ("[user, ip]", {"ip": "10.0.0.1"}, None),
    ("{first_of: [api_key, user, ip]}", {"api_key": "k", "user": "u", "ip": "10.0.0.1"}, "api_key:k"),
    ("{first_of: [api_key, user, ip]}", {"user": "u", "ip": "10.0.0.1"}, "user:u"),
    ("{first_of: [api_key, user, ip]}", {"api_key": "", "ip": "10.0.0.1"}, "ip:10.0.0.1"),
    ("{first_of: [api_key, user, ip]}", {}, None),
]


@pytest.mark.parametrize(("per", "facts", "expected"), SUBJECTS, ids=lambda value: str(value)[:40])
def test_subject(per: str, facts: dict[str, object], expected: str | None) -> None:
    """Each ``per`` gives this subject, and none where a dimension is not known (P94)."""
    assert subject(engine_of(per), **facts) == expected


def test_tier_is_a_dimension() -> None:
    """``per: [tier]`` keeps one counter per effective tier: an unknown one counts as the default."""
    engine = engine_of("[tier]", head="tiers: {default: free, names: [free, paid]}")
    assert subject(engine, tier="paid") == "tier:paid"
    assert subject(engine) == subject(engine, tier="gold") == "tier:free"


def test_composite_parts_do_not_run_into_each_other() -> None:
    """("a_b", "c") and ("a", "b_c") are two clients, and so are values that hold the separator (P92)."""
    engine = engine_of("[user, tenant]")
    pairs = [("a_b", "c"), ("a", "b_c"), ("a|tenant:b", "c"), ("a", "b|tenant:c"), ("a%7C", "b"), ("a|", "b")]
    assert len({subject(engine, user=user, tenant=tenant) for user, tenant in pairs}) == len(pairs)


def test_same_spelling_in_other_dimensions_is_another_client() -> None:
    """A user who calls himself like an API key or an address does not spend their quota (P92)."""
    engine = engine_of("{first_of: [api_key, user, ip]}")
    spellings = [{"api_key": "10.0.0.1"}, {"user": "10.0.0.1"}, {"ip": "10.0.0.1"}, {"user": "ip:10.0.0.1"}]
    assert len({subject(engine, **facts) for facts in spellings}) == len(spellings)


def test_prefixes_come_from_the_identity_settings() -> None:
    """IPv6 is keyed by /64 and IPv4 by /32 unless the file says otherwise; ::ffff: is IPv4 (T114)."""
    engine = engine_of("[ip]", head="identity: {ip: {ipv6_prefix: 48, ipv4_prefix: 24}}")
    assert subject(engine, ip="2001:db8:1:2::3") == "ip:2001:db8:1::/48"
    assert subject(engine, ip="203.0.113.9") == subject(engine, ip="::ffff:203.0.113.77") == "ip:203.0.113.0/24"
    assert subject(engine_of("[ip]"), ip="2001:db8:1:2::3") == "ip:2001:db8:1:2::/64"


def test_bad_address_is_never_skipped() -> None:
    """Text that is no address is the caller's error, not a missing dimension and not another rule's key (T113)."""
    for engine in (engine_of("[ip]"), engine_of("{first_of: [user, ip]}"), engine_of("[user]", ", on_missing: ip")):
        with pytest.raises(InvalidRequest, match=r"facts\.ip: .*not an IP address"):
            engine.plan(Facts(ip="10.0.0.256"))


def test_missing_dimension_skips_by_default() -> None:
    """Without its dimension a rule makes no charge; it is never one counter for all who lack it (P94)."""
    engine = engine_of("[user]")
    plan = engine.plan(Facts(ip="10.0.0.1"))
    assert plan.charges == []
    assert engine.conclude(plan, None).allowed


def test_missing_dimension_may_fall_back_to_the_address() -> None:
    """``on_missing: ip`` keys by address, apart from the users; without an address the rule is skipped."""
    engine = engine_of("[user]", ", on_missing: ip")
    assert subject(engine, user="u", ip="10.0.0.1") == "user:u"
    assert subject(engine, ip="10.0.0.1") == "ip:10.0.0.1"
    assert subject(engine) is None


def test_missing_dimension_may_refuse() -> None:
    """``on_missing: deny`` refuses without asking the store: no charge of any rule, never fits, no retry time (P94)."""
    text = """
version: 1
rules:
  - {name: floor, quota: 5/minute}
  - {name: known, per: [user], on_missing: deny, quota: "2/second; 9/minute"}
"""
    engine = Engine(load_rules(text, "test.yaml"))
    plan = engine.plan(Facts(ip="10.0.0.1"))
    assert (plan.charges, plan.refused) == ([], True)
    decision = engine.conclude(plan, None)
    assert not decision.allowed
    assert (decision.rule, decision.outcome, decision.refusal) == ("known#1", Outcome.NEVER_FITS, "rate")
    assert (decision.limit, decision.remaining, decision.retry_after_us, decision.reset_after_us) == (2, 0, None, 0)
    assert [result.rule for result in decision.results] == ["known#1", "known#2"]
    assert len(engine.plan(Facts(user="u")).charges) == 3


def test_shadow_rule_never_refuses_for_a_missing_dimension() -> None:
    """In shadow, ``on_missing: deny`` is reported and the request goes on with the other rules' charges."""
    text = """
version: 1
rules:
  - {name: floor, quota: 5/minute}
  - {name: known, per: [user], on_missing: deny, quota: 9/minute, mode: shadow}
"""
    plan = Engine(load_rules(text, "test.yaml")).plan(Facts())
    assert not plan.refused
    assert [charge[0].name for charge in plan.charges] == ["floor"]
    assert [counter.name for counter in plan.unidentified] == ["known"]


def test_invented_methods_share_an_endpoint() -> None:
    """A client that makes up methods gets one more quota, not one for each."""
    engine = engine_of("[endpoint]")
    assert subject(engine, method="X1", path="/a") == subject(engine, method="X2", path="/a") == "endpoint:OTHER /**"
