"""Requests to stop: from signals, and from whoever started the process."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any

from sluicegate.app import logs

__all__ = ["StopRequests"]

_ONE_REQUEST_S = 0.2
"""Signals this close together are one request to stop: a supervisor and a process group often deliver it twice."""


class StopRequests:
    """Counts the requests to stop of one event loop. ``stop`` is set by the first, ``force`` by the second."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stopped_s = 0.0

    def listen(self) -> None:
        """Take SIGTERM, SIGINT and SIGHUP (a closed terminal) as requests."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Under nohup SIGHUP is ignored, and stays so.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._arrived, number)

    def request(self, **cause: Any) -> None:
        """The first request is logged with its ``cause`` and takes effect; later ones change nothing."""
        if not self.stop.is_set():
            logs.event(logging.INFO, "stop_requested", **cause)
            self._stopped_s = self._loop.time()
            self.stop.set()

    def insist(self, **cause: Any) -> None:
        """Cut off what is still being served."""
        self.request(**cause)
        if not self.force.is_set():
            logs.event(logging.WARNING, "stop_forced", **cause)
            self.force.set()

    def _arrived(self, number: signal.Signals) -> None:
        if not self.stop.is_set():
            self.request(signal=number.name)
        elif self._loop.time() - self._stopped_s >= _ONE_REQUEST_S:
            self.insist(signal=number.name)

    async def unless_forced(self, work: Any) -> Any:
        """The result of ``work``, or None where the process is told a second time before it is had."""
        return await _unless(self.force, work)

    async def unless_stopped(self, work: Any) -> Any:
        """The result of ``work``, or None where the process is told to stop before it is had."""
        return await _unless(self.stop, work)


async def _unless(event: asyncio.Event, work: Any) -> Any:
    task = asyncio.ensure_future(work)
    told = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if task.done():
        return task.result()
    task.cancel()
    return None
