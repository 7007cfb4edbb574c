"""What happens to a request when its counters cannot be reached.

Each rule says what to do (``on_store_failure``): ``local`` decides on a counter of this process that has the node's
share of the limit, ``open`` lets the request pass, ``closed`` refuses it. One request may match rules of all three
kinds:

- A ``closed`` rule refuses the request: "store" (503), unless a rule before it in order refuses: "rate" (429).
- Where anything refuses, nothing is charged: local counters are looked at only, and what was charged already is given back.
- Of a request of which a part was reached, what the store said stands; policies decide the rest.
- Shadow rules are reported as undecided and refuse nobody.

The local counters begin full, or without a token where the rule says so, at the first failure. They are kept afterwards, so
that a store that fails now and then does not give everybody a new allowance each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from sluicegate.algorithms import Ban, LeakyBucket, TokenBucket
from sluicegate.algorithms.verdict import ALLOWED, Verdict
from sluicegate.bounds import FALLBACK_COUNTERS_MAX, FLEET_NODES_MAX
from sluicegate.clock import Clock
from sluicegate.errors import ConfigurationError, PartlyReached, StoreError
from sluicegate.limiter.degraded import (
    CLOSED,
    CLOSED_VERDICT,
    LOCAL,
    OPEN,
    OPEN_VERDICT,
    STICKY,
    FallbackAnswer,
    as_local,
)
from sluicegate.limiter.handover import HandOver, Held
from sluicegate.limiter.outage import Outage
from sluicegate.limiter.shares import Share, Shares, Terms, TermsOf
from sluicegate.rules.model import FailurePolicy
from sluicegate.stores.base import Answer, Charge, Counter, FleetStore, PartialStore, Receipt, Request, Store
from sluicegate.stores.memory import MemoryStore

__all__ = ["Fallback"]


class Fallback:
    """Decides without the store. ``store`` holds the local counters; its time is this process's wall clock.

    ``nodes_min``: the least number of nodes to divide a limit by; the store may know of more. Raises
    ConfigurationError where it is no number from 1 to ``FLEET_NODES_MAX``.
    """

    __slots__ = ("_clock", "_fleet", "_nodes_min", "_shares", "handover", "outage", "store")

    def __init__(self, clock: Clock, shared: Store, nodes_min: int = 1) -> None:
        if type(nodes_min) is not int or not 1 <= nodes_min <= FLEET_NODES_MAX:
            raise ConfigurationError(f"nodes: want 1 to {FLEET_NODES_MAX}, got {nodes_min!r}")
        self._clock = clock
        self._fleet = shared if isinstance(shared, FleetStore) else None
        self._nodes_min = nodes_min
        self._shares = Shares(shared.least if isinstance(shared, PartialStore) else None)
        self.store = MemoryStore(clock, max_counters=FALLBACK_COUNTERS_MAX)
        self.outage = Outage(clock)
        self.handover = HandOver(self.outage, self.store, self.share)

    @property
    def nodes(self) -> int:
        """The number of nodes that a limit is divided by."""
        known = self._nodes_min if self._fleet is None else max(self._nodes_min, self._fleet.nodes)
        return self.outage.nodes(known) if self.outage.active else known

    def forget_all(self) -> None:
        """Any counter may have been changed in the store by an operator: what was counted here is no reason to refuse."""
        self.store.clear()
        self.outage.forget_all()

    def share(self, counter: Counter, terms: Terms) -> Share:
        """What a counter is counted by here."""
        return self._shares.of(counter, 1 if terms.sticky else self.nodes)

    def decide(
        self,
        request: Request,
        terms_of: TermsOf,
        error: StoreError,
        held: Held | None = None,
        *,
        peek: bool = False,
    ) -> tuple[FallbackAnswer, Sequence[Receipt]]:
        """The answer by the policies of the rules, and what the caller must give back in the store.

        ``error``: why the store gave no answer. ``held``: what a hand-over has charged here for the same request.
        """
        if held is not None and held.answer.admitted and held.begins_empty(terms_of):
            self.handover.undo(held)
            held = None
        known, how = _by_policy(request, terms_of, error)
        places = [place for place, word in enumerate(how) if word in (LOCAL, STICKY)]
        before = {} if held is None else held.found(places)
        refused = any(
            verdict is CLOSED_VERDICT or not (charge[0].shadow or word is not None or verdict.outcome is ALLOWED)
            for verdict, word, charge in zip(known, how, request, strict=True)
        ) or any(verdict.outcome is not ALLOWED for verdict in before.values())
        fresh = [place for place in places if place not in before]
        answer = self._count(request, fresh, terms_of, peek=peek or refused)
        refused = refused or (answer is not None and not answer.admitted)
        if refused and held is not None and held.answer.admitted:
            # As nothing is charged in the end, it is shown how the counters stand without this request.
            self.handover.undo(held)
            shown = self._count(request, list(before), terms_of, peek=True)
            before = {} if shown is None else dict(zip(before, shown.verdicts(), strict=True))
        found = {**before, **({} if answer is None else dict(zip(fresh, answer.verdicts(), strict=True)))}
        for place, verdict in found.items():
            counter, _, cost = request[place]
            known[place] = as_local(verdict, cost, counter.spec.capacity)
        reached = cast("Sequence[Receipt]", error.receipts) if isinstance(error, PartlyReached) else ()
        now_us = self._time_of(error) if answer is None else answer.now_us
        if refused:
            return FallbackAnswer(False, now_us, tuple(known), tuple(how)), reached
        if not peek:
            for place in found:
                counter, subject, cost = request[place]
                self.outage.touch(counter.prefix + subject, cost)
        charged = (*(() if held is None else held.receipts), *(() if answer is None else answer.receipts()))
        return FallbackAnswer(True, now_us, tuple(known), tuple(how), tuple(reached), charged), ()

    def forget(self, keys: Sequence[tuple[Counter, str]]) -> None:
        """These counters were reset."""
        self.store.reset(keys)
        for counter, subject in keys:
            self.outage.forget(counter.prefix + subject)

    def _count(self, request: Request, places: Sequence[int], terms_of: TermsOf, *, peek: bool) -> Answer | None:
        """Decide the charges at these places on the local counters."""
        if not places:
            return None
        local: list[Charge] = []
        for place in places:
            counter, subject, cost = request[place]
            terms = terms_of(counter)
            share = self.share(counter, terms)
            if terms.empty:
                self._begin_empty(share, subject)
            local.append((share.local, subject, cost))
        return self.store.decide_one(local, peek=peek)

    def _begin_empty(self, share: Share, subject: str) -> None:
        """Take from a counter what it has more than one that was without a token when the store began to fail.

        Done when its client is first seen without the store, or first again after the store was back for it.
        """
        local = share.local
        spec = local.spec
        entry = self.outage.find(local.prefix + subject)
        if isinstance(spec, Ban) or (entry is not None and not entry.back):
            return
        assert isinstance(spec, TokenBucket | LeakyBucket)
        (found,) = self.store.decide_one([(local, subject, 0)], peek=True).verdicts()
        due = self.outage.failing_us() * spec.tokens // spec.period_us
        # A counter that is not full may hold a fraction of a token that nobody sees; it is taken too.
        excess = found.remaining - due + (found.remaining < share.full)
        if excess > 0:
            # A refused charge that counts takes all there is.
            self.store.decide_one([(local._replace(denied_counts=True), subject, excess)])
        self.outage.touch(local.prefix + subject, 0)

    def _time_of(self, error: StoreError) -> int:
        return error.now_us if isinstance(error, PartlyReached) else self._clock.now_us()


def _by_policy(request: Request, terms_of: TermsOf, error: StoreError) -> tuple[list[Verdict], list[str | None]]:
    """What each charge gets, and how: the store's verdict (None), or its policy's; those of ``LOCAL`` are to be found out."""
    stored = error.verdicts if isinstance(error, PartlyReached) else [None] * len(request)
    known: list[Verdict] = []
    how: list[str | None] = []
    for (counter, _, _), verdict in zip(request, stored, strict=True):
        if isinstance(verdict, Verdict):
            known.append(verdict)
            how.append(None)
            continue
        terms = terms_of(counter)
        closed = terms.policy is FailurePolicy.CLOSED and not counter.shadow
        known.append(CLOSED_VERDICT if closed else OPEN_VERDICT)
        if counter.shadow or terms.policy is FailurePolicy.OPEN:
            how.append(OPEN)
        elif closed:
            how.append(CLOSED)
        else:
            how.append(STICKY if terms.sticky else LOCAL)
    return known, how
