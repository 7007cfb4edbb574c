"""The store of one region: in front of the region's own Redis, it decides by the region's part of each counter."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn, Protocol, runtime_checkable

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.algorithms.spec import Spec
from sluicegate.clock import Clock, steady_us
from sluicegate.errors import ConfigurationError, StoreError
from sluicegate.stores.answer import single_of
from sluicegate.stores.base import (
    Answer,
    AsyncStore,
    Charge,
    Counter,
    Done,
    FleetStore,
    Heard,
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
from sluicegate.stores.region_parts import PartStore
from sluicegate.stores.regional.answers import as_asked, failed, failed_batch
from sluicegate.stores.regional.broker import Broker
from sluicegate.stores.regional.mover import Mover
from sluicegate.stores.regional.parts import Parts, Watched
from sluicegate.stores.regional.plan import Plan
from sluicegate.stores.regional.status import RegionStatus, status_of

__all__ = ["HomeStore", "PartnerStore", "RegionalStore"]


@runtime_checkable
class HomeStore(Store, LeaseStore, AsyncStore, FleetStore, NewsStore, PartStore, Protocol):
    """What a region's own store must be able to do."""

    @property
    def stats(self) -> object:
        """What it counts."""
        ...


class PartnerStore(PartStore, Protocol):
    """The store of another region, as it is used from here."""

    def close(self) -> None: ...


class RegionalStore(Locked):
    """Decides by this region's part of every counter, in ``store``, which only this region's processes decide in. Safe from any thread and event loop.

    A counter of one client has the region's share of the limit (or all of it, ``Plan.clients``). A counter that all clients share has at
    least what is never lent, and what the records say; a thread of this process moves parts between regions while such counters are in use,
    and no decision ever waits for another region. The sum of what the regions admit is within the counter's own bound in every interval, whatever
    messages are lost and whichever regions cannot reach each other, as long as the stores keep their writes (``docs/concepts/regions.md``).

    ``others``: the stores of other regions that can be reached; they are closed with this one. ``keep`` False: no thread; whoever made this
    calls ``step``. Raises ConfigurationError for a region that is not in the plan.
    """

    def __init__(
        self,
        store: HomeStore,
        plan: Plan,
        region: str,
        others: Mapping[str, PartnerStore],
        clock: Clock,
        *,
        keep: bool = True,
    ) -> None:
        if region not in plan.names:
            raise ConfigurationError(f"region: {region!r} is none of {', '.join(plan.names)}")
        unknown = sorted(set(others) - set(plan.names))
        if unknown or region in others:
            raise ConfigurationError(
                f"region_stores: {unknown[0] if unknown else region} is not another region of the plan"
            )
        self.store = store
        self.plan = plan
        self.region = region
        self._others = dict(others)
        self._now_us = steady_us(clock)
        self._parts = Parts(plan, region)
        self.broker = Broker(plan, region, {region: store, **others}, lambda: secrets.token_hex(8))
        self._mover = Mover(self.step) if keep and plan.before is None else None
        super().__init__()

    def __repr__(self) -> str:
        return f"RegionalStore({self.store!r}, region={self.region!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a RegionalStore cannot be pickled: connections belong to one process; make one in each process"
        )

    @property
    def stats(self) -> object:
        """What the region's own store counts."""
        return self.store.stats

    def least(self, counter: Counter) -> Spec:
        """The numbers that are this region's whatever happens: by these a process counts that cannot reach the store."""
        return self._parts.least(counter).spec

    def status(self) -> RegionStatus:
        """What this region holds, has lent and borrowed, as this process last saw it."""
        return status_of(self.broker, self._now_us())

    def step(self) -> bool:
        """Look at the counters in use, in all regions, and move what is due; False where nothing is in use. Never raises for an absent store."""
        with self._lock:
            now_us = self._now_us()
            uses = list(self._parts.uses(now_us))
            self.broker.step(uses, now_us)
            return bool(uses)

    # ------------------------------------------------------------------ for threads

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """Decide one request. See ``Store.decide_one``."""
        parts, watches = self._of(request)
        try:
            answer = self.store.decide_one(parts, peek=peek)
        except StoreError as error:
            raise failed(request, parts, error) from None
        return self._told(request, watches, answer, peek=peek)

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """Decide a batch in order. See ``Store.decide``."""
        found = [self._of(request) for request in requests]
        try:
            answers = self.store.decide([parts for parts, _ in found], peek=peek)
        except StoreError as error:
            raise failed_batch(requests, [parts for parts, _ in found], error) from None
        return [
            self._told(request, watches, answer, peek=peek)
            for request, (_, watches), answer in zip(requests, found, answers, strict=True)
        ]

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """Decide a batch of requests of one charge each. See ``Store.decide_singles``; verdicts stand in the place of states."""
        if not charges:
            return self.store.decide_singles(charges, peek=peek)
        answers = self.decide([(charge,) for charge in charges], peek=peek)
        return answers[0].now_us, [single_of(answer) for answer in answers]

    def refund(self, receipts: Sequence[Receipt]) -> int:
        """Give back what is due. See ``Store.refund``."""
        with self._telling([(receipt.counter, receipt.subject) for receipt in receipts]):
            return self.store.refund(self._receipts(receipts))

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        """Give back up to the cost of each of what is used. See ``Store.grant``."""
        with self._telling([(counter, subject) for counter, subject, _ in charges]):
            return self.store.grant(self._of(charges)[0])

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """Forget these counters; their parts are as they were. See ``Store.reset``."""
        with self._telling(keys):
            return self.store.reset(self._keys(keys))

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        """Grant from the region's part. See ``LeaseStore.lease``."""
        return self._granted(items, self.store.lease(holder, terms, self._items(items)))

    def close(self) -> None:
        """End the moving of parts, and close all stores. What is on its way stays so until another process takes it on."""
        if self._mover is not None:
            self._mover.close()
        for other in self._others.values():
            other.close()
        self.store.close()

    # ------------------------------------------------------------------ for coroutines and callbacks

    def submit(self, request: Request, done: Done, *, peek: bool = False) -> None:
        """``decide_one`` by callback. See ``AsyncStore.submit``."""
        parts, watches = self._of(request)

        def told(answer: Answer | StoreError) -> None:
            if isinstance(answer, StoreError):
                done(failed(request, parts, answer))
            else:
                done(self._told(request, watches, answer, peek=peek))

        self.store.submit(parts, told, peek=peek)

    async def adecide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """``decide_one`` for coroutines."""
        parts, watches = self._of(request)
        try:
            answer = await self.store.adecide_one(parts, peek=peek)
        except StoreError as error:
            raise failed(request, parts, error) from None
        return self._told(request, watches, answer, peek=peek)

    async def adecide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """``decide`` for coroutines."""
        found = [self._of(request) for request in requests]
        try:
            answers = await self.store.adecide([parts for parts, _ in found], peek=peek)
        except StoreError as error:
            raise failed_batch(requests, [parts for parts, _ in found], error) from None
        return [
            self._told(request, watches, answer, peek=peek)
            for request, (_, watches), answer in zip(requests, found, answers, strict=True)
        ]

    async def arefund(self, receipts: Sequence[Receipt]) -> int:
        """``refund`` for coroutines."""
        with self._telling([(receipt.counter, receipt.subject) for receipt in receipts]):
            return await self.store.arefund(self._receipts(receipts))

    async def agrant(self, charges: Sequence[Charge]) -> list[int]:
        """``grant`` for coroutines."""
        with self._telling([(counter, subject) for counter, subject, _ in charges]):
            return await self.store.agrant(self._of(charges)[0])

    async def areset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """``reset`` for coroutines."""
        with self._telling(keys):
            return await self.store.areset(self._keys(keys))

    async def awarm(self) -> bool:
        """That of the region's own store; the others are not waited for. See ``AsyncStore.awarm``."""
        return await self.store.awarm()

    async def aclose(self) -> None:
        """``close`` for coroutines."""
        if self._mover is not None:
            self._mover.end()
        for other in self._others.values():
            other.close()
        await self.store.aclose()

    # ------------------------------------------------------------------ the fleet and its news

    @property
    def nodes(self) -> int:
        """Processes of this region. See ``FleetStore.nodes``."""
        return self.store.nodes

    async def abeat(self) -> None:
        """See ``FleetStore.abeat``."""
        await self.store.abeat()

    def health(self) -> Sequence[ServerHealth]:
        """Servers of this region. See ``FleetStore.health``."""
        return self.store.health()

    def news_name(self, key: str) -> int:
        """See ``NewsStore.news_name``."""
        return self.store.news_name(key)

    def publish(self, keys: Iterable[str]) -> None:
        """Tell the processes of this region. See ``NewsStore.publish``."""
        self.store.publish(keys)

    def subscribe(self, heard: Heard) -> Callable[[], None]:
        """Hear what those of this region tell. See ``NewsStore.subscribe``."""
        return self.store.subscribe(heard)

    # ------------------------------------------------------------------ inside

    def _of(self, request: Request) -> tuple[list[Charge], list[tuple[int, Watched]]]:
        """The charges of the region's parts, and those of them, by place, whose parts move."""
        of, mover = self._parts.of, self._mover
        parts: list[Charge] = []
        watches: list[tuple[int, Watched]] = []
        for counter, subject, cost in request:
            part, watched = of(counter, subject)
            if watched is not None:
                watches.append((len(parts), watched))
                watched.used = True
                if mover is not None and not mover.awake:
                    mover.wake()
            parts.append((part, subject, cost))
        return parts, watches

    def _told(self, request: Request, watches: Sequence[tuple[int, Watched]], answer: Answer, *, peek: bool) -> Answer:
        """The answer as one to what was asked; what it used of counters whose parts move is noted. (Two threads may lose a note of a use.)"""
        if watches and not peek:
            refused = () if answer.admitted else {(charge[0].name, charge[1]) for charge in answer.refused()}
            for place, watched in watches:
                counter, subject, cost = request[place]
                if answer.admitted:
                    watched.admitted += cost
                elif (counter.name, subject) in refused and cost <= counter.spec.capacity:
                    watched.refused += cost
        return as_asked(request, answer)

    def _granted(
        self, items: Sequence[LeaseItem], grants: list[LeaseGrant | StoreError]
    ) -> list[LeaseGrant | StoreError]:
        for item, grant in zip(items, grants, strict=True):
            watched = self._parts.of(item.counter, item.subject)[1]
            if watched is not None and isinstance(grant, LeaseGrant):
                watched.admitted += grant.granted
                if item.ask.serial and item.ask.want and not grant.granted and not grant.lost:
                    watched.refused += 1
        return grants

    def _items(self, items: Sequence[LeaseItem]) -> list[LeaseItem]:
        counters, _ = self._of([(item.counter, item.subject, 0) for item in items])
        return [item._replace(counter=counter) for item, (counter, _, _) in zip(items, counters, strict=True)]

    def _receipts(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        return [receipt._replace(counter=self._parts.of(receipt.counter, receipt.subject)[0]) for receipt in receipts]

    def _keys(self, keys: Sequence[tuple[Counter, str]]) -> list[tuple[Counter, str]]:
        return [(self._parts.of(counter, subject)[0], subject) for counter, subject in keys]

    @contextlib.contextmanager
    def _telling(self, keys: Sequence[tuple[Counter, str]]) -> Iterator[None]:
        try:
            yield
        finally:
            # The store tells of the counters it was given; processes here know them by other names.
            self.store.publish([counter.prefix + subject for counter, subject in keys])
