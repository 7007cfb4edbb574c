"""A test that does not come to its end fails, and those after it have their turn.

Without this the run is ended for it (``faulthandler_timeout``), and with it go all tests that come after. A test has ``LIMIT_S`` for all of its
turns and parts; what it cleans up has ``LEAST_S`` of its own. Where it waits in C for what no signal interrupts the run is still ended.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Generator, Iterator
from typing import Final

import pytest

LIMIT_S = 90.0
LEAST_S = 15.0
"""Together below ``faulthandler_timeout``."""

BEGUN: Final = pytest.StashKey[float]()


@contextlib.contextmanager
def limited(item: pytest.Item, least_s: float = 0.1) -> Iterator[None]:
    """Fail in here where the test's time is over, ``least_s`` granted."""

    def fail(*_: object) -> None:
        pytest.fail(f"no end in {LIMIT_S:g} s")

    left_s = item.stash[BEGUN] + LIMIT_S - time.monotonic()
    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, max(left_s, least_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[BEGUN] = time.monotonic()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with limited(item, LEAST_S):
        return (yield)
