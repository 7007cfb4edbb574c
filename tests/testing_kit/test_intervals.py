"""The interval checker finds what a direct reading of the definition finds, and reads clocks that go back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.testing.intervals import Excess, busiest, elapsed, segments, worst_excess, worst_span_excess

HISTORIES = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=12).map(
    lambda hits: sorted(hits, key=lambda hit: hit[0])
)


def held(hits: list[tuple[int, int]], start_us: int, end_us: int) -> int:
    """The definition: tokens in ``[start_us, end_us)``."""
    return sum(cost for time_us, cost in hits if start_us <= time_us < end_us)


@given(HISTORIES, st.integers(0, 10), st.integers(0, 3))
def test_agrees_with_the_definition(hits: list[tuple[int, int]], burst: int, rate: int) -> None:
    """An excess is reported exactly when some interval of any start and length holds more than its bound."""

    def bound(length_us: int) -> int:
        return burst + rate * length_us // 4

    excesses = [held(hits, start, end) - bound(end - start) for start in range(32) for end in range(start + 1, 33)]
    found = worst_excess(hits, bound)
    assert (found is not None) == (max(excesses) > 0)
    if found is not None:
        assert found.admitted == held(hits, found.start_us, found.end_us)
        assert found.admitted - found.allowed == max(excesses)


SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(0, 4)), max_size=14).map(
    lambda found: [(start, start + length, cost) for start, length, cost in found]
)


@given(SPANS, st.integers(0, 10), st.integers(0, 3), st.integers(1, 5))
def test_spans_agree_with_the_definition(spans: list[tuple[int, int, int]], burst: int, rate: int, block: int) -> None:
    """Of spans those count that lie wholly in an interval, and every interval is looked at, however many are passed over together."""

    def bound(length_us: int) -> int:
        return burst + rate * length_us // 4

    def within(start: int, end: int) -> int:
        return sum(cost for first, last, cost in spans if start <= first and last < end)

    excesses = [within(start, end) - bound(end - start) for start in range(34) for end in range(start + 1, 35)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluicegate.testing.intervals._BLOCK", block)
        found = worst_span_excess(spans, bound)
    assert (found is not None) == (max(excesses) > 0)
    if found is not None:
        assert found.admitted == within(found.start_us, found.end_us)
        assert found.admitted - found.allowed == max(excesses)


@given(HISTORIES, st.integers(0, 10), st.integers(0, 3))
def test_spans_of_no_length_are_hits(hits: list[tuple[int, int]], burst: int, rate: int) -> None:
    """Where each admission's time is known, both checkers find the same."""

    def bound(length_us: int) -> int:
        return burst + rate * length_us // 4

    one, other = worst_excess(hits, bound), worst_span_excess([(at, at, cost) for at, cost in hits], bound)
    assert (one is None) == (other is None)
    assert one is None or other is None or one.admitted - one.allowed == other.admitted - other.allowed


@given(HISTORIES, st.integers(1, 40))
def test_busiest_agrees_with_the_definition(hits: list[tuple[int, int]], length_us: int) -> None:
    """The busiest interval of a length holds as much as the best of all starts."""
    assert busiest(hits, length_us) == max(held(hits, start, start + length_us) for start in range(-40, 32))


def test_names_the_interval() -> None:
    """An excess says where it is, what it holds and what was allowed."""
    assert worst_excess([(0, 1), (5, 2), (6, 2), (90, 3)], lambda length_us: 3 + length_us // 10) == Excess(0, 7, 5, 3)


def test_empty_history_exceeds_nothing() -> None:
    """No hits, no excess."""
    assert worst_excess([], lambda _: 0) is None
    assert busiest([], 10) == 0


def test_time_that_goes_back_is_refused() -> None:
    """A history must be brought into one direction of time before it is checked, refused hits included."""
    with pytest.raises(ValueError, match="time goes back from 5 to 4"):
        worst_excess([(5, 0), (4, 1)], lambda _: 9)


def test_elapsed_counts_steps_back_as_no_time() -> None:
    """Steps back take no time; each step forward takes what it shows, also over times seen before."""
    assert elapsed([(100, 1), (40, 0), (100, 1), (130, 2)]) == [(100, 1), (100, 0), (160, 1), (190, 2)]
    assert elapsed([]) == []


def test_segments_cut_where_the_clock_went_back() -> None:
    """Every segment's times rise, and together they are the history."""
    assert segments([(1, 1), (5, 1), (5, 2), (3, 1), (9, 1)]) == [[(1, 1), (5, 1), (5, 2)], [(3, 1), (9, 1)]]
