"""A thread that runs while there is something to do."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable

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
        self.chores = Chores("test", self.work, NOW_US)

    def work(self) -> int | None:
        self.done += 1
        self.left -= 1
        self.threads.add(threading.get_ident())
        return NOW_US() + 1_000 if self.left > 0 else None


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "sluicegate test"]


def test_it_runs_while_there_is_something_to_do() -> None:
    """No thread before a poke, one that does all turns, and none afterwards; a later poke starts another."""
    worker = Worker(5)
    assert running() == []
    worker.chores.poke()
    until(lambda: worker.done == 5 and not running())
    assert threading.get_ident() not in worker.threads
    worker.chores.poke()
    until(lambda: worker.done == 6 and not running())


def test_closing_ends_it() -> None:
    """A close waits for the turn under way; a poke after it does nothing."""
    worker = Worker(10_000)
    worker.chores.poke()
    until(lambda: worker.done > 3)
    worker.chores.close()
    assert running() == []
    done = worker.done
    worker.chores.poke()
    assert (running(), worker.done) == ([], done)


def test_it_keeps_nobody_alive() -> None:
    """When nobody uses the object any more the thread ends by itself."""
    workers = [Worker(1_000_000)]
    workers[0].chores.poke()
    until(lambda: workers[0].done > 3)
    workers.clear()
    gc.collect()
    until(lambda: not running())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_starts_its_own() -> None:
    """A forked child has no thread, and one of its own when it is poked."""
    worker = Worker(1_000_000)
    worker.chores.poke()
    until(lambda: worker.done > 3)
    child = os.fork()
    if child == 0:
        before, status = worker.done, 1
        try:
            if not running():
                worker.chores.poke()
                end = time.monotonic() + 10
                while worker.done == before and time.monotonic() < end:
                    time.sleep(0.002)
                status = 0 if worker.done > before else 2
        finally:
            os._exit(status)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        worker.chores.close()
