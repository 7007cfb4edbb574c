"""The table of a process's leases: which counters are in it, and how many."""

from __future__ import annotations

import pytest

from sluicegate.algorithms import FixedWindow, LeakyBucket, Precision, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.bounds import LEASE_BEGIN_REQUESTS
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings

MS = 1_000
SECOND = 1_000_000
BUCKET = TokenBucket(10_000, 10_000, SECOND)


def counter_of(spec: Spec, precision: Precision = Precision.LEASED) -> Counter:
    return Counter("rule", spec, counter_prefix("test", "rule", spec.algorithm, spec.shape), precision=precision)


@pytest.mark.parametrize(
    ("spec", "leased"),
    [
        (TokenBucket(400, 1_000, SECOND), True),
        (TokenBucket(400, 1_001, SECOND), False),
        (FixedWindow(1_000, 400 * MS), True),
        (FixedWindow(1_000, 399 * MS), False),
        (SlidingWindow(1_000, SECOND), True),
        (SlidingWindow(1_000, 999 * MS), False),
        (SlidingWindow(1_000, 8 * SECOND, sub_windows=10), True),
        (SlidingWindow(1_000, 7_900 * MS, sub_windows=10), False),
        (SlidingLog(1_000, 20_200 * MS), True),
        (SlidingLog(1_000, 20 * SECOND), False),
        (LeakyBucket(1_000, 10, SECOND), False),
    ],
    ids=str,
)
def test_what_is_leased_by_its_length(spec: Spec, leased: bool) -> None:
    """A counter that begins anew, or fills up, sooner than leases can follow is decided exactly."""
    leases = Leases(NearSettings())
    assert (leases.find(counter_of(spec), "*", 0) is not None) is leased


def test_what_is_leased_by_its_precision() -> None:
    """Only leased counters are; an automatic one when it was promoted, until it is retired."""
    leases = Leases(NearSettings())
    for precision in (Precision.EXACT, Precision.AUTO, Precision.SPLIT, Precision.ESTIMATED):
        assert leases.find(counter_of(BUCKET, precision), "*", 0) is None
    automatic = counter_of(BUCKET, Precision.AUTO)
    assert leases.promote(automatic, "ip:1", 0)
    assert leases.find(automatic, "ip:1", 0) is not None
    assert leases.find(automatic, "ip:2", 0) is None
    leases.retire(automatic.prefix + "ip:1")
    assert leases.find(automatic, "ip:1", 0) is None
    assert leases.promote(automatic, "ip:1", 0)
    assert leases.find(automatic, "ip:1", 0) is not None


def test_a_limit_that_is_small_for_the_fleet_is_exact_with_hysteresis() -> None:
    """Below fifty tokens a process it is not leased; one that is leased stays so down to forty."""
    leases = Leases(NearSettings())
    counter = counter_of(TokenBucket(500, 100, SECOND))
    for nodes, leased in ((11, False), (10, True), (11, True), (12, True), (13, False), (12, False), (10, True)):
        leases.nodes = nodes
        assert (leases.find(counter, "*", 0) is not None) is leased, nodes


def test_the_table_is_bounded_and_idle_counters_leave_it() -> None:
    """The counter that was idle for longest makes room; one of which tokens are held does not."""
    leases = Leases(NearSettings(leases_max=2))
    counter = counter_of(BUCKET)
    first, second = leases.find(counter, "a", 0), leases.find(counter, "b", 0)
    assert first is not None
    assert second is not None
    for _ in range(LEASE_BEGIN_REQUESTS):
        first.take(1, 0)
    assert leases.step(0)
    third = leases.find(counter, "c", 0)
    assert third is not None
    assert len(leases) == 2
    assert leases.find(counter, "a", 0) is first
    for _ in range(LEASE_BEGIN_REQUESTS):
        third.take(1, 0)
    leases.step(0)
    assert leases.find(counter, "d", 0) is None


def test_a_table_of_none_leases_nothing() -> None:
    """``leases_max`` 0 decides every counter exactly."""
    assert Leases(NearSettings(leases_max=0)).find(counter_of(BUCKET), "*", 0) is None


def test_a_counter_that_has_just_woken_up_does_not_make_room() -> None:
    """One that was idle for longest, and is asked for again before a step has seen it, stays; the next one leaves."""
    leases = Leases(NearSettings(leases_max=3))
    counter = counter_of(BUCKET)
    first = leases.find(counter, "a", 0)
    assert first is not None
    assert leases.find(counter, "b", 0) is not None
    kept = leases.find(counter, "c", 0)
    for _ in range(LEASE_BEGIN_REQUESTS):
        first.take(1, 0)
    assert leases.find(counter, "d", 0) is not None
    assert leases.find(counter, "a", 0) is first
    assert leases.find(counter, "c", 0) is kept
    assert [item.subject for item in leases.step(0)] == ["a"]


def test_a_table_whose_counters_have_all_woken_up_is_full() -> None:
    """A new counter is then decided exactly."""
    leases = Leases(NearSettings(leases_max=2))
    counter = counter_of(BUCKET)
    for subject in ("a", "b"):
        entry = leases.find(counter, subject, 0)
        assert entry is not None
        for _ in range(LEASE_BEGIN_REQUESTS):
            entry.take(1, 0)
    assert leases.find(counter, "c", 0) is None
