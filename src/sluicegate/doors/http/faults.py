"""Faults of this program: one request gets a 500, they are logged and counted, and nothing else happens."""

from __future__ import annotations

import logging
from typing import Final

from sluicegate.doors.http.respond import Reply, problem_reply
from sluicegate.doors.http.stats import HttpStats
from sluicegate.doors.problem import problem

__all__ = ["fault_reply"]

_LOG: Final = logging.getLogger("sluicegate.http")


def fault_reply(stats: HttpStats, route: str) -> Reply:
    """Log and count the exception that is being handled; returns the answer to the request of ``route``."""
    _LOG.exception("the handler of %s failed", route)
    stats.internal_errors += 1
    return problem_reply(500, problem(500, "a fault of the server; whether anything was charged is not known"))
