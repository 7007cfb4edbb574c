"""Since when a process has seen the servers of a store live."""

from __future__ import annotations

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.bounds import LEASE_LIVES_MAX
from sluicegate.stores.near.lives import Lives

SECOND = 1_000_000
TERMS = LeaseTerms()


def test_another_life_begins_anew() -> None:
    """After a new life of the store, or a failure, a whole hold must pass again."""
    lives = Lives(TERMS)
    lives.seen("a", 0)
    assert not lives.settled("a", TERMS.hold_us)
    assert lives.settled("a", 1_031_000)
    assert lives.settles_us("a", 0) == 1_030_405
    lives.seen("b", 2 * SECOND)
    assert not lives.settled("b", 2 * SECOND)
    assert lives.settled("a", 2 * SECOND)
    lives.doubted("a")
    assert not lives.settled("a", 3 * SECOND)
    for number in range(2 * LEASE_LIVES_MAX):
        lives.seen(str(number), 0)
    assert len(lives._since_us) == LEASE_LIVES_MAX
