"""One worker as the supervisor sees it: a process, and the channel to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from sluicegate.app.workers import child
from sluicegate.app.workers.messages import Failed, FromSupervisor, Ready, Start, encode, from_worker
from sluicegate.bounds import WORKER_MESSAGE_BYTES_MAX, WORKER_START_S
from sluicegate.errors import ConfigurationError, InternalError

__all__ = ["WorkerProcess", "describe", "environment", "interpreter_flags"]

_PACKAGES = Path(__file__).resolve().parents[3]


class WorkerProcess:
    """A worker that was started, for as long as it lives."""

    def __init__(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.number = number
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def spawn(cls, start: Start) -> WorkerProcess:
        """Start a fresh interpreter and tell it what to do.

        It gets a process group of its own, so that the terminal's Ctrl-C reaches the supervisor only. Nothing but its end of the
        channel and the sockets of ``start`` is inherited.
        """
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(ours.close)
            process = await asyncio.create_subprocess_exec(
                sys.executable, *interpreter_flags(), "-m", child.__name__, str(theirs.fileno()),
                f"worker-{start.worker}-of-{start.workers}",
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno(), *start.sockets.values()],
                process_group=0, env=environment(),
            )  # fmt: skip
            undo.pop_all()
        reader, writer = await asyncio.open_connection(sock=ours, limit=WORKER_MESSAGE_BYTES_MAX)
        worker = cls(start.worker, process, reader, writer)
        worker.tell(start)
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> Ready:
        """Wait until its listeners are open; raises ConfigurationError with its reason where it cannot start."""
        try:
            async with asyncio.timeout(WORKER_START_S):
                line = await self._reader.readline()
        except TimeoutError:
            raise InternalError(f"worker {self.number} was not ready after {WORKER_START_S:g} s") from None
        except (OSError, ValueError):
            line = b""
        if not line:
            status = await self.wait()
            raise InternalError(f"worker {self.number} ended before it was ready, {describe(status)}")
        message = from_worker(line)
        if isinstance(message, Failed):
            raise ConfigurationError(message.reason)
        assert isinstance(message, Ready), "what a worker says"
        return message

    def tell(self, message: FromSupervisor) -> None:
        """Send a message, if it can still be had; one that does not read its messages will be ended."""
        if self._writer.transport.get_write_buffer_size() < WORKER_MESSAGE_BYTES_MAX:
            self._writer.write(encode(message))

    async def wait(self) -> int:
        """Wait for its end; its exit status, negative for a signal."""
        status = await self._process.wait()
        self._writer.close()
        return status

    def kill(self) -> bool:
        """End it in whatever state it is; False where it has ended already."""
        if self._process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        return True


def describe(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def interpreter_flags() -> list[str]:
    """How this interpreter runs, for another one; -P, because what lies in the working directory is not to be imported."""
    flags = sys.flags
    return [
        "-P",
        *(["-E"] if flags.ignore_environment else []),
        *(["-s"] if flags.no_user_site else []),
        *(["-O"] * flags.optimize),
        *(word for option in sys.warnoptions for word in ("-W", option)),
    ]


def environment() -> dict[str, str]:
    """Ours; where this package was found only because of the working directory or the script's, it is named."""
    variables = dict(os.environ)
    if _PACKAGES in {Path(path or os.curdir).resolve() for path in sys.path[:1]}:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_PACKAGES), variables.get("PYTHONPATH"))))
    return variables
