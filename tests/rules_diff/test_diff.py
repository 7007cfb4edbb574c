"""What an edit of the rules means, and what it does to counters."""

from __future__ import annotations

import pytest

from sluicegate.rules.diff import Change, ChangeKind, Counters, diff_rules, render_diff
from sluicegate.rules.load import load_rules

BASE = """\
version: 1
tiers: {default: free, names: [free, paid]}
subjects: {"api_key:k1": paid}
rules:
  - name: api
    match: {path: /api/**}
    per: [ip]
    quota: {free: 100/minute, paid: 1000/minute}
  - name: login
    match: {methods: [POST], path: /login, not: {ip: [10.0.0.0/8]}}
    per: [ip]
    quota: 5/minute
    algorithm: sliding_window
"""


def diff(*edits: tuple[str, str]) -> list[Change]:
    """The changes that these replacements in the base file make."""
    text = BASE
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return diff_rules(load_rules(BASE, "old"), load_rules(text, "new"))


@pytest.mark.parametrize(
    "edit",
    [
        ("version: 1\n", "# a comment\nversion: 1\n"),
        ("5/minute", "5/1m"),
        ("[POST]", "POST"),
        ("per: [ip]", "per: ip"),
    ],
)
def test_same_meaning_is_no_difference(edit: tuple[str, str]) -> None:
    """Layout and another way to write the same are no difference."""
    assert diff(edit) == []


def test_raised_limit_keeps_counters() -> None:
    """A change of numbers keeps every counter."""
    (change,) = diff(("5/minute", "9/minute"))
    assert change == Change(ChangeKind.CHANGED, "login", ("quota 5/minute -> 9/minute",), Counters.KEPT)


def test_a_penalty_reads_as_in_the_file() -> None:
    """A penalty is said as it is written in rules."""
    old, new = (
        f"{BASE}    penalty: {{{written}}}\n"
        for written in ("after: 2 refusals/minute, block: 15m", "after: 3 refusals/10s, block: 1 hour")
    )
    (change,) = diff_rules(load_rules(old, "old"), load_rules(new, "new"))
    assert change.details == (
        "penalty: {after: 2 refusals/minute, block: 15m} -> {after: 3 refusals/10s, block: 1 hour}",
    )


def test_one_tier_of_several() -> None:
    """Only the tier that changed is named."""
    (change,) = diff(("paid: 1000/minute", "paid: 2000/minute"))
    assert change.details == ("quota paid: 1000/minute -> 2000/minute",)
    assert change.counters is Counters.KEPT


@pytest.mark.parametrize(
    ("edit", "detail", "worst"),
    [
        (("5/minute", "5/hour"), "quota 5/minute -> 5/hour", "up to 245 + 9 in the 3600 s"),
        (
            ("algorithm: sliding_window", "algorithm: fixed_window"),
            "algorithm: sliding_window -> fixed_window",
            "up to 9 + 10 in the 60 s",
        ),
        (
            ("5/minute\n", "5/minute\n    strict: true\n"),
            "quota 5/minute (60000000) -> 5/minute (60000000/6)",
            "up to 9 + 5 in the 60 s",
        ),
        (
            ("not: {ip: [10.0.0.0/8]}}\n    per: [ip]", "not: {ip: [10.0.0.0/8]}}\n    per: [ip, user]"),
            "per: [ip] -> [ip, user]",
            "up to 9 + 9 in the 60 s",
        ),
    ],
)
def test_new_counter_states_its_worst_case(edit: tuple[str, str], detail: str, worst: str) -> None:
    """Window, algorithm and ``per`` are part of a counter: changing one may give the old limit and the new one."""
    (change,) = diff(edit)
    assert detail in change.details
    assert change.counters is Counters.NEW
    assert worst in change.worst_case


def test_second_part_renames_the_first() -> None:
    """A quota of two parts has counters of other names, so both start empty."""
    (change,) = diff(("5/minute", "5/minute; 50/hour"))
    assert change.counters is Counters.NEW
    assert "login#1 starts empty" in change.worst_case
    assert "login#2 starts empty" in change.worst_case


def test_match_and_mode_leave_counters_alone() -> None:
    """Which requests count, and whether a rule refuses, is no matter of counters; ``not`` is compared field by field."""
    (change,) = diff(
        ("path: /login", "path: /signin"), ("10.0.0.0/8", "10.0.0.0/16"), ("per: [ip]", "per: [ip]\n    mode: shadow")
    )[1:]
    assert change.rule == "login"
    assert set(change.details) == {
        "mode: enforce -> shadow",
        "match.path: [/login] -> [/signin]",
        "match.not.ip: [10.0.0.0/8] -> [10.0.0.0/16]",
    }
    assert change.counters is Counters.UNTOUCHED


def test_added_removed_and_around() -> None:
    """Rules that come and go, and what stands around the rules, are changes of their own."""
    changes = diff(("name: login", "name: signin"), ("k1", "k2"), ("default: free", "default: paid"))
    assert [(change.kind.value, change.rule) for change in changes] == [
        ("changed", "[tiers]"),
        ("changed", "[subjects]"),
        ("added", "signin"),
        ("removed", "login"),
    ]
    assert changes[1].details == ("api_key:k1: paid -> none", "api_key:k2: none -> paid")


def test_order_and_identity() -> None:
    """The order decides which rule is named; identity decides whose counter it is."""
    old = load_rules(BASE, "old")
    head, _, rest = BASE.partition("  - name: api")
    first, _, second = rest.partition("  - name: login")
    moved = f"{head}  - name: login{second}  - name: api{first}"
    assert [change.rule for change in diff_rules(old, load_rules(moved, "new"))] == ["[order]"]
    trusting = BASE.replace("rules:", "identity: {trusted_peers: [127.0.0.1/32], user: {header: X-User}}\nrules:")
    (change,) = diff_rules(old, load_rules(trusting, "new"))
    assert (change.rule, change.counters) == ("[identity]", Counters.NEW)


def test_rendered() -> None:
    """The text has a mark, the fate of the counters, the details and the worst case."""
    text = render_diff(diff(("5/minute", "5/hour"), ("name: api", "name: rest")))
    assert text.splitlines() == [
        "+ rest  (counters: new)",
        "    free: 100/minute",
        "    paid: 1000/minute",
        "~ login  (counters: new)",
        "    quota 5/minute -> 5/hour",
        "    worst case: login starts empty, so a client may get up to 245 + 9 in the 3600 s around the change",
        "- api  (counters: dropped)",
        "    its requests are no longer counted",
    ]
