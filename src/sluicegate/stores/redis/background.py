"""Threads for what nobody's request waits for, and what the end of the program owes them.

They are daemons, so that a name lookup that hangs holds no program up for long. But one that is in a TLS handshake when the
process runs its exit handlers may crash it: OpenSSL frees there what the handshake uses. So the interpreter, when all else has ended,
waits a moment for those under way; each ends by itself.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

from sluicegate.bounds import REDIS_EXIT_MS
from sluicegate.clock import US_PER_MS, US_PER_S, SystemClock

__all__ = ["start_thread"]

_under_way: set[threading.Thread] = set()


def start_thread(name: str, work: Callable[[], None], unstarted: Callable[[], None]) -> None:
    """Do ``work`` in a daemon thread; ``unstarted`` is called where there is no thread to be had.

    What a signal handler raises meanwhile is raised, and one of the two is done all the same.
    """

    # Whoever takes it says which of the two it is: an interrupted caller does not know whether the thread will begin.
    turn = threading.Lock()

    def run() -> None:
        if not turn.acquire(blocking=False):
            return
        try:
            work()
        finally:
            _under_way.discard(thread)

    thread = threading.Thread(target=run, name=f"sluicegate {name}", daemon=True)
    _under_way.add(thread)
    try:
        thread.start()
    except BaseException as error:
        if turn.acquire(blocking=False):
            _under_way.discard(thread)
            unstarted()
        if not isinstance(error, RuntimeError):
            raise


@atexit.register
def _wait() -> None:
    """Wait for all, no longer than ``REDIS_EXIT_MS`` together. In a forked child the parent's are over."""
    clock = SystemClock()
    until_us = clock.monotonic_us() + REDIS_EXIT_MS * US_PER_MS
    for thread in list(_under_way):
        thread.join(max(until_us - clock.monotonic_us(), 0) / US_PER_S)
