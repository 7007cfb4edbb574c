"""A worker as it begins and ends; its life is tested with servers (test_supervisor)."""

from __future__ import annotations

import socket
from pathlib import Path

from sluicegate.app.build import build
from sluicegate.app.settings import Settings
from sluicegate.app.workers.child import Worker
from sluicegate.app.workers.messages import Restarts, Start
from sluicegate.clock import ManualClock


async def test_a_supervisor_that_is_gone_when_the_worker_is_ready(rules: Path, tmp_path: Path) -> None:
    """That the worker is ready can no longer be told, which is no fault of its: it ends as an orphan does."""
    settings = Settings(rules=rules)
    ours, theirs = socket.socketpair()
    with ours, ours.makefile("rb") as lines:
        worker = Worker(Start(1, 2, settings, tmp_path, {}, Restarts({}, 0)), ours, lines)
        theirs.close()
        application = build(settings, rules, ManualClock())
        worker.opened(application, [("api", "http://127.0.0.1:1")])
        await application.close()
