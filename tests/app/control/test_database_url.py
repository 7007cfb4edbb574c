"""Databases that cannot be one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sluicegate.clock import ManualClock
from sluicegate.control.service import RulesService


@pytest.mark.parametrize("where", ["", "/none/control.db"], ids=["a folder", "in no folder"])
def test_a_database_that_cannot_be_opened(start, tmp_path: Path, where: str) -> None:
    """What names a folder, or a file in none, ends the start with status 2 and one line."""
    control = start("--db", f"sqlite:///{tmp_path}{where}", ready=False)
    assert control.process.wait(60) == 2
    (line,) = control.err.read_text().splitlines()
    assert line.startswith("sluicegate: --db: ") and str(tmp_path) in line


async def test_a_new_database_is_for_its_owner(tmp_path: Path) -> None:
    """A file that is made can be read by nobody else, whatever the mask."""
    before = os.umask(0)
    try:
        async with await RulesService.open(f"sqlite:///{tmp_path / 'new.db'}", ManualClock(), watched=False):
            assert stat.S_IMODE((tmp_path / "new.db").stat().st_mode) == 0o600
    finally:
        os.umask(before)
