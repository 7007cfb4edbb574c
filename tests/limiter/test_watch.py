"""A limiter that follows its rules file in a program of its own (T98)."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.watch import Watch
from sluicegate.rules.facts import Facts
from sluicegate.rules.watched import RulesFile

GOOD = "version: 1\nrules:\n  - {name: api, per: [ip], quota: 5/minute}\n"
EDITED = GOOD.replace("5/minute", "7/minute")
BAD = GOOD.replace("quota:", "qouta:")
FACTS = Facts(ip="203.0.113.9")
DEADLINE_S = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A rules file."""
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD)
    return path


def served(limiter: Limiter) -> str:
    return limiter.ruleset.rules[0].quotas[None].text


def until(holds: Callable[[], bool]) -> None:
    """Wait for what a thread does in its own time."""
    for _ in range(DEADLINE_S * 50):
        if holds():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not come to that")


@pytest.fixture
def looked(path: Path) -> tuple[Limiter, Callable[[], None]]:
    """A limiter of the file, and a look at it that finds what two polls find."""
    clock = ManualClock()
    file = RulesFile(path, clock, rules_needed=False)
    limiter = Limiter.from_rules(file.load(), clock=clock)
    watch = Watch(file, limiter)

    def look() -> None:
        assert watch.look()
        assert watch.look()

    return limiter, look


def test_edits(looked: Any, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A good edit is in service with its counters kept; a bad one changes nothing and is logged once, with its line; mended, it is told."""
    limiter, look = looked
    caplog.set_level(logging.INFO, "sluicegate")
    assert limiter.check(FACTS).remaining == 4
    path.write_text(EDITED)
    look()
    assert (served(limiter), limiter.version) == ("7/minute", 2)
    assert limiter.check(FACTS).remaining == 5, "two of seven are spent"
    path.write_text(BAD)
    look()
    look()
    assert served(limiter) == "7/minute"
    path.write_text(EDITED)
    look()
    path.unlink()
    look()
    look()
    assert served(limiter) == "7/minute"
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [level for level, _ in told] == ["INFO", "ERROR", "INFO", "ERROR"]
    assert f"{path} is in service as version 2" in told[0][1]
    assert f"{path}:3" in told[1][1] and "version 2 is" in told[1][1]
    assert "again" in told[2][1]
    assert "does not exist" in told[3][1]


def test_a_fault_does_not_end_the_watch(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong in a look is logged, and the next edit is read."""

    class Broken(RulesFile):
        def poll(self, apply: Any) -> bool:
            raise MemoryError

    clock = ManualClock()
    file = Broken(path, clock)
    limiter = Limiter.from_rules(file.load(), clock=clock)
    assert Watch(file, limiter).look()
    assert "could not be looked at" in caplog.text


def test_a_program_follows_its_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit is in service by itself, wherever the program has gone meanwhile; ``close`` ends the thread."""
    monkeypatch.chdir(path.parent)
    limiter = Limiter.from_file("rules.yaml", watch=True)
    assert limiter._watch is not None
    thread = limiter._watch.thread
    monkeypatch.chdir("/")
    try:
        began = time.monotonic()
        path.write_text(EDITED)
        until(lambda: served(limiter) == "7/minute")
        assert time.monotonic() - began < 10
    finally:
        limiter.close()
    assert thread is not None
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    path.write_text(GOOD)
    limiter.close()


async def test_aclose_ends_the_thread(path: Path) -> None:
    """``aclose`` ends the thread as ``close`` does."""
    limiter = Limiter.from_file(path, watch=True)
    assert limiter._watch is not None
    thread = limiter._watch.thread
    await limiter.aclose()
    assert thread is not None
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_forgotten_limiter_is_freed(path: Path) -> None:
    """The thread keeps no limiter alive that nobody else does, and ends with it."""
    limiter = Limiter.from_file(path, watch=True)
    assert limiter._watch is not None
    thread, dead = limiter._watch.thread, weakref.ref(limiter)
    del limiter
    until(lambda: gc.collect() >= 0 and dead() is None)
    assert thread is not None
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def _in_child(limiter: Limiter, path: Path, results: Any) -> None:
    path.write_text(EDITED)
    try:
        until(lambda: served(limiter) == "7/minute")
    except AssertionError:
        results.put("the old rules")
        return
    results.put(served(limiter))


def test_forked_processes_follow_it_too(path: Path) -> None:
    """A forked worker watches by itself, and so does its parent afterwards; a watch that was ended stays ended in the child."""
    limiter = Limiter.from_file(path, watch=True)
    ended = Limiter.from_file(path, watch=True)
    ended.close()
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    try:
        child = fork.Process(target=_in_child, args=(limiter, path, results))
        child.start()
        child.join(DEADLINE_S * 2)
        assert not child.is_alive()
        assert results.get() == "7/minute"
        until(lambda: served(limiter) == "7/minute")
        assert served(ended) == "5/minute"
    finally:
        limiter.close()


def test_watching_is_asked_for(path: Path) -> None:
    """Without ``watch`` there is no thread, and a bad file is an error at once with or without."""
    assert Limiter.from_file(path)._watch is None
    path.write_text(BAD)
    for watch in (False, True):
        with pytest.raises(ConfigurationError, match="qouta"):
            Limiter.from_file(path, watch=watch)
    with pytest.raises(ConfigurationError, match="nowhere"):
        Limiter.from_file(path / "nowhere", watch=True)


def test_only_an_identity(path: Path) -> None:
    """A file without rules serves a program, and rules may come and go while it runs."""
    clock = ManualClock(US_PER_S)
    path.write_text("version: 1\nidentity: {trusted_peers: [10.0.0.0/8]}\n")
    limiter = Limiter.from_file(path, clock=clock)
    assert limiter.check(FACTS).allowed
    assert limiter.check(FACTS).rule is None
