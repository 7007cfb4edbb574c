from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.rules import document
from sluicegate.rules.document import NotJson, canonical, check_document, document_of_yaml, pointer_of, read_json
from sluicegate.rules.load import check_rules, load_rules
from sluicegate.rules.problems import RulesInvalid

FILES = sorted(Path(__file__).parents[2].glob("**/rules.yaml"))
LARGE = """\
version: 1
identity: {trusted_peers: [127.0.0.0/8], ip: {ipv6_prefix: 56}}
tiers: {default: free, names: [free, paid]}
subjects: {"api_key:k1": paid}
rules:
  - name: a
    match: {path: "/a/**", headers: {X-A: "1"}, not: {path: /a/b}}
    per: {first_of: [api_key, ip]}
    quota: {free: 60/minute, paid: {capacity: 100, refill_per_sec: 0.5}}
    algorithm: token_bucket
  - name: strict
    match: {methods: [POST]}
    per: [ip]
    quota: 5/minute
    algorithm: sliding_window
    strict: yes
    mode: off
"""


def rules(*parts: dict) -> dict:
    return {"version": 1, "rules": [{"name": f"r{at}", "quota": "1/second", **part} for at, part in enumerate(parts)]}


def faults(data: object) -> list[tuple[str, str]]:
    return [(pointer_of(one), one.message) for one in check_document(data, "set")[1]]


@pytest.mark.parametrize("text", [LARGE, *(path.read_text() for path in FILES)])
def test_a_document_means_what_its_file_means(text):
    """A rules file turned into JSON, written, read again and checked gives the digest of the file."""
    data = read_json(canonical(document_of_yaml(text, "f")).encode())
    found, problems = check_document(data, "f")
    assert found is not None, problems
    assert found.digest == load_rules(text, "f").digest
    assert {rule.line for rule in found.rules} == {0}


@pytest.mark.parametrize(
    "text",
    [
        "version: 2\nrules: []",
        "version: 1\nrules:\n  - name: a\n    quota: 5/minuet\n  - name: a\n    quota: 1/s\n",
        LARGE.replace("first_of", "first-of"),
        LARGE.replace("free: 60/minute", "fre: 60/minute"),
        LARGE.replace("strict: yes", "strict: maybe"),
        LARGE.replace("mode: off", "mode: 5"),
        LARGE.replace("127.0.0.0/8", "127.0.0.0/99"),
        LARGE.replace("default: free", "default: gold"),
    ],
)
def test_the_same_is_wrong_with_a_document(text):
    """A bad file and the document made of it have the same problems, apart from lines."""
    from_file = {
        (one.rule, one.field, one.message.replace(" on line 3", ""), one.suggestion)
        for one in check_rules(text, "f")[1]
    }
    found = check_document(document_of_yaml(text, "f"), "f")[1]
    assert {(one.rule, one.field, one.message, one.suggestion) for one in found} == from_file
    assert all(one.line == 0 and one.pointer is not None for one in found)


@pytest.mark.parametrize(
    "data, pointer",
    [
        (rules({}, {"quota": "5/minuet"}), "/rules/1/quota"),
        (rules({}, {"quota": None}), "/rules/1/quota"),
        ({"version": 1, "rules": [{"quota": "1/second"}]}, "/rules/0"),
        ({"version": 1, "rules": [{"name": "a"}]}, "/rules/0/quota"),
        (rules({}, {"name": "r0"}), "/rules/1/name"),
        (rules({"match": {"methods": ["GET", "get it"]}}), "/rules/0/match/methods/1"),
        (rules({"match": {"not": {"path": "x"}}}), "/rules/0/match/not/path"),
        (rules({"match": {"headers": {"X/Y~Z": "1"}}}), "/rules/0/match/headers/X~1Y~0Z"),
        (rules({"match": {"pth": "/"}}), "/rules/0/match/pth"),
        ({**rules({}), "identity": {"trusted_peers": ["10.0.0.0/8", "x"]}}, "/identity/trusted_peers/1"),
        ({**rules({}), "tiers": {"default": "gold", "names": ["free"]}}, "/tiers/default"),
        ({**rules({}), "subjects": {"usr:1": "free"}}, "/subjects/usr:1"),
        ({"rules": rules({})["rules"]}, ""),
        ({"version": 1}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_a_problem_leads_to_the_value(data, pointer):
    """The pointer of a problem is that of the bad value, or of the field that is missing."""
    assert pointer in [at for at, _ in faults(data)]


def test_values_that_are_no_json_are_problems():
    """Data that JSON cannot say is refused, not turned into something else."""
    for value in (float("nan"), float("inf"), object(), {1, 2}, Decimal("0.1234567890123456789")):
        assert faults(rules({"cost": value}))[0][0] == "/rules/0/cost"
    assert faults({**rules({}), 5: 1})
    assert "half a character" in faults(rules({"match": {"path": "/\ud800"}}))[0][1]


def test_a_document_is_bounded(monkeypatch):
    """Too many values, too much text and too deep nesting are each one problem, found without reading on."""
    deep: object = "x"
    for _ in range(100_000):
        deep = [deep]
    assert "nested deeper" in faults({"version": 1, "rules": deep})[0][1]
    assert "characters" in faults(rules({"name": "x" * 1_100_000}))[0][1]
    monkeypatch.setattr(document, "RULES_VALUES_MAX", 100)
    assert "more than 100 values" in faults({"version": 1, "rules": [0] * 200})[0][1]


def test_a_number_that_json_would_round_is_a_problem():
    """A number of a file with more digits than a double is told, with its line."""
    with pytest.raises(RulesInvalid, match=r"f:5: .*more digits") as caught:
        document_of_yaml("version: 1\nrules:\n  - name: a\n    quota:\n      x: 0.12345678901234567891\n", "f")
    assert caught.value.problems[0].line == 5


@pytest.mark.parametrize(
    "text",
    [
        b"{", b"\xff", b'{"a": 1, "a": 2}', b"NaN", b"[Infinity]", b"9" * 5_000, b"[" * 200_000, b"1e9999999999999999999999",
        b"[1.5E-9999999999999999999999]", rb'"\ud800"', rb'{"\uDFFF": 1}', rb'[1e400, "\ude00\ud83d"]',
    ],
)  # fmt: skip
def test_bytes_that_are_not_json(text):
    """Whatever the bytes, reading raises NotJson and nothing else."""
    with pytest.raises(NotJson):
        read_json(text)


def test_characters_written_as_escapes():
    """Two halves that make a character are it, beside numbers of any kind; what only looks like an escape is text."""
    assert read_json(rb'["\ud83d\ude00", 1e400, 0.1234567890123456789]') == [
        "\U0001f600", Decimal("1e400"), Decimal("0.1234567890123456789"),
    ]  # fmt: skip
    assert read_json(rb'"\\ud800"') == r"\ud800"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5) | st.sampled_from(
                        ["version", "rules", "tiers", "names", "default", "name", "quota", "match", "identity", "path"]),
                        inner, max_size=5), max_leaves=30))  # fmt: skip
def test_whatever_the_data_it_is_a_rule_set_or_problems(data):
    """No data makes the check raise; every pointer leads somewhere, or to a field that is missing."""
    found, problems = check_document(data, "set")
    assert (found is None) == any(one.severity == "error" for one in problems)
    for problem in problems:
        value, steps = data, pointer_of(problem).split("/")[1:]
        for step in steps[:-1]:
            name = step.replace("~1", "/").replace("~0", "~")
            value = value[int(name)] if isinstance(value, list) else value[name]


def test_canonical_text_does_not_know_the_order_of_keys():
    """The same data has the same text, whatever the order of keys, and reads back equal."""
    assert canonical({"b": 1.5, "a": ["é", None]}) == '{"a":["é",null],"b":1.5}'
    assert canonical({"b": 0.1, "a": 1}) == canonical({"a": 1, "b": 0.1})
    assert json.loads(canonical(rules({}))) == rules({})


def test_documents_have_rules():
    """A document is for servers: without rules it is refused, whatever else it says."""
    ruleset, problems = check_document(
        {"version": 1, "identity": {"trusted_peers": ["10.0.0.0/8"]}, "rules": []}, "doc"
    )
    assert ruleset is None
    assert [(pointer_of(problem), problem.severity) for problem in problems] == [("/rules", "error")]
