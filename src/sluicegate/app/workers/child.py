"""One worker: the server of a single process, started, told and watched over by a supervisor.

``python -m sluicegate.app.workers.child DESCRIPTOR NAME``: the descriptor is its end of the channel, the name is for process lists.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from functools import partial
from pathlib import Path
from typing import BinaryIO

from sluicegate.app import logs
from sluicegate.app.build import Application, Listening, Role
from sluicegate.app.server import serve
from sluicegate.app.signals import StopRequests
from sluicegate.app.workers.fleet import Fleet
from sluicegate.app.workers.life import listen, live, stop
from sluicegate.app.workers.messages import FromSupervisor, Ready, Restarts, Start, Stop, encode
from sluicegate.app.workers.ports import remove_socket
from sluicegate.bounds import ORPHAN_DRAIN_S
from sluicegate.clock import SystemClock
from sluicegate.doors.listen import adopt_listener
from sluicegate.errors import ConfigurationError

__all__ = ["Worker", "main"]


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
        """Take signals, which are for this worker alone, and listen to the supervisor."""
        requests.listen()
        listen("supervisor", self._lines, partial(self._hear, requests), partial(self._orphaned, requests))

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

    def _hear(self, requests: StopRequests, message: FromSupervisor) -> None:
        if isinstance(message, Restarts) and self.fleet is not None:
            self.fleet.restarts = message
        elif isinstance(message, Stop):
            stop(requests, "supervisor", force=message.force)

    def _orphaned(self, requests: StopRequests) -> None:
        requests.request(reason="the supervisor is gone")
        for path, inode in self._files:
            remove_socket(path, inode)
        asyncio.get_running_loop().call_later(ORPHAN_DRAIN_S, partial(stop, requests, "supervisor", force=True))


def main(descriptor: int) -> int:
    """The whole life of a worker; returns its exit status."""
    return live(descriptor, Start, lambda start: logs.configure(start.settings.log_format, worker=start.worker), _serve)


async def _serve(start: Start, channel: socket.socket, lines: BinaryIO) -> int:
    return await serve(start.settings, Worker(start, channel, lines), SystemClock())


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
