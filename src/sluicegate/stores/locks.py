"""Locks that survive ``fork``.

A forked child has only the thread that forked. A lock that another thread held at that instant would stay locked in the
child for ever, so objects with a lock register here and get a new one in the child. What that other thread was changing
stays as it was; all users of this module bear an interrupted change of one entry.
"""

from __future__ import annotations

import os
import threading
import weakref

__all__ = ["Locked"]


class Locked:
    """Base of objects with one lock, ``_lock``, that is renewed in a forked child.

    The lock is reentrant. A signal handler or a finalizer that runs in the middle of a call and makes another on the same
    thread then sees a call half done, instead of waiting for itself for ever; and a release by a thread that does not hold
    it is an error and never opens another thread's section, which makes ``try: acquire() ... finally: release()`` safe.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._renew_lock()
        _holders.add(self)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()


_holders: weakref.WeakSet[Locked] = weakref.WeakSet()


def _renew() -> None:
    for holder in list(_holders):
        holder._renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
