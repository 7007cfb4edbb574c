"""Work that nobody's request should wait for longer than its deadline: connecting, probing, looking for servers anew."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sluicegate.stores.locks import Locked
from sluicegate.stores.redis.background import start_thread

__all__ = ["Errand"]


class Errand(Locked):
    """One piece of blocking work, done in a daemon thread that ends with it, at most one at a time.

    Safe from any thread; ``start`` does not block, so it may be called on an event loop. A forked child runs its own. ``work`` must end by itself
    and must not raise.
    """

    __slots__ = ("_ended", "_name", "_running", "_waiting", "_work")

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        super().__init__()

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self._running = False
        self._waiting: list[Callable[[], None]] = []
        self._ended = threading.Condition(self._lock)

    def start(self, ended: Callable[[], None] | None = None) -> None:
        """Begin, where it is not under way already. ``ended`` is called once when it is done, in its thread or this one."""
        with self._lock:
            if ended is not None:
                self._waiting.append(ended)
            if self._running:
                return
            self._running = True
        # Where no thread is to be had the caller goes on as after work in vain.
        start_thread(self._name, self._run, self._finish)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is done; False where it is not within ``timeout_s``."""
        with self._lock:
            return self._ended.wait_for(lambda: not self._running, max(timeout_s, 0))

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            self._running = False
            waiting, self._waiting = self._waiting, []
            self._ended.notify_all()
        for ended in waiting:
            ended()
