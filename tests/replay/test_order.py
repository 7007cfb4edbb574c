"""Requests come out in order of time, in bounded memory, and none is lost."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.replaying import order
from sluicegate.replaying.order import Orderer

S = 1_000_000


def ordered(times: list[int], window_us: int, lines_max: int = 1_000_000, feed: int = 7) -> tuple[list[Any], Orderer]:
    """What an orderer makes of these times, each with its place in the log, fed ``feed`` at a time."""
    orderer = Orderer(window_us, lines_max)
    items: list[Any] = list(enumerate(times))
    given_back: list[Any] = []
    for begin in range(0, len(items), feed):
        given_back += orderer.feed([(us, place) for place, us in items[begin : begin + feed]])
    return given_back + orderer.finish(), orderer


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(0, 60), st.integers(1, 20))
def test_as_a_heap_would(times: list[int], window_us: int, feed: int) -> None:
    """The order is that of a heap that holds each line until the newest time is a window further."""
    times = [1_000 + us for us in times]
    newest, expected, late = 0, [], 0
    heap: list[tuple[int, int]] = []
    for place, us in enumerate(times):
        newest = max(newest, us)
        effective = max(us, newest - window_us)
        late += effective != us
        heapq.heappush(heap, (effective, place))
        while heap and heap[0][0] < newest - window_us:
            expected.append(heapq.heappop(heap))
    expected += [heapq.heappop(heap) for _ in range(len(heap))]
    found, orderer = ordered(times, window_us, feed=feed)
    assert found == expected
    assert orderer.late == late


def test_equal_times_keep_the_order_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of one time come out as they went in, however they are cut into batches."""
    monkeypatch.setattr(order, "REPLAY_BATCH_LINES", 4)
    found, _ = ordered([5, 5, 5, 5, 6, 6, 5, 5, 6, 5], window_us=10)
    assert found == [(5, 0), (5, 1), (5, 2), (5, 3), (5, 6), (5, 7), (5, 9), (6, 4), (6, 5), (6, 8)]


def test_nothing_is_given_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line exactly a window behind the newest is in time, one microsecond further is late and takes the log's time."""
    monkeypatch.setattr(order, "REPLAY_BATCH_LINES", 1)
    found, orderer = ordered([100, 110, 100, 99], window_us=10, feed=1)
    assert found == [(100, 0), (100, 2), (100, 3), (110, 1)]
    assert orderer.late == 1
    assert (orderer.first_us, orderer.last_us) == (99, 110)


def test_one_time_far_ahead_makes_nothing_late() -> None:
    """A single line of the year after next is decided last; the lines after it are not late."""
    times = [10 * S, 11 * S, 63_072_000 * S, *(second * S for second in range(12, 200))]
    found, orderer = ordered(times, window_us=120 * S)
    assert orderer.late == 0
    assert found[-1] == (63_072_000 * S, 2)


def test_broken_first_line_makes_nothing_late() -> None:
    """The same where the broken time is that of the first line."""
    found, orderer = ordered([63_072_000 * S, *(second * S for second in range(400))], window_us=120 * S)
    assert orderer.late == 0
    assert found[-1] == (63_072_000 * S, 0)


def test_a_pause_of_the_log_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines after a night without requests move the log on, and what comes from before the night is late then."""
    monkeypatch.setattr(order, "REPLAY_BATCH_LINES", 1)
    times = [second * S for second in (0, 1, 30_000, 30_001, 5, 30_002)]
    found, orderer = ordered(times, window_us=120 * S, feed=1)
    assert orderer.late == 1
    assert [place for _, place in found] == [0, 1, 4, 2, 3, 5]
    assert found[2][0] == (30_001 - 120) * S


def test_window_with_too_many_lines_is_shortened() -> None:
    """No more is held back than allowed; the older half is given, and late lines are still decided in their turn."""
    rng = random.Random(1)
    times = [number + rng.randrange(5) for number in range(2_000)]
    found, orderer = ordered(times, window_us=100_000, lines_max=50)
    assert orderer.shortened
    assert sorted(place for _, place in found) == list(range(2_000))
    assert [us for us, _ in found] == sorted(us for us, _ in found)


def test_held_back_lines_are_bounded() -> None:
    """A log of one time only, which the window never lets go, is held back up to the bound and one batch."""
    orderer = Orderer(120 * S, 1_000)
    most = 0
    for place in range(20_000):
        orderer.feed([(5, place)])  # type: ignore[list-item]
        most = max(most, len(orderer._held))
    assert most <= 2_000
    assert not Orderer(120 * S, 1_000).shortened
    assert orderer.shortened
    assert orderer.late == 0


def test_no_window_is_the_order_of_the_log() -> None:
    """With a window of 0 every step back is late."""
    found, orderer = ordered([3, 1, 4, 1, 5], window_us=0, feed=1)
    assert orderer.late == 2
    assert found == [(3, 0), (3, 1), (4, 2), (4, 3), (5, 4)]


@given(st.lists(st.integers(0, 1 << 51), max_size=40), st.integers(0, 1 << 40), st.integers(2, 30))
def test_none_is_lost_whatever_the_times(times: list[int], window_us: int, lines_max: int) -> None:
    """Any times at all: every line comes out once, and time never goes back."""
    found, orderer = ordered(times, window_us, lines_max)
    assert sorted(place for _, place in found) == list(range(len(times)))
    assert [us for us, _ in found] == sorted(us for us, _ in found)
    if times:
        assert (orderer.first_us, orderer.last_us) == (min(times), max(times))


def test_sparse_log_is_in_order() -> None:
    """A request every two hours: each waits for the next, and none is late."""
    found, orderer = ordered([number * 7_200 * S for number in range(50)], window_us=120 * S)
    assert [place for _, place in found] == list(range(50))
    assert orderer.late == 0


def test_empty() -> None:
    """An empty log gives nothing and has no times."""
    found, orderer = ordered([], window_us=10)
    assert (found, orderer.first_us, orderer.last_us) == ([], None, None)
