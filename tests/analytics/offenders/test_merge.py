"""Merged summaries keep what they state, whatever was merged and in whatever order."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.algorithms.space_saving import SpaceSaving
from sluicegate.analytics.offenders import Bounds, Merger, Summary, merged

Stream = list[int]

streams = st.lists(st.lists(st.integers(0, 30), max_size=120), min_size=1, max_size=8)


def summary_of(stream: Stream, size: int) -> Summary:
    """What one node tells of a stream that it counted in ``size`` counters."""
    seen: SpaceSaving[str] = SpaceSaving(size)
    for client in stream:
        seen.add(f"ip:{client}")
    clients = {tally.key: Bounds(tally.times, tally.error) for tally in seen.tallies()}
    untold = min((each.times for each in clients.values()), default=0) if len(clients) == size else 0
    return Summary(clients, len(stream), untold)


def check(found: Summary, exact: Counter[str], most: int) -> None:
    """Every bound holds for every client, and E is at most ``most``."""
    assert found.untold <= most
    for name, times in exact.items():
        if name in found.clients:
            told = found.clients[name]
            assert told.times - told.error <= times <= told.times, name
            assert told.error <= found.untold, name
        else:
            assert times <= found.untold, name
    assert found.total == exact.total()


@settings(max_examples=300, deadline=None)
@given(streams, st.integers(1, 12), st.integers(1, 12))
def test_bounds_against_exact_counts(many: list[Stream], size: int, kept: int) -> None:
    """The true count is in [times - error, times]; who is not told of came at most N / k times, k the smaller size."""
    exact = Counter(f"ip:{client}" for stream in many for client in stream)
    found = merged((summary_of(stream, size) for stream in many), kept)
    assert len(found.clients) <= kept
    check(found, exact, exact.total() // min(size, kept))


@settings(max_examples=200, deadline=None)
@given(streams, st.integers(1, 10), st.randoms(use_true_random=False))
def test_any_tree_of_merges(many: list[Stream], size: int, random: Random) -> None:
    """Merges of merges, in any order and shape, keep the bounds and N / k: nodes, minutes, hours, days."""
    exact = Counter(f"ip:{client}" for stream in many for client in stream)
    left = [summary_of(stream, size) for stream in many]
    while len(left) > 1:
        random.shuffle(left)
        taken, left = left[:3], left[3:]
        left.append(merged(taken, size))
    check(left[0], exact, exact.total() // size)


@settings(max_examples=200, deadline=None)
@given(streams, st.integers(1, 10))
def test_everyone_above_the_share_is_told(many: list[Stream], size: int) -> None:
    """A client that came more than N / k times is told of."""
    exact = Counter(f"ip:{client}" for stream in many for client in stream)
    found = merged((summary_of(stream, size) for stream in many), size)
    assert {name for name, times in exact.items() if times * size > exact.total()} <= set(found.clients)


@given(st.lists(st.lists(st.integers(0, 9), max_size=40), min_size=1, max_size=5))
def test_complete_summaries_are_exact(many: list[Stream]) -> None:
    """Where every summary tells of every client the merge is exact: all errors are 0."""
    exact = Counter(f"ip:{client}" for stream in many for client in stream)
    found = merged((summary_of(stream, 11) for stream in many), 11)
    assert {name: bounds.times for name, bounds in found.clients.items()} == dict(exact)
    assert not any(bounds.error for bounds in found.clients.values())


def test_absent_client_inherits_what_it_may_have_come() -> None:
    """A client that one summary does not tell of may have come as often there as that one's untold."""
    first = Summary({"user:a": Bounds(10, 1)}, 30, 4)
    second = Summary({"user:b": Bounds(7, 0)}, 9, 2)
    found = merged([first, second])
    assert found.clients == {"user:a": Bounds(12, 3), "user:b": Bounds(11, 4)}
    assert (found.total, found.untold) == (39, 6)


def test_cut_tells_of_the_first_left_out() -> None:
    """What is cut off raises ``untold`` to the most that one of those had, and the rest stay as they were."""
    told = {f"ip:{number}": Bounds(times, 0) for number, times in enumerate((9, 7, 7, 3))}
    found = merged([Summary(told, 26)], 2)
    assert found == Summary({"ip:0": Bounds(9, 0), "ip:1": Bounds(7, 0)}, 26, 7)


def test_unknown_totals_and_shares_stay_unknown() -> None:
    """One summary without a total makes the sum unknown; the least share that was looked at is that of all."""
    found = merged([Summary({}, 5, 0, 0.5), Summary({"ip:1": Bounds(2, 0)}, None)])
    assert (found.total, found.sample_rate) == (None, 0.5)


def test_asked_twice_and_added_to_afterwards() -> None:
    """A summary may be asked for in between; what is added later counts on."""
    merger = Merger(1)
    merger.add(Summary({"ip:1": Bounds(3, 0), "ip:2": Bounds(2, 0)}, 5))
    assert merger.summary() == merger.summary() == Summary({"ip:1": Bounds(3, 0)}, 5, 2)
    merger.add(Summary({"ip:2": Bounds(4, 0)}, 4))
    assert merger.summary() == Summary({"ip:2": Bounds(6, 2)}, 9, 3)


def test_size_must_be_positive() -> None:
    """A merger that keeps nobody is refused by its value."""
    with pytest.raises(ValueError, match="size: must be >= 1, got 0"):
        Merger(0)
