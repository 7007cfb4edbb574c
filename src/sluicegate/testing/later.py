"""A store whose answers come later, and the calls of such a store run to their end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.errors import StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import (
    Answer,
    AsyncStore,
    Charge,
    Counter,
    Done,
    LeaseItem,
    Receipt,
    Request,
    ServerHealth,
    Single,
    Store,
)
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.flaky import FlakyStore

__all__ = ["AwaitedStore", "LaterStore", "LeasingStore"]

R = TypeVar("R")


class LaterStore:
    """Wraps a store, has its type, and is an ``AsyncStore`` and a ``FleetStore`` as one over a network is.

    The wrapped store decides at once, in the order of the calls; what it said, or the StoreError it raised (see ``FlakyStore``),
    is told to the caller in a later round of the event loop. After ``hold`` answers wait until ``release``, in
    any order. The synchronous calls are those of the wrapped store.

    ``waiting``: answers that are held. ``submitted``: requests given to ``submit`` and ``adecide_one``. ``nodes``, ``state`` ("up", "down",
    "failing", "unknown") and ``error`` are what it says of its fleet and its one server; set them. ``beats`` counts calls of ``abeat``.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.nodes = 1
        self.state = "up"
        self.error: str | None = None
        self.beats = 0
        self.submitted = 0
        self._held: deque[Callable[[StoreError | None], None]] = deque()
        self._holding = False

    @property
    def waiting(self) -> int:
        return len(self._held)

    def hold(self) -> None:
        """Keep every answer from now on until it is released."""
        self._holding = True

    def release(self, count: int | None = None, *, newest_first: bool = False, error: StoreError | None = None) -> int:
        """Tell ``count`` answers that are held, now; None: all of them, and those to come are no longer held.

        With ``error`` the callers get that instead, though their charges were made: replies that are lost. Returns how
        many were told.
        """
        if count is None:
            self._holding = False
            count = len(self._held)
        told = min(count, len(self._held))
        for _ in range(told):
            tell = self._held.pop() if newest_first else self._held.popleft()
            tell(error)
        return told

    def submit(self, request: Request, done: Done, *, peek: bool = False) -> None:
        self.submitted += 1
        answer: Answer | StoreError
        try:
            answer = self.store.decide_one(request, peek=peek)
        except StoreError as error:
            answer = error
        self._later(partial(_tell, done, answer))

    async def adecide_one(self, request: Request, *, peek: bool = False) -> Answer:
        self.submitted += 1
        return await self._awaited(partial(self.store.decide_one, request, peek=peek))

    async def adecide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        return await self._awaited(partial(self.store.decide, requests, peek=peek))

    async def arefund(self, receipts: Sequence[Receipt]) -> int:
        return await self._awaited(partial(self.store.refund, receipts))

    async def agrant(self, charges: Sequence[Charge]) -> list[int]:
        return await self._awaited(partial(self.store.grant, charges))

    async def areset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        return await self._awaited(partial(self.store.reset, keys))

    async def awarm(self) -> bool:
        """True where ``state`` is "up"."""
        return self.state == "up"

    async def aclose(self) -> None:
        self.store.close()

    async def abeat(self) -> None:
        self.beats += 1

    def health(self) -> Sequence[ServerHealth]:
        return (ServerHealth("later", self.state, 0, self.error),)

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        return self.store.decide(requests, peek=peek)

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        return self.store.decide_one(request, peek=peek)

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        return self.store.decide_singles(charges, peek=peek)

    def refund(self, receipts: Sequence[Receipt]) -> int:
        return self.store.refund(receipts)

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        return self.store.grant(charges)

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        return self.store.reset(keys)

    def close(self) -> None:
        self.store.close()

    def _later(self, tell: Callable[[StoreError | None], None]) -> None:
        if self._holding:
            self._held.append(tell)
        else:
            asyncio.get_running_loop().call_soon(tell, None)

    async def _awaited(self, call: Callable[[], R]) -> R:
        waiter: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        try:
            result = call()
        except StoreError as error:
            self._later(partial(_fail, waiter, error))
        else:
            self._later(partial(_resolve, waiter, result))
        return await waiter


class LeasingStore(LaterStore):
    """A ``LaterStore`` that grants leases as the wrapped memory store does, so that a limiter answers from leases in front of it.

    ``flaky``: what the memory store is wrapped in; it fails for leases too while it is ``down``.
    """

    def __init__(self, store: MemoryStore) -> None:
        self.memory = store
        self.flaky = FlakyStore(store)
        super().__init__(self.flaky)

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        if self.flaky.down:
            return [StoreError("the store is down (FlakyStore)")] * len(items)
        return self.memory.lease(holder, terms, items)

    async def alease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        return self.lease(holder, terms, items)


def _tell(done: Done, answer: Answer | StoreError, error: StoreError | None) -> None:
    done(answer if error is None else error)


def _resolve(waiter: asyncio.Future[R], result: R, error: StoreError | None) -> None:
    # Where the caller was cancelled, nobody hears of it.
    if waiter.done():
        return
    if error is None:
        waiter.set_result(result)
    else:
        waiter.set_exception(error)


def _fail(waiter: asyncio.Future[Any], found: StoreError, error: StoreError | None) -> None:
    if not waiter.done():
        waiter.set_exception(error or found)


class AwaitedStore:
    """An ``AsyncStore`` with the calls of a ``Store``, each run to its end on the event loop of ``runner``.

    Holds the asynchronous side of a store to the ``StoreContract``. ``decide_one`` goes through ``submit``; the answers must
    be those of the stores of this package (``StateAnswer``), as ``decide_singles`` reads them.
    """

    def __init__(self, store: AsyncStore, runner: asyncio.Runner) -> None:
        self.store = store
        self._runner = runner

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        return self._run(self.store.adecide(requests, peek=peek))

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        return self._run(self._submitted(request, peek=peek))

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        answers = self._run(self.store.adecide([(charge,) for charge in charges], peek=peek))
        assert answers, "an AsyncStore tells its time with an answer only"
        return answers[0].now_us, [_single_of(answer) for answer in answers]

    def refund(self, receipts: Sequence[Receipt]) -> int:
        return self._run(self.store.arefund(receipts))

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        return self._run(self.store.agrant(charges))

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        return self._run(self.store.areset(keys))

    def close(self) -> None:
        self._run(self.store.aclose())

    async def _submitted(self, request: Request, *, peek: bool) -> Answer:
        waiter: asyncio.Future[Answer | StoreError] = asyncio.get_running_loop().create_future()
        self.store.submit(request, waiter.set_result, peek=peek)
        answer = await waiter
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def _run(self, call: Coroutine[Any, Any, R]) -> R:
        return self._runner.run(call)


def _single_of(answer: Answer) -> Single:
    assert isinstance(answer, StateAnswer)
    return answer.admitted, answer.states[0][1]
