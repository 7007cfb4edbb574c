"""Threads that nobody's request waits for, at the end of a program."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from sluicegate.stores.redis import background
from sluicegate.stores.redis.background import start_thread

PROGRAM = """
import sys, time
from sluicegate.stores.redis.background import start_thread

def work():
    time.sleep(float(sys.argv[1]))
    print("ended", flush=True)

start_thread("test", work, lambda: None)
"""


def run(seconds: float) -> tuple[str, float]:
    """What a program prints that ends while its thread works for so long, and how long it lives."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(seconds)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout, time.monotonic() - began


def test_the_end_of_the_program_waits_for_them() -> None:
    """What is under way ends before the exit handlers of libraries run, which a TLS handshake would not survive."""
    assert run(0.3)[0] == "ended\n"


@pytest.mark.measured
def test_it_does_not_wait_for_long() -> None:
    """A thread that hangs, in a name lookup for instance, does not keep the program alive."""
    printed, took_s = run(60)
    assert printed == ""
    assert took_s < 20


class Interrupted(Exception):
    """What a signal handler raises."""


def test_what_has_ended_or_never_began_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept of a thread afterwards, also where the system has none left, which is told."""
    told: list[str] = []
    start_thread("test", lambda: told.append("done"), lambda: told.append("never"))
    deadline = time.monotonic() + 60
    while background._under_way and time.monotonic() < deadline:
        time.sleep(0.001)
    assert told == ["done"]

    def refuse(_thread: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background.threading.Thread, "start", refuse)
    start_thread("test", lambda: None, lambda: told.append("refused"))
    assert told == ["done", "refused"]
    assert not background._under_way


@pytest.mark.parametrize("begun", [True, False])
def test_a_signal_handler_that_raises_as_one_begins(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its exception goes on, and the work is done, or is told never to be; so nobody waits for it for ever."""
    start = background.threading.Thread.start
    told: list[str] = []
    threads: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        threads.append(thread)
        if begun:
            start(thread)
            thread.join(60)
        raise Interrupted

    monkeypatch.setattr(background.threading.Thread, "start", interrupted)
    with pytest.raises(Interrupted):
        start_thread("test", lambda: told.append("done"), lambda: told.append("never"))
    if not begun:
        # It may begin after all, later.
        threads[0].run()
    assert told == ["done" if begun else "never"]
    assert not background._under_way
