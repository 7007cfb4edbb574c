"""How a server is run: as one process, or as several with a supervisor."""

from __future__ import annotations

from sluicegate.app.server import run_server
from sluicegate.app.settings import Settings
from sluicegate.app.workers.supervisor import run_workers

__all__ = ["run"]


def run(settings: Settings) -> int:
    """Serve until told to stop; returns the exit status. Raises ConfigurationError where it cannot start."""
    return run_workers(settings) if settings.supervised else run_server(settings)
