"""How a server is run: as one process, or as several with a supervisor; perhaps with a rules service beside it."""

from __future__ import annotations

import asyncio
import sys
from typing import TextIO

from sluicegate.app import logs
from sluicegate.app.control.beside import opened_beside
from sluicegate.app.server import Alone, loop_factory, run_server, serve
from sluicegate.app.settings import Settings
from sluicegate.app.workers.supervisor import run_workers
from sluicegate.clock import Clock, SystemClock

__all__ = ["run"]


def run(settings: Settings) -> int:
    """Serve until told to stop; returns the exit status. Raises ConfigurationError where it cannot start."""
    if settings.supervised:
        return run_workers(settings)
    if settings.control is None:
        return run_server(settings)
    logs.configure(settings.log_format)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve_beside(settings, sys.stdout, SystemClock()))


async def _serve_beside(given: Settings, out: TextIO, clock: Clock) -> int:
    async with opened_beside(given, clock, out) as (settings, service):
        return await serve(settings, Alone(settings, out, None if service is None else service.start), clock)
