"""The asynchronous side of a Redis store: a ``LoopSide`` for each event loop, and its operations as coroutines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from sluicegate.bounds import REDIS_WARM_MS
from sluicegate.clock import US_PER_MS, US_PER_S
from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Done, Request
from sluicegate.stores.locks import Locked
from sluicegate.stores.redis.calls import Steps
from sluicegate.stores.redis.core import Core
from sluicegate.stores.redis.link import ReplyError
from sluicegate.stores.redis.loop_side import LoopSide
from sluicegate.stores.redis.riders import Words

__all__ = ["AsyncSide"]

R = TypeVar("R")


class _Plain(NamedTuple):
    """A command as it is sent."""

    words: Words
    keys: Sequence[str | bytes] = ()

    def parts(self) -> Words:
        return self.words

    def parts_in_full(self) -> Words:
        return self.words


class AsyncSide(Locked):
    """Usable from any event loop; each has connections of its own. A forked child begins without any."""

    __slots__ = ("_core", "_sides")

    def __init__(self, core: Core) -> None:
        self._core = core
        super().__init__()

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self._sides: dict[asyncio.AbstractEventLoop, LoopSide] = {}

    def submit(self, request: Request, done: Done, *, peek: bool) -> None:
        """See ``AsyncStore.submit``."""
        self._here().submit(request, done, peek=peek)

    async def decide_one(self, request: Request, *, peek: bool) -> Answer:
        """``submit`` with one future."""
        side = self._here()
        waiter: asyncio.Future[Answer] = side.loop.create_future()
        side.submit(request, partial(_settle, waiter), peek=peek)
        return await waiter

    async def perform(self, steps: Steps[R]) -> R:
        """Perform an operation within the deadline of one decision. It goes on where the caller is cancelled."""
        side = self._here()
        waiter: asyncio.Future[R] = side.loop.create_future()
        side.run(steps, partial(_settle, waiter), side.deadline_s())
        return await waiter

    async def warm(self) -> bool:
        """See ``AsyncStore.awarm``."""
        core, side = self._core, self._here()
        deadline_s = side.loop.time() + REDIS_WARM_MS * US_PER_MS / US_PER_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                await self._told(partial(core.start_preparing, again=True))
        if not core.ready or core.closed:
            return False
        replies: list[asyncio.Future[Any]] = []
        for node in core.router.nodes():
            for script in core.packing.scripts.loaded:
                waiter: asyncio.Future[Any] = side.loop.create_future()
                replies.append(waiter)
                side.send_to(node, _Plain((b"SCRIPT", b"LOAD", script.text)), waiter.set_result, deadline_s)
        found = [await reply for reply in replies]
        return not any(isinstance(reply, StoreError | ReplyError) for reply in found)

    async def beat(self) -> None:
        """See ``FleetStore.abeat``."""
        await self._told(self._core.send_riders)

    async def _told(self, start: Callable[[Callable[[], None]], None]) -> None:
        """Wait until what ``start`` begins in another thread has ended."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def end() -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        start(end)
        await ended.wait()

    async def disconnect(self) -> None:
        """Close the connections of the running event loop; new ones are made when needed."""
        side = self._sides.pop(asyncio.get_running_loop(), None)
        if side is not None:
            side.close()
        # A closed transport is told so by its loop.
        await asyncio.sleep(0)

    def close_soon(self) -> None:
        """Close the connections of all loops, from any thread; each by its loop."""
        for loop, side in list(self._sides.items()):
            with contextlib.suppress(RuntimeError):
                # Of a loop that is closed nothing is left to close.
                loop.call_soon_threadsafe(side.close)

    def _here(self) -> LoopSide:
        """What the running event loop has."""
        loop = asyncio.get_running_loop()
        side = self._sides.get(loop)
        if side is None:
            with self._lock:
                for ended in [loop for loop in self._sides if loop.is_closed()]:
                    del self._sides[ended]
                side = self._sides[loop] = LoopSide(self._core, loop)
        return side


def _settle(waiter: asyncio.Future[Any], result: Any) -> None:
    # Where the caller was cancelled nobody hears of it.
    if waiter.done():
        return
    if isinstance(result, Exception):
        waiter.set_exception(result)
    else:
        waiter.set_result(result)
