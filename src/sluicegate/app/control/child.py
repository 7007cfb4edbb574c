"""The rules service as the process that ``up`` starts beside its nodes, and watches over.

``python -m sluicegate.app.control.child DESCRIPTOR``: its end of the channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from typing import BinaryIO

from sluicegate.app import logs
from sluicegate.app.control.run import serve_on
from sluicegate.app.server import log_loop_fault, loop_factory
from sluicegate.app.signals import StopRequests
from sluicegate.app.workers.messages import ControlReady, Failed, StartControl, Stop, encode, from_supervisor, next_line
from sluicegate.bounds import ORPHAN_LIFE_S
from sluicegate.clock import SystemClock
from sluicegate.errors import SluicegateError

__all__ = ["main"]

_ORPHANED = 1
_NOT_STARTED = 2


def main(descriptor: int) -> int:
    """The whole life of the process; returns its exit status."""
    # Not in the terminal's foreground, yet it may log there, also where the terminal stops others that write (stty tostop).
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rb") as lines:
        line = next_line(lines)
        if not line:
            return _ORPHANED
        start = from_supervisor(line)
        assert isinstance(start, StartControl), "the first message"
        logs.configure(start.settings.log_format, part="control")
        logging.getLogger("uvicorn.error").handlers[:] = logs.LOGGER.handlers
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                return runner.run(_serve(start, channel, lines))
        except SluicegateError as error:
            with contextlib.suppress(OSError):
                channel.sendall(encode(Failed(str(error))))
            return _NOT_STARTED
        finally:
            # The thread that reads it would not let go of it.
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RD)


async def _serve(start: StartControl, channel: socket.socket, lines: BinaryIO) -> int:
    asyncio.get_running_loop().set_exception_handler(log_loop_fault)
    requests = StopRequests()
    requests.listen()
    arguments = (asyncio.get_running_loop(), requests, lines)
    # In a thread, so that a process whose loop hangs ends all the same when the one that started it is gone.
    threading.Thread(target=_obey, args=arguments, name="parent", daemon=True).start()
    sockets = [(socket.socket(fileno=start.listener), True), (socket.socket(fileno=start.private), False)]

    def opened(token: str | None) -> None:
        with contextlib.suppress(OSError):
            channel.sendall(encode(ControlReady(token)))

    return await serve_on(sockets, start.settings, SystemClock(), opened, requests, start.copy)


def _obey(loop: asyncio.AbstractEventLoop, requests: StopRequests, lines: BinaryIO) -> None:
    try:
        while line := next_line(lines):
            message = from_supervisor(line)
            if isinstance(message, Stop):
                loop.call_soon_threadsafe(_stop, requests, message.force)
        loop.call_soon_threadsafe(_stop, requests, True)
    except RuntimeError:
        return  # The loop is closed: the process is past its end, and has shut the channel itself.
    threading.Event().wait(ORPHAN_LIFE_S)
    os._exit(_ORPHANED)


def _stop(requests: StopRequests, force: bool) -> None:
    if force:
        requests.insist(by="parent")
    else:
        requests.request(by="parent")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
