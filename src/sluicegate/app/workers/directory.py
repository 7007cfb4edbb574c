"""``DATA/run``: the sockets that the processes of one server share, and the lock that keeps two servers apart."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from sluicegate.bounds import UNIX_PATH_BYTES_MAX, WORKERS_MAX
from sluicegate.errors import ConfigurationError

__all__ = ["RunDirectory", "control_socket", "own_api_socket", "rules_in_service", "store_socket", "worker_socket"]


def worker_socket(directory: Path, worker: int) -> Path:
    """Where a worker answers health and metrics to its own machine."""
    return directory / f"{worker}.sock"


def control_socket(directory: Path) -> Path:
    """Where the rules service answers the nodes that were started with it."""
    return directory / "feed.sock"


def own_api_socket(directory: Path) -> Path:
    """Where the only process that was started with a rules service lets that operate on its counters."""
    return directory / "own.sock"


def store_socket(directory: Path) -> Path:
    """Where the embedded store listens."""
    return directory / "store.sock"


def rules_in_service(directory: Path) -> Path:
    """What is kept of the rule file, for a worker that is started while the file is bad."""
    return directory / "rules"


class RunDirectory:
    """The directory of one start, ``DATA/run/PID``, for its user only (0700).

    Each start has its own, so that a process of the one before, which may still be ending, cannot remove a socket of the new one.
    What earlier starts have left there is removed. The lock is the kernel's: it ends with the process, whatever ends that.
    Raises ConfigurationError where another server holds it, and where the path is too long for a socket.
    """

    def __init__(self, data: Path) -> None:
        run = (data / "run").absolute()
        self.path = run / str(os.getpid())
        longest = max(
            len(os.fsencode(worker_socket(self.path, WORKERS_MAX))), len(os.fsencode(store_socket(self.path)))
        )
        if longest > UNIX_PATH_BYTES_MAX:
            raise ConfigurationError(
                f"--data {data} is too long a path: sockets are made in {self.path}, and a socket's path has at most "
                f"{UNIX_PATH_BYTES_MAX} bytes"
            )
        try:
            run.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Whoever may write here may put a socket of their own in the place of ours.
            if run.is_symlink() or run.stat().st_uid != os.geteuid():
                raise ConfigurationError(f"--data: {run} belongs to another user; choose another")
            run.chmod(0o700)
            self._lock = _lock(run / "lock", data)
            for left in run.iterdir():
                if left.name.isdecimal() and left.is_dir():
                    shutil.rmtree(left)
            self.path.mkdir(mode=0o700)
        except OSError as error:
            raise ConfigurationError(f"--data: cannot use {error.filename or run}: {error.strerror}") from error

    def close(self) -> None:
        """Remove the directory and let go of the lock. The lock's file stays: another process may hold it open already."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _lock(path: Path, data: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise ConfigurationError(
            f"--data {data} is in use by another sluicegate (process {holder or 'unknown'}); give each its own --data"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    return descriptor
