"""What Space-Saving guarantees, against exact counts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.algorithms.space_saving import SpaceSaving

STREAMS = st.one_of(
    st.lists(st.integers(0, 30), max_size=400),
    # A few that come often among many that come once.
    st.lists(st.one_of(st.integers(0, 3), st.integers(0, 10_000)), max_size=400),
)


@given(STREAMS, st.integers(1, 12))
def test_the_guarantees(stream: list[int], size: int) -> None:
    """count - error <= true <= count; errors and what is not counted are at most N / size; counts add up to N; never more than ``size`` keys."""
    seen: SpaceSaving[int] = SpaceSaving(size)
    for key in stream:
        seen.add(key)
    true = Counter(stream)
    tallies = seen.tallies()
    most = len(stream) / size
    assert len(seen) == len(tallies) == min(size, len(true))
    assert seen.total == sum(tally.times for tally in tallies) == len(stream)
    for tally in tallies:
        assert tally.times - tally.error <= true[tally.key] <= tally.times
        assert tally.error <= most
        assert seen.guaranteed(tally.key) == tally.times - tally.error
    counted = {tally.key for tally in tallies}
    assert all(times <= most for key, times in true.items() if key not in counted)


@given(STREAMS, st.integers(1, 12), st.integers(1, 20))
def test_what_is_certainly_frequent_is(stream: list[int], size: int, least: int) -> None:
    """``guaranteed_above`` tells no key that came less often, and every key that came N / size times more often."""
    seen: SpaceSaving[int] = SpaceSaving(size)
    for key in stream:
        seen.add(key)
    true = Counter(stream)
    told = dict(seen.guaranteed_above(least))
    assert all(least <= sure <= true[key] for key, sure in told.items())
    assert {
        key for key, times in true.items() if times > len(stream) / size and times >= least + len(stream) / size
    } <= set(told)


@given(STREAMS, st.integers(1, 12))
def test_the_work_is_constant_on_the_average(stream: list[int], size: int) -> None:
    """The least count is looked for at most N / size times: each search raises it."""
    seen: SpaceSaving[int] = SpaceSaving(size)
    searches = 0
    least = 0
    for key in stream:
        seen.add(key)
        if seen._least != least:
            assert seen._least > least
            searches += 1
            least = seen._least
    assert searches <= len(stream) / size


def test_it_begins_anew() -> None:
    """``clear`` forgets everything; a key that is not counted is guaranteed 0 times."""
    seen: SpaceSaving[str] = SpaceSaving(2)
    for key in "aaabc":
        seen.add(key)
    # c took the place of b, which had 1.
    assert {tally.key: (tally.times, tally.error) for tally in seen.tallies()} == {"a": (3, 0), "c": (2, 1)}
    assert (seen.guaranteed("a"), seen.guaranteed("b"), seen.guaranteed("c")) == (3, 0, 1)
    seen.clear()
    assert (seen.total, len(seen), seen.tallies()) == (0, 0, [])
    with pytest.raises(ValueError, match="size: must be >= 1, got 0"):
        SpaceSaving(0)
