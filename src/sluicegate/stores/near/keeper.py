"""The thread that keeps the leases of a process: asks the store for tokens before they run out, and gives back what is idle.

One daemon thread for each near store, from the first time tokens are wished. While anything is leased it looks four times in a horizon, and at
once when it is poked; while nothing is leased it sleeps until it is poked. It survives whatever the store does.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.bounds import KEEPER_CLOSE_MS
from sluicegate.clock import US_PER_MS, US_PER_S, SystemClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import LeaseItem, LeaseStore
from sluicegate.stores.locks import Locked
from sluicegate.stores.near.leases import Leases

__all__ = ["Chore", "Keeper"]

_PAUSE_PART: Final = 16
"""Pokes within this part of a tick are answered together."""


class Chore(Protocol):
    """Other work of the same thread. It is not done while a lock is held."""

    def due_us(self) -> int | None:
        """The steady time at which it is to be done; None for not at all at present."""
        ...

    def run(self) -> None:
        """Do it. What it raises is dropped."""
        ...


class Keeper(Locked):
    """Keeps ``leases``, which are ``owner``'s: they are touched only under its lock. ``now_us``: the steady clock. ``nodes`` says how many processes
    there are. ``returned`` is told the keys of which tokens went back while somebody was refused, and of which tokens came; without a lock. ``chores``
    may be added to at any time.

    ``error``: the last failure, None after an answer. After a fork the child has no thread until it is poked.
    """

    def __init__(
        self,
        owner: Locked,
        store: LeaseStore,
        leases: Leases,
        terms: LeaseTerms,
        now_us: Callable[[], int],
        nodes: Callable[[], int],
        returned: Callable[[Sequence[str]], None],
    ) -> None:
        self._owner = weakref.ref(owner)
        self._store = store
        self._leases = leases
        self._terms = terms
        self._now_us = now_us
        self._nodes = nodes
        self._returned = returned
        self._closing = False
        self.chores: list[Chore] = []
        self.error: StoreError | None = None
        super().__init__()
        _keepers.add(self)

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self._thread: threading.Thread | None = None
        self._event = threading.Event()
        self.wakeups = 0
        """How often the thread woke up in this process."""

    def poke(self) -> None:
        """Look now, or in a moment. Costs little where it was said already."""
        event = self._event
        if not event.is_set():
            event.set()
            if self._thread is None:
                self._start()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closing:
                event = self._event
                found = weakref.ref(self, lambda _: event.set())
                thread = threading.Thread(target=_run, args=(found, event), name="sluicegate leases", daemon=True)
                self._thread = thread
                try:
                    thread.start()
                except RuntimeError:
                    # No thread is to be had, as at the end of the program: all is decided exactly.
                    self._thread = None

    def close(self, timeout_ms: int = KEEPER_CLOSE_MS) -> None:
        """Give back what is held and end the thread; waits at most so long for it."""
        thread = self.end()
        if thread is None or thread is threading.current_thread():
            self.give_back()
        else:
            thread.join(timeout_ms / 1_000)

    def end(self) -> threading.Thread | None:
        """Have the thread give back what is held and end; who it is, None where there is none."""
        with self._lock:
            self._closing = True
            thread = self._thread
        self._event.set()
        return thread

    # ------------------------------------------------------------------ in the thread

    def look(self) -> int | None:
        """One look: what is due is sent and its answers taken. Returns in how many microseconds the next is due, None for not before a poke."""
        owner, leases = self._owner(), self._leases
        if owner is None:
            return None
        with owner._lock:
            leases.nodes = self._nodes()
            items = leases.step(self._now_us())
        self._send(owner, items)
        self._do_chores()
        dues = [due for chore in self.chores if (due := chore.due_us()) is not None]
        with owner._lock:
            due = leases.next_due_us()
        if due is not None:
            dues.append(due)
        return max(min(dues) - self._now_us(), 0) if dues else None

    def give_back(self) -> None:
        """Say to the store that nothing is held any more."""
        owner = self._owner()
        if owner is not None:
            with owner._lock:
                items = self._leases.close(self._now_us())
            self._send(owner, items)

    def _send(self, owner: Locked, items: Sequence[LeaseItem]) -> None:
        if not items:
            return
        leases = self._leases
        grants: Sequence[LeaseGrant | StoreError]
        try:
            grants = self._store.lease(leases.holder, self._terms, items)
            errors = [grant for _, grant in zip(items, grants, strict=True) if isinstance(grant, StoreError)]
            self.error = errors[0] if errors else None
        except Exception as problem:  # noqa: BLE001
            # Whatever it is, nobody may be left waiting for an answer, and the next counter must be asked for.
            error = problem if isinstance(problem, StoreError) else StoreError(f"leases: {problem!r}")
            grants = [error] * len(items)
            self.error = error
        with owner._lock:
            news = leases.answered(items, grants, self._now_us())
        if news:
            self._returned(news)

    def _do_chores(self) -> None:
        for chore in list(self.chores):
            due_us = chore.due_us()
            if due_us is not None and due_us <= self._now_us():
                try:
                    chore.run()
                except Exception as problem:  # noqa: BLE001
                    self.error = problem if isinstance(problem, StoreError) else StoreError(f"{chore!r}: {problem!r}")

    def _round(self, event: threading.Event) -> float | None:
        """One turn of the thread; for how many seconds it may sleep, None for until it is poked. -1: it ends."""
        self.wakeups += 1
        event.clear()
        if self._closing or self._event is not event:
            self.give_back()
            return -1.0
        try:
            wait_us = self.look()
        except Exception as problem:  # noqa: BLE001
            # A thread that has ended is missed by nobody until the leases run out.
            self.error = problem if isinstance(problem, StoreError) else StoreError(f"leases: {problem!r}")
            return self._leases.tick_us / US_PER_S
        return None if wait_us is None else wait_us / US_PER_S

    @property
    def pause_s(self) -> float:
        """The shortest time between two looks."""
        return self._leases.tick_us / _PAUSE_PART / US_PER_S


def _run(found: weakref.ref[Keeper], event: threading.Event) -> None:
    """The thread. It keeps no near store alive that nobody uses."""
    moment = threading.Event()
    while True:
        keeper = found()
        if keeper is None:
            return
        pause_s = keeper.pause_s
        wait_s = keeper._round(event)
        del keeper
        if wait_s is not None and wait_s < 0:
            return
        # What is poked within a moment is answered together.
        moment.wait(pause_s)
        if wait_s is None or wait_s > pause_s:
            event.wait(None if wait_s is None else wait_s - pause_s)


_keepers: weakref.WeakSet[Keeper] = weakref.WeakSet()


@atexit.register
def _give_all_back() -> None:
    """At the end of the program what is held goes back, all of it within ``KEEPER_CLOSE_MS``."""
    keepers, monotonic_us = list(_keepers), SystemClock().monotonic_us
    for keeper in keepers:
        keeper.end()
    end_us = monotonic_us() + KEEPER_CLOSE_MS * US_PER_MS
    for keeper in keepers:
        keeper.close(max(end_us - monotonic_us(), 0) // US_PER_MS)
