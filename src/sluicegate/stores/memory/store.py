"""The store of one process: exact, bounded, swept by the calls themselves.

Every call takes the one lock, so a request and a whole batch are atomic. Each deciding call exists in two forms. The
*fast path* serves the usual case, every charge on a counter written recently under the same spec and admitted, with as
few bytecodes as possible. Whatever else happens goes to ``_decide``, which is the readable statement of what a store does;
a property test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from sluicegate.algorithms.spec import State
from sluicegate.bounds import MEMORY_COUNTERS_CEILING, MEMORY_COUNTERS_MAX
from sluicegate.clock import Clock
from sluicegate.errors import ConfigurationError, StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, Charge, Counter, Receipt, Request, Single
from sluicegate.stores.locks import Locked
from sluicegate.stores.memory.stats import MemoryStats
from sluicegate.stores.memory.table import ALWAYS_US, CounterTable, Entry

__all__ = ["MemoryStore"]


class MemoryStore(Locked):
    """Counters in this process, at most ``max_counters`` of them, dated by ``clock``.

    Guarantees: atomic per request and per batch under threads; no background thread; expired counters are removed by later
    calls in bounded steps; when full, the counters charged least recently are forgotten, counted in ``stats.evicted_live``,
    and one that is refusing only when no other is left. A forgotten counter starts anew, which may admit up to one
    capacity more.

    Not shared between processes: a forked child continues with its own copy of the counters, and pickling is refused.
    """

    __slots__ = ("_now_us", "_table", "clock", "closed", "max_counters", "stats")

    def __init__(self, clock: Clock, *, max_counters: int = MEMORY_COUNTERS_MAX) -> None:
        if type(max_counters) is not int or not 1 <= max_counters <= MEMORY_COUNTERS_CEILING:
            raise ConfigurationError(f"max_counters: want 1 to {MEMORY_COUNTERS_CEILING}, got {max_counters!r}")
        super().__init__()
        self.clock = clock
        self.max_counters = max_counters
        self.stats = MemoryStats()
        self.closed = False
        self._now_us = clock.now_us
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
        with self._lock:
            now_us = self._now_us()
            if now_us >= self._table.wake_us:
                self._prepare(now_us)
            if not peek:
                answer = self._decide_fast(request, now_us)
                if answer is not None:
                    return answer
            return self._decide(request, now_us, peek=peek)

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        """Decide a batch in order under one lock and one reading of time."""
        answers: list[Answer] = []
        with self._lock:
            now_us = self._now_us()
            if now_us >= self._table.wake_us:
                self._prepare(now_us)
            for request in requests:
                answer = None if peek else self._decide_fast(request, now_us)
                answers.append(self._decide(request, now_us, peek=peek) if answer is None else answer)
        return answers

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """Decide a batch of requests of one charge each, under one lock and one reading of time."""
        singles: list[Single] = []
        append = singles.append
        with self._lock:
            now_us = self._now_us()
            table = self._table
            if now_us >= table.wake_us:
                self._prepare(now_us)
            fast = 0
            for charge in charges:
                counter, subject, cost = charge
                entry = None if peek else table.young.get(counter[2] + subject)
                if entry is not None:
                    spec = entry.spec
                    if spec is counter[1]:
                        state = spec.admit(entry.state, now_us, cost)
                        if state is not None:
                            entry.state = state
                            append((True, state))
                            fast += 1
                            continue
                answer = self._decide((charge,), now_us, peek=peek)
                append((answer.admitted, answer.states[0]))
            self.stats.decisions += fast
        return now_us, singles

    def hitter(
        self, counter: Counter, keys: Mapping[str, str], otherwise: Callable[[str, int], bool]
    ) -> Callable[[str, int], bool]:
        """See ``HitStore``. Serves cost 1 on a young counter of the same spec that admits it."""
        spec = counter.spec
        admit, table, stats, now_us_of = spec.admit, self._table, self.stats, self._now_us
        one = 1

        def hit(name: str, cost: int = 1) -> bool:
            if cost is one:
                key = keys[name]
                with self._lock:
                    entry = table.young.get(key)
                    if entry is not None and entry.spec is spec:
                        now_us = now_us_of()
                        if now_us < table.wake_us:
                            state = admit(entry.state, now_us, 1)
                            if state is not None:
                                entry.state = state
                                stats.decisions += 1
                                return True
            return otherwise(name, cost)

        return hit

    def refund(self, receipts: Sequence[Receipt]) -> int:
        """Give back what is due. A counter that was forgotten or made anew after the charge gets nothing back."""
        changed = 0
        with self._lock:
            now_us = self._now_us()
            self._prepare(now_us)
            for counter, subject, cost, charged_us in receipts:
                entry = self._current(counter.prefix + subject, counter, now_us)
                if entry is None or entry.born_us > charged_us:
                    continue
                state = counter.spec.refund(entry.state, now_us, cost, charged_us)
                changed += state != entry.state
                entry.state = state
            self.stats.refunds += changed
        return changed

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        """Forget these counters; returns how many existed and had not expired."""
        existed = 0
        with self._lock:
            now_us = self._now_us()
            self._prepare(now_us)
            for counter, subject in keys:
                key = counter.prefix + subject
                entry = self._table.find(key)
                if entry is not None:
                    self._table.drop(key)
                    existed += entry.spec.expires_us(entry.state) > now_us
            self.stats.resets += existed
        return existed

    def close(self) -> None:
        """Forget all counters; every later call but ``close`` raises StoreError."""
        with self._lock:
            self.closed = True
            self._table.clear()
            self._table.wake_us = ALWAYS_US

    def _prepare(self, now_us: int) -> None:
        """What precedes every decision off the fast path."""
        if self.closed:
            raise StoreError("the memory store is closed", transient=False)
        self._table.tidy(now_us)

    def _decide_fast(self, request: Request, now_us: int) -> StateAnswer | None:
        """Decide where every counter is young and of the same spec and admits; else None, and nothing has changed."""
        young = self._table.young
        if len(request) == 1:
            counter, subject, cost = request[0]
            entry = young.get(counter[2] + subject)
            if entry is None or entry.spec is not counter[1]:
                return None
            state = entry.spec.admit(entry.state, now_us, cost)
            if state is None:
                return None
            entry.state = state
            self.stats.decisions += 1
            return StateAnswer(True, now_us, request, (state,))
        entries: list[Entry] = []
        states: list[State] = []
        for counter, subject, cost in request:
            entry = young.get(counter[2] + subject)
            if entry is None:
                return None
            spec = entry.spec
            if spec is not counter[1]:
                return None
            state = spec.admit(entry.state, now_us, cost)
            if state is None:
                return None
            entries.append(entry)
            states.append(state)
        for entry, state in zip(entries, states):  # noqa: B905 -- equally long, and strict costs a tenth
            entry.state = state
        self.stats.decisions += 1
        return StateAnswer(True, now_us, request, states)

    def _decide(self, request: Request, now_us: int, *, peek: bool) -> StateAnswer:
        """Read every counter, decide every charge, then charge all or none."""
        self.stats.decisions += 1
        read: list[tuple[Entry | None, State | None, bool]] = []
        admitted = True
        for counter, subject, cost in request:
            entry = self._current(counter.prefix + subject, counter, now_us)
            state = None if entry is None else entry.state
            after = counter.spec.admit(state, now_us, cost) if cost else state
            passes = after is not None or not cost
            admitted = admitted and (passes or counter.shadow)
            read.append((entry, after, passes))
        states: list[State | None] = []
        notes: list[tuple[int, bool]] = []
        for charge, (entry, after, passes) in zip(request, read, strict=True):
            state = None if entry is None else entry.state
            written = None if peek else after if admitted else self._penalty(charge, state, now_us, passes=passes)
            if written is not None:
                self._write(charge, written, entry, now_us)
            states.append(state if written is None else written)
            notes.append((0 if passes and written is None else charge[2], passes))
        return StateAnswer(admitted, now_us, request, states, notes, admitted and not peek)

    def _penalty(self, charge: Charge, state: State | None, now_us: int, *, passes: bool) -> State | None:
        """What a refused request writes to one of its counters: nothing, unless it refused and counts refusals.

        The spec leaves a cost that can never fit uncounted, so such a request creates no counter either.
        """
        counter, _, cost = charge
        if passes or counter.shadow or not counter.denied_counts or cost > counter.spec.capacity:
            return None
        return counter.spec.charge_refused(state, now_us, cost)

    def _current(self, key: str, counter: Counter, now_us: int) -> Entry | None:
        """The entry of ``key`` under the counter's present spec, taken over from earlier numbers where needed.

        Taking over is not a charge: it happens at the first look after the change, a peek included, so that time
        passes under the new numbers from then on.
        """
        entry = self._table.find(key)
        if entry is None or entry.spec is counter.spec:
            return entry
        if entry.spec != counter.spec:
            self.stats.carried += 1
            state = counter.spec.carry(entry.spec, entry.state, now_us, counter.on_change)
            if state is None:
                self._table.drop(key)
                return None
            entry.state = state
        entry.spec = counter.spec
        return entry

    def _write(self, charge: Charge, state: State, entry: Entry | None, now_us: int) -> None:
        counter, subject, _ = charge
        key = counter.prefix + subject
        if entry is None:
            self._table.add(key, Entry(state, counter.spec, now_us), now_us)
        else:
            entry.state = state
            self._table.renew(key, entry, now_us)
