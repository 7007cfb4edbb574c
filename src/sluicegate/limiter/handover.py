"""From an outage back to the store.

A counter that was charged in this process while the store was away differs from the store's, which refilled meanwhile and
knows nothing of what was admitted. To hand it over:

- When the store has answered the first request of a counter, it is charged what was admitted without it, as far as the local
  counter still shows it as used. Without this the store would let pass a second time what it gained during the outage.
- Until then the store is asked itself: what is leased of a counter was granted by one that knows nothing of the outage.
- For one drain time after that, at most ``FALLBACK_HANDOVER_US_MAX``, requests must pass both counters: the other nodes have charged
  theirs by then. The local counter is charged first, and given back if the store refuses.

Counters that the outage did not touch are full here, and are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

import msgspec

from sluicegate.algorithms.verdict import Verdict
from sluicegate.limiter.degraded import HANDOVER, OPEN_VERDICT, FallbackAnswer, as_local
from sluicegate.limiter.outage import Outage, Touched
from sluicegate.limiter.shares import Share, Terms, TermsOf
from sluicegate.stores.base import Answer, Counter, Receipt, Request, Store

__all__ = ["Asked", "HandOver", "Held"]


class Held(msgspec.Struct, frozen=True, gc=False):
    """What a request did to the local counters before the store is asked.

    ``refusal``: the whole answer, where they refuse. ``probes``: it is refused and yet the store must be asked, with
    a peek, because nobody knows whether it is back for these counters. ``exact``: the store has not answered for one of these counters
    since the outage, so it is asked itself, whatever is leased. ``answer``: what they said, of the charges at
    ``places``; ``records`` has for each what is remembered of its counter, and its share and subject.
    """

    refusal: FallbackAnswer | None
    answer: Answer
    places: tuple[int, ...]
    records: tuple[tuple[Touched, Share, str], ...]
    probes: bool = False
    exact: bool = False

    @property
    def decided(self) -> FallbackAnswer | None:
        """The refusal that needs no store."""
        return None if self.probes else self.refusal

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """What the local counters were charged."""
        return self.answer.receipts()

    def begins_empty(self, terms_of: TermsOf) -> bool:
        """One of the counters must begin without a token if the store has failed again."""
        return any(entry.back and terms_of(share.counter).empty for entry, share, _ in self.records)

    def found(self, wanted: Container[int]) -> dict[int, Verdict]:
        """What the local counters said, by place of the charge, as far as it is wanted."""
        verdicts = zip(self.places, self.answer.verdicts(), strict=True)
        return {place: verdict for place, verdict in verdicts if place in wanted}


class Asked(NamedTuple):
    """A batch made ready: what to ask the store, and where each request's answer will be.

    ``held``: one per request, None for those that no hand-over concerns. ``requests``: to be decided; ``probes``: to
    be peeked at. ``places``: the place of the request among ``requests`` and then ``probes``, None where it is
    refused already. ``exact``: the store is to be asked itself, see ``Held``.
    """

    held: Sequence[Held | None]
    requests: Sequence[Request]
    places: Sequence[int | None]
    probes: Sequence[Request] = ()
    exact: bool = False

    @classmethod
    def plainly(cls, requests: Sequence[Request]) -> Asked:
        """A batch that no hand-over concerns."""
        return cls([None] * len(requests), requests, range(len(requests)))


class HandOver:
    """Requests of a limiter whose store has failed of late. ``share_of`` gives what a counter is counted by here."""

    __slots__ = ("_outage", "_share_of", "_store")

    def __init__(self, outage: Outage, store: Store, share_of: Callable[[Counter, Terms], Share]) -> None:
        self._outage = outage
        self._store = store
        self._share_of = share_of

    def begin(self, request: Request, terms_of: TermsOf, *, peek: bool = False) -> Held | None:
        """Pass the local counters of the request's touched charges; None where there is none, and nothing has changed."""
        outage = self._outage
        touched = [
            (place, charge, entry)
            for place, charge in enumerate(request)
            if not charge[0].shadow and (entry := outage.find(charge[0].prefix + charge[1])) is not None
        ]
        if not touched:
            return None
        records = tuple(
            (entry, self._share_of(charge[0], terms_of(charge[0])), charge[1]) for _, charge, entry in touched
        )
        local = [
            (share.local, subject, charge[2])
            for (_, share, subject), (_, charge, _) in zip(records, touched, strict=True)
        ]
        answer = self._store.decide_one(local, peek=peek)
        places = tuple(place for place, _, _ in touched)
        exact = any(not entry.back for _, _, entry in touched)
        if answer.admitted:
            return Held(None, answer, places, records, False, exact)
        return Held(_refusal(request, places, answer), answer, places, records, exact, exact)

    def begin_all(self, requests: Sequence[Request], terms_of: TermsOf) -> Asked:
        """``begin`` for a batch, in order."""
        all_held = [self.begin(request, terms_of) for request in requests]
        asked: list[Request] = []
        probes: list[Request] = []
        for request, held in zip(requests, all_held, strict=True):
            if held is None or held.refusal is None:
                asked.append(request)
            elif held.probes:
                probes.append(request)
        plain, probing = iter(range(len(asked))), iter(range(len(asked), len(asked) + len(probes)))
        places = [
            next(plain) if held is None or held.refusal is None else next(probing) if held.probes else None
            for held in all_held
        ]
        return Asked(all_held, asked, places, probes, any(held is not None and held.exact for held in all_held))

    def end(self, held: Held, *, admitted: bool, peek: bool = False) -> list[Request]:
        """The store has answered the request: what it refused is given back here.

        Returns requests that charge the store what it is owed, to be sent once, whatever they are answered.
        """
        debts: list[Request] = []
        for entry, share, subject in held.records:
            if peek:
                # It settles nothing, so it does not begin the time in which there must be something to settle either.
                continue
            self._outage.returned(entry, share.local.spec.window_us)
            due = self._due(entry, share, subject) if entry.owed else 0
            if due > 0:
                debts.append(((share.debt, subject, due),))
        if not admitted:
            self.undo(held)
        return debts

    def undo(self, held: Held) -> None:
        """Give back what the local counters were charged."""
        if held.receipts:
            self._store.refund(held.receipts)

    def _due(self, entry: Touched, share: Share, subject: str) -> int:
        """What the store is owed of a counter: what was admitted here and has not come back since. It is asked for once."""
        owed = self._outage.settle(entry)
        (left,) = self._store.decide_one([(share.local, subject, 0)], peek=True).verdicts()
        return min(owed, share.full - left.remaining, share.counter.spec.capacity)


def _refusal(request: Request, places: Sequence[int], answer: Answer) -> FallbackAnswer:
    """What the local counters said; the other charges of the request were not looked at."""
    known = [OPEN_VERDICT] * len(request)
    how: list[str | None] = [None] * len(request)
    for place, verdict in zip(places, answer.verdicts(), strict=True):
        counter, _, cost = request[place]
        known[place] = as_local(verdict, cost, counter.spec.capacity)
        how[place] = HANDOVER
    return FallbackAnswer(False, answer.now_us, tuple(known), tuple(how))
