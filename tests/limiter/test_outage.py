"""What is remembered of an outage."""

from __future__ import annotations

import pytest

from sluicegate.bounds import FALLBACK_GAP_US, FALLBACK_HANDOVER_US_MAX, FALLBACK_OWED_US_MAX
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import StoreError
from sluicegate.limiter import outage as module
from sluicegate.limiter.outage import Outage

S = US_PER_S
AWAY = StoreError("away")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def outage(clock: ManualClock) -> Outage:
    return Outage(clock)


def test_it_begins_with_a_failure_and_ends_with_health(outage: Outage, clock: ManualClock) -> None:
    """Not active before a call fails; over when the store answers and the last failure is a gap ago."""
    assert (outage.active, outage.failing_since_us) == (False, None)
    clock.advance(5 * S)
    outage.failed(AWAY)
    assert (outage.active, outage.failing_since_us) == (True, 5 * S)
    clock.advance(FALLBACK_GAP_US)
    outage.failed(AWAY)
    assert outage.failing_since_us == 5 * S
    outage.answered()
    assert (outage.active, outage.failing_since_us) == (True, None)
    clock.advance(FALLBACK_GAP_US)
    outage.answered()
    assert outage.active
    clock.advance(1)
    outage.answered()
    assert not outage.active


def test_it_keeps_what_the_last_failure_said(outage: Outage) -> None:
    """While calls fail the text of the last one is there; with an answer it is gone."""
    assert outage.failing_error is None
    outage.failed(AWAY)
    outage.failed(StoreError("NOPERM"))
    assert outage.failing_error == "NOPERM"
    outage.answered()
    assert outage.failing_error is None


def test_flaps_are_one_outage(outage: Outage, clock: ManualClock) -> None:
    """A store that fails again within the gap has not begun a new outage; one that fails after it has."""
    outage.failed(AWAY)
    for _ in range(5):
        outage.answered()
        clock.advance(FALLBACK_GAP_US)
        outage.failed(AWAY)
        assert outage.since_us == 0
    outage.answered()
    clock.advance(FALLBACK_GAP_US + 1)
    outage.failed(AWAY)
    assert outage.since_us == 6 * FALLBACK_GAP_US + 1


def test_silence_is_not_health(outage: Outage, clock: ManualClock) -> None:
    """Without an answer an outage goes on, however long nobody asked."""
    outage.failed(AWAY)
    clock.advance(100 * FALLBACK_GAP_US)
    outage.failed(AWAY)
    assert outage.since_us == 0


def test_the_number_of_nodes_does_not_fall(outage: Outage, clock: ManualClock) -> None:
    """During an outage the most nodes that were known count; the next outage begins anew."""
    outage.failed(AWAY)
    assert [outage.nodes(known) for known in (3, 5, 1, 4)] == [3, 5, 5, 5]
    outage.answered()
    clock.advance(FALLBACK_GAP_US + 1)
    outage.failed(AWAY)
    assert outage.nodes(2) == 2


def test_what_is_owed_adds_up_and_is_asked_for_once(outage: Outage) -> None:
    """Each admission without the store is owed until it is settled, also after another outage."""
    outage.touch("k", 2)
    outage.touch("k", 3)
    entry = outage.find("k")
    assert entry is not None
    assert [outage.settle(entry), outage.settle(entry)] == [5, 0]
    outage.touch("k", 1)
    again = outage.find("k")
    assert again is not None
    assert outage.settle(again) == 1


def test_requests_under_way_ask_for_a_debt_once(outage: Outage) -> None:
    """What two requests found before and after another failure is one debt: whoever settles it first leaves nothing to the other."""
    outage.touch("k", 10)
    before = outage.find("k")
    outage.touch("k", 1)
    after = outage.find("k")
    assert before is not None
    assert after is not None
    assert [outage.settle(before), outage.settle(after)] == [11, 0]


def test_a_hand_over_lasts_one_drain(outage: Outage, clock: ManualClock) -> None:
    """It ends a drain after the store's first answer, which later ones do not put off; at most the bound."""
    for key, drain_us, lasts_us in (("short", 7 * S, 7 * S), ("long", 10**12, FALLBACK_HANDOVER_US_MAX)):
        outage.touch(key, 1)
        entry = outage.find(key)
        assert entry is not None
        outage.returned(entry, drain_us)
        clock.advance(lasts_us - 1)
        outage.returned(entry, drain_us)
        assert outage.find(key) is entry
        clock.advance(1)
        assert outage.find(key) is None
    assert len(outage) == 0


def test_another_failure_begins_it_anew(outage: Outage, clock: ManualClock) -> None:
    """A counter charged here during its hand-over waits for the store's return again."""
    outage.touch("k", 1)
    entry = outage.find("k")
    assert entry is not None
    outage.returned(entry, S)
    outage.touch("k", 1)
    clock.advance(100 * S)
    again = outage.find("k")
    assert again is not None
    assert not again.back


def test_what_is_not_asked_for_is_forgotten(outage: Outage, clock: ManualClock) -> None:
    """Clients that never come back are forgotten after a while, a few with each answer, and then nothing is left to do."""
    outage.failed(AWAY)
    for number in range(5):
        outage.touch(str(number), 1)
    clock.advance(FALLBACK_OWED_US_MAX)
    left = []
    for _ in range(4):
        outage.answered()
        left.append((len(outage), outage.active))
    assert left == [(3, True), (1, True), (0, False), (0, False)]


def test_it_is_bounded(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most the bound is remembered; the counters charged longest ago are forgotten, and counted."""
    monkeypatch.setattr(module, "FALLBACK_COUNTERS_MAX", 3)
    for number in (0, 1, 2, 0, 3, 4):
        outage.touch(str(number), 1)
    assert [outage.find(str(number)) is not None for number in range(5)] == [True, False, False, True, True]
    assert outage.forgotten == 2


def test_a_reset_forgets(outage: Outage) -> None:
    """A counter that was reset owes nothing."""
    outage.touch("k", 1)
    outage.forget("k")
    outage.forget("other")
    assert outage.find("k") is None
