"""The document by which gateways decide: what it says, what it leaves to the server, and what must not stand in it."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.app.ruleset import path_regex, ruleset_document
from sluicegate.doors.headers import RateHeaders
from sluicegate.limiter.engine import Engine
from sluicegate.rules.effective import effective
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import Candidate, RulesDocument
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import Match
from sluicegate.rules.paths import parse_pattern, segments_of
from sluicegate.stores.redis.definitions import CounterForm

RULES = """
version: 1
tiers: {names: [free, paid], default: free}
rules:
  - {name: later, scope: identity, match: {path: /a}, per: [user, header.X-Id], quota: 5/minute}
  - {name: everyone, scope: global, quota: {free: 10/second, paid: 20/second}}
  - {name: idle, per: [ip], quota: 1/minute, mode: "off"}
  - {name: heavy, match: {path: /b, methods: [POST]}, per: [ip], quota: 50/minute, cost: 5, denied_counts: true}
"""

SEGMENT = st.sampled_from(["a", "ab", "b", "abab", "v1", "report-x.pdf", "aXb".lower()])
PIECE = st.sampled_from(["a", "b", "ab", "*", "{id}", "v", "1", "-", ".pdf"])
PATTERN_SEGMENT = st.one_of(
    SEGMENT, st.just("*"), st.just("{id}"), st.lists(PIECE, min_size=1, max_size=4).map("".join)
)


def document(rules: str, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        ruleset_document(Engine(load_rules(rules, "rules.yaml")), RateHeaders(), **options)
    )
    return found


def reasons(*fields: str) -> list[str | None]:
    """Why the reader must ask, for rules with these fields."""
    rules = [f"  - {{name: r{n}, scope: endpoint, {text}}}" for n, text in enumerate(fields)]
    return [rule.get("ask") for rule in document("version: 1\nrules:\n" + "\n".join(rules))["rules"]]


def test_order_and_numbers() -> None:
    """Rules stand in order of evaluation without those that are off, and a counter's bytes are those the store itself sends."""
    engine = Engine(load_rules(RULES, "rules.yaml", 7))
    found = json.loads(ruleset_document(engine, RateHeaders()))
    assert [rule["name"] for rule in found["rules"]] == ["everyone", "later", "heavy"]
    assert (found["version"], found["tiers"]) == (7, {"names": ["free", "paid"], "default": "free"})
    heavy = found["rules"][2]["counters"][0]
    plan = engine.plan(Facts(method="POST", path="/b", ip="203.0.113.9"))
    charge = next(charge for charge in plan.charges if charge[0].name == "heavy")
    form = CounterForm(charge[0])
    assert base64.b64decode(heavy["form"]) == form.charge(charge[2], 0)
    assert (heavy["head"], heavy["tail"], heavy["limit"]) == (form.head, form.tail, 50)
    assert heavy["denied_counts"] is True


def test_tiers_that_differ() -> None:
    """A tier has counters of its own only where they are others than those of a tier that is not named."""
    everyone, _, heavy = document(RULES)["rules"]
    assert {tier: counters[0]["limit"] for tier, counters in everyone["tiers"].items()} == {"paid": 20}
    assert everyone["counters"][0]["limit"] == 10
    assert heavy["tiers"] == {}


def test_what_is_asked() -> None:
    """Rules that a reader cannot decide by itself say why, and have no numbers to be tempted by."""
    assert reasons(
        "match: {path: /x}, per: [ip], quota: 5/minute",
        "match: {path: /x}, per: [ip], quota: 5/minute, algorithm: leaky_bucket",
        "match: {ip: [10.0.0.0/8]}, per: [ip], quota: 5/minute",
        "match: {not: {ip: [10.0.0.0/8]}}, per: [ip], quota: 5/minute",
        "match: {path: /x}, per: [attrs.plan], quota: 5/minute",
        "match: {path: /x}, per: [ip], quota: 5/minute, cost: {header: x-cost, max: 10}",
        "match: {path: /x}, per: [ip], quota: 5/minute, precision: leased",
        "match: {path: /x}, per: [ip], quota: 5/minute, precision: split",
        "match: {path: /x}, per: [ip], quota: 5/minute, precision: estimated",
    ) == [
        None,
        "algorithm leaky_bucket",
        "ip in match",
        "ip in match",
        "dimension attrs.plan",
        "cost read from a header",
        None,
        "precision split",
        "precision estimated",
    ]


def test_rules_on_trial_are_asked() -> None:
    """What a rollout tries is decided by this server, in either version, because it counts what they do; other rules are not."""
    before, after = (
        load_rules(
            f"version: 1\nrules: [{{name: a, per: [ip], quota: {n}/minute}}, {{name: b, quota: 9/second}}]\n", "r"
        )
        for n in (5, 6)
    )
    rollout = Candidate(1, "canary", RulesDocument(0, "", {}), "salt", 5_000)
    engine = Engine(effective(before, after, rollout, (), "n1", 0).ruleset)
    rules = json.loads(ruleset_document(engine, RateHeaders()))["rules"]
    assert [(rule["name"], rule.get("ask")) for rule in rules] == [
        ("b", None),
        ("a@canary", "a rollout"),
        ("a", "a rollout"),
    ]


def test_no_secret() -> None:
    """Of an identity block it says which headers matter, and neither keys nor where they are kept."""
    identity = "identity: {trusted_peers: [127.0.0.1/32], user: {header: X-User}, api_key: {keys: keys.txt}}\n"
    text = json.dumps(found := document("version: 1\n" + identity + RULES.split("\n", 2)[2]))
    assert found["identity"]["secrets"] == ["x-api-key"]
    assert found["identity"]["stated"] == {"user": "x-user"}
    assert "keys.txt" not in text


@given(
    pattern=st.lists(PATTERN_SEGMENT, max_size=4),
    rest=st.one_of(st.none(), st.integers(0, 4)),
    path=st.lists(st.one_of(SEGMENT, st.text("ab1-.pdfv", min_size=1, max_size=8)), max_size=5),
)
def test_patterns_as_expressions(pattern: list[str], rest: int | None, path: list[str]) -> None:
    """The regular expression of a pattern matches the paths that the pattern does, and no other."""
    segments = list(pattern)
    if rest is not None:
        segments.insert(rest, "**")
    try:
        parsed = parse_pattern("/" + "/".join(segments))
    except ValueError:
        return
    normal = "/" + "/".join(path)
    expression = path_regex(parsed).replace(r"\z", r"\Z")
    found = re.search(expression, "" if normal == "/" else normal) is not None
    assert found == parsed.matches(segments_of(normal)), (parsed.text, normal)


def test_every_condition_is_told() -> None:
    """Each field of ``match`` stands in the document, or makes the rule the server's: none is left out in silence."""
    fields = {
        "methods": "[GET]", "path": "/a", "host": "[x.example]", "headers": "{X-A: b}", "tier": "[free]", "tenant": "[t]",
        "user": "[u]", "ip": "[10.0.0.0/8]", "authenticated": "true", "domain": "[d]", "descriptors": "{k: v}",
        "entries": "[{key: k}]", "negate": "{path: /b}",
    }  # fmt: skip
    assert set(fields) == {each.name for each in dataclasses.fields(Match)}
    for name, value in fields.items():
        word = "not" if name == "negate" else name
        domain = "domain: [d], " if name in {"descriptors", "entries"} else ""
        match = f"{{{domain}{word}: {value}}}"
        rules = f"version: 1\ntiers: {{names: [free], default: free}}\nrules:\n  - {{name: r, match: {match}, quota: 1/hour}}\n"
        (rule,) = document(rules)["rules"]
        assert word in rule["match"] or rule["ask"] == f"{name} in match", name
