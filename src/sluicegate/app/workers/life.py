"""The life of a process that another one starts, tells what to do, and watches over: a worker, or a rules service beside nodes.

The two have one end each of a channel. What comes over it is read in a thread, so that a process whose loop hangs ends all the same when the one
that started it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, BinaryIO, TypeVar

from sluicegate.app.server import loop_factory
from sluicegate.app.signals import StopRequests
from sluicegate.app.workers.messages import (
    Failed,
    FromSupervisor,
    Start,
    StartControl,
    encode,
    from_supervisor,
    next_line,
)
from sluicegate.bounds import ORPHAN_LIFE_S
from sluicegate.errors import SluicegateError

__all__ = ["listen", "live", "stop"]

_ORPHANED = 1
_NOT_STARTED = 2

S = TypeVar("S", Start, StartControl)


def live(
    descriptor: int,
    kind: type[S],
    log: Callable[[S], None],
    serve: Callable[[S, socket.socket, BinaryIO], Coroutine[Any, Any, int]],
) -> int:
    """The whole life of the process; returns its exit status.

    ``descriptor``: its end of the channel. ``kind``: of the first message, with which ``log`` prepares the log and ``serve`` does the work.
    """
    # Not in the terminal's foreground, yet it may log there, also where the terminal stops others that write (stty tostop).
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rb") as lines:
        line = next_line(lines)
        if not line:
            return _ORPHANED
        start = from_supervisor(line)
        assert isinstance(start, kind), "the first message"
        log(start)
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                return runner.run(serve(start, channel, lines))
        except SluicegateError as error:
            with contextlib.suppress(OSError):
                channel.sendall(encode(Failed(str(error))))
            return _NOT_STARTED
        finally:
            # The thread that reads it would not let go of it.
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RD)


def listen(name: str, lines: BinaryIO, hear: Callable[[FromSupervisor], None], orphaned: Callable[[], None]) -> None:
    """Hand what is said to ``hear``, on the running loop; where nobody is left to say anything, call ``orphaned`` there.

    A process that lives ``ORPHAN_LIFE_S`` after that is ended. ``name``: of the thread.
    """
    arguments = (asyncio.get_running_loop(), lines, hear, orphaned)
    threading.Thread(target=_listen, args=arguments, name=name, daemon=True).start()


def _listen(
    loop: asyncio.AbstractEventLoop,
    lines: BinaryIO,
    hear: Callable[[FromSupervisor], None],
    orphaned: Callable[[], None],
) -> None:
    try:
        while line := next_line(lines):
            loop.call_soon_threadsafe(hear, from_supervisor(line))
        loop.call_soon_threadsafe(orphaned)
    except RuntimeError:
        return  # The loop is closed: the process is past its end, and has shut the channel itself.
    threading.Event().wait(ORPHAN_LIFE_S)
    os._exit(_ORPHANED)


def stop(requests: StopRequests, by: str, *, force: bool) -> None:
    """Pass on what was said of the end."""
    if force:
        requests.insist(by=by)
    else:
        requests.request(by=by)
