"""A version of the rules read as what differs from the one before."""

from __future__ import annotations

import copy
from dataclasses import replace
from random import Random

import pytest

from sluicegate.app.feed import patching
from sluicegate.app.feed.patching import Read, read
from sluicegate.rules.document import load_document
from sluicegate.rules.feed import RulesDocument
from sluicegate.rules.problems import RulesInvalid

TIERS = {"default": "free", "names": ["free", "paid"]}


def rule(number, quota="5/minute", **more):
    return {"name": f"r{number}", "match": {"path": f"/a/{number}"}, "per": ["user"], "quota": quota, **more}


def document(*rules, **more):
    return {"version": 1, "rules": list(rules), **more}


def told(version, data):
    """As a service tells it: with the digest of the whole."""
    return RulesDocument(version, load_document(data, "service", version).digest, data)


@pytest.fixture
def loads(monkeypatch):
    """How many rules were read at each reading."""
    found = []

    def count(data, source, version):
        found.append(len(data["rules"]))
        return load_document(data, source, version)

    monkeypatch.setattr(patching, "load_document", count)
    return found


def same(one, other):
    return replace(one, source="") == replace(other, source="")


def test_any_sequence_of_edits_means_the_same(loads):
    """After each of 300 random edits (changed, added, removed, moved rules, other tiers) the rules are those that reading all of them gives."""
    random = Random(5)
    data = document(*(rule(number) for number in range(10)))
    before = read(told(1, data), "s", None)
    names = 10
    for version in range(2, 302):
        data = copy.deepcopy(data)
        rules = data["rules"]
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(rules))
            match random.randrange(6):
                case 0 | 1:
                    rules[at]["quota"] = f"{random.randint(3, 9)}/minute"
                case 2:
                    rules.insert(at, rule(names, cost=random.randint(1, 3)))
                    names += 1
                case 3 if len(rules) > 4:
                    del rules[at]
                case 4:
                    rules.append(rules.pop(at))
                case 5 if random.random() < 0.2:
                    data["subjects"] = {f"user:{random.randint(1, 3)}": "paid"}
                    data["tiers"] = TIERS
        whole = load_document(data, "s", version)
        before = read(told(version, data), "s", before)
        assert same(before.ruleset, whole)
    assert sum(loads) < 300 * 5


def test_one_change_reads_one_rule(loads):
    """Of 1,000 rules the one that has changed is read, and the others are the objects they were."""
    first = document(*(rule(number) for number in range(1_000)))
    before = read(told(1, first), "s", None)
    second = copy.deepcopy(first)
    second["rules"][500]["quota"] = "6/minute"
    after = read(told(2, second), "s", before)
    assert loads == [1_000, 1]
    assert after.ruleset.rules[499] is before.ruleset.rules[499]
    assert same(after.ruleset, load_document(second, "s", 2))


def test_a_bad_rule_is_told_by_its_place():
    """A rule that cannot be read is an error of the whole document, with the place at which it stands there."""
    first = document(*(rule(number) for number in range(10)))
    before = read(told(1, first), "s", None)
    second = copy.deepcopy(first)
    second["rules"][7]["quota"] = "many"
    with pytest.raises(RulesInvalid) as raised:
        read(RulesDocument(2, "d", second), "s", before)
    assert [problem.pointer for problem in raised.value.problems] == ["/rules/7/quota"]


@pytest.mark.parametrize(
    "second",
    [
        document(rule(1), rule(1)),
        document(rule(1), {"quota": "5/minute"}),
        document(rule(1), "a word"),
        document(),
        {"version": 1, "rules": "none"},
        {"version": 1},
        document(rule(1), version=2),
    ],
)
def test_what_is_no_rules_is_refused_as_it_is_whole(second):
    """A document that cannot be taken apart says the same as when it is read alone."""
    before = read(told(1, document(rule(1), rule(2))), "s", None)
    results = []
    for known in (before, None):
        try:
            results.append(read(RulesDocument(2, "d", second), "s", known).ruleset)
        except RulesInvalid as error:
            results.append([str(problem) for problem in error.problems])
    assert results[0] == results[1]


def test_a_version_without_a_digest_is_read_whole(loads):
    """Only what the service vouches for by a digest is read in part."""
    data = document(*(rule(number) for number in range(4)))
    read(RulesDocument(2, "", data), "s", Read(data, load_document(data, "s", 1)))
    assert loads == [4]
