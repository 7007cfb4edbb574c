"""Rules files that a service watches: what goes wrong with one content does not end the watch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.app.control import copy as copy_module
from sluicegate.app.control import file as file_module
from sluicegate.app.control.copy import WorkingCopy
from sluicegate.app.control.file import OwningFile
from sluicegate.control.errors import Fault, Invalid
from sluicegate.rules.feed import Revisions, RulesDocument, Snapshot


class Service:
    """Takes every file but the second, at which it has a fault, and those that say ``bad``."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.faults = 0
        self.nodes = SimpleNamespace(file_error="")

    async def revisions(self) -> Revisions:
        return Revisions("a", len(self.taken))

    async def snapshot(self) -> Snapshot:
        rules = {"version": 1, "rules": [{"name": "api", "quota": "5/minute"}]}
        return Snapshot(await self.revisions(), RulesDocument(len(self.taken), "d", rules))

    async def take_file(self, content: bytes, name: str) -> Any:
        if content == b"bad":
            raise Invalid([Fault("it is bad")])
        if self.taken and not self.faults:
            self.faults += 1
            raise RuntimeError("a fault of ours")
        self.taken.append(content)
        return SimpleNamespace(changed=True, version=SimpleNamespace(info=SimpleNamespace(version=len(self.taken))))

    def own_by_file(self, name: str) -> None:
        """Nobody asks."""


async def begun_file(path: Path, service: Any) -> OwningFile:
    made = OwningFile(path, path.parent, service)
    await made.take()
    return made


async def begun_copy(path: Path, service: Any) -> WorkingCopy:
    made = WorkingCopy(path, path.parent, service)
    await made.begin()
    return made


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is looked at a hundred times a second."""
    monkeypatch.setattr(file_module, "COPY_POLL_S", 0.01)
    monkeypatch.setattr(copy_module, "COPY_POLL_S", 0.01)


@contextlib.asynccontextmanager
async def watching(watched: OwningFile | WorkingCopy) -> AsyncIterator[asyncio.Task[None]]:
    """The watch over a file, for so long as the block takes, which is 20 s at most."""
    watch = asyncio.create_task(watched.keep_watching())
    try:
        async with asyncio.timeout(60):
            yield watch
    finally:
        watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watch


@pytest.mark.parametrize("begin", [begun_file, begun_copy])
async def test_a_fault_does_not_end_the_watch(
    begin: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault while an edit is taken is told, and the next edit is taken."""
    caplog.set_level("ERROR", "sluicegate")
    path, service = tmp_path / "rules.yaml", Service()
    path.write_bytes(b"one")
    async with watching(await begin(path, service)) as watch:
        path.write_bytes(b"two")
        while not service.faults or not service.nodes.file_error:
            await asyncio.sleep(0.01)
        assert "a fault of ours" in service.nodes.file_error
        path.write_bytes(b"three")
        while service.taken[-1] != b"three":
            assert not watch.done()
            await asyncio.sleep(0.01)
    assert service.nodes.file_error == ""
    assert "a fault of ours" in caplog.records[0].fields["error"]


@pytest.mark.parametrize("begin", [begun_file, begun_copy])
async def test_a_file_that_is_gone_for_a_while(begin: Callable[..., Any], tmp_path: Path) -> None:
    """A file that cannot be read is told of for as long as it is away, also where it comes back as it was."""
    path, service = tmp_path / "rules.yaml", Service()
    path.write_bytes(b"one")
    async with watching(await begin(path, service)):
        path.unlink()
        while not service.nodes.file_error:
            await asyncio.sleep(0.01)
        path.write_bytes(b"one")
        while service.nodes.file_error:
            await asyncio.sleep(0.01)
    assert service.taken == [b"one"]


async def test_a_refused_edit_is_not_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A version that comes from elsewhere takes the place of an edit that was refused, which is kept beside it; the log says where."""
    path, service = tmp_path / "rules.yaml", Service()
    path.write_bytes(b"one")
    async with watching(await begun_copy(path, service)):
        path.write_bytes(b"bad")
        while not service.nodes.file_error:
            await asyncio.sleep(0.01)
        service.taken.append(b"by somebody else")
        while service.nodes.file_error:
            await asyncio.sleep(0.01)
    assert b"5/minute" in path.read_bytes()
    assert (tmp_path / "rules.yaml.rejected").read_bytes() == b"bad"
    (told,) = [record for record in caplog.records if record.getMessage() == "rules_set_aside"]
    assert told.fields["kept"] == str(tmp_path / "rules.yaml.rejected")
