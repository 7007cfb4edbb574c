"""A near store: what stands between a limiter and a store that many processes share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import NoReturn, Protocol, runtime_checkable

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.verdict import Brief, new_local_verdict
from sluicegate.clock import Clock, steady_us
from sluicegate.errors import StoreError
from sluicegate.stores.answer import single_of
from sluicegate.stores.base import (
    Answer,
    AsyncStore,
    BulkStore,
    Charge,
    Counter,
    Done,
    FleetStore,
    Hitter,
    LeaseItem,
    LeaseStore,
    NewsStore,
    Receipt,
    Request,
    ServerHealth,
    Single,
    Store,
)
from sluicegate.stores.locks import Locked
from sluicegate.stores.near.batches import Batch, Steps, answers_or_raise
from sluicegate.stores.near.denials import Denials
from sluicegate.stores.near.front import Asking, Front, takes_last
from sluicegate.stores.near.hitter import OPEN, Gate, make_hitter
from sluicegate.stores.near.hot import HotStore
from sluicegate.stores.near.keeper import Keeper
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.near.stats import NearStats
from sluicegate.stores.near.warmth import Warmth

__all__ = ["NearStore", "SharedStore"]


@runtime_checkable
class SharedStore(Store, LeaseStore, AsyncStore, Protocol):
    """What a near store can stand in front of: a store over a network that grants leases."""


class NearStore(Locked):
    """Answers in this process what it can, and asks ``store`` about the rest. Safe from any thread and event loop.

    A request is refused here where a charge is known to be refused: the store said so before and for how long (the deny cache), or its cost is above
    the limit. It is admitted here where all of its charges are of leased counters (``Counter.precision``) of which this process holds enough
    tokens. Otherwise it is one call of the store, for the charges that are not so decided.

    Guarantees: no charge passes without a token, of a lease or of the store; while the store keeps its writes no interval sees more
    admitted than the algorithm's bound. A request that is refused costs nothing; where it was refused after a part of it was charged, that is given
    back, and only a failing store can lose it. Not guaranteed: that what is refused here would still be refused by a store that gave
    something back meanwhile, for at most ``settings.trust_us``; and exact numbers in answers that the store did not give (LocalVerdict).

    Peeks, refunds, grants and resets are the store's. One daemon thread keeps leases while anything is leased. A fork begins without leases
    and without what its parent knew of them. ``keep`` False: no thread; whoever made this calls ``step``.
    """

    def __init__(self, store: SharedStore, settings: NearSettings, clock: Clock, *, keep: bool = True) -> None:
        self.store = store
        self.settings = settings
        self.stats = NearStats()
        self.now_us = steady_us(clock)
        self._wall_us = clock.now_us
        self._news = store if isinstance(store, NewsStore) else None
        self._bulk = store if isinstance(store, BulkStore) else None
        self._fleet = store if isinstance(store, FleetStore) else None
        self._end_of_news: Callable[[], None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._keep = keep
        name_of = hash if self._news is None else self._news.news_name
        denials = Denials(max(settings.denials_max, 1), settings.trust_us, settings.terms, name_of)
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

    # ------------------------------------------------------------------ for threads

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """Decide one request. See ``Store.decide_one``."""
        if peek:
            return self.hot.decide_one(request, peek=True)
        begun = self.begin(request)
        return self._ask(begun) if isinstance(begun, Asking) else begun

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """Decide a batch in order; what the store is asked goes into one call of it, as a rule. See ``Store.decide``."""
        if peek or not requests:
            return self.hot.decide(requests, peek=peek)
        batch = Batch(self.front, self, self.now_us, requests)
        self._run(batch.steps())
        return self._ended(batch)

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """Decide a batch of requests of one charge each. See ``Store.decide_singles``."""
        if peek or self._is_plain(charges):
            return self.store.decide_singles(charges, peek=peek)
        return _singles(self.decide([(charge,) for charge in charges]), self._wall_us)

    def decide_alike(self, counter: Counter, keys: Sequence[str], cost: int) -> list[Brief] | None:
        """See ``BulkStore``: the store's, where it has that and nothing of the counter is decided here."""
        if self._bulk is None or counter.precision is not Precision.EXACT or self.front.denials.active:
            return None
        return self._bulk.decide_alike(counter, keys, cost)

    def hitter(
        self,
        counter: Counter,
        key_of: Callable[[str], str],
        otherwise: Callable[[str, int], bool],
        refused: Callable[[], None],
        gate: Gate = OPEN,
    ) -> Hitter:
        """See ``HitStore``. Fast where tokens of the name's counter are held here, or its refusal is known. ``gate``: while it is active all goes to ``otherwise``."""
        return make_hitter(self, counter, key_of, otherwise, refused, gate)

    def refund(self, receipts: Sequence[Receipt]) -> int:
        """Give back what is due, in the store. See ``Store.refund``."""
        try:
            return self.store.refund(receipts)
        finally:
            self.forget([(receipt.counter, receipt.subject) for receipt in receipts])

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        """Give back up to the cost of each of what is used. See ``Store.grant``."""
        try:
            return self.hot.grant(charges)
        finally:
            self.forget([(counter, subject) for counter, subject, _ in charges])

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """Forget these counters; returns how many existed. See ``Store.reset``."""
        self._drop(keys)
        try:
            return self.hot.reset(keys)
        finally:
            self.forget(keys)

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        """The store's, for holders other than this one. See ``LeaseStore.lease``."""
        return self.store.lease(holder, terms, items)

    def close(self) -> None:
        """Give back what is held, and close the store."""
        self._keeper.close()
        self.hot.close()
        self._stop_listening()
        self.store.close()

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
                asked = _sent(steps, found)
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

    @property
    def nodes(self) -> int:
        """The store's, 1 where it does not know. See ``FleetStore.nodes``."""
        return 1 if self._fleet is None else self._fleet.nodes

    async def abeat(self) -> None:
        """The store's. See ``FleetStore.abeat``."""
        if self._fleet is not None:
            await self._fleet.abeat()

    def health(self) -> Sequence[ServerHealth]:
        """The store's, nothing where it does not say. See ``FleetStore.health``."""
        return () if self._fleet is None else self._fleet.health()

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

    def _ask(self, asking: Asking) -> Answer:
        front, hot = self.front, self.hot
        if asking.plain:
            answer = hot.decide_one(asking.rest)
            if not answer.unanimous or takes_last(answer):
                self._learn(asking, answer)
            return answer
        result: Answer | StoreError | None = None
        while result is None:
            try:
                answer = hot.decide_one(asking.rest)
            except StoreError as error:
                with self._lock:
                    result = front.failed(asking, error, self.now_us())
            except BaseException:
                self._abandon(asking)
                raise
            else:
                with self._lock:
                    result = front.landed(asking, answer, self.now_us())
        self._listen()
        if asking.undo:
            self._undo(asking.undo)
        if isinstance(result, StoreError):
            raise result
        return result

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
            self.hot.submit(asking.rest, partial(self._arrived, asking, done))
            return
        self._listen()
        if asking.undo:
            self._undo_later(asking.undo)
        done(result)

    def _run(self, steps: Steps) -> None:
        """Perform a batch by synchronous calls."""
        try:
            asked = next(steps, None)
            while asked is not None:
                found: Sequence[Answer] | StoreError
                try:
                    found = self.hot.decide(asked)
                except StoreError as error:
                    found = error
                asked = _sent(steps, found)
        finally:
            steps.close()

    def _ended(self, batch: Batch) -> list[Answer]:
        results = batch.results
        self._listen()
        if batch.undo:
            self._undo(batch.undo)
        return answers_or_raise(results)

    def _is_plain(self, charges: Sequence[Charge]) -> bool:
        """Whether the store decides all of these, as far as is known here."""
        exact = Precision.EXACT
        return not self.front.denials.active and all(charge[0][6] is exact for charge in charges)

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
                self._end_of_news = self._news.subscribe(self._heard)

    def _stop_listening(self) -> None:
        end, self._end_of_news = self._end_of_news, None
        if end is not None:
            end()

    def _heard(self, names: Sequence[int] | None) -> None:
        with self._lock:
            self.front.denials.heard(names)

    def _drop(self, keys: Sequence[tuple[Counter, str]]) -> None:
        """Spend nothing more that was granted by a counter that is about to begin anew: it will grant all of it again."""
        with self._lock:
            self.front.leases.drop([counter.prefix + subject for counter, subject in keys])

    def _abandon(self, asking: Asking) -> None:
        with self._lock:
            self.front.abandon(asking)

    def _undo(self, receipts: Sequence[Receipt]) -> None:
        """Give back what a refused request was charged. Where that fails it stays charged: whether it was done is not known."""
        try:
            self.store.refund(receipts)
        except StoreError:
            self.stats.undo_failed += len(receipts)

    def _undo_later(self, receipts: Sequence[Receipt]) -> None:
        task = asyncio.get_running_loop().create_task(self._undo_quietly(receipts))
        # A loop holds its tasks weakly.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _undo_quietly(self, receipts: Sequence[Receipt]) -> None:
        try:
            await self.store.arefund(receipts)
        except StoreError:
            self.stats.undo_failed += len(receipts)


def _sent(steps: Steps, found: Sequence[Answer] | StoreError) -> list[Request] | None:
    """What is asked next, None where the batch is decided."""
    try:
        return steps.send(found)
    except StopIteration:
        return None


def _singles(answers: Sequence[Answer], wall_us: Callable[[], int]) -> tuple[int, list[Single]]:
    """The lean form of answers to requests of one charge each, as of one time."""
    now_us = next((answer.now_us for answer in answers if answer.asked), None)
    singles: list[Single] = []
    for answer in answers:
        if answer.asked and answer.now_us != now_us:
            # Its state is of another time, so it is described here.
            singles.append((answer.admitted, new_local_verdict(answer.verdicts()[0])))
        else:
            singles.append(single_of(answer))
    return wall_us() if now_us is None else now_us, singles


def _land(waiter: asyncio.Future[Answer | StoreError], answer: Answer | StoreError) -> None:
    if not waiter.done():
        waiter.set_result(answer)
