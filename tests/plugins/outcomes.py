"""What became of every test, written down as it happens, so that it is known of a run that is killed too.

``SLUICEGATE_OUTCOMES`` names the file; without it nothing is written. A line for each test that was collected, ``collected ID``, and later one for
its end: ``passed ID``, ``skipped ID`` or ``failed ID``. The last line of a test is what became of it; where that is ``collected`` it has not ended.
"""

from __future__ import annotations

import os
from typing import Final

import pytest

FILE: Final = os.environ.get("SLUICEGATE_OUTCOMES", "")


def _write(lines: list[str]) -> None:
    if FILE:
        with open(FILE, "a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)


def pytest_collection_finish(session: pytest.Session) -> None:
    _write([f"collected {item.nodeid}" for item in session.items])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _write([f"failed {report.nodeid}"])
    elif report.when == "call" or report.skipped:
        _write([f"{report.outcome} {report.nodeid}"])
