"""Counters in a Redis or Valkey, shared by all processes that use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from sluicegate.bounds import REDIS_WARM_MS
from sluicegate.clock import US_PER_MS, Clock, SystemClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Charge, Counter, Done, Receipt, Request, Single
from sluicegate.stores.redis.async_store import AsyncRedisStore
from sluicegate.stores.redis.calls import Calls, Steps
from sluicegate.stores.redis.faults import fault_of, is_noscript, is_readonly
from sluicegate.stores.redis.link import Link, Links, ReplyError, packed
from sluicegate.stores.redis.packing import Command, Packing
from sluicegate.stores.redis.scripts import DECIDE, REFUND
from sluicegate.stores.redis.secret import Subjects
from sluicegate.stores.redis.settings import RedisSettings
from sluicegate.stores.redis.stats import RedisStats

__all__ = ["RedisStore"]

R = TypeVar("R")


class RedisStore:
    """The store of many processes. Safe from any thread; a fork makes connections of its own.

    Guarantees: all charges of a request are decided and made in one atomic step at the server's time; a batch of up to
    ``REDIS_BATCH_MAX`` requests too, larger ones in several steps. A call returns or raises StoreError within the URL's
    ``timeout_ms``, connecting included (looking up a name may take longer). What was sent is never sent again, except a
    script the server says it does not know. A call that fails may have been charged; nothing more than it asked for.

    ``clock`` guesses calendar windows; counters are dated by the server. ``time_source`` replaces the server's time, for
    tests only. Nothing is connected until the first call or ``warm``.
    """

    def __init__(
        self, settings: RedisSettings | str, *, clock: Clock | None = None, time_source: Clock | None = None
    ) -> None:
        if isinstance(settings, str):
            settings = RedisSettings.from_url(settings)
        self.settings = settings
        self.stats = RedisStats()
        self._clock = clock or SystemClock()
        self._monotonic = SystemClock()
        self._subjects = Subjects(plain=settings.plain_keys, secret=settings.key_secret)
        self._packing = Packing(self._subjects, self._clock, settings.address, time_source)
        self._calls = Calls(self._packing)
        self._links = Links(settings, self._monotonic, self.stats)
        self._timeout_us = settings.timeout_ms * US_PER_MS
        self._async = AsyncRedisStore.sharing(settings, self._subjects, self._calls, self.stats)

    def __repr__(self) -> str:
        return f"RedisStore({self.settings.address!r}, db={self.settings.db})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a RedisStore cannot be pickled: connections belong to one process; make one in each process")

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """Decide a batch in order. Raises PartlyDecided where some requests have no answer. See ``Store.decide``."""
        return self._perform(self._calls.decide(requests, peek=peek)) if requests else []

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """Decide one request."""
        return self._perform(self._calls.decide_one(request, peek=peek))

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """Decide a batch of requests of one charge each. See ``decide``."""
        return self._perform(self._calls.decide_singles(charges, peek=peek))

    async def adecide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """``decide_one`` for coroutines: waits without blocking the event loop."""
        return await self._async.decide_one(request, peek=peek)

    def submit(self, request: Request, done: Done, *, peek: bool = False) -> None:
        """``decide_one`` by callback. See ``AsyncStore.submit``."""
        self._async.submit(request, done, peek=peek)

    async def adecide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """``decide`` for coroutines."""
        return await self._async.decide(requests, peek=peek)

    async def arefund(self, receipts: Sequence[Receipt]) -> int:
        """``refund`` for coroutines."""
        return await self._async.refund(receipts)

    async def areset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """``reset`` for coroutines."""
        return await self._async.reset(keys)

    async def awarm(self) -> bool:
        """``warm`` for coroutines."""
        return await self._async.warm()

    async def disconnect(self) -> None:
        """Close the connections of the running event loop, before that ends; the store stays usable."""
        await self._async.disconnect()

    async def aclose(self) -> None:
        """``close``, for coroutines: the connections of the running event loop are closed when it returns."""
        await self._async.close()
        self.close()

    def refund(self, receipts: Sequence[Receipt]) -> int:
        """Give back what is due. See ``Store.refund``."""
        return self._perform(self._calls.refund(receipts)) if receipts else 0

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """Forget these counters, unreadable ones too; returns how many keys existed."""
        return self._perform(self._calls.reset(keys)) if keys else 0

    def warm(self) -> bool:
        """Connect, learn the key secret and load the scripts, within a second; False where the store is not there.

        Never raises for a store that is absent: every call tries again.
        """
        deadline_us = self._monotonic.monotonic_us() + REDIS_WARM_MS * US_PER_MS
        try:
            link = self._take(deadline_us)
            try:
                if not self._subjects.ready:
                    self._learn_secret(link, deadline_us)
                loads = [(b"SCRIPT", b"LOAD", script.text) for script in (DECIDE, REFUND)]
                replies = self._exchange(link, loads, deadline_us)
            finally:
                self._links.give(link)
        except StoreError:
            return False
        return not any(isinstance(reply, ReplyError) for reply in replies)

    def key(self, counter: Counter, subject: str) -> str:
        """The key under which a counter is kept; connects where the secret is not known yet."""
        if not self._subjects.ready:
            self.warm()
        return self._packing.key(counter, subject)

    def close(self) -> None:
        """Close all connections; every later call but ``close`` raises StoreError."""
        self._links.close()
        self._async.close_soon()

    def _perform(self, steps: Steps[R]) -> R:
        """Send what ``steps`` yields on one connection, all within the deadline."""
        deadline_us = self._monotonic.monotonic_us() + self._timeout_us
        link = self._take(deadline_us)
        try:
            if not self._subjects.ready:
                self._learn_secret(link, deadline_us)
            commands = next(steps)
            while True:
                replies: list[Any] = []
                for command in commands:
                    try:
                        replies.append(self._ask(link, command, deadline_us))
                    except StoreError as error:
                        # The operation may have decided a part before: it gets the error where it waits.
                        replies.append(error)
                commands = steps.send(replies)
        except StopIteration as done:
            result: R = done.value
            return result
        finally:
            self._links.give(link)

    def _take(self, deadline_us: int) -> Link:
        if self._links.closed:
            raise StoreError("the Redis store is closed", transient=False)
        return self._links.take(deadline_us)

    def _ask(self, link: Link, command: Command, deadline_us: int) -> Any:
        """The reply to one command; the check of the key secret rides along where it is due."""
        commands = [command.parts()]
        now_us = self._monotonic.monotonic_us()
        if self._subjects.due(now_us):
            commands.insert(0, self._subjects.command)
        *before, reply = self._exchange(link, commands, deadline_us)
        if before:
            self._subjects.learn(before[0], now_us)
        if is_noscript(reply):
            # Nothing was done, so this is not a repetition.
            self.stats.loads += 1
            (reply,) = self._exchange(link, [command.parts_in_full()], deadline_us)
        if isinstance(reply, ReplyError):
            self.stats.errors += 1
            # After a failover the name may lead to another server, so the next call connects anew.
            link.broken = link.broken or is_readonly(reply)
            raise fault_of(str(reply), self.settings.address)
        return reply

    def _learn_secret(self, link: Link, deadline_us: int) -> None:
        (found,) = self._exchange(link, [self._subjects.command], deadline_us)
        if isinstance(found, ReplyError):
            raise fault_of(str(found), self.settings.address)
        self._subjects.learn(found, self._monotonic.monotonic_us())

    def _exchange(self, link: Link, commands: Sequence[tuple[Any, ...]], deadline_us: int) -> list[Any]:
        self.stats.calls += len(commands)
        try:
            return link.exchange(packed(commands), len(commands), deadline_us, self._monotonic)
        except OSError as error:
            self.stats.lost += 1
            what = "does not answer in time" if isinstance(error, TimeoutError) else f"is lost ({error})"
            raise StoreError(f"Redis at {self.settings.address} {what}") from None
