"""Keys: different things never share one, whatever clients put into them."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.bounds import SUBJECT_CHARS_MAX, SUBJECT_MEMO_MAX
from sluicegate.stores.keys import EVERYBODY, PartMemo, counter_key, counter_prefix, escape, subject_of

TEXT = st.one_of(st.text(max_size=20), st.text(st.sampled_from("ab_:|#%{}*/ \x00\n\u00e9\ud800"), max_size=12))
LONG_TEXT = st.one_of(TEXT, st.text(min_size=SUBJECT_CHARS_MAX - 2, max_size=SUBJECT_CHARS_MAX + 20))
PARTS = st.lists(st.tuples(TEXT, LONG_TEXT), max_size=4)


@given(PARTS, PARTS)
@example([("a_b", "x"), ("c", "x")], [("a", "b_x"), ("c", "x")])
@example([("d", "a|e:b")], [("d", "a"), ("e", "b")])
@example([("d", "%7B")], [("d", "{")])
@example([], [("", EVERYBODY)])
def test_different_parts_have_different_subjects(one: list[tuple[str, str]], other: list[tuple[str, str]]) -> None:
    """Subjects are equal exactly when all dimensions and values are: ("a_b", "c") and ("a", "b_c") differ (P92)."""
    assert (subject_of(one) == subject_of(other)) is (one == other)


@given(
    st.tuples(TEXT, TEXT, TEXT, TEXT, st.integers(0, 9)),
    st.tuples(TEXT, TEXT, TEXT, TEXT, st.integers(0, 9)),
    TEXT,
    TEXT,
)
def test_different_counters_have_different_keys(
    one: tuple[str, str, str, str, int], other: tuple[str, str, str, str, int], user: str, other_user: str
) -> None:
    """Namespace, rule, algorithm, shape, generation and subject are all in the key and cannot run into each other (P96)."""
    key = counter_key(counter_prefix(*one), subject_of([("user", user)]))
    other_key = counter_key(counter_prefix(*other), subject_of([("user", other_user)]))
    assert (key == other_key) is ((one, user) == (other, other_user))


@given(PARTS)
def test_a_subject_in_braces_is_the_whole_hash_tag(parts: list[tuple[str, str]]) -> None:
    """Redis takes what stands between the first brace and the next closing one: no client can move it."""
    subject = subject_of(parts)
    found = re.search(r"\{(.*?)\}", f"rl1:default:{{{subject}}}:rule")
    assert found is not None
    assert found[1] == subject


@given(LONG_TEXT)
def test_escaped_text_is_short_printable_ascii(text: str) -> None:
    """Whatever a client sends, its part of a key is bounded and holds no control character, brace or separator."""
    escaped = escape(text)
    assert len(escaped) <= SUBJECT_CHARS_MAX
    assert escaped.isascii()
    assert escaped.isprintable()
    assert not set(escaped) & set("{}|")


@pytest.mark.parametrize(
    ("value", "escaped"),
    [
        ("8123", "8123"),
        ("2001:db8::/64", "2001:db8::/64"),
        ("a@b.example", "a@b.example"),
        ("GET /users/{id}", "GET /users/%7Bid%7D"),
        ("a|b", "a%7Cb"),
        ("#1", "%231"),
        ("50%", "50%25"),
        ("a\r\nb", "a%0D%0Ab"),
        ("caf\u00e9", "caf%C3%A9"),
        ("", ""),
        ("x" * SUBJECT_CHARS_MAX, "x" * SUBJECT_CHARS_MAX),
    ],
)
def test_escape(value: str, escaped: str) -> None:
    """Ordinary identifiers stay as they are; the rest is percent-encoded."""
    assert escape(value) == escaped


def test_long_value_is_a_digest() -> None:
    """A value above the bound is replaced by its SHA-256, which no short value can spell."""
    text = "x" * (SUBJECT_CHARS_MAX + 1)
    digest = escape(text)
    assert re.fullmatch(r"#[0-9a-f]{64}", digest)
    assert escape(text + "x") != digest
    assert escape(digest) != digest


def test_prefix_holds_no_number_of_the_quota() -> None:
    """The prefix is fixed by namespace, rule, algorithm, shape and generation; the generation sets counters apart."""
    assert counter_prefix("default", "api#2", "fixed_window", "60000000", 0) == "default:api#2:fixed_window:60000000:0:"
    assert counter_prefix("a:b", "c", "d", "e") == "a%3Ab:c:d:e:0:"


def test_part_memo_gives_named_parts() -> None:
    """A part carries its dimension, so a user and an API key of one spelling are two subjects."""
    assert PartMemo("user")["1"] == "user:1"
    assert PartMemo("api_key")["1"] == "api_key:1"
    assert PartMemo("ip", str.upper)["a::b"] == "ip:A::B"


def test_part_memo_knows_no_empty_value() -> None:
    """None and the empty text are not known, never a part that many clients would share (P94)."""
    memo = PartMemo("user")
    assert memo[None] is None
    assert memo[""] is None


@pytest.mark.parametrize("value", [0, False, 1.5, b"x", ("a",)])
def test_part_memo_refuses_what_is_no_text(value: object) -> None:
    """A number is an error, not a missing dimension: 0 must not fall through to another rule."""
    with pytest.raises(TypeError, match=r"must be a str"):
        PartMemo("user")[value]  # type: ignore[index]


def test_part_memo_is_bounded() -> None:
    """A flood of values does not grow the memo beyond its bound, and long values are not kept at all."""
    memo = PartMemo("user")
    for number in range(SUBJECT_MEMO_MAX + 10):
        assert memo[str(number)] == f"user:{number}"
        assert len(memo) <= SUBJECT_MEMO_MAX
    before = len(memo)
    assert memo["x" * 1_000] is not None
    assert len(memo) == before
