from __future__ import annotations

from decimal import Decimal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import RULES_BYTES_MAX
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.rules import yaml_tree
from sluicegate.rules.load import check_rules
from sluicegate.rules.problems import Problems
from sluicegate.rules.yaml_tree import plain, read_yaml

SCALARS = [
    ("off", "off"),
    ("on", "on"),
    ("yes", "yes"),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("12", 12),
    ("-3", -3),
    ("012", "012"),
    ("0x1F", "0x1F"),
    ("1_000", "1_000"),
    ("1:30", "1:30"),
    ("2024-01-02", "2024-01-02"),
    ("0.10", Decimal("0.10")),
    ("1e3", Decimal("1e3")),
    (".5", Decimal("0.5")),
    (".inf", ".inf"),
    ("1.2.3.4", "1.2.3.4"),
    ("5/minute", "5/minute"),
    ("'12'", "12"),
    ('"off"', "off"),
    ("9" * 5_000, "9" * 5_000),
]


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def loader(request, monkeypatch):
    """Both YAML parsers, the C one and the one in Python, must serve."""
    chosen = getattr(yaml, request.param, None)
    if chosen is None:
        pytest.skip("this PyYAML was built without its C parser; the Python parser is tested")
    monkeypatch.setattr(yaml_tree, "_LOADER", chosen)


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("text, value", SCALARS, ids=[row[0][:12] for row in SCALARS])
def test_plain_scalars_mean_what_they_look_like(text, value):
    """A plain scalar is null, a boolean, a decimal number or text; none of YAML 1.1's surprises."""
    found = read_yaml(f"key: {text}", Problems("f"))
    assert plain(found) == {"key": value}


def test_items_remember_their_lines():
    """Every value knows the line it stands on, counted from 1; a block that of its name."""
    found = read_yaml("a: 1\nb:\n  c:\n    - x\n    - y\n", Problems("f"))
    assert found.value["b"].line == 2
    assert found.value["b"].value["c"].line == 3
    assert [item.line for item in found.value["b"].value["c"].value] == [4, 5]


HOSTILE = [
    ("", ["the file is empty"]),
    ("# only a comment\n", ["the file is empty"]),
    ("a: 1\na: 2\n", ["2: 'a' is here twice; the first is on line 1"]),
    ("a: {b: 1, b: 2}\n", ["1: 'b' is here twice; the first is on line 1"]),
    ("a: 1\n---\nb: 2\n", ["2: a second document starts here; a rules file holds one"]),
    ("a:\n\tb: 1\n", ["2: a tab indents this line; YAML wants spaces"]),
    ("a: !!python/object/apply:os.system [ls]\n", ["1: the tag 'tag:yaml.org,2002:python/object/apply:os.system' is not allowed; write the value plainly"]),
    ("a: !secret x\n", ["1: the tag '!secret' is not allowed; write the value plainly"]),
    ("a: &x {b: 1}\nc:\n  <<: *x\n", ["3: merge keys (<<) are not supported; repeat the fields, or alias whole blocks"]),
    ("a: *nothing\n", ["1: the alias '*nothing' repeats nothing that stands before it"]),
    ("a: &x [*x]\n", ["1: the alias '*x' repeats nothing that stands before it"]),
    ("? [a, b]\n: 1\n", ["1: a key must be a plain word"]),
    ("a: 'x\0y'\n", ["1: the file holds the control character '\\x00'"]),
    ("a: 1\nb: \x1b[2J\n", ["2: the file holds the control character '\\x1b'"]),
    ("[" * 100, ["1: nested deeper than 16 levels"]),
    ("- " * 100, ["1: nested deeper than 16 levels"]),
    ("? " + "x" * 2_000 + "\n: 1\n", [f"1: the key '{'x' * 63}… is too long"]),
]  # fmt: skip


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("text, lines", HOSTILE, ids=[repr(row[0][:16]) for row in HOSTILE])
def test_hostile_yaml_is_a_problem_with_a_line(text, lines):
    """What YAML allows and a rules file does not is refused in words, by both parsers alike."""
    problems = Problems("f")
    read_yaml(text, problems)
    assert [str(problem).removeprefix("f:").strip() for problem in problems.result()] == lines


BROKEN = [
    "a: [1, 2\nb: 3\n",
    "a: 'x\n",
    "a: b: c\n",
    "{",
    "&",
    "%YAML 9.9\n---\na: 1\n",
    "a: |\n b\nc\n",
    "@x",
    "!<",
    "\t- a",
]


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("text", BROKEN)
def test_broken_yaml_is_a_problem_not_a_traceback(text):
    """What no YAML parser can read is one problem of the file."""
    ruleset, problems = check_rules(text, "f")
    assert ruleset is None
    assert problems
    assert all(str(problem).isprintable() for problem in problems)


@pytest.mark.usefixtures("loader")
def test_a_yaml_bomb_fails_fast():
    """Ten levels of ten aliases each are ten billion values; the file is refused in an instant."""
    levels = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    levels += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    began = SystemClock().monotonic_us()
    ruleset, problems = check_rules("\n".join(levels), "f")
    assert SystemClock().monotonic_us() - began < 2 * US_PER_S
    assert ruleset is None
    assert [problem.message for problem in problems] == ["more than 600000 values with all aliases written out"]
    assert problems[0].line in (6, 7)


QUOTING = [
    ("a: [/users/{id}, /b]\n", '; inside [ ] or { } a path with braces needs quotes: "/users/{id}"'),
    ("match: {path: /users/{id}/items}\n", '; inside [ ] or { } a path with braces needs quotes: "/users/{id}/items"'),
    ("host: *.example.com\n", '; a value that begins with * needs quotes: "*.example.com"'),
    ("host: [a.example.com, *.example.com]\n", '; a value that begins with * needs quotes: "*.example.com"'),
]


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("text, hint", QUOTING)
def test_a_value_that_lacks_quotes_is_pointed_out(text, hint):
    """Braces and stars, which rules are full of, mean something else to YAML; the message says which value to quote."""
    _, problems = check_rules(text, "f")
    assert [problem.line for problem in problems] == [1]
    assert problems[0].message.startswith("not YAML: ")
    assert problems[0].message.endswith(hint)


def test_aliases_nest_no_deeper_than_the_text_may():
    """A chain of aliases cannot build a value that is deeper than the bound."""
    levels = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 40)]
    _, problems = check_rules("\n".join(levels), "f")
    assert [problem.message for problem in problems] == ["nested deeper than 16 levels"]


def test_aliases_repeat_a_block():
    """An alias stands for the block it names, with the lines of that block."""
    found = read_yaml("a: &x {b: 1}\nc: *x\n", Problems("f"))
    assert plain(found) == {"a": {"b": 1}, "c": {"b": 1}}
    assert found.value["c"].line == 1


def test_bytes_that_are_not_utf8_are_a_problem_with_a_line():
    """A file in another encoding is refused, at the line of the first bad byte."""
    _, problems = check_rules(b"version: 1\nname: \xff\n", "f")
    assert [str(problem) for problem in problems] == ["f:2: the file is not UTF-8 text"]
    _, problems = check_rules("version: 1\nname: \udcff\n", "f")
    assert [str(problem) for problem in problems] == ["f:2: the file is not UTF-8 text"]


def test_a_byte_order_mark_is_no_problem(lines_of):
    """Editors that write a byte order mark do not break the file."""
    text = "version: 1\nrules: [{name: a, quota: 1/s}]\n"
    assert lines_of("\ufeff" + text) == []
    assert check_rules(b"\xef\xbb\xbf" + text.encode(), "f")[1] == ()
    assert lines_of(text.replace("\n", "\r\n")) == []


def test_a_file_over_the_limit_is_not_parsed():
    """The size is checked before anything is read."""
    _, problems = check_rules("a" * (RULES_BYTES_MAX + 1), "f")
    assert [str(problem) for problem in problems] == [
        f"f: the file has {RULES_BYTES_MAX + 1} bytes; a rules file has at most {RULES_BYTES_MAX}"
    ]


WORDS = """version: 1|rules:|- |  |name: a|quota: |5/minute|[|]|{|}|,|: |&a |*a|'|"|>|!!int |%|---|...|? |#|é|match: |per: |<<: |0"""
PIECES = st.sampled_from([*WORDS.split("|"), "\n", "\n", "\n", "\t", "\x00", "|"])


@pytest.mark.usefixtures("loader")
@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=60) | st.binary(max_size=60))
def test_no_text_is_a_traceback(text):
    """Whatever stands in the file, the answer is a rule set or problems."""
    ruleset, problems = check_rules(text, "f")
    errors = [problem for problem in problems if problem.severity == "error"]
    assert (ruleset is None) == bool(errors)
