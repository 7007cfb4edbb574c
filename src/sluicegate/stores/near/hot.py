"""Counters that are hot and not leased: those that are split (``splits``) and those that are admitted by chance (``estimates``).

Stands between a near store and the store behind it, for deciding calls alone. A request that has no such counter goes through as it is; so does every
one where the store behind has only a part of each counter, as in one of several regions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.verdict import ALLOWED, DENIED, NEVER_FITS, NOT_ASKED
from sluicegate.errors import StoreError
from sluicegate.stores.answer import ToldAnswer, answers_of
from sluicegate.stores.base import Answer, AsyncStore, Charge, Counter, Done, PartialStore, Request, Store
from sluicegate.stores.locks import Locked
from sluicegate.stores.near.batches import answers_or_raise
from sluicegate.stores.near.chores import Chores
from sluicegate.stores.near.estimates import Estimate, Estimates, exchange
from sluicegate.stores.near.routes import Kind, Route, RoutedAnswer, Span
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.near.splits import Duty, Split, Splits, parts_beside
from sluicegate.stores.near.splitting import begin, renew

__all__ = ["Deciding", "HotStore", "Sources"]

_SPLIT: Final = Precision.SPLIT
_ESTIMATED: Final = Precision.ESTIMATED


class Deciding(Store, AsyncStore, Protocol):
    """What is asked behind: a store that answers threads and coroutines."""


class Sources(Protocol):
    """Where random numbers come from. ``random.Random`` is one."""

    def getrandbits(self, bits: int, /) -> int: ...

    def randrange(self, below: int, /) -> int: ...

    def seed(self) -> None:
        """Begin anew from nowhere: a forked child must not draw what its parent draws."""
        ...


class HotStore(Locked):
    """Decides as ``store`` does, hot counters of rules that say so in their own way. Safe from any thread and event loop.

    ``now_us``: the steady time of this process; ``wall_us`` dates answers that no store has dated. What is due behind requests is done by ``chores``, in a
    thread of its own where ``threads``, else by whoever calls ``work``. A fork begins without what its parent knew.
    """

    def __init__(
        self,
        store: Deciding,
        settings: NearSettings,
        now_us: Callable[[], int],
        wall_us: Callable[[], int],
        sources: Sources,
        *,
        threads: bool = True,
    ) -> None:
        self.store = store
        # What is drawn or split by the whole numbers would be had once more by each of the others.
        self._partly = isinstance(store, PartialStore)
        self.splits = Splits(settings.terms, sources.randrange)
        self.estimates = Estimates(partial(sources.getrandbits, 32))
        self._now_us = now_us
        self._wall_us = wall_us
        self._left: list[Estimate] = []
        self._sources: Sources | None = None
        self._chores = Chores("hot counters", self.work, now_us) if threads else None
        super().__init__()
        self._sources = sources

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self.splits.clear()
        self.estimates.clear()
        self._left.clear()
        if self._sources is not None:
            self._sources.seed()

    # ------------------------------------------------------------------ hot and cold

    def promote(self, counter: Counter, subject: str, now_us: int) -> bool:
        """A counter is hot. False where nothing is done about it."""
        if self._partly:
            return False
        with self._lock:
            if counter.precision is _SPLIT:
                found = self.splits.promote(counter, subject, now_us)
            else:
                found = counter.precision is _ESTIMATED and self.estimates.promote(counter, subject, now_us)
        if found:
            self._poke()
        return found

    def retire(self, key: str, now_us: int) -> None:
        """A counter is cold. What it was used and has not been told is told."""
        with self._lock:
            self.splits.retire(key, now_us)
            one = self.estimates.forget(key)
            if one is not None and one.admitted:
                self._left.append(one)
        self._poke()

    def _poke(self) -> None:
        if self._chores is not None:
            self._chores.poke()

    def close(self) -> None:
        """Tell what was not told, and end the thread."""
        if self._chores is not None:
            self._chores.close()
        with self._lock:
            now_us = self._now_us()
            for split in list(self.splits.all()):
                self.splits.retire(split.key, now_us)
            self._left += [one for one in self.estimates.all() if one.admitted]
            self.estimates.clear()
        self.work()

    # ------------------------------------------------------------------ deciding

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """See ``Store.decide_one``."""
        route = None if peek else self._route(request)
        if route is None:
            return self.store.decide_one(request, peek=peek)
        if not isinstance(route, Route):
            return route
        result: Answer | StoreError | None = None
        while result is None:
            try:
                found: Answer | StoreError = self.store.decide_one(route.sent)
            except StoreError as error:
                found = error
            except BaseException:
                self._landed(route, StoreError("interrupted"))
                raise
            result = self._landed(route, found)
        if isinstance(result, StoreError):
            raise result
        return result

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """See ``Store.decide``. Those that a gate refused are asked once more, after the others."""
        routes = [None if peek else self._route(request) for request in requests]
        if not any(routes):
            return self.store.decide(requests, peek=peek)
        results: dict[int, Answer | StoreError] = {}
        pending = self._unanswered(requests, routes, results)
        while pending:
            try:
                found: Sequence[Answer | StoreError] = self.store.decide([asked for _, asked in pending])
            except StoreError as error:
                found = answers_of(error, len(pending))
            pending = self._taken(pending, found, routes, results)
        return answers_or_raise([results[place] for place in range(len(requests))])

    async def adecide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """``decide`` for coroutines. Where the caller is cancelled, what was asked counts as made."""
        routes = [None if peek else self._route(request) for request in requests]
        if not any(routes):
            return await self.store.adecide(requests, peek=peek)
        results: dict[int, Answer | StoreError] = {}
        pending = self._unanswered(requests, routes, results)
        while pending:
            try:
                found: Sequence[Answer | StoreError] = await self.store.adecide([asked for _, asked in pending])
            except StoreError as error:
                found = answers_of(error, len(pending))
            except BaseException:
                self._taken(pending, [StoreError("interrupted")] * len(pending), routes, results)
                raise
            pending = self._taken(pending, found, routes, results)
        return answers_or_raise([results[place] for place in range(len(requests))])

    def submit(self, request: Request, done: Done, *, peek: bool = False) -> None:
        """See ``AsyncStore.submit``."""
        route = None if peek else self._route(request)
        if route is None:
            self.store.submit(request, done, peek=peek)
        elif isinstance(route, Route):
            self.store.submit(route.sent, partial(self._arrived, route, done))
        else:
            done(route)

    def _arrived(self, route: Route, done: Done, found: Answer | StoreError) -> None:
        result = self._landed(route, found)
        if result is None:
            try:
                self.store.submit(route.sent, partial(self._arrived, route, done))
                return
            except Exception as problem:  # noqa: BLE001 -- the store's other callers must get their answers
                result = self._landed(route, StoreError(f"the store cannot be asked: {problem}"))
                assert result is not None, "what has failed is not asked once more"
        done(result)

    @staticmethod
    def _unanswered(
        requests: Sequence[Request], routes: Sequence[Route | Answer | None], results: dict[int, Answer | StoreError]
    ) -> list[tuple[int, Request]]:
        """(place, what is to be asked) of each request; those that are decided go to ``results``."""
        pending: list[tuple[int, Request]] = []
        for place, (request, route) in enumerate(zip(requests, routes, strict=True)):
            if route is None or isinstance(route, Route):
                pending.append((place, request if route is None else route.sent))
            else:
                results[place] = route
        return pending

    def _taken(
        self,
        pending: Sequence[tuple[int, Request]],
        found: Sequence[Answer | StoreError],
        routes: Sequence[Route | Answer | None],
        results: dict[int, Answer | StoreError],
    ) -> list[tuple[int, Request]]:
        """Put what was found into ``results``; what is to be asked once more."""
        again: list[tuple[int, Request]] = []
        for (place, _), answer in zip(pending, found, strict=True):
            route = routes[place]
            result = self._landed(route, answer) if isinstance(route, Route) else answer
            if result is not None:
                results[place] = result
            elif isinstance(route, Route):
                again.append((place, route.sent))
        return again

    # ------------------------------------------------------------------ giving back

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """See ``Store.reset``. The parts of a counter that may be split are forgotten with it, and not counted."""
        parts = self._parts(keys)
        if parts:
            self.store.reset(parts)
        return self.store.reset(keys)

    async def areset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """``reset`` for coroutines."""
        parts = self._parts(keys)
        if parts:
            await self.store.areset(parts)
        return await self.store.areset(keys)

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        """See ``Store.grant``. Where this process knows that a counter is split, its parts get their shares too; else when it is whole again."""
        shares = self._shares(charges)
        if shares:
            self.store.grant(shares)
        return self.store.grant(charges)

    async def agrant(self, charges: Sequence[Charge]) -> list[int]:
        """``grant`` for coroutines."""
        shares = self._shares(charges)
        if shares:
            await self.store.agrant(shares)
        return await self.store.agrant(charges)

    def _parts(self, keys: Sequence[tuple[Counter, str]]) -> list[tuple[Counter, str]]:
        with self._lock:
            return parts_beside(keys, self.splits.whole)

    def _shares(self, charges: Sequence[Charge]) -> list[Charge]:
        found: list[Charge] = []
        with self._lock:
            now_us = self._now_us()
            for counter, subject, tokens in charges:
                split = self.splits.using(counter.prefix + subject, now_us)
                if split is not None:
                    found += split.shares(tokens)
        return found

    # ------------------------------------------------------------------ before and after

    def _route(self, request: Request) -> Route | Answer | None:
        """What to ask instead, or the answer where nothing is to be asked; None for a request without such counters."""
        for charge in request:
            precision = charge[0][6]
            if precision is _SPLIT or precision is _ESTIMATED:
                break
        else:
            return None
        if self._partly:
            return None
        with self._lock:
            now_us = self._now_us()
            route = Route(request, [self._span(charge, now_us) for charge in request], now_us)
            refused = [span for span in route.spans if _refuses(span)]
            if route.sent and not refused:
                return route
            for span in route.spans:
                if span.one is not None and span.verdict is not None and span.verdict.outcome is ALLOWED:
                    span.one.conclude(span.charge[2], passed=not refused)
        known = tuple([NOT_ASKED if span.verdict is None else span.verdict for span in route.spans])
        return ToldAnswer(not refused, self._wall_us(), request, known)

    def _span(self, charge: Charge, now_us: int) -> Span:
        counter, subject, cost = charge
        if counter.precision is _ESTIMATED:
            one = self.estimates.find(counter.prefix + subject)
            if one is not None:
                drawn = one.admit(cost, now_us)
                span = Span(charge, Kind.UNKNOWN if drawn is None else Kind.CHANCE, (charge,) if drawn is None else ())
                span.one = one
                span.verdict = None if drawn is None else one.verdict(cost, admitted=drawn)
                return span
        elif counter.precision is _SPLIT:
            whole = self.splits.whole(counter)
            if whole is not None and cost <= counter.spec.capacity:
                split = self.splits.using(counter.prefix + subject, now_us)
                if split is not None:
                    return _by_parts(charge, split)
                span = Span(charge, Kind.WHOLE, (charge, (whole.gate, subject, 1)))
                span.whole = whole
                return span
        return Span(charge, Kind.PLAIN, (charge,))

    def _landed(self, route: Route, found: Answer | StoreError) -> Answer | StoreError | None:
        """What the caller gets; None where the store is to be asked once more, by the same route."""
        with self._lock:
            if isinstance(found, StoreError):
                # Perhaps it was charged, and perhaps a failure policy lets it pass: it counts as admitted.
                self._conclude(route, passed=True)
                return route.failed(found)
            if not found.admitted and not route.rerouted and self._reroute(route, found):
                return None
            self._conclude(route, passed=found.admitted)
            others = found.admitted
            if not others and any(span.kind is Kind.UNKNOWN for span in route.spans):
                others = _only_unknown_refuse(route, found)
            if others:
                for span in route.spans:
                    if span.kind is Kind.UNKNOWN and span.one is not None:
                        span.one.asked(span.charge[2])
            return RoutedAnswer(route, found)

    @staticmethod
    def _conclude(route: Route, *, passed: bool) -> None:
        for span in route.spans:
            cost = span.charge[2]
            if span.kind is Kind.CHANCE and span.one is not None and span.verdict is not None:
                if span.verdict.outcome is ALLOWED:
                    span.one.conclude(cost, passed=passed)
            elif span.kind is Kind.PARTS and span.split is not None and passed:
                span.split.admitted += cost

    def _reroute(self, route: Route, found: Answer) -> bool:
        """Where gates have refused, use the parts instead."""
        changed, spans, now_us = False, list(route.spans), self._now_us()
        for place, (span, piece) in enumerate(route.pieces(found.verdicts())):
            if span.kind is not Kind.WHOLE or span.whole is None:
                continue
            gate = piece[1]
            if gate is None or gate.outcome is not DENIED:
                continue
            wait_us = gate.retry_after_us or 0
            split = self.splits.gated(span.whole, span.charge[1], wait_us, route.sent_us, now_us)
            if split is not None:
                spans[place] = _by_parts(span.charge, split)
                changed = True
        if changed:
            route.spans = spans
            route.rerouted = True
            route.begin(now_us)
            self._poke()
        return changed

    # ------------------------------------------------------------------ what is due behind requests

    def work(self) -> int | None:
        """Do what is due, and say when there is more to do: None, not until something gets hot. Waits for the store, and never raises for it."""
        with self._lock:
            now_us = self._now_us()
            splits, estimates, left = self.splits.due(now_us), self.estimates.due(now_us), self._left
            self._left = []
        for one in [*estimates, *left]:
            self._refresh(one)
        for split in splits:
            self._see_to(split)
        with self._lock:
            due = [due_us for due_us in (self.splits.next_due_us, self.estimates.next_due_us) if due_us is not None]
        return min(due, default=None)

    def _refresh(self, one: Estimate) -> None:
        with self._lock:
            offered, admitted = one.take()
            sent_us = self._now_us()
        try:
            store_us, total = exchange(self.store, one, offered, admitted)
        except Exception:  # noqa: BLE001 -- whatever it is, the next turn must come
            with self._lock:
                one.failed(offered, admitted)
        else:
            with self._lock:
                one.learn(offered, store_us, total, sent_us)
        with self._lock:
            self.estimates.done(one, self._now_us())

    def _see_to(self, split: Split) -> None:
        with self._lock:
            duty, admitted, sent_us = split.duty, split.admitted, self._now_us()
            split.admitted = 0
        shut_us: int | None = None
        try:
            if admitted or duty is Duty.RENEW:
                renew(self.store, split, admitted, shut=duty is Duty.RENEW)
                admitted = 0
            if duty is Duty.RENEW:
                shut_us = sent_us
            elif duty is Duty.BEGIN:
                begun = begin(self.store, split, self._now_us)
                shut_us = begun.shut_us
                if begun.wait_us is not None:
                    with self._lock:
                        self.splits.gated(split.whole, split.subject, begun.wait_us, sent_us, self._now_us())
        except Exception:  # noqa: BLE001 -- whatever it is, the next turn must come
            # What was perhaps charged is charged again: never too little.
            with self._lock:
                split.admitted += admitted
        with self._lock:
            self.splits.done(split, shut_us, self._now_us())


def _by_parts(charge: Charge, split: Split) -> Span:
    span = Span(charge, Kind.PARTS, split.charges(charge[2]))
    span.split = split
    return span


def _refuses(span: Span) -> bool:
    return span.verdict is not None and span.verdict.outcome is not ALLOWED and not span.charge[0].shadow


def _only_unknown_refuse(route: Route, found: Answer) -> bool:
    """Whether no other charge refused than those of counters that are estimated, and have no figure yet."""
    for span, piece in route.pieces(found.verdicts()):
        verdict = span.told(piece)
        refuses = verdict is not None and (verdict.outcome is DENIED or verdict.outcome is NEVER_FITS)
        if refuses and span.kind is not Kind.UNKNOWN and not span.charge[0].shadow:
            return False
    return True
