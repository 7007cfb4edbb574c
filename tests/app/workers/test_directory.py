"""``DATA/run``: private, locked, and free of what earlier starts have left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluicegate.app.workers.directory import RunDirectory, store_socket, worker_socket
from sluicegate.errors import ConfigurationError

HOLD = "import sys; from pathlib import Path; from sluicegate.app.workers.directory import RunDirectory\n"
HOLD += "held = RunDirectory(Path(sys.argv[1])); print(flush=True); sys.stdin.read()"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    """The directory of this process."""
    directory = RunDirectory(tmp_path / "data")
    yield directory
    directory.close()


def test_only_its_user_can_enter(directory: RunDirectory) -> None:
    """The directory and the one above it have mode 0700, whatever the umask and whatever they had before."""
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.path.parent.stat().st_mode & 0o777 == 0o700


def test_open_directory_is_closed_to_others(tmp_path: Path) -> None:
    """A directory that was made by hand, open to all, is closed to others."""
    (tmp_path / "run").mkdir(mode=0o777)
    directory = RunDirectory(tmp_path)
    assert directory.path.parent.stat().st_mode & 0o777 == 0o700
    directory.close()


def test_left_over_is_removed(tmp_path: Path) -> None:
    """What a killed server left is gone, sockets included; what is not a server's stays."""
    left = tmp_path / "run" / "4711"
    left.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(store_socket(left)))
    (tmp_path / "run" / "notes").mkdir()
    directory = RunDirectory(tmp_path)
    assert sorted(os.listdir(tmp_path / "run")) == sorted([str(os.getpid()), "lock", "notes"])
    directory.close()
    assert sorted(os.listdir(tmp_path / "run")) == ["lock", "notes"]


def test_second_server_is_refused(tmp_path: Path) -> None:
    """While a process holds the directory another is refused, with the holder's number; when it was killed, it is not."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "\n"
        with pytest.raises(ConfigurationError, match=rf"in use by another sluicegate \(process {holder.pid}\).*--data"):
            RunDirectory(tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    RunDirectory(tmp_path).close()


def test_long_path_is_refused(tmp_path: Path) -> None:
    """A path in which no socket could be made is refused before anything is made in it."""
    data = tmp_path / ("x" * 100)
    with pytest.raises(ConfigurationError, match="too long a path"):
        RunDirectory(data)
    assert not data.exists()


def test_file_in_the_way(tmp_path: Path) -> None:
    """Where no directory can be made the error names the path."""
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigurationError, match=str(tmp_path / "run")):
        RunDirectory(tmp_path)


def test_names_of_sockets_differ(tmp_path: Path) -> None:
    """Every worker and the store have a socket of their own."""
    sockets = {store_socket(tmp_path), *(worker_socket(tmp_path, number) for number in range(1, 50))}
    assert len(sockets) == 50
