"""The precision of a rule: as given, or what follows from who shares its counters."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import Ban, FixedWindow, LeakyBucket, Precision, TokenBucket
from sluicegate.algorithms.precision import precision_of
from sluicegate.rules.diff import diff_rules
from sluicegate.rules.load import check_rules, load_rules
from sluicegate.rules.model import Rule

BUCKET = TokenBucket(10, 10, 1_000_000)


def rule(fields: str) -> Rule:
    """The one rule of a file, which must be right."""
    (found,) = load_rules(f"version: 1\nrules: [{{name: a, quota: 100/s, {fields}}}]", "f").rules
    return found


@pytest.mark.parametrize(
    "fields, precision",
    [
        ("mode: enforce", Precision.LEASED),
        ("match: {path: /a}", Precision.LEASED),
        ("match: {path: /a}, per: [endpoint]", Precision.LEASED),
        ("per: [host, method]", Precision.LEASED),
        ("per: [ip]", Precision.AUTO),
        ("per: [endpoint, user]", Precision.AUTO),
        ("per: {first_of: [api_key, ip]}", Precision.AUTO),
        ("per: [header.X-Device]", Precision.AUTO),
        ("per: [descriptor.path], on_missing: ip", Precision.AUTO),
        ("algorithm: leaky_bucket", Precision.EXACT),
        ("algorithm: leaky_bucket, per: [ip]", Precision.EXACT),
        ("denied_counts: true", Precision.EXACT),
        ("denied_counts: true, per: [ip]", Precision.EXACT),
        ("per: [ip], precision: leased", Precision.LEASED),
        ("precision: auto", Precision.AUTO),
        ("precision: exact", Precision.EXACT),
        ("per: [ip], precision: split", Precision.SPLIT),
        ("denied_counts: true, precision: split", Precision.SPLIT),
        ("precision: estimated", Precision.ESTIMATED),
        ("algorithm: leaky_bucket, precision: exact", Precision.EXACT),
    ],
)
def test_what_is_absent_follows_from_who_shares_the_counters(fields: str, precision: Precision) -> None:
    """Counters of everybody are leased, those of clients exact while they are cold, and what cannot be leased is exact."""
    assert rule(fields).precision is precision


def test_to_write_down_what_holds_anyway_changes_nothing() -> None:
    """A file that says the precision which its rules have by themselves means the same."""
    text = "version: 1\nrules: [{{name: a, quota: 100/s{}}}, {{name: b, per: [ip], quota: 5/s{}}}]"
    before, after = (
        load_rules(text.format(*fields), "f") for fields in (("", ""), (", precision: leased", ", precision: auto"))
    )
    assert before.digest == after.digest
    assert diff_rules(before, after) == []


def test_another_precision_keeps_the_counters() -> None:
    """A change of precision is told by a diff and leaves every counter in service."""
    one, other = (
        load_rules(f"version: 1\nrules: [{{name: a, quota: 100/s, precision: {word}}}]", "f")
        for word in ("exact", "leased")
    )
    (change,) = diff_rules(one, other)
    assert change.details == ("precision: exact -> leased",)
    assert (change.counters.value, change.worst_case) == ("untouched", "")


@pytest.mark.parametrize("wanted", Precision)
def test_what_cannot_be_leased_is_exact(wanted: Precision) -> None:
    """A counter is never more than its algorithm allows, whatever its rule says."""
    assert precision_of(wanted, LeakyBucket(10, 1, 1_000_000)) is Precision.EXACT
    assert precision_of(wanted, Ban()) is Precision.EXACT
    assert precision_of(wanted, BUCKET) is wanted
    assert precision_of(wanted, FixedWindow(10, 1_000_000)) is wanted
    counted = precision_of(wanted, BUCKET, denied_counts=True)
    assert counted is (Precision.SPLIT if wanted is Precision.SPLIT else Precision.EXACT)


@pytest.mark.parametrize(
    "fields, said",
    [
        (
            "quota: 49/s, precision: leased",
            "decided by the store all the same: 49 tokens are fewer than 50 for a process",
        ),
        (
            "quota: 100/s, algorithm: sliding_log, precision: leased",
            "decided by the store all the same: 1 s are fewer than 20.2, so too much would be lost to leases",
        ),
        (
            "quota: 100/s, on_store_failure: closed, precision: leased",
            "on_store_failure: closed begins only when the leases have ended, up to 1 s after the store was reached last",
        ),
        (
            "quota: 100/s, on_store_failure: closed, precision: estimated",
            "may admit more than the limit, though on_store_failure: closed says that one too many does harm",
        ),
        ("quota: 50/s, precision: leased", None),
        ("quota: 19/s, precision: split", "never split: 19 tokens are too few for two parts, or come too slowly"),
        ("quota: 20/s, precision: split", None),
        ("quota: 5/s", None),
        ("quota: 5/s, precision: auto", None),
        ("quota: 5/s, on_store_failure: closed, precision: exact", None),
        ("quota: 100/s, on_store_failure: closed", None),
        ("quota: 0, precision: leased", None),
    ],
)
def test_what_a_precision_cannot_do_is_said_to_who_asked_for_it(fields: str, said: str | None) -> None:
    """A warning names what happens instead; of a precision that nobody wrote nothing is said."""
    ruleset, problems = check_rules(f"version: 1\nrules: [{{name: a, {fields}}}]", "f")
    assert ruleset is not None
    told = [] if said is None else [f"f:2: warning: rule 'a': precision: {said}"]
    assert [str(problem) for problem in problems] == told
