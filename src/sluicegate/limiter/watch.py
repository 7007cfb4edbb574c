"""A limiter that follows its rules file, as the servers do: for programs that have no event loop to spare.

A thread looks at the file every ``POLL_INTERVAL_S``. A process that is forked has none of its parent's threads, so the watch begins again
there; whatever the parent was doing at that instant is done again. The limiter is held weakly: the thread ends with it.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from typing import TYPE_CHECKING

from sluicegate.rules.watched import POLL_INTERVAL_S, RulesFile

if TYPE_CHECKING:
    from sluicegate.limiter.limiter import Limiter

__all__ = ["Watch"]

_log = logging.getLogger("sluicegate.limiter")


class Watch:
    """Puts edits of ``file`` in service. One that cannot be used changes nothing, and is logged as an error, once.

    Begins with ``start`` and ends with ``stop``; a poll under way is finished.
    """

    def __init__(self, file: RulesFile, limiter: Limiter) -> None:
        self.file = file
        self._limiter = weakref.ref(limiter)
        self._ended = threading.Event()
        self.thread: threading.Thread | None = None
        """Does the looking; None before ``start``."""

    def start(self) -> None:
        """Begin to look at the file."""
        self.thread = threading.Thread(target=self._run, args=(self._ended,), name="sluicegate-rules", daemon=True)
        _watches.add(self)
        self.thread.start()

    def stop(self) -> None:
        """Look no more. Good more than once."""
        _watches.discard(self)
        self._ended.set()

    def look(self) -> bool:
        """Look at the file once; False where there is nobody to do it for."""
        limiter = self._limiter()
        if limiter is None:
            return False
        state = self.file.state
        version = state.version
        try:
            changed = self.file.poll(limiter.apply)
        except Exception:  # noqa: BLE001
            # A fault of ours in reading rules must not end the watch: the next edit may well be read.
            _log.exception("the rules in %s could not be looked at", self.file.path)
            return True
        if not changed:
            return True
        if state.error is not None:
            _log.error("%s is not in service, version %d is: %s", self.file.path, state.version, state.error)
        elif state.version != version:
            _log.info("%s is in service as version %d", self.file.path, state.version)
        else:
            _log.info("%s is again as version %d, which is in service", self.file.path, state.version)
        return True

    def restart(self) -> None:
        """Begin again in a forked process, where the thread is missing."""
        # The old event's lock may be held by a thread that is not there.
        self._ended = threading.Event()
        self.file.look_again()
        self.start()

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(POLL_INTERVAL_S):
            if not self.look():
                self.stop()


_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


def _restart() -> None:
    for watch in list(_watches):
        watch.restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_restart)
