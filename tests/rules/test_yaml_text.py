"""A document as the text of a rules file, read back as the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.rules.document import canonical, check_document, document_of_yaml
from sluicegate.rules.load import check_rules
from sluicegate.rules.yaml_text import arranged, yaml_of

PRINTABLE = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co")), max_size=20)
WORDS = st.sampled_from(
    [
        "on",
        "off",
        "yes",
        "null",
        "~",
        "true",
        "1:30",
        "012",
        "1e5",
        "0x1f",
        "<<",
        "=",
        "- a",
        "a: b",
        "#",
        "*x",
        "'",
        '"',
        "",
    ]
)
SCALARS = st.one_of(
    PRINTABLE, WORDS, st.booleans(), st.none(), st.integers(-(2**53), 2**53), st.sampled_from([0.5, 1e-6, 2.5e20, -0.1])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(PRINTABLE | WORDS, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(PRINTABLE | WORDS, VALUES, max_size=5))
def test_what_is_written_is_read_as_the_same(document: dict[str, Any]) -> None:
    """Any data that a document may hold comes back from its text unchanged, whatever its texts look like."""
    assert canonical(document_of_yaml(yaml_of(document), "test")) == canonical(document)


def test_a_yes_without_quotes_stays_one() -> None:
    """A switch that JSON says as the text "on" is a switch in the file as well, with the same meaning."""
    document = {"version": 1, "rules": [{"quota": "5/minute", "denied_counts": "on", "name": "on", "per": ["ip"]}]}
    text = yaml_of(document)
    assert "denied_counts: on\n" in text
    before, after = check_document(document, "test")[0], check_rules(text, "test")[0]
    assert before is not None
    assert after is not None
    assert before.digest == after.digest


def test_fields_stand_in_the_order_people_write_them() -> None:
    """What is stored has no order of fields; the file begins with the version, and a rule with its name."""
    document = {
        "rules": [{"quota": "5/minute", "match": {"path": "/"}, "name": "a", "x": 1}],
        "tiers": {},
        "version": 1,
    }
    made = arranged(document)
    assert list(made) == ["version", "tiers", "rules"]
    assert list(made["rules"][0]) == ["name", "match", "quota", "x"]
