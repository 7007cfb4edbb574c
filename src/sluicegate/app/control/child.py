"""The rules service as the process that ``up`` starts beside its nodes, and watches over.

``python -m sluicegate.app.control.child DESCRIPTOR``: its end of the channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from functools import partial
from typing import BinaryIO

from sluicegate.app import logs
from sluicegate.app.control.run import serve_on
from sluicegate.app.server import log_loop_fault
from sluicegate.app.signals import StopRequests
from sluicegate.app.workers.life import listen, live, stop
from sluicegate.app.workers.messages import ControlReady, FromSupervisor, StartControl, Stop, encode
from sluicegate.clock import SystemClock

__all__ = ["main"]


def main(descriptor: int) -> int:
    """The whole life of the process; returns its exit status."""
    return live(descriptor, StartControl, _log, _serve)


def _log(start: StartControl) -> None:
    logs.configure(start.settings.log_format, part="control")
    logging.getLogger("uvicorn.error").handlers[:] = logs.LOGGER.handlers


async def _serve(start: StartControl, channel: socket.socket, lines: BinaryIO) -> int:
    asyncio.get_running_loop().set_exception_handler(log_loop_fault)
    requests = StopRequests()
    requests.listen()
    end = partial(stop, requests, "parent")

    def hear(message: FromSupervisor) -> None:
        if isinstance(message, Stop):
            end(force=message.force)

    listen("parent", lines, hear, partial(end, force=True))
    sockets = [(socket.socket(fileno=start.listener), True), (socket.socket(fileno=start.private), False)]

    def opened(token: str | None) -> None:
        with contextlib.suppress(OSError):
            channel.sendall(encode(ControlReady(token)))

    return await serve_on(sockets, start.settings, SystemClock(), opened, requests, start.copy)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
