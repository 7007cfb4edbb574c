"""A thread that runs while there is something to do."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from sluicegate.clock import SystemClock
from sluicegate.stores.near.chores import Chores

NOW_US = SystemClock().monotonic_us


class Worker:
    """Does ``turns`` turns, a millisecond apart."""

    def __init__(self, turns: int) -> None:
        self.left = turns
        self.done = 0
        self.threads: set[int] = set()
        self.busy = threading.Event()
        self.chores = Chores("test", self.work, NOW_US)

    def work(self) -> int | None:
        self.done += 1
        self.left -= 1
        self.threads.add(threading.get_ident())
        if self.done > 3:
            self.busy.set()
        return NOW_US() + 1_000 if self.left > 0 else None


def ended() -> bool:
    """Wait until the thread has ended."""
    for thread in running():
        thread.join(60)
    return not running()


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sluicegate test"]


def test_it_runs_while_there_is_something_to_do() -> None:
    """No thread before a poke, one that does all turns, and none afterwards; a later poke starts another."""
    worker = Worker(5)
    assert running() == []
    worker.chores.poke()
    assert ended()
    assert worker.done == 5
    assert threading.get_ident() not in worker.threads
    worker.chores.poke()
    assert ended()
    assert worker.done == 6


def test_closing_ends_it() -> None:
    """A close waits for the turn under way; a poke after it does nothing."""
    worker = Worker(10_000)
    worker.chores.poke()
    assert worker.busy.wait(60)
    worker.chores.close()
    assert running() == []
    done = worker.done
    worker.chores.poke()
    assert (running(), worker.done) == ([], done)


def test_it_keeps_nobody_alive() -> None:
    """When nobody uses the object any more the thread ends by itself."""
    workers = [Worker(1_000_000)]
    workers[0].chores.poke()
    assert workers[0].busy.wait(60)
    workers.clear()
    gc.collect()
    assert ended()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_starts_its_own() -> None:
    """A forked child has no thread, and one of its own when it is poked."""
    worker = Worker(1_000_000)
    worker.chores.poke()
    assert worker.busy.wait(60)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if not running():
                worker.busy.clear()
                worker.chores.poke()
                status = 0 if worker.busy.wait(60) else 2
        finally:
            os._exit(status)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        worker.chores.close()


def test_a_fault_does_not_end_it(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """What raises is told in the log, and done again."""
    monkeypatch.setattr("sluicegate.stores.near.chores.US_PER_S", 1_000)

    class Faulty(Worker):
        def work(self) -> int | None:
            found = super().work()
            if self.done < 3:
                raise ZeroDivisionError
            return found

    worker = Faulty(5)
    worker.chores.poke()
    assert ended()
    assert worker.done == 5
    assert caplog.text.count("test: what was due failed") == 2
