"""One rule set in several files."""

from __future__ import annotations

import pytest

from sluicegate.bounds import RULES_BYTES_MAX
from sluicegate.rules.document import check_document
from sluicegate.rules.file_set import check_files, document_of_files

HEAD = b"version: 1\n"
TIERS = HEAD + b"tiers: {default: free, names: [free]}\n"
LOGIN = HEAD + b"rules:\n  - name: login\n    match: {path: /login}\n    per: [ip]\n    quota: 5/minute\n"
API = LOGIN.replace(b"login", b"api")


def texts(files: list[tuple[str, bytes]]) -> list[str]:
    """The problems, as people read them."""
    return [str(problem) for problem in check_files(files, "rules")[1]]


def test_rules_of_all_files_in_order() -> None:
    """The set has the rules of all files in their order, with the lines of their own files, and the tiers of one."""
    files = [("a", TIERS), ("b", LOGIN), ("c", API)]
    ruleset, problems = check_files(files, "rules")
    assert ruleset is not None
    assert problems == ()
    assert [(rule.name, rule.line) for rule in ruleset.rules] == [("login", 3), ("api", 3)]
    assert ruleset.tiers.names == ("free",)
    made, _ = check_document(document_of_files(files), "rules")
    assert made is not None
    assert made.digest == ruleset.digest


def test_one_file_is_what_it_was() -> None:
    """A set of one file has the meaning and the messages of that file."""
    alone, problems = check_files([("a", LOGIN)], "rules")
    assert alone is not None
    assert (alone.source, problems) == ("a", ())
    assert texts([("a", LOGIN.replace(b"5/", b"x/"))])[0].startswith("a:6: rule 'login': quota")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([("a", LOGIN), ("b", LOGIN)], "b:3: rule 'login': name: another rule at a:3 has this name"),
        ([("a", TIERS), ("b", TIERS)], "b:2: tiers: only one file may have this block; the other is at a:2"),
        ([("a", LOGIN), ("b", API.removeprefix(HEAD))], "b:1: each file must say version: 1"),
        ([("a", LOGIN), ("b", b"version: 2\n")], "b:1: version: the only format version is 1"),
        ([("a", LOGIN), ("b", HEAD + b"rulez: []\n")], "b:2: rulez: unknown field"),
        ([("a", LOGIN), ("b", b"- x\n")], "b:1: a rules file is a mapping"),
        ([("a", LOGIN), ("b", b"\tx")], "b:1: "),
        ([("a", LOGIN), ("b", API.replace(b"5/minute", b"5/minte"))], "b:6: rule 'api': quota"),
        (
            [("a", LOGIN), ("b", API.replace(b"5/minute", b"x on line 9999999999"))],
            "b:6: rule 'api': quota: 'x on line 9999999999'",
        ),
        ([("a", TIERS), ("b", HEAD)], "rules: the file has no rules"),
        ([("a", LOGIN), ("b", b"#" * RULES_BYTES_MAX)], f"rules: the files have {RULES_BYTES_MAX + len(LOGIN)} bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_problem_names_the_file_and_the_line(files: list[tuple[str, bytes]], expected: str) -> None:
    """What is wrong is told in the file that it is in, and other places with theirs."""
    assert check_files(files, "rules")[0] is None
    assert any(text.startswith(expected) for text in texts(files)), texts(files)


def test_a_warning_between_files_names_both() -> None:
    """A rule that another file makes needless is a warning with both places, and the set is usable."""
    files = [("a", LOGIN), ("b", API.replace(b"/api", b"/login"))]
    ruleset, problems = check_files(files, "rules")
    assert ruleset is not None
    assert [problem.severity for problem in problems] == ["warning"]
    assert str(problems[0]).startswith("b:3: warning: rule 'api'")
    assert "rule 'login' at a:3" in problems[0].message
