"""The Redis store for coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn, Self, TypeVar

from sluicegate.bounds import REDIS_WARM_MS
from sluicegate.clock import US_PER_MS, US_PER_S, Clock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Charge, Counter, Done, Receipt, Request, Single
from sluicegate.stores.redis.async_link import AsyncLink, AsyncLinks
from sluicegate.stores.redis.calls import Steps
from sluicegate.stores.redis.core import Core
from sluicegate.stores.redis.faults import fault_of, is_noscript
from sluicegate.stores.redis.link import ReplyError, packed
from sluicegate.stores.redis.packing import Command
from sluicegate.stores.redis.scripts import DECIDE, REFUND
from sluicegate.stores.redis.settings import RedisSettings

__all__ = ["AsyncRedisStore"]

R = TypeVar("R")


class AsyncRedisStore:
    """``RedisStore`` with the same calls as coroutines, and the same guarantees. Usable from any event loop.

    Each loop has connections of its own. A cancelled call counts as sent: it may have been charged.
    """

    def __init__(
        self, settings: RedisSettings | str, *, clock: Clock | None = None, time_source: Clock | None = None
    ) -> None:
        if isinstance(settings, str):
            settings = RedisSettings.from_url(settings)
        self._set(Core(settings, clock, time_source))

    @classmethod
    def sharing(cls, core: Core) -> Self:
        """The asynchronous side of a store."""
        store = cls.__new__(cls)
        store._set(core)
        return store

    def _set(self, core: Core) -> None:
        self._core = core
        self.settings = core.settings
        self.stats = core.stats
        self._subjects = core.subjects
        self._calls = core.calls
        self._timeout_s = core.timeout_us / US_PER_S
        self._links: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncLinks] = weakref.WeakKeyDictionary()
        self._closed = False
        self._told: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"AsyncRedisStore({self.settings.address!r}, db={self.settings.db})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an AsyncRedisStore cannot be pickled: connections belong to one process")

    async def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """Decide a batch in order. Raises PartlyDecided where some requests have no answer. See ``Store.decide``."""
        return await self._perform(self._calls.decide(requests, peek=peek)) if requests else []

    async def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """Decide one request."""
        return await self._perform(self._calls.decide_one(request, peek=peek))

    def submit(self, request: Request, done: Done, *, peek: bool = False) -> None:
        """``decide_one`` by callback."""
        task = asyncio.get_running_loop().create_task(self._tell(request, done, peek=peek))
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _tell(self, request: Request, done: Done, *, peek: bool) -> None:
        try:
            answer = await self.decide_one(request, peek=peek)
        except StoreError as error:
            done(error)
        else:
            done(answer)

    async def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """Decide a batch of requests of one charge each. See ``decide``."""
        return await self._perform(self._calls.decide_singles(charges, peek=peek))

    async def refund(self, receipts: Sequence[Receipt]) -> int:
        """Give back what is due. See ``Store.refund``."""
        return await self._perform(self._calls.refund(receipts)) if receipts else 0

    async def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """Forget these counters, unreadable ones too; returns how many keys existed."""
        return await self._perform(self._calls.reset(keys)) if keys else 0

    async def warm(self) -> bool:
        """Connect, learn the key secret and load the scripts, within a second; False where the store is not there."""
        deadline_s = asyncio.get_running_loop().time() + REDIS_WARM_MS * US_PER_MS / US_PER_S
        try:
            await self._ready(deadline_s)
            links = self._links_here()
            link = await links.take(deadline_s)
            try:
                loads = [(b"SCRIPT", b"LOAD", script.text) for script in (DECIDE, REFUND)]
                replies = await self._exchange(link, loads, deadline_s)
            finally:
                links.give(link)
        except StoreError:
            return False
        return not any(isinstance(reply, ReplyError) for reply in replies)

    async def close(self) -> None:
        """Close the connections of all loops; every later call but ``close`` raises StoreError."""
        self.close_soon()
        # A closed transport is told so by its loop.
        await asyncio.sleep(0)

    async def disconnect(self) -> None:
        """Close the idle connections of the running event loop, which must be done before it ends; new ones are made when needed."""
        links = self._links.pop(asyncio.get_running_loop(), None)
        if links is not None:
            links.close()
            await asyncio.sleep(0)

    def close_soon(self) -> None:
        """``close`` from anywhere: connections of other loops are closed by those."""
        self._closed = True
        self._core.close()
        for loop, links in list(self._links.items()):
            links.closed = True
            if not loop.is_closed():
                loop.call_soon_threadsafe(links.close)

    async def _perform(self, steps: Steps[R]) -> R:
        """Send what ``steps`` yields on one connection, all within the deadline."""
        deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        if not self._core.ready:
            await self._ready(deadline_s)
        links = self._links_here()
        link = await links.take(deadline_s)
        try:
            commands = next(steps)
            while True:
                replies: list[Any] = []
                for command in commands:
                    try:
                        replies.append(await self._ask(link, command, deadline_s))
                    except StoreError as error:
                        # The operation may have decided a part before: it gets the error where it waits.
                        replies.append(error)
                commands = steps.send(replies)
        except StopIteration as done:
            result: R = done.value
            return result
        finally:
            links.give(link)

    def _links_here(self) -> AsyncLinks:
        """The connections of the running event loop."""
        if self._closed:
            raise StoreError("the Redis store is closed", transient=False)
        loop = asyncio.get_running_loop()
        links = self._links.get(loop)
        if links is None:
            links = self._links[loop] = AsyncLinks(self.settings, self.stats)
        return links

    async def _ask(self, link: AsyncLink, command: Command, deadline_s: float) -> Any:
        """The reply to one command."""
        (reply,) = await self._exchange(link, [command.parts()], deadline_s)
        if is_noscript(reply):
            # Nothing was done, so this is not a repetition.
            self.stats.loads += 1
            (reply,) = await self._exchange(link, [command.parts_in_full()], deadline_s)
        if isinstance(reply, ReplyError):
            self.stats.errors += 1
            raise fault_of(str(reply), self.settings.address)
        return reply

    async def _ready(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._core.start_preparing(lambda: loop.call_soon_threadsafe(ended.set), again=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), max(deadline_s - loop.time(), 0))
        if not self._core.ready:
            raise self._core.not_ready()

    async def beat(self) -> None:
        """See ``FleetStore.abeat``."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._core.send_riders(lambda: loop.call_soon_threadsafe(ended.set))
        await ended.wait()

    async def _exchange(self, link: AsyncLink, commands: Sequence[tuple[Any, ...]], deadline_s: float) -> list[Any]:
        self.stats.calls += len(commands)
        try:
            return await link.exchange(packed(commands), len(commands), deadline_s)
        except OSError as error:
            self.stats.lost += 1
            what = "does not answer in time" if isinstance(error, TimeoutError) else f"is lost ({error})"
            raise StoreError(f"Redis at {self.settings.address} {what}") from None
