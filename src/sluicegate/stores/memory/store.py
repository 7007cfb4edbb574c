"""The store of one process: exact, bounded, swept by the calls themselves.

Every call takes the one lock, so a request and a whole batch are atomic. Each deciding call exists in two forms. The
*fast path* serves the usual case, every charge on a counter written recently under the same spec and admitted, with as
few bytecodes as possible. Whatever else happens goes to ``_decide``, which is the readable statement of what a store does;
a property test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn, cast

from sluicegate.algorithms.leasing import Leased, LeaseGrant, LeaseTerms, Turn
from sluicegate.algorithms.leasing.leased import LeasedState
from sluicegate.algorithms.spec import ColumnSpec, Spec, State
from sluicegate.algorithms.verdict import Brief
from sluicegate.bounds import MEMORY_COUNTERS_CEILING, MEMORY_COUNTERS_MAX
from sluicegate.clock import Clock, wall_ns
from sluicegate.errors import ConfigurationError, StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import (
    Answer,
    Charge,
    Counter,
    Hitter,
    HitterWays,
    LeaseItem,
    Receipt,
    Request,
    Single,
    check_leasing,
)
from sluicegate.stores.locks import Locked
from sluicegate.stores.memory.hitter import make_hitter
from sluicegate.stores.memory.segment import Place
from sluicegate.stores.memory.stats import MemoryStats
from sluicegate.stores.memory.table import ALWAYS_US, CounterTable

__all__ = ["MemoryStore"]

_ONE_LIFE = "0" * 16
"""A process loses its counters only with itself, so its store has one incarnation."""


class MemoryStore(Locked):
    """Counters in this process, at most ``max_counters`` of them, dated by ``clock``.

    Guarantees: atomic per request and per batch under threads; no background thread; expired counters are removed by later
    calls in bounded steps; when full, the counters charged least recently are forgotten, counted in ``stats.evicted_live``,
    and one that is refusing only when no other is left. A forgotten counter starts anew, which may admit up to one
    capacity more.

    Not shared between processes: a forked child continues with its own copy of the counters, and pickling is refused.
    """

    __slots__ = ("_acquire", "_now_ns", "_release", "_table", "clock", "closed", "max_counters", "stats")

    def __init__(self, clock: Clock, *, max_counters: int = MEMORY_COUNTERS_MAX) -> None:
        if type(max_counters) is not int or not 1 <= max_counters <= MEMORY_COUNTERS_CEILING:
            raise ConfigurationError(f"max_counters: want 1 to {MEMORY_COUNTERS_CEILING}, got {max_counters!r}")
        super().__init__()
        self.clock = clock
        self.max_counters = max_counters
        self.stats = MemoryStats()
        self.closed = False
        self._now_ns = wall_ns(clock)
        self._table = CounterTable(max_counters, self.stats)

    def __len__(self) -> int:
        """Counters held, expired ones that are not swept yet included."""
        return self._table.count

    def __repr__(self) -> str:
        return f"MemoryStore({self._table.count} of {self.max_counters} counters)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a MemoryStore cannot be pickled: its counters live in one process; make one in each process")

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        """Decide one request. See ``Store.decide``."""
        acquire, release = self._acquire, self._release
        try:
            acquire()
            now_us = self._now_ns() // 1_000
            table = self._table
            if now_us >= table.wake_us:
                self._prepare(now_us)
            if peek:
                return self._decide(request, now_us, peek=True)
            # ``_decide_fast`` in place: the call would be a fifteenth of the whole.
            young = table.young
            index, specs, states = young.index, young.specs, young.states
            staged: list[tuple[int, State]] = []
            try:
                for counter, subject, cost in request:
                    slot = index[counter[2] + subject]
                    spec = specs[slot]
                    if spec is not counter[1]:
                        break
                    state = spec.admit(states[slot], now_us, cost)
                    if state is None:
                        break
                    staged.append((slot, state))
                else:
                    for slot, state in staged:
                        states[slot] = state
                    self.stats.decisions += 1
                    return StateAnswer(True, now_us, request, staged)
            except KeyError:
                return self._decide_new(request, now_us) or self._decide(request, now_us, peek=False)
            # A client over its limit, most often; with one counter, all that ``_decide_young`` would find is here already.
            if len(request) == 1 and spec is counter[1] and not (counter[3] or counter[4]):
                before = states[slot]
                if spec.clamp(before, now_us) is before:
                    self.stats.decisions += 1
                    return StateAnswer(False, now_us, request, ((0, before),), ((cost, False),), False, False)
            return self._decide_young(request, now_us) or self._decide(request, now_us, peek=False)
        finally:
            release()

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """Decide a batch in order under one lock and one reading of time."""
        answers: list[Answer] = []
        with self._lock:
            now_us = self._now_ns() // 1_000
            if now_us >= self._table.wake_us:
                self._prepare(now_us)
            for request in requests:
                answer = None
                if not peek:
                    answer = (
                        self._decide_fast(request, now_us)
                        or self._decide_new(request, now_us)
                        or self._decide_young(request, now_us)
                    )
                answers.append(answer or self._decide(request, now_us, peek=peek))
        return answers

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """Decide a batch of requests of one charge each, under one lock and one reading of time."""
        singles: list[Single] = []
        append = singles.append
        with self._lock:
            now_us = self._now_ns() // 1_000
            table = self._table
            if now_us >= table.wake_us:
                self._prepare(now_us)
            fast = 0
            for charge in charges:
                counter, subject, cost = charge
                young = table.young
                slot = None if peek else young.slot_of(counter[2] + subject)
                if slot is not None:
                    spec = young.specs[slot]
                    if spec is counter[1]:
                        before = young.states[slot]
                        state = spec.admit(before, now_us, cost)
                        if state is not None:
                            young.states[slot] = state
                            append((True, state))
                            fast += 1
                            continue
                        if not counter[4] and spec.clamp(before, now_us) is before:
                            append((False, before))
                            fast += 1
                            continue
                answer = None if peek or slot is not None else self._decide_new((charge,), now_us)
                if answer is None:
                    answer = self._decide((charge,), now_us, peek=peek)
                append((answer.admitted, answer.states[0][1]))
            self.stats.decisions += fast
        return now_us, singles

    def decide_alike(self, counter: Counter, keys: Sequence[str], cost: int) -> list[Brief] | None:
        """See ``BulkStore``. Serves specs that decide columns; fastest where every counter is young and of the same spec."""
        # Not isinstance: checking for a protocol with many members takes longer than deciding the batch.
        spec = cast("ColumnSpec", counter.spec)
        if not hasattr(spec, "admit_column"):
            return None
        with self._lock:
            now_us = self._now_ns() // 1_000
            table = self._table
            if now_us >= table.wake_us:
                self._prepare(now_us)
            young = table.young
            found = list(map(young.slot_of, keys))
            if None not in found:
                slots = cast("list[int]", found)
                specs = young.specs
                if [specs[slot] for slot in slots].count(spec) == len(slots):
                    self.stats.decisions += len(slots)
                    return spec.admit_column(young.states, slots, cost, now_us)
            return [self._decide_key(counter, key, cost, now_us) for key in keys]

    def _decide_key(self, counter: Counter, key: str, cost: int, now_us: int) -> Brief:
        """One charge of ``decide_alike`` that is not known to be on the fast path."""
        spec = counter.spec
        if self._table.find(key) is None:
            state = spec.admit(None, now_us, cost)
            if state is not None:
                # The caller's own string becomes the key, so that finding it again compares no text.
                self._table.write(key, None, state, spec, now_us)
                self.stats.decisions += 1
                verdict = spec.verdict(state, now_us, cost, True)
                return True, verdict.remaining, verdict.reset_after_us
        answer = self._decide(((counter, key[len(counter.prefix) :], cost),), now_us, peek=False)
        (verdict,) = answer.verdicts()
        return answer.admitted, verdict.remaining, verdict.reset_after_us if answer.admitted else verdict.retry_after_us

    def hitter(
        self,
        counter: Counter,
        key_of: Callable[[str], str],
        otherwise: Callable[[str, int], bool],
        refused: Callable[[str], None],
        ration: Callable[[], int] | None = None,
    ) -> Hitter:
        """See ``HitStore``. Serves cost 1 on a young counter of the same spec.

        It remembers the slots of the names it has seen in the young segment, so a known name costs one lookup.
        """
        return make_hitter(self, counter, HitterWays(key_of, otherwise, refused, ration))

    def refund(self, receipts: Sequence[Receipt]) -> int:
        """Give back what is due. A counter that was forgotten or made anew after the charge gets nothing back."""
        changed = 0
        with self._lock:
            now_us = self._now_ns() // 1_000
            self._prepare(now_us)
            for counter, subject, cost, charged_us in receipts:
                place = self._current(counter.prefix + subject, counter, now_us)
                if place is None or place.born_us > charged_us:
                    continue
                before = place.state
                # Its limit may have been lowered since.
                most = min(cost, counter.spec.capacity)
                place.set(place.spec.refund(before, now_us, most, charged_us), place.spec)
                changed += place.state != before
            self.stats.refunds += changed
        return changed

    def grant(self, charges: Sequence[Charge]) -> list[int]:
        """Give back up to the cost of each of what is used. See ``Store.grant``."""
        granted: list[int] = []
        with self._lock:
            now_us = self._now_ns() // 1_000
            self._prepare(now_us)
            for counter, subject, tokens in charges:
                place = self._current(counter.prefix + subject, counter, now_us)
                state, given = (None, 0) if place is None else place.spec.grant(place.state, now_us, tokens)
                if place is not None and given:
                    place.set(state, place.spec)
                granted.append(given)
            self.stats.grants += sum(given > 0 for given in granted)
        return granted

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        """See ``LeaseStore.lease``. A counter that is missing was evicted or is new, which this store does not tell apart."""
        check_leasing(holder, items)
        grants: list[LeaseGrant | StoreError] = []
        with self._lock:
            now_us = self._now_ns() // 1_000
            self._prepare(now_us)
            for counter, subject, ask in items:
                key = counter.prefix + subject
                place = self._current(key, counter, now_us)
                leased = Leased(counter.spec)
                turn = Turn(holder, ask, terms.hold_us, _ONE_LIFE)
                state, grant = leased.turn(None if place is None else place.state, now_us, turn)
                spec: Spec = leased if isinstance(state, LeasedState) else counter.spec
                if state is not None:
                    self._table.write(key, place, state, spec, now_us)
                elif place is not None:
                    self._table.drop(key)
                grants.append(grant)
        return grants

    async def alease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> list[LeaseGrant | StoreError]:
        """``lease`` for coroutines; it does not wait."""
        return self.lease(holder, terms, items)

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """Forget these counters; returns how many existed and had not expired."""
        existed = 0
        with self._lock:
            now_us = self._now_ns() // 1_000
            self._prepare(now_us)
            for counter, subject in keys:
                key = counter.prefix + subject
                place = self._table.find(key)
                if place is not None:
                    existed += place.spec.expires_us(place.state) > now_us
                    self._table.drop(key)
            self.stats.resets += existed
        return existed

    def clear(self) -> int:
        """Forget all counters, as between two tests; returns how many there were, expired ones included."""
        with self._lock:
            self._prepare(self._now_ns() // 1_000)
            held = self._table.count
            self._table.clear()
            self._table.wake_us = ALWAYS_US
            self.stats.resets += held
        return held

    def close(self) -> None:
        """Forget all counters; every later call but ``close`` raises StoreError."""
        with self._lock:
            self.closed = True
            self._table.clear()
            self._table.wake_us = ALWAYS_US

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self._acquire = self._lock.acquire
        self._release = self._lock.release

    def _prepare(self, now_us: int) -> None:
        """What precedes every decision off the fast path."""
        if self.closed:
            raise StoreError("the memory store is closed", transient=False)
        self._table.tidy(now_us)

    def _decide_fast(self, request: Request, now_us: int) -> StateAnswer | None:
        """Decide where every counter is young and of the same spec and admits; else None, and nothing has changed.

        Counters are taken apart by position, because a name costs as much as a lookup of a key.
        """
        young = self._table.young
        slot_of, specs, states = young.slot_of, young.specs, young.states
        staged: list[tuple[int, State]] = []
        for counter, subject, cost in request:
            slot = slot_of(counter[2] + subject)
            if slot is None:
                return None
            spec = specs[slot]
            if spec is not counter[1]:
                return None
            state = spec.admit(states[slot], now_us, cost)
            if state is None:
                return None
            staged.append((slot, state))
        for slot, state in staged:
            states[slot] = state
        self.stats.decisions += 1
        return StateAnswer(True, now_us, request, staged)

    def _decide_young(self, request: Request, now_us: int) -> StateAnswer | None:
        """Decide where every counter is young and of the same spec and some refuse; else None, and nothing has changed.

        What a client over its limit costs each time it asks again, and a shadow rule that would refuse. Left to ``_decide``
        are the refusals that write: counted ones, and those that find a state from before a step of the clock.
        """
        young = self._table.young
        slot_of, specs, states = young.slot_of, young.specs, young.states
        admitted = unanimous = True
        found: list[tuple[int, State, State | None]] = []
        for counter, subject, cost in request:
            slot = slot_of(counter[2] + subject)
            if slot is None:
                return None
            spec = specs[slot]
            if spec is not counter[1]:
                return None
            before = states[slot]
            after = spec.admit(before, now_us, cost)
            if after is None:
                if counter[4] or spec.clamp(before, now_us) is not before:
                    return None
                unanimous = False
                if not counter[3]:
                    admitted = False
            found.append((slot, before, after))
        self.stats.decisions += 1
        if len(found) == 1 and not unanimous:
            return StateAnswer(admitted, now_us, request, ((0, before),), ((cost, False),), admitted, False)
        after_all: list[tuple[int, State]] = []
        notes: list[tuple[int, bool]] = []
        for (slot, before, after), charge in zip(found, request, strict=True):
            if after is None or not admitted:
                after_all.append((slot, before))
                notes.append((charge[2], False) if after is None else (0, True))
            else:
                states[slot] = after
                after_all.append((slot, after))
                notes.append((charge[2], True))
        return StateAnswer(admitted, now_us, request, after_all, notes, admitted, unanimous)

    def _decide_new(self, request: Request, now_us: int) -> StateAnswer | None:
        """Decide a single charge that creates its counter, which is all that a flood of new keys consists of; else None."""
        if len(request) != 1:
            return None
        counter, subject, cost = request[0]
        key = counter.prefix + subject
        if self._table.find(key) is not None:
            return None
        state = counter.spec.admit(None, now_us, cost)
        if state is None:
            return None
        self._table.write(key, None, state, counter.spec, now_us)
        self.stats.decisions += 1
        return StateAnswer(True, now_us, request, ((0, state),))

    def _decide(self, request: Request, now_us: int, *, peek: bool) -> StateAnswer:
        """Read every counter, decide every charge, then charge all or none."""
        self.stats.decisions += 1
        read: list[tuple[Place | None, State | None, State | None, bool]] = []
        admitted = True
        for counter, subject, cost in request:
            place = self._current(counter.prefix + subject, counter, now_us)
            state: State | None = None if place is None else place.state
            spec = counter.spec if place is None else place.spec
            if type(state) is LeasedState:
                state = Leased(counter.spec).settled(state, now_us)
            after = spec.admit(state, now_us, cost) if cost else state
            passes = after is not None or not cost
            if place is not None and not passes and not peek and cost <= counter.spec.capacity:
                # A state from before a step of the clock must not keep its client out until that time comes again.
                clamped = spec.clamp(state, now_us)
                if clamped is not state:
                    place.set(clamped, spec)
                    state = clamped
            admitted = admitted and (passes or counter.shadow)
            read.append((place, state, after, passes))
        states: list[tuple[int, State | None]] = []
        notes: list[tuple[int, bool]] = []
        # From here on a place may be empty: making room for one counter of the request can evict another.
        for charge, (place, state, after, passes) in zip(request, read, strict=True):
            counter, subject, cost = charge
            spec = Leased(counter.spec) if type(state) is LeasedState else counter.spec
            written = None if peek else after if admitted else self._penalty(charge, spec, state, now_us, passes=passes)
            if written is not None:
                self._table.write(counter.prefix + subject, place, written, spec, now_us)
                state = written
            states.append((0, state.base if type(state) is LeasedState else state))
            notes.append((0 if passes and written is None else cost, passes))
        unanimous = all(passes for _, passes in notes)
        return StateAnswer(admitted, now_us, request, states, notes, admitted and not peek, unanimous)

    def _penalty(self, charge: Charge, spec: Spec, state: State | None, now_us: int, *, passes: bool) -> State | None:
        """What a refused request writes to one of its counters: nothing, unless it refused and counts refusals.

        The spec leaves a cost that can never fit uncounted, so such a request creates no counter either.
        """
        counter, _, cost = charge
        if passes or counter.shadow or not counter.denied_counts or cost > counter.spec.capacity:
            return None
        return spec.charge_refused(state, now_us, cost)

    def _current(self, key: str, counter: Counter, now_us: int) -> Place | None:
        """The counter of ``key`` under its present spec, taken over from earlier numbers where needed.

        Taking over is not a charge: it happens at the first look after the change, a peek included, so that time
        passes under the new numbers from then on.
        """
        place = self._table.find(key)
        if place is None or place.spec is counter.spec:
            return place
        state = place.state
        if type(state) is LeasedState:
            old = cast("Leased", place.spec)
            if old.spec != counter.spec:
                self.stats.carried += 1
                leased = Leased(counter.spec)
                place.set(leased.carry(old, state, now_us, counter.on_change), leased)
            return place
        if place.spec != counter.spec:
            self.stats.carried += 1
            state = counter.spec.carry(place.spec, state, now_us, counter.on_change)
            if state is None:
                self._table.drop(key)
                return None
        place.set(state, counter.spec)
        return place
