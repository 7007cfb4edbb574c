"""What a candidate differs in, and which clients meet it first."""

from __future__ import annotations

import hashlib
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.rules.load import load_rules
from sluicegate.rules.model import RuleSet
from sluicegate.rules.trials import bucket_of, client_of, coverage_of, differences, trial_problems


def rules(*lines: str, head: str = "") -> RuleSet:
    return load_rules(f"version: 1\n{head}rules:\n" + "".join(f"  - {{{line}}}\n" for line in lines), "rules.yaml")


BASE = rules(
    "name: a, per: [ip], quota: 10/minute", "name: b, per: [user], quota: 10/minute", "name: c, quota: 9/second"
)


def test_only_a_difference_in_meaning_is_one() -> None:
    """Another spelling of the same numbers is no difference; a change, an addition and a removal are, in this order."""
    candidate = rules(
        "name: n, per: [ip], quota: 1/second", "name: c, quota: 9/1s", "name: b, per: [user], quota: 11/minute"
    )
    found = differences(BASE, candidate)
    assert [(each.name, each.old is None, each.new is None) for each in found] == [
        ("n", True, False),
        ("b", False, False),
        ("a", False, True),
    ]
    assert differences(BASE, BASE) == ()


def test_a_bucket_is_what_the_contract_says() -> None:
    """The first 8 bytes of SHA-256 over salt, a zero byte and the client, modulo 10,000, are the same in every process."""
    digest = hashlib.sha256(b"s1\x00user:8123").digest()
    assert bucket_of("s1", "user:8123") == int.from_bytes(digest[:8], "big") % 10_000 == 5_413


@pytest.mark.parametrize("basis_points", [100, 1_000, 5_000])
def test_a_share_of_clients_is_as_large_as_it_says(basis_points: int) -> None:
    """Of 20,000 clients the share below the basis points lies within three standard deviations."""
    clients, share = 20_000, basis_points / 10_000
    inside = sum(bucket_of("salt", f"user:{number}") < basis_points for number in range(clients))
    assert abs(inside - clients * share) < 3 * sqrt(clients * share * (1 - share))


def test_the_early_clients_of_two_rollouts_are_others() -> None:
    """Of the first tenth under one salt about a tenth is in the first tenth under another."""
    early = [f"ip:{number}" for number in range(20_000) if bucket_of("first", f"ip:{number}") < 1_000]
    both = sum(bucket_of("second", client) < 1_000 for client in early)
    assert abs(both - len(early) / 10) < 3 * sqrt(len(early) * 0.09)


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_client_that_is_in_stays_in(salt: str, client: str, one: int, other: int) -> None:
    """Whoever is inside a share is inside every larger one, whatever the name holds; everybody is inside all of them."""
    bucket = bucket_of(salt, client)
    assert 0 <= bucket < 10_000
    assert bucket >= min(one, other) or bucket < max(one, other)


@pytest.mark.parametrize(
    "subject, client",
    [
        ("user:1", "user:1"),
        ("user:1|endpoint:POST /x", "user:1"),
        ("ip:10.0.0.1|user:1", "ip:10.0.0.1|user:1"),
        ("endpoint:GET /", ""),
        ("*", ""),
        ("tier:free|host:a.test", ""),
        ("header.x-device:endpoint:1", "header.x-device:endpoint:1"),
    ],
)
def test_a_client_is_what_remains_of_a_subject(subject: str, client: str) -> None:
    """Parts that name no client (endpoint, host, method, path, tier, domain) do not decide who is inside."""
    assert client_of(subject) == client


@pytest.mark.parametrize(
    "head, word",
    [
        ("tiers: {default: free, names: [free]}\n", "tiers differ"),
        ("identity: {trusted_peers: [10.0.0.0/8]}\n", "identity settings differ"),
        ("subjects: {'user:u': free}\ntiers: {default: free, names: [free]}\n", "subjects differ"),
    ],
)
def test_what_is_around_the_rules_cannot_be_tried(head: str, word: str) -> None:
    """A candidate with other tiers, identity settings or subjects is no candidate for a rollout."""
    candidate = rules("name: a, per: [ip], quota: 11/minute", head=head)
    assert any(word in problem for problem in trial_problems(BASE, candidate, "canary"))


def test_a_trial_needs_something_to_try() -> None:
    """Equal rules are no candidate; one that only removes or turns off has nothing for a shadow, and is a canary."""
    assert trial_problems(BASE, BASE, "canary") == ["no rule differs from the rules in service"]
    fewer = rules("name: a, per: [ip], quota: 10/minute, mode: off", "name: c, quota: 9/second")
    assert "nothing to evaluate" in trial_problems(BASE, fewer, "shadow")[0]
    assert trial_problems(BASE, fewer, "canary") == []


@pytest.mark.parametrize(
    "old, new, apart",
    [
        ("per: [ip]", "per: [user]", False),
        ("per: [user]", "per: {first_of: [api_key, user]}", True),
        ("per: [user]", "per: [user, endpoint]", False),
        ("per: [user]", "per: [user], on_missing: deny", False),
        ("per: [user]", "per: [user], on_missing: ip", True),
        ("per: [user], on_missing: ip", "per: [ip]", True),
    ],
)
def test_versions_that_could_meet_in_one_counter_are_kept_apart(old: str, new: str, apart: bool) -> None:
    """Where two forms of ``per`` can give one subject for different requests, the versions must not share counters."""
    (found,) = differences(
        rules(f"name: a, {old}, quota: 10/minute"), rules(f"name: a, {new}, quota: 10/minute, precision: exact")
    )
    assert found.apart is apart
    assert ("counters of its own" in coverage_of(found, "canary")) is apart


def test_the_report_says_what_a_share_cannot_cover() -> None:
    """A rule that counts no client changes for everybody at once, and a shadow of a removal is not evaluated."""
    faster, removed = differences(BASE, rules("name: c, quota: 5/second", "name: b, per: [user], quota: 10/minute"))
    assert "at 100 %" in coverage_of(faster, "canary")
    assert coverage_of(removed, "canary") == ""
    assert "Not evaluated" in coverage_of(removed, "shadow")
