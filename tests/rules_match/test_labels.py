"""Labels: which facts rules are filed by, and that filing changes no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluicegate.bounds import LABEL_VALUES_MIN
from sluicegate.rules.facts import Facts
from sluicegate.rules.labels import Labels
from sluicegate.rules.model import Match

MANY = range(LABEL_VALUES_MIN)


def labels_of(matches: Sequence[Match], hosts: Sequence[frozenset[str]] | None = None) -> Labels:
    """Labels for match blocks, without exact hosts unless given."""
    return Labels(matches, hosts or [frozenset()] * len(matches))


def test_many_values_of_one_fact_are_filed() -> None:
    """Where rules ask for many tenants, each is filed under its own, and a request looks up only its own."""
    labels = labels_of([Match(tenant=(f"t{index}",)) for index in MANY])
    assert labels.fields == 1
    assert labels.of_rule(3) == (("tenant", "t3"),)
    assert labels.of(Facts(tenant="t3")) == (("tenant", "t3"),)
    assert labels.of(Facts(tenant="unknown")) == ()
    assert labels.of(Facts()) == ()


def test_few_values_are_not_worth_a_lookup() -> None:
    """Below the bound no fact is looked up and every rule is tried."""
    labels = labels_of([Match(tenant=(f"t{index}",)) for index in MANY[:-1]])
    assert labels.fields == 0
    assert labels.of_rule(0) == ()


def test_the_most_telling_field_is_chosen() -> None:
    """A rule that could be filed by two fields goes by the one with more values; other fields cost nothing."""
    matches = [Match(tenant=(f"t{index % 8}",), descriptors={"d": f"v{index}"}) for index in range(16)]
    labels = labels_of(matches)
    assert labels.fields == 1
    assert labels.of_rule(9) == (("descriptor.d", "v9"),)


def test_header_labels_use_lower_case_names() -> None:
    """Header names are compared as doors give them, in lower case."""
    labels = labels_of([Match(headers={"X-Plan": f"p{index}"}) for index in MANY])
    assert labels.of(Facts(headers={"x-plan": "p2"})) == (("header.x-plan", "p2"),)
    assert labels.of(Facts(headers={})) == ()


def test_rules_of_one_host_are_not_tried_for_another(applying: Callable[[Sequence[Match], Facts], list[int]]) -> None:
    """Exact hosts file a rule at no cost; rules with wildcards or other conditions stay in view of every request."""
    matches = [Match(host=(f"h{index}.test", "common.test")) for index in MANY] + [Match(host=("*.test",)), Match()]
    assert applying(matches, Facts(host="h3.test")) == [3, 8, 9]
    assert applying(matches, Facts(host="COMMON.test:80")) == list(range(10))
    assert applying(matches, Facts()) == [9]


def test_a_rule_with_several_values_is_found_by_each(applying: Callable[[Sequence[Match], Facts], list[int]]) -> None:
    """A list of tenants files the rule under all of them, once per request."""
    matches = [Match(tenant=(f"t{index}", f"t{index + 1}")) for index in MANY]
    assert applying(matches, Facts(tenant="t3")) == [2, 3]
