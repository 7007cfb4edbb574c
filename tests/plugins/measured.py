"""Tests of durations are repeated before they fail: the marker ``measured``.

A test that holds a duration of the product against a bound, or a short deadline against what happens meanwhile, is wrong about the product
where the machine stops a process for a while, and no bound is wide enough for that. Such a test is run up to ``TURNS`` times, each time with fixtures
of its own, and fails where none of them passes: a defect shows each time. The closing lines name those that did not pass at once.

The marker is not for what must never happen, however late a process is: nothing lost, nothing charged twice, nothing admitted above a limit.
"""

from __future__ import annotations

import time
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

TURNS: Final = 3
ANEW_S: Final = 30.0
"""A turn begins only so long after the first one: what hangs each time must not be waited for three times."""

AGAIN: Final[dict[str, int]] = {}
"""The tests that did not pass at once, with the number of their turns."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"measured: judges durations; run up to {TURNS} times, passes where it does once"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that is marked until it passes."""
    if item.get_closest_marker("measured") is None or not isinstance(item, pytest.Function):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    begun_s = time.monotonic()
    for turn in range(1, TURNS + 1):
        if turn > 1:
            # Without the fixtures of the turn before.
            item._initrequest()
            AGAIN[item.nodeid] = turn
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not any(report.failed for report in reports) or time.monotonic() > begun_s + ANEW_S:
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which tests took more than one turn."""
    for name, turns in AGAIN.items():
        terminalreporter.write_line(f"measured again: {name} ({turns} turns)")
