"""Configurations of envoyproxy/ratelimit as rules: a table of what that program decides, decided by the rules.

Each case is a configuration, requests in order, and for each what envoyproxy/ratelimit answers by its code: a number is what
remains, "over" a refusal, "ok" a pass without a limit.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.import_envoy import import_envoy_ratelimit
from sluicegate.rules.load import load_rules


def imported(*configurations, **options):
    """What is made of these configurations, each a file."""
    files = [(f"{n}.yaml", textwrap.dedent(text).encode()) for n, text in enumerate(configurations)]
    return import_envoy_ratelimit(files, **options)


def answers(text, requests):
    """What the rules say to descriptors such as ``"a=1 b=2"``, one after the other."""
    limiter = Limiter.from_rules(load_rules(text, "imported"), clock=ManualClock())
    found = []
    for request in requests:
        domain, _, descriptor = request.rpartition("::")
        entries = dict(pair.split("=", 1) for pair in descriptor.split())
        decision = limiter.check(Facts(domain=domain or "d", descriptors=entries))
        found.append("over" if not decision.allowed else "ok" if decision.rule is None else decision.remaining)
    return found


LIMIT = "{unit: minute, requests_per_unit: 2}"
OTHER = "{unit: hour, requests_per_unit: 9}"
TABLE = [
    ("key and value: one counter", f"[{{key: a, value: x, rate_limit: {LIMIT}}}]",
     ["a=x", "a=x", "a=x", "a=y"], [1, 0, "over", "ok"]),
    ("key alone: a counter for each value", f"[{{key: a, rate_limit: {LIMIT}}}]",
     ["a=x", "a=x", "a=x", "a=y"], [1, 0, "over", 1]),
    ("a value goes before the key alone", f"[{{key: a, rate_limit: {LIMIT}}}, {{key: a, value: x, rate_limit: {OTHER}}}]",
     ["a=x", "a=y"], [8, 1]),
    ("a value without a limit is free of the key's", f"[{{key: a, rate_limit: {LIMIT}}}, {{key: a, value: x}}]",
     ["a=x", "a=y"], ["ok", 1]),
    ("depth must match", f"[{{key: a, rate_limit: {LIMIT}, descriptors: [{{key: b, rate_limit: {OTHER}}}]}}]",
     ["a=1", "a=1 b=1", "a=1 b=1 c=1", "b=1"], [1, 8, "ok", "ok"]),
    ("order of entries matters", f"[{{key: a, descriptors: [{{key: b, rate_limit: {LIMIT}}}]}}]",
     ["a=1 b=1", "b=1 a=1"], [1, "ok"]),
    ("a nested counter is by all open values", f"[{{key: a, descriptors: [{{key: b, rate_limit: {LIMIT}}}]}}]",
     ["a=1 b=1", "a=1 b=2", "a=2 b=1", "a=1 b=1"], [1, 1, 1, 0]),
    ("the subtree of a value hides that of its key", f"[{{key: a, descriptors: [{{key: b, rate_limit: {LIMIT}}}]}}, {{key: a, value: x, descriptors: [{{key: c, rate_limit: {OTHER}}}]}}]",
     ["a=x b=1", "a=x c=1", "a=y b=1", "a=y c=1"], ["ok", 8, 1, "ok"]),
    ("wildcards count by value", f'[{{key: a, value: "x*", rate_limit: {LIMIT}}}]',
     ["a=x1", "a=x1", "a=x2", "a=y", "a=x"], [1, 0, 1, "ok", 1]),
    ("a wildcard that shares its threshold", f'[{{key: a, value: "x*", share_threshold: true, rate_limit: {LIMIT}}}]',
     ["a=x1", "a=x2", "a=x3"], [1, 0, "over"]),
    ("exact, then wildcards in order, then the key", f'[{{key: a, rate_limit: {{unit: day, requests_per_unit: 100}}}}, {{key: a, value: "x*", rate_limit: {LIMIT}}}, {{key: a, value: "*y", rate_limit: {OTHER}}}, {{key: a, value: xy, rate_limit: {{unit: second, requests_per_unit: 5}}}}]',
     ["a=xy", "a=xzy", "a=zy", "a=z"], [4, 1, 8, 99]),
    ("an asterisk in the middle", f'[{{key: a, value: "/v1/*/items", rate_limit: {LIMIT}}}]',
     ["a=/v1/7/items", "a=/v1/items", "a=/v1/7/items/8"], [1, "ok", "ok"]),
    ("wildcards in front, behind, in the middle and below one another", f'[{{key: a, value: "*.css", descriptors: [{{key: b, value: "GET*", rate_limit: {LIMIT}}}, {{key: b, value: "*T*T", rate_limit: {OTHER}}}]}}]',
     ["a=x.css b=GET", "a=y.css b=GETT", "a=y.css b=xTxT", "a=x.cs b=GET"], [1, 1, 8, "ok"]),
    ("unlimited", f"[{{key: a, rate_limit: {{unlimited: true}}}}, {{key: b, rate_limit: {LIMIT}}}]", ["a=1", "a=1", "b=1"], ["ok", "ok", 1]),
    ("zero is a ban", "[{key: a, value: x, rate_limit: {unit: second, requests_per_unit: 0}}]", ["a=x", "a=y"], ["over", "ok"]),
    ("shadow mode refuses nobody", f"[{{key: a, shadow_mode: true, rate_limit: {LIMIT}}}]",
     ["a=1", "a=1", "a=1", "a=1"], ["ok", "ok", "ok", "ok"]),
    ("an unknown domain", f"[{{key: a, rate_limit: {LIMIT}}}]", ["other::a=1"], ["ok"]),
    ("numbers are texts", f"[{{key: a, value: 404, rate_limit: {LIMIT}}}]", ["a=404", "a=405"], [1, "ok"]),
    ("braces, colons and blanks", f'[{{key: "a:b", value: "{{x}} y", rate_limit: {LIMIT}}}]', [], []),
]  # fmt: skip


@pytest.mark.parametrize(("what", "descriptors", "requests", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_what_is_decided_there_is_decided_here(what, descriptors, requests, expected):
    """The rules that are made of a configuration answer its requests as envoyproxy/ratelimit does. # T20 # T110"""
    made = imported(f"domain: d\ndescriptors: {descriptors}\n")
    assert [str(p) for p in made.problems if p.severity == "error"] == []
    assert answers(made.text, requests) == expected, what


@pytest.mark.parametrize(
    ("unit", "window_s"),
    [("second", 1), ("MINUTE", 60), ("hour", 3600), ("day", 86400), ("week", 604800), ("month", 2592000), ("year", 31536000)],
)  # fmt: skip
def test_units(unit, window_s):
    """All units of the .proto file, in any case; a month is 30 days and a year 365."""
    made = imported(f"domain: d\ndescriptors: [{{key: a, rate_limit: {{unit: {unit}, requests_per_unit: 7}}}}]\n")
    (rule,) = load_rules(made.text, "x").rules
    (spec,) = rule.quotas[None].specs
    assert (spec.algorithm, spec.capacity, spec.window_us) == ("fixed_window", 7, window_s * 1_000_000)
    assert [p.field for p in made.problems] == (["descriptors[1].rate_limit.unit"] if unit == "week" else [])


def test_a_key_and_value_that_would_run_together_are_apart():
    """There ``a_b`` with ``c`` and ``a`` with ``b_c`` are one name; here they are two counters. # P92"""
    limits = f"[{{key: a_b, value: c, rate_limit: {LIMIT}}}, {{key: a, value: b_c, rate_limit: {OTHER}}}]"
    assert answers(imported(f"domain: d\ndescriptors: {limits}\n").text, ["a_b=c", "a=b_c"]) == [1, 8]


def test_refused_requests_cost_nothing_unless_asked_for():
    """``denied_counts`` charges a refused request to the rule that refuses it, as there: a large one uses up what is left."""
    text = f"domain: d\ndescriptors: [{{key: a, rate_limit: {LIMIT}}}]\n"
    for options, passes in (({}, True), ({"denied_counts": True}, False)):
        limiter = Limiter.from_rules(load_rules(imported(text, **options).text, "x"), clock=ManualClock())
        facts = Facts(domain="d", descriptors={"a": "1"})
        assert limiter.check(facts).allowed
        assert not limiter.check(facts, 2).allowed
        assert limiter.check(facts).allowed is passes


def test_several_files_become_one():
    """One file for each domain, and names that no two rules share."""
    one, two = (
        f"domain: {d}\ndescriptors: [{{key: a, rate_limit: {{name: n, unit: day, requests_per_unit: 3}}}}]\n"
        for d in "de"
    )
    made = imported(one, two)
    assert [rule.name for rule in load_rules(made.text, "x").rules] == ["n", "n-2"]
    assert answers(made.text, ["d::a=1", "e::a=1", "d::a=1"]) == [2, 2, 1]


def test_a_thousand_values_with_limits_of_their_own():
    """The rule of the key leaves all of them out."""
    values = "".join(f"  - {{key: a, value: v{n}, rate_limit: {LIMIT}}}\n" for n in range(1000))
    made = imported(f"domain: d\ndescriptors:\n{values}  - {{key: a, rate_limit: {OTHER}}}\n")
    assert answers(made.text, ["a=v7", "a=v999", "a=other"]) == [1, 1, 8]


CANNOT = [
    ("descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: b}]}}]", "descriptors[1].rate_limit.replaces: cannot be imported"),
    ("descriptors: [{key: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}]", "descriptors[1].quota_mode: cannot be imported"),
    ("descriptors: [{key: a, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]}]", "descriptors[1].descriptors[1].key: cannot be imported"),
    ("descriptors: [{key: a, rate_limit: {unit: fortnight, requests_per_unit: 1}}]", "unit: must be one of"),
    ("descriptors: [{key: a, rate_limit: {unlimited: true, unit: day}}]", "unit: does not belong to an unlimited limit"),
    ("descriptors: [{key: a, value: x}, {key: a, value: x}]", "key: 'a' is here twice with this value"),
    ("descriptors: [{key: a, limit: 5}]", "descriptors[1].limit: unknown field"),
    ("descriptors: [{value: a}]", "descriptors[1].key: missing"),
    ("descriptors: [{key: a, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}]", "share_threshold: is for values with *"),
    ("descriptors: [{key: a*, rate_limit: {unit: day, requests_per_unit: 1}}]", "descriptors[1].key: cannot be imported: * in a key"),
    ("descriptors: [{key: a, rate_limit: {unit: wee\u212a, requests_per_unit: 1}}]", "unit: must be one of"),
    ("descriptors: []", "holds no limit"),
    ("descriptors: {key: a}", "descriptors: expected a list"),
    ("descriptor: []", "descriptor: unknown field (did you mean 'descriptors'?)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), CANNOT)
def test_what_cannot_be_said_is_named_and_nothing_is_made(text, message):
    """An error names the file, the line and the field, and there are no rules that mean something else."""
    made = imported(f"domain: d\n{text}\n")
    assert made.text == ""
    assert any(message in str(p) for p in made.problems), [str(p) for p in made.problems]


def test_the_domain_is_needed_and_its_own():
    """A file without one, and one that is there already, are errors. # T109"""
    assert "domain: missing" in str(imported("descriptors: []\n").problems[0])
    limits = f"domain: d\ndescriptors: [{{key: a, rate_limit: {LIMIT}}}]\n"
    assert "is in another file" in str(imported(limits, limits).problems[0])


def test_what_is_left_out_is_said():
    """Fields about metrics change no decision: they are left out with a warning."""
    made = imported(
        f"domain: d\ndescriptors: [{{key: a, detailed_metric: true, value_to_metric: true, rate_limit: {LIMIT}}}]\n"
    )
    assert [(p.severity, p.field) for p in made.problems] == [
        ("warning", "descriptors[1].detailed_metric"),
        ("warning", "descriptors[1].value_to_metric"),
    ]
    assert made.text


@pytest.mark.parametrize(
    ("descriptor", "warned"),
    [
        ("{key: a, quota_mode: true}", []),
        ("{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: []}}", []),
        ("{key: a, rate_limit: {unlimited: true, requests_per_unit: 5}}", ["requests_per_unit"]),
    ],
)
def test_what_does_nothing_there_is_no_error(descriptor, warned):
    """A field that changes no decision there keeps no configuration from being imported."""
    made = imported(f"domain: d\ndescriptors: [{{key: b, rate_limit: {LIMIT}}}, {descriptor}]\n")
    assert [p.field.rpartition(".")[2] for p in made.problems] == warned
    assert made.text


def test_rules_that_no_file_may_hold_are_said_at_once():
    """A configuration whose rules would be too many, or too long, is an error of the import and not of the server's start."""
    nodes = "".join(f"  - {{key: {'k' * 1000}{n}, rate_limit: {LIMIT}}}\n" for n in range(600))
    made = imported(f"domain: d\ndescriptors:\n{nodes}")
    assert made.text == ""
    assert "cannot be imported: the rules: the file has" in str(made.problems[-1])


def test_patterns_that_cannot_meet_are_not_listed():
    """A rule of a pattern leaves out only those that some value fits too."""
    nodes = "".join(f"  - {{key: a, value: 'v{n}.*', rate_limit: {LIMIT}}}\n" for n in range(100))
    rules = load_rules(imported(f"domain: d\ndescriptors:\n{nodes}").text, "x").rules
    assert [rule.match.entries[0].excluded for rule in rules] == [()] * 100


def test_the_page_shows_what_is_made():
    """docs/migrate/envoy-ratelimit.md: the configuration it shows becomes the rules it shows, without a warning."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "migrate" / "envoy-ratelimit.md").read_text()
    blocks = dict(re.findall(r"^```(text|yaml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    made = import_envoy_ratelimit([("config.yaml", blocks["text"].encode())])
    assert (made.text, made.problems) == (blocks["yaml"], ())
