"""The thread that moves parts between regions, beside all decisions."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sluicegate.bounds import REGION_BEAT_US
from sluicegate.clock import US_PER_S
from sluicegate.stores.locks import Locked

__all__ = ["Mover"]

_BEAT_S = REGION_BEAT_US / US_PER_S
_JOIN_BEATS = 8


class Mover(Locked):
    """A daemon thread that calls ``step`` every beat while that says there is something to do; ``wake`` begins it again.

    ``awake``: it runs, or will. ``faults`` counts steps that raised. A forked process has none until it is woken.
    """

    def __init__(self, step: Callable[[], bool]) -> None:
        self.faults = 0
        self._step = step
        self._closed = False
        super().__init__()

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self.awake = False
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    def wake(self) -> None:
        """Begin, if it has not begun."""
        with self._lock:
            if self._closed or self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="sluicegate regions", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                # No thread is to be had; the next charge tries again.
                self._thread = None
                return
            self.awake = True

    def end(self) -> None:
        """Have it end, without waiting."""
        self._closed = True
        self._ended.set()

    def close(self) -> None:
        """Have it end, and wait a moment for the step under way."""
        self.end()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_BEATS * _BEAT_S)

    def _run(self) -> None:
        while not self._ended.wait(_BEAT_S):
            try:
                busy = self._step()
            except Exception:  # noqa: BLE001 - a fault in one step must not end the moving of parts
                self.faults += 1
                continue
            if not busy:
                break
        with self._lock:
            self.awake = False
            self._thread = None
