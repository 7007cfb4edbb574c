"""One worker: the server of a single process, started, told and watched over by a supervisor.

``python -m sluicegate.app.workers.child DESCRIPTOR NAME``: the descriptor is its end of the channel, the name is for process lists.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import BinaryIO

from sluicegate.app import logs
from sluicegate.app.build import Application, Listening, Role
from sluicegate.app.server import loop_factory, serve
from sluicegate.app.signals import StopRequests
from sluicegate.app.workers.fleet import Fleet
from sluicegate.app.workers.messages import Failed, Ready, Restarts, Start, Stop, encode, from_supervisor, next_line
from sluicegate.app.workers.ports import remove_socket
from sluicegate.bounds import ORPHAN_DRAIN_S, ORPHAN_LIFE_S
from sluicegate.clock import SystemClock
from sluicegate.doors.listen import adopt_listener
from sluicegate.errors import ConfigurationError, SluicegateError

__all__ = ["Worker", "main"]

_ORPHANED = 1
_NOT_STARTED = 2


class Worker:
    """The surroundings of a server process that is one of several (see ``server.Surroundings``)."""

    def __init__(self, start: Start, channel: socket.socket, lines: BinaryIO) -> None:
        self._sockets = start.sockets
        self._files: list[tuple[Path, int]] = []
        """Those of the inherited sockets, which the supervisor removes if it can."""
        self._channel = channel
        self._lines = lines
        self.fleet: Fleet | None = Fleet(start.worker, start.workers, start.directory, start.restarts)

    def begin(self, requests: StopRequests) -> None:
        """Take signals, which are for this worker alone, and listen to the supervisor.

        In a thread, so that a worker whose loop hangs ends all the same when the supervisor is gone.
        """
        requests.listen()
        arguments = (asyncio.get_running_loop(), requests)
        threading.Thread(target=self._obey, args=arguments, name="supervisor", daemon=True).start()

    async def open(self, role: Role) -> Listening:
        descriptor = self._sockets.get(role.name)
        if descriptor is not None:
            if role.protocol_factory is None:
                raise ConfigurationError(
                    f"several workers cannot share {role.address} with this gRPC engine: use HOST:PORT, or ngh2"
                )
            path = Path(role.address.path or "")
            self._files.append((path, path.stat().st_ino))  # noqa: ASYNC240 - one stat of a local file, at start-up
            return await adopt_listener(socket.socket(fileno=descriptor), role.address, role.protocol_factory)
        return await role.open(reuse_port=role.address.path is None)

    def opened(self, _application: Application, urls: list[tuple[str, str]]) -> None:
        # A supervisor that is gone by now is noticed by whoever listens to it.
        with contextlib.suppress(OSError):
            self._channel.sendall(encode(Ready(urls)))

    def _obey(self, loop: asyncio.AbstractEventLoop, requests: StopRequests) -> None:
        try:
            while line := next_line(self._lines):
                message = from_supervisor(line)
                if isinstance(message, Restarts) and self.fleet is not None:
                    self.fleet.restarts = message
                elif isinstance(message, Stop):
                    loop.call_soon_threadsafe(_stop, requests, message.force)
            loop.call_soon_threadsafe(self._orphaned, requests)
        except RuntimeError:
            return  # The loop is closed: the worker is past its end, and has shut the channel itself.
        threading.Event().wait(ORPHAN_LIFE_S)
        os._exit(_ORPHANED)

    def _orphaned(self, requests: StopRequests) -> None:
        requests.request(reason="the supervisor is gone")
        for path, inode in self._files:
            remove_socket(path, inode)
        asyncio.get_running_loop().call_later(ORPHAN_DRAIN_S, _stop, requests, True)


def _stop(requests: StopRequests, force: bool) -> None:
    if force:
        requests.insist(by="supervisor")
    else:
        requests.request(by="supervisor")


def main(descriptor: int) -> int:
    """The whole life of a worker; returns its exit status."""
    # Not in the terminal's foreground, yet it may log there, also where the terminal stops others that write (stty tostop).
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rb") as lines:
        line = next_line(lines)
        if not line:
            return _ORPHANED
        start = from_supervisor(line)
        assert isinstance(start, Start), "the first message"
        logs.configure(start.settings.log_format, worker=start.worker)
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                return runner.run(serve(start.settings, Worker(start, channel, lines), SystemClock()))
        except SluicegateError as error:
            with contextlib.suppress(OSError):
                channel.sendall(encode(Failed(str(error))))
            return _NOT_STARTED
        finally:
            # The thread that reads it would not let go of it.
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RD)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
