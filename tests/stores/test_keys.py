"""Keys: different things never share one, whatever clients put into them."""

from __future__ import annotations

import hmac
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.bounds import SUBJECT_CHARS_MAX, SUBJECT_MEMO_MAX
from sluicegate.stores.keys import (
    EVERYBODY,
    TAG_DIMENSIONS,
    BucketSubjects,
    PartMemo,
    PlainSubjects,
    SubjectDigests,
    beside_prefix,
    counter_key,
    counter_prefix,
    escape,
    part_subject,
    redis_frame,
    subject_of,
    tag_of,
)

TEXT = st.one_of(st.text(max_size=20), st.text(st.sampled_from("ab_:|#%{}*/ \x00\n\u00e9\ud800"), max_size=12))
LONG_TEXT = st.one_of(TEXT, st.text(min_size=SUBJECT_CHARS_MAX - 2, max_size=SUBJECT_CHARS_MAX + 20))
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "keys.json").read_text())["keys"]
NAMES = st.one_of(TEXT, st.sampled_from([*TAG_DIMENSIONS, "endpoint", "path"]))
CLIENT_PARTS = st.lists(st.tuples(NAMES, TEXT), max_size=4)
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


def redis_key(prefix: str, subject: str, *, plain: bool) -> str:
    head, tail = redis_frame(prefix)
    return head + (PlainSubjects() if plain else SubjectDigests(b"0123456789abcdef"))[subject] + tail


def tag_in(key: str) -> str:
    """The hash tag as Redis finds it: between the first brace and the next closing one."""
    found = re.search(r"\{(.*?)\}", key)
    assert found is not None
    return found[1]


@given(CLIENT_PARTS, st.booleans())
def test_no_client_moves_a_hash_tag(parts: list[tuple[str, str]], plain: bool) -> None:
    """Redis takes what stands between the first brace and the next closing one: that is the tag made here, whatever clients send."""
    subject = subject_of(parts)
    key = redis_key(counter_prefix("n{}:s", "ru{l}e", "a", "s"), subject, plain=plain)
    tag = tag_of(subject)
    assert tag_in(key) == (tag if plain else SubjectDigests(b"0123456789abcdef")[tag][1:-1])
    assert set(tag_in(key)).isdisjoint("{}")


@given(CLIENT_PARTS)
def test_tag_is_the_part_that_names_the_client(parts: list[tuple[str, str]]) -> None:
    """The tag is the first part of api_key, user, ip, tenant; else the whole subject: a client's counters share a slot."""
    subject = subject_of(parts)
    named = [(name, value) for wanted in TAG_DIMENSIONS for name, value in parts if name == wanted]
    assert tag_of(subject) == (subject_of([named[0]]) if named and len(parts) > 1 else subject)


@pytest.mark.parametrize(
    ("subject", "tag"),
    [
        ("*", "*"),
        ("user:8123", "user:8123"),
        ("endpoint:POST /x|user:8123", "user:8123"),
        ("user:1|api_key:k", "api_key:k"),
        ("tenant:t|ip:192.0.2.1", "ip:192.0.2.1"),
        ("path:/a|user_id:7", "path:/a|user_id:7"),
        ("attrs.user:7|header.user:8", "attrs.user:7|header.user:8"),
        ("path:user:1|tenant:t", "tenant:t"),
    ],
)
def test_tag_of(subject: str, tag: str) -> None:
    """A dimension is known by its whole name; a value or another dimension that looks like one is none."""
    assert tag_of(subject) == tag


@given(CLIENT_PARTS, CLIENT_PARTS, st.sampled_from("ab"), st.sampled_from("ab"), st.booleans())
@example([("user", "a_b"), ("path", "c")], [("user", "a"), ("path", "b_c")], "a", "a", False)
@example([("user", "1"), ("path", "a:s:0")], [("user", "1")], "a", "a", True)
@example([("user", "1")], [("user", "1"), ("user", "1")], "a", "a", False)
@example([("user", "1"), ("path", "x")], [("path", "x"), ("user", "1")], "a", "a", True)
def test_different_subjects_have_different_keys(
    one: list[tuple[str, str]], other: list[tuple[str, str]], rule: str, other_rule: str, plain: bool
) -> None:
    """A subject of several parts shares a slot with its client and never a key, with it or with another order of parts (P92)."""
    key = redis_key(counter_prefix("n", rule, "a", "s"), subject_of(one), plain=plain)
    other_key = redis_key(counter_prefix("n", other_rule, "a", "s"), subject_of(other), plain=plain)
    assert (key == other_key) is ((one, rule) == (other, other_rule))


def test_all_counters_of_a_client_share_a_slot() -> None:
    """User, user and endpoint, address and user: one tag, so one script can decide them together (P41)."""
    subjects = ["user:8123", "user:8123|endpoint:POST /x", "ip:192.0.2.1|user:8123"]
    assert len({tag_in(redis_key("n:r:a:s:0:", subject, plain=False)) for subject in subjects}) == 1


@pytest.mark.parametrize("row", VECTORS, ids=[row["plain_key"][:40] for row in VECTORS])
def test_vectors(row: dict[str, Any]) -> None:
    """Keys are exactly those that programs in other languages make."""
    subject = subject_of([tuple(part) for part in row["parts"]])
    assert subject == row["subject"]
    head, tail = redis_frame(counter_prefix(*row["prefix"]))
    assert head + SubjectDigests(row["secret"].encode())[subject] + tail == row["key"]
    assert head + PlainSubjects()[subject] + tail == row["plain_key"]


def test_vectors_differ() -> None:
    """No two vectors share a key."""
    assert len({row["key"] for row in VECTORS}) == len(VECTORS)


def test_places_in_the_packed_layout() -> None:
    """A client's bucket and his fields are parts of digests: all his counters are in one bucket, and no two subjects have one field."""
    secret = b"0123456789abcdef"
    subjects = BucketSubjects(secret, "p1/1000/", 1_000)
    for subject, client in (("user:1", "user:1"), ("path:/a|user:1", "user:1"), ("path:/a", "path:/a")):
        digest, field = (hmac.digest(secret, text.encode(), "sha256")[:16] for text in (client, subject))
        tag = f"{{p1/1000/{int.from_bytes(digest[8:], 'little') % 1_000}}}"
        assert subjects.places[subject] == (tag.encode(), field[:8])
        assert subjects[subject].startswith(f"{tag}:")
    assert len({subjects.places[f"user:{number}"] for number in range(5_000)}) == 5_000
    assert len({subjects.places[f"user:{number}"][0] for number in range(20_000)}) == 1_000
    plain = SubjectDigests(secret)
    assert subjects["*"] == plain["*"] == subjects.places["*"][0].decode()
    assert subjects["user:1"].partition(":")[2] == plain["user:1"].strip("{}")


def test_places_are_remembered_and_bounded() -> None:
    """A place is made once, and a flood of new clients does not grow the memory of them."""
    subjects = BucketSubjects(b"0123456789abcdef", "p1/7/", 7)
    assert subjects.places["user:1"] is subjects.places["user:1"]
    for number in range(SUBJECT_MEMO_MAX + 2):
        assert subjects.places[f"user:{number}"][1] != subjects[f"user:{number}"].encode()
    assert len(subjects) <= SUBJECT_MEMO_MAX
    assert len(subjects.places) <= SUBJECT_MEMO_MAX


def test_digests_are_remembered_and_bounded() -> None:
    """A known subject costs one look into a dict, and a flood of new ones does not grow it beyond its bound."""
    digests = SubjectDigests(b"0123456789abcdef")
    assert digests["user:1"] is digests["user:1"]
    for number in range(SUBJECT_MEMO_MAX + 10):
        digests[f"user:{number}"]
        assert len(digests) <= SUBJECT_MEMO_MAX


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


@given(CLIENT_PARTS, CLIENT_PARTS, st.integers(0, 99), st.integers(0, 99))
@example([("user", "u")], [("user", "u#3")], 3, 3)
@example([("user", "")], [("user", "#3")], 3, 3)
@example([("user", "u:3")], [("user", "u")], 3, 0)
def test_a_part_is_called_like_nobody(
    one: list[tuple[str, str]], other: list[tuple[str, str]], number: int, other_number: int
) -> None:
    """No client has the subject of a part of another, parts of different counters or numbers differ, and each is a hash tag of its own."""
    subject, other_subject = subject_of(one), subject_of(other)
    part = part_subject(subject, number)
    assert part != other_subject
    assert tag_of(part) != tag_of(subject)
    assert (part == part_subject(other_subject, other_number)) is ((subject, number) == (other_subject, other_number))
    assert (tag_of(part) == tag_of(part_subject(subject, other_number))) is (number == other_number)


def test_counters_beside_others_serve_one_alone() -> None:
    """What serves a counter has a key that says which: of another algorithm, window or generation it is another one, and no generation is called so."""
    prefixes = [
        counter_prefix("n", "r", *more) for more in (("a", "1", 0), ("a", "1", 1), ("a", "2", 0), ("b", "1", 0))
    ]
    made = {beside_prefix(prefix, "w", "9", word) for prefix in prefixes for word in ("gate", "claim")}
    assert len(made) == 8
    assert "n:r:w:9:gate.a.1.0:" in made
    assert all(prefix.split(":")[4].partition(".")[0].isalpha() for prefix in made)
