"""What every call of a near store rests on: its parts, the first step of a request, and what is remembered."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import NoReturn, Protocol, runtime_checkable

from sluicegate.clock import Clock, steady_us
from sluicegate.stores.base import (
    Answer,
    AsyncStore,
    BulkStore,
    Counter,
    FleetStore,
    LeaseStore,
    NewsStore,
    Request,
    Store,
)
from sluicegate.stores.locks import Locked
from sluicegate.stores.near.denials import Denials
from sluicegate.stores.near.front import Asking, Front
from sluicegate.stores.near.hot import HotStore
from sluicegate.stores.near.keeper import Keeper
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.near.stats import NearStats
from sluicegate.stores.near.warmth import Warmth

__all__ = ["NearCore", "SharedStore"]


@runtime_checkable
class SharedStore(Store, LeaseStore, AsyncStore, Protocol):
    """What a near store can stand in front of: a store over a network that grants leases."""


class NearCore(Locked):
    """The parts of a near store."""

    def __init__(self, store: SharedStore, settings: NearSettings, clock: Clock, *, keep: bool = True) -> None:
        self.store = store
        self.settings = settings
        self.stats = NearStats()
        self.now_us = steady_us(clock)
        self._wall_us = clock.now_us
        self._news = store if isinstance(store, NewsStore) else None
        self._bulk = store if isinstance(store, BulkStore) else None
        self._fleet = store if isinstance(store, FleetStore) else None
        self._end_of_news: Callable[[], object] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._keep = keep
        name_of = hash if self._news is None else self._news.news_name
        nodes = partial(_nodes_of, self._fleet)
        # Who hears no news asks again as often as ever.
        stretch_us = 0 if self._news is None else settings.stretch_max_us
        denials = Denials(settings.denials_max, settings.trust_us, settings.terms, name_of, nodes, stretch_us)
        leases = Leases(settings)
        self.front = Front(leases, denials, self.stats, clock.now_us, self.poke)
        random = Random()  # noqa: S311 -- spreads load; nothing is kept secret by it
        self.hot = HotStore(store, settings, self.now_us, clock.now_us, random, threads=keep)
        self.warmth = Warmth(self, settings, leases, self.hot, self.now_us)
        self.front.saw = self.warmth.saw
        self.front.remembers = settings.denials_max > 0
        self._born = False
        super().__init__()
        self._born = True
        self._keeper = Keeper(self, store, leases, settings.terms, self.now_us, self._known_nodes, self._returned)
        self._keeper.chores.append(self.warmth)

    def __repr__(self) -> str:
        return f"NearStore({self.store!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a NearStore cannot be pickled: what it holds belongs to one process; make one in each process")

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self._acquire = self._lock.acquire
        self._release = self._lock.release
        if self._born:
            self.front.leases.forked()
            self.warmth.forked()

    def begin(self, request: Request) -> Answer | Asking:
        """The first half of ``submit``: the answer, where the store need not be asked, or what ``go_on`` must be called with, on this loop."""
        acquire, release = self._acquire, self._release
        try:
            acquire()
            front = self.front
            now_us = self.now_us()
            begun = front.begin_one(request, now_us) if len(request) == 1 else front.begin(request, now_us)
        finally:
            release()
        assert begun is not None, "only one of a batch must wait"
        return begun

    @property
    def nodes(self) -> int:
        """The store's, 1 where it does not know. See ``FleetStore.nodes``."""
        return _nodes_of(self._fleet)

    # ------------------------------------------------------------------ what is remembered

    def forget(self, keys: Iterable[tuple[Counter, str]] | None = None) -> None:
        """Take nothing for refused any more that these counters refused, None: any counter. Their limits may have been raised.

        What is leased of them ends as it would; a limit that is lowered binds when that is spent or over.
        """
        self._forget(None if keys is None else [counter.prefix + subject for counter, subject in keys])

    def _forget(self, keys: Sequence[str] | None) -> None:
        with self._lock:
            self.front.denials.forget(keys)
            self.front.leases.forget(keys)

    def _returned(self, keys: Sequence[str]) -> None:
        """Tokens of these counters went back to the store while somebody was refused them."""
        self._forget(keys)
        if self._news is not None:
            self._news.publish(keys)

    def _known_nodes(self) -> int:
        return self.nodes

    @property
    def failing(self) -> bool:
        """Whether the last exchange about leases or hot counters has failed."""
        return self._keeper.error is not None

    @property
    def failure(self) -> str | None:
        """Why it has, None where it has not."""
        error = self._keeper.error
        return None if error is None else str(error)

    def poke(self) -> None:
        """Have the keeper look at the leases now."""
        if self._keep:
            self._keeper.poke()

    def step(self) -> int | None:
        """Look at the leases now, and say to the store what is due. Microseconds until there is more to do; None: not before somebody asks for tokens.

        For who made this without a keeper. It waits for the store, and never raises for it.
        """
        return self._keeper.look()

    # ------------------------------------------------------------------ inside

    def _learn(self, asking: Asking, answer: Answer) -> None:
        with self._lock:
            self.front.landed(asking, answer, self.now_us())
        self._listen()

    def _listen(self) -> None:
        """Hear of what may pass again, from the first refusal on that is remembered."""
        if self._news is None or self._end_of_news is not None or not self.front.denials.active:
            return
        with self._lock:
            if self._end_of_news is None:
                # The store is no reason for this object to stay when nobody uses it any more.
                end = self._news.subscribe(partial(_heard, weakref.ref(self)))
                self._end_of_news = finalizer = weakref.finalize(self, end)
                finalizer.atexit = False

    def _stop_listening(self) -> None:
        end, self._end_of_news = self._end_of_news, None
        if end is not None:
            end()

    def _drop(self, keys: Sequence[tuple[Counter, str]]) -> None:
        """Spend nothing more that was granted by a counter that is about to begin anew: it will grant all of it again."""
        with self._lock:
            self.front.leases.drop([counter.prefix + subject for counter, subject in keys])

    def _abandon(self, asking: Asking) -> None:
        with self._lock:
            self.front.abandon(asking)


def _heard(found: weakref.ref[NearCore], names: Sequence[int] | None) -> None:
    core = found()
    if core is not None:
        with core._lock:
            core.front.denials.heard(names)


def _nodes_of(fleet: FleetStore | None) -> int:
    return 1 if fleet is None else fleet.nodes
