"""The engine with a memory store: who is charged, who refuses, and what keeps counters apart."""

from __future__ import annotations

import pytest

from sluicegate.algorithms.verdict import Outcome
from sluicegate.bounds import COST_MAX, MATCH_MEMO_MAX
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.engine import Engine
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import Match, Per, Rule, RuleSet, Scope, Tiers
from sluicegate.stores.memory import MemoryStore


class Bench:
    """An engine and the store it is asked with; ``rules`` replaces the engine and keeps the store."""

    def __init__(self, rules: str, *, namespace: str = "default", store: MemoryStore | None = None) -> None:
        self.clock = ManualClock()
        self.store = store or MemoryStore(self.clock)
        self.namespace = namespace
        self.rules(rules)

    def rules(self, rules: str) -> None:
        self.engine = Engine(load_rules(f"version: 1\n{rules}", "test.yaml"), self.namespace)

    def ask(self, cost: int = 1, **facts: object) -> Decision:
        plan = self.engine.plan(Facts(**facts), cost)  # type: ignore[arg-type]
        return self.engine.conclude(plan, self.store.decide_one(plan.charges) if plan.charges else None)

    def admitted(self, times: int, **facts: object) -> int:
        """How many of ``times`` equal requests are allowed."""
        return sum(self.ask(**facts).allowed for _ in range(times))


def charged(engine: Engine, **facts: object) -> list[tuple[str, str]]:
    """Counter names and subjects of a plan."""
    return [(counter.name, subject) for counter, subject, _ in engine.plan(Facts(**facts)).charges]  # type: ignore[arg-type]


def test_charges_are_in_order_of_evaluation() -> None:
    """Global, then endpoint, then identity, then file order; the plan says tier and version."""
    bench = Bench("""
rules:
  - {name: user, per: [user], quota: 9/minute}
  - {name: login, match: {path: /login}, quota: 9/minute}
  - {name: ip, per: [ip], quota: 9/minute}
  - {name: floor, quota: 9/minute}
""")
    plan = bench.engine.plan(Facts(path="/login", user="1", ip="10.0.0.1"))
    assert [charge[0].name for charge in plan.charges] == ["floor", "login", "user", "ip"]
    assert (plan.tier, plan.version, plan.refused) == (None, 1, False)


def test_refused_request_charges_nobody() -> None:
    """A request refused by a daily rule leaves the minute rule untouched, and the other way round (P10)."""
    bench = Bench("""
rules:
  - {name: minute, per: [user], quota: 10/minute, algorithm: fixed_window}
  - {name: second, per: [user], quota: 1/second, algorithm: fixed_window}
""")
    assert [bench.ask(user="a").allowed for _ in range(3)] == [True, False, False]
    bench.clock.advance(1_000_000)
    minute = bench.ask(user="a").results[0]
    assert (minute.rule, minute.remaining) == ("minute", 8)


def test_rules_with_one_key_and_period_do_not_share_a_counter() -> None:
    """``*`` at 20/minute and one method at 5/minute, same client and period: the sixth blocks, not the third (T17, T44)."""
    bench = Bench("""
rules:
  - {name: all, per: [ip], quota: 20/minute, algorithm: fixed_window}
  - {name: post, match: {methods: [POST]}, per: [ip], quota: 5/minute, algorithm: fixed_window}
""")
    assert bench.admitted(8, method="POST", ip="10.0.0.1") == 5
    assert bench.admitted(30, method="GET", ip="10.0.0.1") == 15


def test_each_rule_is_debited_once_per_request() -> None:
    """20 per hour shows 19, 18, 17: one debit per rule, whatever its pattern list matches (P19)."""
    bench = Bench("""
rules:
  - {name: app, match: {path: [/a, /**, "/{x}"]}, per: [ip], quota: 20/hour}
""")
    assert [bench.ask(path="/a", ip="10.0.0.1").remaining for _ in range(3)] == [19, 18, 17]


def test_user_and_group_rules_both_apply() -> None:
    """A limit per user and one per tenant on the same request both count (P83)."""
    bench = Bench("""
rules:
  - {name: user, per: [user], quota: 3/minute}
  - {name: group, per: [tenant], quota: 4/minute}
""")
    assert bench.admitted(5, user="a", tenant="t") == 3
    decision = [bench.ask(user="b", tenant="t") for _ in range(2)]
    assert [one.allowed for one in decision] == [True, False]
    assert decision[1].rule == "group"


def test_clients_do_not_share_a_bucket() -> None:
    """alice, alice, bob at 1/minute: true, false, true (P74)."""
    bench = Bench("rules:\n  - {name: user, per: [user], quota: 1/minute}")
    assert [bench.ask(user=user).allowed for user in ("alice", "alice", "bob")] == [True, False, True]


def test_endpoint_is_the_template_not_the_path() -> None:
    """/users/1 to /users/9 are one endpoint, whichever rule asks (P73); another method is another endpoint."""
    bench = Bench("""
rules:
  - {name: users, match: {path: "/users/{id}"}, per: [user, endpoint], quota: 3/minute}
""")
    assert sum(bench.ask(method="GET", path=f"/users/{number}", user="a").allowed for number in range(9)) == 3
    assert bench.ask(method="PUT", path="/users/1", user="a").allowed


def test_endpoint_prefers_the_known_route() -> None:
    """A route template the framework knows names the endpoint; a handler's name never does (P20)."""
    engine = Bench("rules:\n  - {name: e, match: {path: /api/**}, per: [endpoint], quota: 3/minute}").engine
    assert charged(engine, method="get", path="/api/v1/things/7") == [("e", "endpoint:GET /api/**")]
    known = charged(engine, method="GET", path="/api/v1/things/7", route="/api/v1/things/{id}")
    assert known == [("e", "endpoint:GET /api/v1/things/%7Bid%7D")]
    assert charged(engine, method="GET", path="/api/v1/things/7", route="") == [("e", "endpoint:GET /api/**")]


def test_unmatched_path_has_an_endpoint_too() -> None:
    """Without a pattern and a route, all paths of a method are one endpoint: never exempt, never one each (P71)."""
    engine = Bench("rules:\n  - {name: e, per: [ip, endpoint], quota: 3/minute}").engine
    assert charged(engine, method="GET", path="/a", ip="10.0.0.1") == [("e", "ip:10.0.0.1|endpoint:GET /**")]
    assert charged(engine, method="GET", path="/b", ip="10.0.0.1") == [("e", "ip:10.0.0.1|endpoint:GET /**")]
    assert charged(engine, ip="10.0.0.1") == [("e", "ip:10.0.0.1|endpoint:ANY /**")]


def test_exhausted_shadow_rule_stops_nobody() -> None:
    """A shadow rule that refuses is reported, and the enforced rules after it are evaluated and decide (T21)."""
    bench = Bench("""
rules:
  - {name: trial, quota: 1/minute, mode: shadow}
  - {name: real, per: [ip], quota: 3/minute}
""")
    decisions = [bench.ask(ip="10.0.0.1") for _ in range(4)]
    assert [one.allowed for one in decisions] == [True, True, True, False]
    assert [one.rule for one in decisions] == ["real"] * 4
    trial = decisions[2].results[0]
    assert (trial.rule, trial.outcome, trial.shadow, trial.refuses) == ("trial", Outcome.DENIED, True, False)


def test_rules_that_are_off_are_not_there() -> None:
    """``mode: off`` compiles to nothing, and an unlimited quota makes no charge."""
    bench = Bench("""
rules:
  - {name: gone, quota: 1/minute, mode: off}
  - {name: free, quota: unlimited}
""")
    decision = bench.ask(path="/x")
    assert decision.allowed
    assert (decision.rule, decision.limit, decision.remaining, decision.results) == (None, None, None, ())


def test_parts_of_a_quota_have_numbered_names() -> None:
    """``1/second; 100/hour`` is two counters, rule#1 and rule#2, both of the rule."""
    engine = Bench("""
rules:
  - {name: api, per: [ip], quota: "1/second; 100/hour"}
""").engine
    assert charged(engine, ip="10.0.0.1") == [("api#1", "ip:10.0.0.1"), ("api#2", "ip:10.0.0.1")]
    assert engine.rule_of("api#2").name == "api"


TIERED = """
tiers: {default: free, names: [free, paid]}
subjects: {"api_key:k1": paid, "user:8123": paid, "tenant:big": paid}
rules:
  - {name: api, per: [user], quota: {free: 2/minute, paid: 5/minute}}
"""


def test_tier_chooses_the_quota() -> None:
    """A named tier gets its quota; an absent one is looked up by API key, user and tenant, else is the default."""
    bench = Bench(TIERED)
    assert bench.ask(user="a", tier="paid").limit == 5
    assert bench.ask(user="b").limit == 2
    assert bench.ask(user="c", api_key="k1").limit == 5
    assert bench.ask(user="8123").limit == 5
    assert bench.ask(user="d", tenant="big").limit == 5
    assert bench.ask(user="8123", tier="free").limit == 2
    assert bench.engine.unknown_tiers == 0


def test_unknown_tier_is_the_default_and_is_counted() -> None:
    """A tier the rule set does not name takes the default's quota, on every request, and is counted."""
    bench = Bench(TIERED)
    assert [bench.ask(user="a", tier="gold").limit for _ in range(3)] == [2, 2, 2]
    assert bench.engine.unknown_tiers == 3
    assert bench.engine.plan(Facts(user="a", tier="gold")).tier == "free"


def test_change_of_tier_keeps_the_counter() -> None:
    """A client that upgrades keeps what it has used, because no quota is in the key (P95)."""
    bench = Bench(TIERED)
    assert bench.admitted(2, user="a") == 2
    upgraded = bench.ask(user="a", tier="paid")
    assert (upgraded.allowed, upgraded.remaining) == (True, 2)


def test_raised_limit_keeps_the_counter() -> None:
    """A change of numbers in the file goes on with the counters there are (P95)."""
    bench = Bench("rules:\n  - {name: api, per: [user], quota: 10/minute, algorithm: fixed_window}")
    assert bench.admitted(4, user="a") == 4
    bench.rules("rules:\n  - {name: api, per: [user], quota: 20/minute, algorithm: fixed_window}")
    assert bench.ask(user="a").remaining == 15


def test_change_of_window_or_per_starts_anew() -> None:
    """Another window or another ``per`` is another counter."""
    bench = Bench("rules:\n  - {name: api, per: [user], quota: 1/minute, algorithm: fixed_window}")
    assert bench.admitted(2, user="a", ip="10.0.0.1") == 1
    bench.rules("rules:\n  - {name: api, per: [user], quota: 1/hour, algorithm: fixed_window}")
    assert bench.admitted(2, user="a", ip="10.0.0.1") == 1
    bench.rules("rules:\n  - {name: api, per: [user, ip], quota: 1/hour, algorithm: fixed_window}")
    assert bench.admitted(2, user="a", ip="10.0.0.1") == 1


def test_namespaces_on_one_store_do_not_meet() -> None:
    """Two services with equal rules and clients on one store have counters of their own (T45, P96)."""
    rules = "rules:\n  - {name: api, per: [user], quota: 1/minute}"
    one = Bench(rules, namespace="one")
    two = Bench(rules, namespace="two", store=one.store)
    assert one.admitted(2, user="a") == 1
    assert two.admitted(2, user="a") == 1


@pytest.mark.parametrize(
    "cost", [0, -1, COST_MAX + 1, 10**400, -(10**400), True, False, 1.0, 1.5, "1", None, float("nan")]
)
def test_bad_cost_is_the_callers_error(cost: object) -> None:
    """A cost that is no whole number in range is refused by name, and nothing is planned."""
    engine = Bench("rules:\n  - {name: api, quota: 1/minute}").engine
    with pytest.raises(InvalidRequest) as caught:
        engine.plan(Facts(), cost)  # type: ignore[arg-type]
    assert caught.value.field == "cost"


def test_cost_zero_is_for_peeks() -> None:
    """A peek may ask with cost 0; the charges carry it."""
    engine = Bench("rules:\n  - {name: api, quota: 9/minute, cost: 3}").engine
    assert [charge[2] for charge in engine.plan(Facts(), 0, peek=True).charges] == [0]
    assert [charge[2] for charge in engine.plan(Facts(), 2, peek=True).charges] == [6]


def test_caller_cost_multiplies_the_rules() -> None:
    """A rule's cost is per unit: fixed or from a header, the caller's cost multiplies it."""
    engine = Bench("""
rules:
  - {name: plain, quota: 1000/minute}
  - {name: five, quota: 1000/minute, cost: 5}
  - {name: header, quota: 1000/minute, cost: {header: X-Cost, min: 2, max: 50, default: 3}}
""").engine
    assert [charge[2] for charge in engine.plan(Facts(), 4).charges] == [4, 20, 12]
    costs = {
        text: engine.plan(Facts(headers={"x-cost": text})).charges[2][2]
        for text in (
            "7",
            "1",
            "2",
            "50",
            "51",
            "99999999999999999999",
            "0",
            "-1",
            "1.5",
            "",
            "x",
            " 7",
            "\u0667",
            "1_0",
            "+7",
        )
    }
    assert costs == {
        "7": 7, "1": 2, "2": 2, "50": 50, "51": 50, "99999999999999999999": 50, "0": 50, "-1": 50, "1.5": 50, "": 50,
        "x": 50, " 7": 50, "\u0667": 50, "1_0": 50, "+7": 50,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        (Facts(ip="999.1.1.1"), "facts.ip"),
        (Facts(ip=""), None),
        (Facts(ip=7), "facts.ip"),  # type: ignore[arg-type]
        (Facts(user=0), "facts.user"),  # type: ignore[arg-type]
        (Facts(user=["a"]), "facts.user"),  # type: ignore[arg-type]
        (Facts(path=7), "facts.path"),  # type: ignore[arg-type]
        (Facts(path=["/"]), "facts.path"),  # type: ignore[arg-type]
        (Facts(path="/" * 5_000), "facts.path"),
        (Facts(method=7), "facts.method"),  # type: ignore[arg-type]
        (Facts(host=b"h"), "facts.host"),  # type: ignore[arg-type]
        (Facts(headers=[1]), "facts.headers"),  # type: ignore[arg-type]
        (Facts(headers={"x-a": 1}), "facts.headers"),  # type: ignore[dict-item]
        (Facts(route=7), "facts.route"),  # type: ignore[arg-type]
        (Facts(tier=["paid"]), "facts.tier"),  # type: ignore[arg-type]
        ("user:1", "facts"),
        (None, "facts"),
    ],
    ids=repr,
)
def test_bad_facts_are_the_callers_error(facts: Facts, field: str | None) -> None:
    """A fact of the wrong type or form is refused by name; it never passes as unknown."""
    engine = Bench("""
tiers: {default: free, names: [free, paid]}
rules:
  - {name: ip, match: {path: [/a, /**]}, per: [ip, endpoint], quota: 9/minute}
  - {name: user, per: [user], quota: 9/minute}
  - {name: ipm, match: {ip: 10.0.0.0/8}, quota: 9/minute}
  - {name: ips, per: [ip], quota: 9/minute}
  - {name: h, per: [header.X-A], quota: 9/minute}
  - {name: e, per: [endpoint], quota: 9/minute}
""").engine
    if field is None:
        assert "ips" not in [charge[0].name for charge in engine.plan(facts).charges]
        return
    with pytest.raises(InvalidRequest) as caught:
        engine.plan(facts)
    assert caught.value.field == field


def test_missing_quota_is_a_configuration_error() -> None:
    """A rule without numbers for some tier cannot be compiled; the message names rule and tier."""
    rule = Rule("api", Scope.GLOBAL, Match(), Per(), {})
    with pytest.raises(ConfigurationError, match=r"rule 'api': quota: no quota for the tier"):
        Engine(RuleSet((rule,), Tiers(("free",), "free")))


def test_queries_do_not_fill_the_memo() -> None:
    """A query string changes nothing: the request line is remembered without it."""
    engine = Bench("rules:\n  - {name: s, match: {path: /search}, per: [path], quota: 9/minute}").engine
    for number in range(50):
        assert charged(engine, path=f"/search?q={number}") == [("s", "path:/search")]
    assert len(engine._memo) == 1


def test_flood_of_paths_stays_within_the_memo() -> None:
    """Unique paths never grow the memo beyond its bound, long ones are not remembered, and answers stay right."""
    engine = Bench('rules:\n  - {name: s, match: {path: "/s/{id}"}, per: [endpoint], quota: 9/minute}').engine
    for number in range(MATCH_MEMO_MAX + 100):
        engine.plan(Facts(path=f"/s/{number}"))
        assert len(engine._memo) <= MATCH_MEMO_MAX
    before = len(engine._memo)
    assert charged(engine, path="/s/" + "x" * 1_000) == [("s", "endpoint:ANY /s/%7Bid%7D")]
    assert len(engine._memo) == before
    assert charged(engine, path="/s/1") == [("s", "endpoint:ANY /s/%7Bid%7D")]


def test_rules_by_tenant_are_found_by_label() -> None:
    """With a rule per tenant each request meets its own rule, remembered per tenant."""
    rules = "".join(f"  - {{name: t{n}, match: {{tenant: t{n}}}, quota: {n + 1}/minute}}\n" for n in range(40))
    engine = Bench(f"rules:\n{rules}").engine
    for _ in range(2):
        assert charged(engine, tenant="t7", path="/") == [("t7", "*")]
        assert charged(engine, tenant="t8", path="/") == [("t8", "*")]
        assert charged(engine, tenant="other", path="/") == []
        assert charged(engine, path="/") == []


def test_explain_says_why_each_rule_applies_or_not() -> None:
    """Every rule of the set is explained in order of evaluation, and nothing is charged."""
    bench = Bench(
        TIERED
        + """
  - {name: login, match: {methods: [POST], path: /login}, per: [ip], quota: 5/minute}
  - {name: old, quota: 5/minute, mode: off}
  - {name: strict, per: [api_key], on_missing: deny, quota: 5/minute, mode: shadow}
  - {name: free, quota: unlimited}
  - {name: not-root, match: {path: /x, not: {user: root}}, quota: 5/minute, cost: 2}
  - {name: hosted, match: {host: a.test}, quota: 5/minute}
  - {name: paid, match: {tier: paid}, quota: 5/minute}
  - {name: header, match: {headers: {x-a: "1"}}, quota: 5/minute}
"""
    )
    explained = {one.rule: one for one in bench.engine.explain(Facts(method="GET", path="/X", user="root"), cost=3)}
    assert list(explained) == ["old", "free", "not-root", "hosted", "paid", "header", "api", "login", "strict"]
    assert explained["api"] == ("api", True, "", "free", "user:root", "2/minute", 3, "enforce", "", None)
    reasons = {name: one.reason for name, one in explained.items() if not one.matched}
    assert reasons == {
        "old": "its mode is off",
        "not-root": "its 'not' block holds",
        "hosted": "host (not known) does not match",
        "paid": "tier 'free' is none of paid",
        "header": "a condition on headers, identity, address or descriptors does not hold",
        "login": "method 'GET' is none of POST",
    }
    assert explained["free"].reason == "unlimited for this tier"
    assert explained["strict"].reason == "refused: api_key is not known"
    assert explained["strict"].mode == "shadow"
    path = bench.engine.explain(Facts(method="POST", path="/log"))[-2]
    assert (path.rule, path.reason) == ("login", "path '/log' does not match /login")
    assert len(bench.store) == 0
    assert bench.engine.explain(Facts(path="/x", user="a"), cost=3)[2].cost == 6
