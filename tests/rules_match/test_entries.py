"""``match.entries``: all entries of a descriptor, in order."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.conditions import Conditions
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import check_rules, load_rules
from sluicegate.rules.model import Entry, Match

FILE = "version: 1\nrules:\n  - {{name: r, match: {{{}}}, per: [descriptor.a], quota: 5/minute}}\n"


def holds(entries, descriptors):
    """Whether the condition holds for these descriptors."""
    match = Match(domain=("d",), entries=entries)
    facts = Facts(domain="d", descriptors=descriptors)
    guard = Conditions(match, str)._guard
    assert not isinstance(guard, bool)
    return guard(facts)


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [
        ({"a": "1", "b": "x"}, True), ({"b": "x", "a": "1"}, False), ({"a": "1"}, False), ({"a": "1", "b": "x", "c": ""}, False),
        ({"a": "1", "b": "y1"}, False), ({"a": "1", "b": "z"}, False), ({}, False), (None, False),
    ],
)  # fmt: skip
def test_just_these_entries_in_this_order(descriptors, expected):
    """One more, one less, another order or an excluded value, and it does not hold."""
    assert holds((Entry("a"), Entry("b", None, ("z", "y*"))), descriptors) is expected


@given(st.text("ab*", max_size=6), st.text("ab*", max_size=8))
def test_an_asterisk_stands_for_any_text(pattern, value):
    """A value with asterisks matches what the regular expression with ``.*`` in their places matches."""
    expected = re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), value) is not None
    assert holds((Entry("a", pattern),), {"a": value}) is expected


PROBLEMS = [
    ("entries: [{key: a}]", "match.entries: name the domain"),
    ("domain: d, entries: []", "match.entries: expected a list such as"),
    ("domain: d, entries: [{key: a}, {key: a}]", "'a' is here twice"),
    ("domain: d, entries: [{value: a}]", "match.entries.key: missing"),
    ("domain: d, entries: [{key: a, valu: b}]", "did you mean 'value'?"),
    ("domain: d, entries: [a]", "expected a mapping such as"),
]  # fmt: skip


@pytest.mark.parametrize(("match", "message"), PROBLEMS)
def test_what_is_wrong_is_said(match, message):
    """Each fault of the field is a problem that names it."""
    ruleset, problems = check_rules(FILE.format(match), "x")
    assert ruleset is None
    assert message in str(problems[0])


def test_digests_of_rules_without_it_stay():
    """The field is part of a rule's meaning where it is given, and of no other rule's."""
    plain, given_ = (load_rules(FILE.format(m), "x").digest for m in ("domain: d", "domain: d, entries: [{key: a}]"))
    other = load_rules(FILE.format("domain: d, entries: [{key: a, value: 7}]"), "x").digest
    assert len({plain, given_, other}) == 3


def test_a_rule_with_entries_counts():
    """The engine charges it for the requests that it is for."""
    limiter = Limiter.from_rules(load_rules(FILE.format("domain: d, entries: [{key: a}]"), "x"))
    assert limiter.check(Facts(domain="d", descriptors={"a": "1"})).rule == "r"
    assert limiter.check(Facts(domain="d", descriptors={"a": "1", "b": "2"})).rule is None
