"""What is told: every decision once, whatever the sink does."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

from sluicegate.app.analytics import flusher as module
from sluicegate.bounds import FLUSH_IDLE_S, FLUSH_QUEUE_MAX
from sluicegate.events import Batch


def told(batches: list[Batch]) -> tuple[int, int]:
    """Decisions that were counted, and those that were told as dropped."""
    return sum(batch.decided for batch in batches), sum(batch.dropped.decisions for batch in batches)


def test_each_second_is_a_batch(telling: Any) -> None:
    """Decisions of a second are told in a batch of it, whose ids count up."""
    for times in (2, 3, 1):
        telling.second(times)
    batches = telling.sink.batches
    assert [batch.decided for batch in batches] == [2, 3, 1]
    assert [batch.until_us - batch.at_us for batch in batches] == [1_000_000] * 3
    assert [batch.id.rpartition("/")[2] for batch in batches] == ["0", "1", "2"]
    assert len({batch.id.rpartition("/")[0] for batch in batches}) == 1
    assert {batch.node for batch in batches} == {"node"}
    assert (telling.flusher.batches, telling.flusher.decisions, telling.flusher.queued) == (3, 6, 0)


def test_two_lives_are_two_streams(telling: Any) -> None:
    """A process that starts again never uses an id of its former life."""
    other = module.Flusher(telling.flusher._recorder, telling.sink, telling.clock, "node")
    telling.second(1)
    telling.decide()
    telling.clock.advance(1)
    other.flush()
    first, second = telling.sink.batches
    assert first.id.rpartition("/")[0] != second.id.rpartition("/")[0]


def test_idle_time_is_told_seldom(telling: Any) -> None:
    """Of a process that decides nothing there is a batch each ten seconds, and no time is left out."""
    telling.second(1)
    for _ in range(FLUSH_IDLE_S * 3 + 5):
        telling.second()
    telling.second(1)
    batches = telling.sink.batches
    assert [batch.decided for batch in batches] == [1, 0, 0, 0, 0, 1]
    for one, following in itertools.pairwise(batches):
        assert one.until_us == following.at_us
    assert batches[-1].until_us - batches[-1].at_us == 1_000_000


def test_a_full_sink_is_offered_the_same_again(telling: Any) -> None:
    """What was not taken waits, in its order and byte for byte."""
    telling.sink.full = True
    for _ in range(5):
        telling.second(2)
    assert telling.flusher.queued == 5
    assert telling.flusher.queued_bytes > 0
    telling.sink.full = False
    telling.second(1)
    assert told(telling.sink.batches) == (11, 0)
    assert len(set(telling.sink.offered[:6])) == 1
    assert (telling.flusher.queued, telling.flusher.queued_bytes) == (0, 0)
    assert sum(telling.flusher.dropped.values()) == 0


def test_when_too_much_waits_the_oldest_goes(telling: Any) -> None:
    """Beyond the bound the oldest batches are dropped; what they counted is told by a later one, so that the sum stays."""
    telling.sink.full = True
    for _ in range(FLUSH_QUEUE_MAX + 30):
        telling.second(1)
    assert telling.flusher.queued == FLUSH_QUEUE_MAX
    telling.sink.full = False
    telling.second(1)
    telling.second(1)
    counted, dropped = told(telling.sink.batches)
    assert counted + dropped == FLUSH_QUEUE_MAX + 32
    assert dropped == telling.flusher.dropped["decisions"] == telling.flusher.dropped["batches"] >= 30
    assert telling.sink.batches[0].at_us > telling.clock.now_us() - (FLUSH_QUEUE_MAX + 5) * 1_000_000


def test_bytes_are_bounded_too(telling: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits never has more bytes than the bound."""
    monkeypatch.setattr(module, "FLUSH_QUEUE_BYTES_MAX", 2_000)
    telling.sink.full = True
    for _ in range(50):
        telling.second(1)
        assert telling.flusher.queued_bytes <= 2_000
    assert telling.flusher.queued < 50


def test_a_broken_sink_loses_and_counts(telling: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What a sink never takes is dropped, counted and told once it works; the log says so when it begins and when it ends."""
    telling.sink.broken = True
    with caplog.at_level(logging.INFO, "sluicegate"):
        for _ in range(4):
            telling.second(2)
        telling.sink.broken = False
        telling.second(3)
    assert [record.message for record in caplog.records] == ["analytics_failing", "analytics_working"]
    assert told(telling.sink.batches) == (3, 8)
    assert telling.flusher.dropped["decisions"] == 8
    assert telling.flusher.dropped["tokens"] == 8


def test_what_the_sink_took_and_lost_is_told(telling: Any) -> None:
    """What a sink gives up after taking it is in the next batch, once."""
    telling.second(1)
    telling.sink.stats.lost_batches, telling.sink.stats.lost_decisions = 1, 7
    telling.second(1)
    telling.second(1)
    assert told(telling.sink.batches) == (3, 7)
    assert (telling.flusher.dropped["batches"], telling.flusher.dropped["decisions"]) == (1, 7)


def test_a_clock_that_is_set_back(telling: Any) -> None:
    """A step of the wall clock loses no decision and makes no batch that ends before it begins."""
    telling.second(1)
    telling.decide(2)
    telling.clock.set(telling.clock.now_us() - 3_600_000_000)
    telling.flusher.flush()
    telling.second(1)
    telling.clock.set(telling.clock.now_us() + 7_200_000_000)
    telling.second(1)
    assert told(telling.sink.batches) == (5, 0)
    assert all(batch.until_us >= batch.at_us for batch in telling.sink.batches)


def test_a_fault_in_the_telling_is_logged_and_goes_on(telling: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A fault of ours ends neither the thread nor the counting."""
    offer, telling.sink.offer = telling.sink.offer, None
    with caplog.at_level(logging.INFO, "sluicegate"):
        telling.second(1)
        telling.second(1)
    assert [record.message for record in caplog.records] == ["analytics_failing"]
    assert caplog.records[0].exc_info
    telling.sink.offer = offer
    telling.second(1)
    assert told(telling.sink.batches) == (3, 0)


def test_stopping_tells_the_rest(telling: Any) -> None:
    """At the end what was decided since the last second is told, the sink is flushed and closed, once."""
    telling.flusher.start()
    telling.decide(4)
    telling.flusher.stop(60)
    telling.flusher.stop(60)
    assert told(telling.sink.batches) == (4, 0)
    assert len(telling.sink.flushed) == 1
    assert telling.sink.closed == 1


def test_stopping_with_a_sink_that_takes_nothing(telling: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be told in time is counted and logged."""
    telling.sink.full = True
    telling.flusher.start()
    telling.decide(4)
    with caplog.at_level(logging.ERROR, "sluicegate"):
        telling.flusher.stop(0)
    assert telling.sink.batches == []
    assert telling.flusher.dropped["decisions"] == 4
    assert telling.sink.closed == 1
    (last,) = [record for record in caplog.records if record.message == "analytics_dropped"]
    assert last.__dict__["fields"] == {"batches": 1, "decisions": 4}
