"""The thread that moves parts: it runs while there is something to do, and stops for nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from sluicegate.stores.regional import mover as mover_module
from sluicegate.stores.regional.mover import Mover

PATIENCE_S = 60


@pytest.fixture(autouse=True)
def short_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A beat of a millisecond."""
    monkeypatch.setattr(mover_module, "_BEAT_S", 0.001)


@pytest.fixture
def make() -> Iterator[Callable[[Callable[[], bool]], Mover]]:
    """Movers that end with the test."""
    made: list[Mover] = []

    def of(step: Callable[[], bool]) -> Mover:
        made.append(Mover(step))
        return made[-1]

    yield of
    for mover in made:
        mover.close()


def ended(mover: Mover) -> bool:
    """Wait until its thread has ended by itself."""
    thread = mover._thread
    if thread is not None:
        thread.join(PATIENCE_S)
    return not mover.awake and mover._thread is None


def test_it_runs_while_there_is_something_to_do(make: Callable[[Callable[[], bool]], Mover]) -> None:
    """Until ``step`` says no; then it sleeps without a thread, and can be woken again."""
    answers = [True, True, False, True, False]
    mover = make(lambda: answers.pop(0))
    assert not mover.awake
    mover.wake()
    assert ended(mover)
    assert answers == [True, False]
    mover.wake()
    assert ended(mover)
    assert answers == []


def test_a_step_that_raises_is_counted(make: Callable[[Callable[[], bool]], Mover]) -> None:
    """The next one is made all the same."""
    steps = iter([RuntimeError("one"), RuntimeError("two"), None])

    def step() -> bool:
        fault = next(steps)
        if fault is not None:
            raise fault
        return False

    mover = make(step)
    mover.wake()
    assert ended(mover)
    assert mover.faults == 2


def test_only_one_runs(make: Callable[[Callable[[], bool]], Mover]) -> None:
    """Waking what is awake begins nothing."""
    began, go_on = threading.Event(), threading.Event()

    def step() -> bool:
        began.set()
        return not go_on.wait(PATIENCE_S)

    mover = make(step)
    mover.wake()
    assert began.wait(PATIENCE_S)
    first = mover._thread
    mover.wake()
    assert mover._thread is first
    go_on.set()
    assert ended(mover)


def test_what_is_closed_is_not_woken(make: Callable[[Callable[[], bool]], Mover]) -> None:
    """Closing waits for the thread, from within it too, and is for good."""
    mover = make(lambda: True)
    mover.wake()
    thread = mover._thread
    assert thread is not None
    mover.close()
    assert not thread.is_alive()
    mover.wake()
    assert mover._thread is None

    def close_itself() -> bool:
        within.close()
        return True

    within = make(close_itself)
    within.wake()
    assert ended(within)


def test_no_thread_to_be_had(make: Callable[[Callable[[], bool]], Mover], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next charge tries again."""
    mover = make(lambda: False)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        mover.wake()
    assert not mover.awake
    mover.wake()
    assert ended(mover)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_wakes_its_own(make: Callable[[Callable[[], bool]], Mover]) -> None:
    """The child has no thread of its parent's, and begins one when it is woken."""
    mover = make(lambda: True)
    mover.wake()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            asleep = not mover.awake and mover._thread is None
            mover.wake()
            status = 0 if asleep and mover.awake and mover._thread is not None else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mover.awake
