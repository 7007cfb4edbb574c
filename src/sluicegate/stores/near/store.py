"""A near store: what stands between a limiter and a store that many processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from sluicegate.errors import StoreError
from sluicegate.stores.base import Answer, Charge, Counter, Done, Receipt, Request, ServerHealth
from sluicegate.stores.near.batches import Batch, answers_or_raise, sent
from sluicegate.stores.near.calls import NearCalls
from sluicegate.stores.near.core import SharedStore
from sluicegate.stores.near.front import Asking, takes_last

__all__ = ["NearStore", "SharedStore"]


class NearStore(NearCalls):
    """Answers in this process what it can, and asks ``store`` about the rest. Safe from any thread and event loop.

    A request is refused here where a charge is known to be refused: the store said so before and for how long (the deny cache), or its cost is above
    the limit. It is admitted here where all of its charges are of leased counters (``Counter.precision``) of which this process holds enough
    tokens. Otherwise it is one call of the store, for the charges that are not so decided.

    Guarantees: no charge passes without a token, of a lease or of the store; while the store keeps its writes no interval sees more
    admitted than the algorithm's bound. A request that is refused costs nothing; where it was refused after a part of it was charged, that is given
    back, and only a failing store can lose it. Not guaranteed: that what is refused here would still be refused by a store that gave
    something back meanwhile, for at most ``settings.trust_us``, or ``settings.stretch_max_us``
    where several processes are hammered for one counter; and exact numbers in answers that the store did not give (LocalVerdict).

    Peeks, refunds, grants and resets are the store's. One daemon thread keeps leases while anything is leased. A fork begins without leases
    and without what its parent knew of them. ``keep`` False: no thread; whoever made this calls ``step``.
    """

    # ------------------------------------------------------------------ for coroutines and callbacks

    def submit(self, request: Request, done: Done, *, peek: bool = False) -> None:
        """``decide_one`` by callback, which comes before this returns where the store is not asked. See ``AsyncStore.submit``."""
        if peek:
            self.hot.submit(request, done, peek=True)
            return
        begun = self.begin(request)
        if isinstance(begun, Asking):
            self.go_on(begun, done)
        else:
            done(begun)

    def go_on(self, asking: Asking, done: Done) -> None:
        """The second half of ``submit``."""
        try:
            self.hot.submit(asking.rest, partial(self._arrived, asking, done))
        except BaseException:
            self._abandon(asking)
            raise

    async def adecide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """``decide_one`` for coroutines. Where the caller is cancelled, what was taken of leases counts as spent if the request passes."""
        waiter: asyncio.Future[Answer | StoreError] = asyncio.get_running_loop().create_future()
        self.submit(request, partial(_land, waiter), peek=peek)
        answer = await waiter
        if isinstance(answer, StoreError):
            raise answer
        return answer

    async def adecide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """``decide`` for coroutines."""
        if peek or not requests:
            return await self.hot.adecide(requests, peek=peek)
        batch = Batch(self.front, self, self.now_us, requests)
        steps = batch.steps()
        try:
            asked = next(steps, None)
            while asked is not None:
                found: Sequence[Answer] | StoreError
                try:
                    found = await self.hot.adecide(asked)
                except StoreError as error:
                    found = error
                asked = sent(steps, found)
        finally:
            # Where the caller is cancelled, what is held provisionally is put back: nobody learns that the request passed.
            steps.close()
        self._listen()
        if batch.undo:
            self._undo_later(batch.undo)
        return answers_or_raise(batch.results)

    async def arefund(self, receipts: Sequence[Receipt]) -> int:
        """``refund`` for coroutines."""
        try:
            return await self.store.arefund(receipts)
        finally:
            self.forget([(receipt.counter, receipt.subject) for receipt in receipts])

    async def agrant(self, charges: Sequence[Charge]) -> list[int]:
        """``grant`` for coroutines."""
        try:
            return await self.hot.agrant(charges)
        finally:
            self.forget([(counter, subject) for counter, subject, _ in charges])

    async def areset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """``reset`` for coroutines."""
        self._drop(keys)
        try:
            return await self.hot.areset(keys)
        finally:
            self.forget(keys)

    async def awarm(self) -> bool:
        """The store's. See ``AsyncStore.awarm``."""
        return await self.store.awarm()

    async def aclose(self) -> None:
        """``close`` for coroutines; what is given back is given back beside the loop."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[task for task in list(self._tasks) if task.get_loop() is loop])
        for close in (self._keeper.close, self.hot.close):
            await loop.run_in_executor(None, close)
        self._stop_listening()
        await self.store.aclose()

    # ------------------------------------------------------------------ the fleet

    async def abeat(self) -> None:
        """The store's. See ``FleetStore.abeat``."""
        if self._fleet is not None:
            await self._fleet.abeat()

    def health(self) -> Sequence[ServerHealth]:
        """The store's, nothing where it does not say. See ``FleetStore.health``."""
        return () if self._fleet is None else self._fleet.health()

    # ------------------------------------------------------------------ inside

    def _arrived(self, asking: Asking, done: Done, answer: Answer | StoreError) -> None:
        """The store has answered what was submitted; called by it, so nothing may be raised."""
        front = self.front
        if asking.plain:
            if not isinstance(answer, StoreError) and (not answer.unanimous or takes_last(answer)):
                self._learn(asking, answer)
            done(answer)
            return
        with self._lock:
            now_us = self.now_us()
            result: Answer | StoreError | None
            if isinstance(answer, StoreError):
                result = front.failed(asking, answer, now_us)
            else:
                result = front.landed(asking, answer, now_us)
        if result is None:
            try:
                self.hot.submit(asking.rest, partial(self._arrived, asking, done))
                return
            except Exception as problem:  # noqa: BLE001 -- the store's other callers must get their answers
                with self._lock:
                    result = front.failed(asking, StoreError(f"the store cannot be asked: {problem}"), self.now_us())
        self._listen()
        if asking.undo:
            self._undo_later(asking.undo)
        done(result)

    def _undo_later(self, receipts: Sequence[Receipt]) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # The store is being closed from elsewhere: there is nothing left to give it back by, and the caller must get his answer.
            self.stats.undo_failed += len(receipts)
            return
        task = loop.create_task(self._undo_quietly(receipts))
        # A loop holds its tasks weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _undo_quietly(self, receipts: Sequence[Receipt]) -> None:
        try:
            await self.store.arefund(receipts)
        except StoreError:
            self.stats.undo_failed += len(receipts)


def _land(waiter: asyncio.Future[Answer | StoreError], answer: Answer | StoreError) -> None:
    if not waiter.done():
        waiter.set_result(answer)
