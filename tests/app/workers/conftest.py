"""What servers of several processes need to be watched: their processes and their sockets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

WAIT_S = 60.0


class Watched:
    """A server of several processes. ``pids`` are those it ever had, by what they are."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.seen: set[int] = {server.process.pid}

    def children(self) -> dict[int, str]:
        """The live processes it started, with their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == self.server.process.pid and fields[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        self.seen |= set(found)
        return found

    def pid_of(self, words: str) -> int:
        """The one live process with these words in its command line."""
        found = [pid for pid, command in self.children().items() if words in command]
        assert len(found) == 1, (words, self.children())
        return found[0]

    def left(self) -> list[int]:
        """Those of its processes that are still there."""
        return [pid for pid in sorted(self.seen) if _alive(pid)]

    def sockets(self) -> list[str]:
        """Unix sockets under its data directory."""
        return sorted(str(path) for path in self.server.directory.rglob("*") if path.is_socket())

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of this event."""
        return [event for event in self.server.events() if event["event"] == name]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.fixture
def watch() -> Callable[[Any], Watched]:
    """Watch a server's processes."""
    return Watched


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait until something holds; fail with its name where it does not."""

    def until(holds: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < deadline, f"not in {WAIT_S:g} s: {what}"
            time.sleep(0.02)

    return until
