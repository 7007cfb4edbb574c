"""Whether each of several worker processes would count by itself, where the environment says so.

Most servers start their workers without a word to the application. What many of them read, and what hosting platforms set, is the
variable ``WEB_CONCURRENCY``; where it asks for several processes, a store in the memory of each lets a client have the limit in
each of them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping

from sluicegate.stores.base import Store
from sluicegate.stores.memory import MemoryStore

__all__ = ["VARIABLE", "WorkersWarning"]

VARIABLE = "WEB_CONCURRENCY"
_log = logging.getLogger("sluicegate.doors")


class WorkersWarning:
    """Said once. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said = False

    def look(self, store: Store, environment: Mapping[str, str] = os.environ) -> None:
        """Say it, if it has not been said, where ``store`` is in memory and ``environment`` asks for several workers."""
        asked = environment.get(VARIABLE, "")
        if not isinstance(store, MemoryStore) or not (asked.isdecimal() and int(asked) > 1):
            return
        with self._lock:
            if self._said:
                return
            self._said = True
        _log.warning(
            "%s is %s, and counters in memory belong to one process: with N workers a client gets up to N times the limit; "
            "give the limiter a store that they share, such as redis://",
            VARIABLE,
            asked,
        )
