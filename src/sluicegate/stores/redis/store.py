"""Counters in a Redis or Valkey, shared by all processes that use it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.bounds import REDIS_NEWS_FLUSH_MS, REDIS_WARM_MS
from sluicegate.clock import US_PER_MS, Clock
from sluicegate.errors import StoreError
from sluicegate.stores.base import (
    Answer,
    Charge,
    Counter,
    Done,
    Heard,
    LeaseItem,
    Receipt,
    Request,
    ServerHealth,
    Single,
    check_leasing,
)
from sluicegate.stores.keys import FIELD_BYTES
from sluicegate.stores.redis.async_side import AsyncSide
from sluicegate.stores.redis.confirming import confirmed
from sluicegate.stores.redis.core import Core
from sluicegate.stores.redis.link import ReplyError, check_authorities
from sluicegate.stores.redis.settings import RedisSettings
from sluicegate.stores.redis.sync_driver import SyncDriver
from sluicegate.stores.region_parts import PartStep, PartView

__all__ = ["RedisStore"]


class RedisStore:
    """The store of many processes: a ``Store``, an ``AsyncStore``, a ``FleetStore``, a ``LeaseStore`` and a ``NewsStore``. Safe from any thread and event loop.

    Guarantees: all charges of a request are decided and made in one atomic step at the server's time; a batch of up to
    ``REDIS_BATCH_MAX`` requests too, larger ones in several steps. A call returns or raises StoreError within the URL's
    ``timeout_ms``, connecting included. What was sent is never sent again, except what the server says it did not do. A call
    that fails may have been charged; nothing more than it asked for. While a server is down calls fail at once and it is probed.

    ``clock`` guesses calendar windows; counters are dated by the server. ``time_source`` replaces the server's time, for
    tests only. ``counted`` False: this process admits nobody and is none of those that a limit is divided by (``nodes``, which is then what
    the URL says). Nothing is connected until the first call or ``warm``. A fork makes connections of its own.
    """

    def __init__(
        self,
        settings: RedisSettings | str,
        *,
        clock: Clock | None = None,
        time_source: Clock | None = None,
        counted: bool = True,
    ) -> None:
        if isinstance(settings, str):
            settings = RedisSettings.from_url(settings)
        check_authorities(settings)
        self.settings = settings
        self._core = Core(settings, clock, time_source, counted=counted)
        self.stats = self._core.stats
        self._calls = self._core.calls
        self._driver = SyncDriver(self._core)
        self._async = AsyncSide(self._core)

    def __repr__(self) -> str:
        return f"RedisStore({self.settings.address!r}, db={self.settings.db})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RedisStore cannot be pickled: connections belong to one process; make one in each process")

    # ------------------------------------------------------------------ for threads

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """Decide a batch in order. Raises PartlyDecided where some requests have no answer. See ``Store.decide``."""
        return self._driver.perform(self._calls.decide(requests, peek=peek)) if requests else []

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """Decide one request."""
        answer = self._driver.quick(request, peek=peek)
        return self._driver.perform(self._calls.decide_one(request, peek=peek)) if answer is None else answer

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """Decide a batch of requests of one charge each. See ``decide``."""
        return self._driver.perform(self._calls.decide_singles(charges, peek=peek))

    def refund(self, receipts: Sequence[Receipt]) -> int:
        """Give back what is due. See ``Store.refund``."""
        if not receipts:
            return 0
        with self._told(receipts):
            return self._driver.perform(self._calls.refund(receipts))

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        """Give back up to the cost of each of what is used. See ``Store.grant``."""
        if not charges:
            return []
        with self._told(charges):
            return self._driver.perform(self._calls.grant(charges))

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        """One step of a holder on each of these counters. See ``LeaseStore.lease``.

        With ``terms.confirmed`` it takes until a replica has what was granted, half of the deadline at most.
        """
        check_leasing(holder, items)
        if not items:
            return []
        steps = self._calls.lease(holder, terms, items)
        return self._driver.perform(confirmed(self._core, steps, holder, terms, items) if terms.confirmed else steps)

    def parts(self, steps: Sequence[PartStep]) -> list[PartView | StoreError]:
        """Steps on the parts of counters that regions share. See ``PartStore.parts``."""
        return self._driver.perform(self._calls.parts(steps)) if steps else []

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """Forget these counters, unreadable ones too; returns how many keys existed."""
        if not keys:
            return 0
        with self._told(keys):
            return self._driver.perform(self._calls.reset(keys))

    def warm(self) -> bool:
        """Connect, learn the key secret and load the scripts, within a second; False where a server is not there.

        Never raises for a store that is absent: every call tries again.
        """
        core = self._core
        deadline_us = core.clock.monotonic_us() + REDIS_WARM_MS * US_PER_MS
        loads = [(b"SCRIPT", b"LOAD", script.text) for script in self._core.packing.scripts.loaded]
        try:
            core.await_ready(deadline_us, again=True)
            replies = [reply for node in core.router.nodes() for reply in node.ask(loads, deadline_us)]
        except StoreError:
            return False
        return not any(isinstance(reply, ReplyError) for reply in replies)

    def close(self) -> None:
        """Close all connections; every later call but ``close`` raises StoreError. News that wait are sent before, within ``REDIS_NEWS_FLUSH_MS``."""
        self._core.news.flush(REDIS_NEWS_FLUSH_MS / 1_000)
        self._core.close()
        self._async.close_soon()

    # ------------------------------------------------------------------ for coroutines and callbacks

    def submit(self, request: Request, done: Done, *, peek: bool = False) -> None:
        """``decide_one`` by callback. See ``AsyncStore.submit``."""
        self._async.submit(request, done, peek=peek)

    async def adecide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """``decide_one`` for coroutines: waits without blocking the event loop."""
        return await self._async.decide_one(request, peek=peek)

    async def adecide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """``decide`` for coroutines."""
        return await self._async.perform(self._calls.decide(requests, peek=peek)) if requests else []

    async def arefund(self, receipts: Sequence[Receipt]) -> int:
        """``refund`` for coroutines."""
        if not receipts:
            return 0
        with self._told(receipts):
            return await self._async.perform(self._calls.refund(receipts))

    async def agrant(self, charges: Sequence[Charge]) -> list[int]:
        """``grant`` for coroutines."""
        if not charges:
            return []
        with self._told(charges):
            return await self._async.perform(self._calls.grant(charges))

    async def alease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        """``lease`` for coroutines."""
        if terms.confirmed:
            # To wait for a replica would hold up all that shares the loop's connection.
            return await asyncio.get_running_loop().run_in_executor(None, self.lease, holder, terms, items)
        check_leasing(holder, items)
        return await self._async.perform(self._calls.lease(holder, terms, items)) if items else []

    async def areset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """``reset`` for coroutines."""
        if not keys:
            return 0
        with self._told(keys):
            return await self._async.perform(self._calls.reset(keys))

    async def awarm(self) -> bool:
        """``warm`` for coroutines, and connects for the running event loop."""
        return await self._async.warm()

    async def disconnect(self) -> None:
        """Close the connections of the running event loop, before that ends; the store stays usable."""
        await self._async.disconnect()

    async def aclose(self) -> None:
        """``close``, for coroutines: the connections of the running event loop are closed when it returns."""
        if self._core.news.telling:
            await asyncio.to_thread(self._core.news.flush, REDIS_NEWS_FLUSH_MS / 1_000)
        self._core.close()
        await self._async.disconnect()
        self._async.close_soon()

    # ------------------------------------------------------------------ news

    def news_name(self, key: str) -> int:
        """The number of a counter in news. See ``NewsStore.news_name``."""
        return self._core.news.name(key)

    def publish(self, keys: Iterable[str]) -> None:
        """Tell other processes that these counters may pass again. See ``NewsStore.publish``."""
        self._core.news.publish(keys)

    def subscribe(self, heard: Heard) -> Callable[[], None]:
        """Hear what is told. See ``NewsStore.subscribe``."""
        return self._core.news.subscribe(heard)

    @property
    def news_failing(self) -> bool:
        """Whether news are wanted and the connection for them is not there."""
        return self._core.news.deaf

    @contextlib.contextmanager
    def _told(self, counters: Sequence[Receipt | Charge | tuple[Counter, str]]) -> Iterator[None]:
        """Tell that these are given something back, also where it is not known whether they were."""
        try:
            yield
        finally:
            self._core.news.publish([one[0].prefix + one[1] for one in counters])

    # ------------------------------------------------------------------ the fleet

    @property
    def nodes(self) -> int:
        """The most processes that were seen to use this database lately, and at least the URL's ``nodes``. See ``FleetStore.nodes``."""
        return max(self._core.beats.nodes, self.settings.nodes_min)

    async def abeat(self) -> None:
        """Say that this process is here, where no decision has done so lately. See ``FleetStore.abeat``."""
        await self._async.beat()

    def health(self) -> Sequence[ServerHealth]:
        """One entry per server known; those that are not down are "failing" while the store is not ready, and ``error`` says why."""
        core = self._core
        problem, since_us = core.problem, core.problem_since_us
        found = [node.health() for node in core.router.nodes()]
        if problem is None:
            return found
        return [
            one if one.state == "down" else ServerHealth(one.address, "failing", since_us, one.error or problem)
            for one in found
        ]

    def key(self, counter: Counter, subject: str) -> str:
        """The key under which a counter is kept; connects where the secret is not known yet.

        Of one that is a field of hashes: what their keys begin with, for which hash slot and rule can be told.
        """
        if not self._core.ready:
            self.warm()
        key = self._core.packing.key(counter, subject)
        return key if isinstance(key, str) else key[:-FIELD_BYTES].decode()
