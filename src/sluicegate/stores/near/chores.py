"""A thread for what is due behind requests. It runs while there is something to do, and wakes up for nothing else."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from sluicegate.clock import US_PER_S
from sluicegate.stores.locks import Locked

__all__ = ["Chores"]

_log = logging.getLogger("sluicegate.store")


class Chores(Locked):
    """Calls ``work``, a method, in a daemon thread when it is poked, and again when ``work`` says so (a steady time in microseconds; None: not again).

    The thread is started by the first poke and ends when there is nothing to do, or nobody uses the object of ``work`` any more. A forked child
    starts its own. Where ``work`` raises, the log says so, and it is called again a second later.
    """

    def __init__(self, name: str, work: Callable[[], int | None], now_us: Callable[[], int]) -> None:
        self._name = name
        self._work = weakref.WeakMethod(work)
        self._now_us = now_us
        super().__init__()

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._poked = self._closed = False

    def poke(self) -> None:
        """There is something to do."""
        with self._changed:
            if self._closed:
                return
            self._poked = True
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"sluicegate {self._name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    # No thread is to be had, or the interpreter ends; the next poke tries again.
                    return
                self._thread = thread
            self._changed.notify()

    def close(self) -> None:
        """End the thread; what it is doing is done when this returns."""
        with self._changed:
            self._closed = True
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        due_us: int | None = None
        while True:
            with self._changed:
                while not (self._poked or self._closed):
                    if due_us is None:
                        self._thread = None
                        return
                    left_us = due_us - self._now_us()
                    if left_us <= 0:
                        break
                    self._changed.wait(left_us / US_PER_S)
                if self._closed:
                    self._thread = None
                    return
                self._poked = False
            work = self._work()
            if work is None:
                return
            try:
                due_us = work()
            except Exception:  # noqa: BLE001
                # A thread that has ended is missed by nobody until what it does is long overdue.
                _log.exception("%s: what was due failed", self._name)
                due_us = self._now_us() + US_PER_S
            del work
