"""The breaker: when it opens, who probes, and when it closes."""

from __future__ import annotations

import os
import threading
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.bounds import BREAKER_FAILURES, BREAKER_PROBE_FIRST_US, BREAKER_PROBE_MAX_US
from sluicegate.clock import ManualClock
from sluicegate.stores.breaker import Breaker


class Bench:
    """A breaker on a clock that is turned by hand."""

    def __init__(self, seed: int = 1) -> None:
        self.clock = ManualClock()
        self.breaker = Breaker(self.clock, Random(seed))

    def fail(self, ago_us: int = 0) -> None:
        """A call that began so long ago fails, a microsecond after what went before."""
        self.clock.advance(1)
        self.breaker.failed(self.clock.monotonic_us() - ago_us, "gone")

    def succeed(self) -> None:
        self.clock.advance(1)
        self.breaker.succeeded()

    def open(self) -> None:
        for _ in range(BREAKER_FAILURES):
            self.fail()
        assert not self.breaker.closed

    def until_probe(self) -> int:
        """Microseconds until a probe is due; the caller has it then."""
        waited_us = 0
        while not self.breaker.take_probe():
            self.clock.advance(500)
            waited_us += 500
            assert waited_us <= BREAKER_PROBE_MAX_US + 500
        return waited_us


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_begins_closed_and_unknown(bench: Bench) -> None:
    """Before anything was asked calls are sent, and the state says that nothing is known."""
    breaker = bench.breaker
    assert (breaker.closed, breaker.calm, breaker.state, breaker.error) == (True, False, "unknown", None)
    assert not breaker.take_probe()
    bench.succeed()
    assert (breaker.closed, breaker.calm, breaker.state, breaker.since_us) == (True, True, "up", 1)


@pytest.mark.parametrize(
    ("calls", "open_after"),
    [
        ("fff", 3),
        ("ff", None),
        ("ffsff", 5),
        ("sssssfff", 8),
        ("ffssssff", None),
        # Half of all calls are lost.
        ("fsfsfsfsfsf", 9),
        # Two of three are.
        ("ffsffs", 5),
        # One of three is: as often as it is borne.
        ("fss" * 50, None),
        # One of four is.
        ("fsss" * 50, None),
    ],
)
def test_when_it_opens(bench: Bench, calls: str, open_after: int | None) -> None:
    """Three failures in a row open it, and failing more than a third of the time does."""
    opened = None
    for number, call in enumerate(calls, 1):
        (bench.fail if call == "f" else bench.succeed)()
        if not bench.breaker.closed and opened is None:
            opened = number
    assert opened == open_after
    assert bench.breaker.opened == (opened is not None)


def test_calls_that_fail_together_count_once(bench: Bench) -> None:
    """Of a hundred calls that waited in one stall only one counts; one that began after it was counted does again."""
    for _ in range(100):
        bench.fail(ago_us=8_000)
    assert bench.breaker.closed
    bench.clock.advance(8_000)
    for _ in range(100):
        bench.fail(ago_us=4_000)
    assert bench.breaker.closed
    bench.clock.advance(8_000)
    bench.fail(ago_us=4_000)
    assert not bench.breaker.closed


def test_a_failure_is_shown_until_all_is_well(bench: Bench) -> None:
    """``error`` is the last failure; a single one is forgotten by the successes that outweigh it."""
    bench.succeed()
    bench.fail()
    assert (bench.breaker.error, bench.breaker.calm, bench.breaker.state) == ("gone", False, "up")
    bench.succeed()
    assert bench.breaker.error == "gone"
    bench.succeed()
    assert (bench.breaker.error, bench.breaker.calm) == (None, True)


def test_opening_is_told_once(bench: Bench) -> None:
    """While it is open further failures and successes of calls under way change nothing."""
    bench.open()
    since_us = bench.breaker.since_us
    bench.fail()
    bench.succeed()
    assert (bench.breaker.closed, bench.breaker.state, bench.breaker.since_us) == (False, "down", since_us)
    assert bench.breaker.opened == 1


def test_one_probe_at_a_time(bench: Bench) -> None:
    """A probe is due after a first pause, and nobody else gets one until it is reported."""
    bench.open()
    assert not bench.breaker.take_probe()
    assert bench.until_probe() + 500 >= BREAKER_PROBE_FIRST_US // 2
    bench.clock.advance(10 * BREAKER_PROBE_MAX_US)
    assert not bench.breaker.take_probe()
    assert bench.breaker.probes == 1


def test_a_probe_that_succeeds_closes(bench: Bench) -> None:
    """After a probe succeeded calls are sent, and a report without a probe changes nothing; once they are answered failures count anew."""
    bench.open()
    bench.breaker.probed(None)
    assert not bench.breaker.closed
    bench.until_probe()
    bench.breaker.probed(None)
    assert (bench.breaker.closed, bench.breaker.state, bench.breaker.error) == (True, "up", None)
    bench.breaker.probed("late")
    bench.succeed()
    assert not bench.breaker.calm
    bench.succeed()
    assert bench.breaker.calm
    bench.fail()
    bench.fail()
    assert bench.breaker.closed
    bench.fail()
    assert (bench.breaker.closed, bench.breaker.opened) == (False, 2)
    assert bench.until_probe() <= BREAKER_PROBE_FIRST_US


def test_a_server_that_answers_probes_only(bench: Bench) -> None:
    """Where every probe succeeds and no call does, the pauses grow to the bound, and each return costs two failures, not three."""
    bench.open()
    expected_us = BREAKER_PROBE_FIRST_US
    for _ in range(6):
        assert expected_us // 2 <= bench.until_probe() <= expected_us + 500
        bench.breaker.probed(None)
        bench.fail()
        assert bench.breaker.closed
        bench.fail()
        assert not bench.breaker.closed
        expected_us = min(2 * expected_us, BREAKER_PROBE_MAX_US)
    assert expected_us == BREAKER_PROBE_MAX_US


def test_pauses_grow_to_a_bound(bench: Bench) -> None:
    """Each probe that fails makes the next pause longer, up to the longest; each is cut by up to a half."""
    bench.open()
    expected_us = BREAKER_PROBE_FIRST_US
    for _ in range(10):
        waited_us = bench.until_probe()
        assert expected_us // 2 <= waited_us <= expected_us + 500
        bench.breaker.probed("still gone")
        assert bench.breaker.error == "still gone"
        expected_us = min(2 * expected_us, BREAKER_PROBE_MAX_US)
    assert expected_us == BREAKER_PROBE_MAX_US


def test_processes_do_not_probe_together() -> None:
    """Breakers that opened at one moment have their probes due at different ones."""
    due = set()
    for seed in range(20):
        bench = Bench(seed)
        bench.open()
        due.add(bench.until_probe())
    assert len(due) >= 8


@given(st.lists(st.sampled_from("fsptw"), max_size=200), st.integers(0, 2**32))
def test_whatever_happens(events: list[str], seed: int) -> None:
    """It is never open without having failed, a server that returns is used again within two pauses, and state and flags agree."""
    bench = Bench(seed)
    probing = False
    for event in events:
        if event == "f":
            bench.fail()
        elif event == "s":
            bench.succeed()
        elif event == "t":
            took = bench.breaker.take_probe()
            assert not (took and (probing or bench.breaker.closed))
            probing = probing or took
        elif event == "p" and probing:
            probing = False
            bench.breaker.probed("no")
        else:
            bench.clock.advance(BREAKER_PROBE_MAX_US // 3)
        breaker = bench.breaker
        assert (breaker.state == "down") == (not breaker.closed)
        assert not (breaker.calm and not breaker.closed)
        assert breaker.closed or breaker.error is not None
    if not bench.breaker.closed:
        if not probing:
            bench.until_probe()
        bench.breaker.probed(None)
    assert bench.breaker.closed


def test_threads_that_ask_at_once() -> None:
    """Of threads that ask at the same moment one is told to probe."""
    bench = Bench()
    bench.open()
    bench.clock.advance(BREAKER_PROBE_FIRST_US)
    barrier = threading.Barrier(8)
    told: list[bool] = []

    def ask() -> None:
        barrier.wait()
        told.append(bench.breaker.take_probe())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(told) == 1


def test_a_forked_child_begins_anew() -> None:
    """A child of a process that was probing is closed, and opens and probes by itself."""
    bench = Bench()
    bench.open()
    bench.until_probe()
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = bench.breaker.closed and bench.breaker.state == "unknown"
            bench.open()
            good = good and bench.until_probe() <= BREAKER_PROBE_FIRST_US
        finally:
            os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not bench.breaker.closed
