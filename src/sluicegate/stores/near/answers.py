"""Answers that were decided in this process, alone or together with the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import force_setattr

from sluicegate.algorithms import SlidingWindow, TokenBucket
from sluicegate.algorithms.verdict import (
    ALLOWED,
    DENIED,
    NEVER_FITS,
    NOT_ASKED,
    LocalVerdict,
    Verdict,
    new_local_verdict,
)
from sluicegate.stores.base import Answer, Charge, Receipt, Request
from sluicegate.stores.near.counter import LeasedCounter

__all__ = ["LeasedAnswer", "MixedAnswer", "Taken", "denied", "left_of", "never_fits", "passes", "receipts_of"]

Taken = tuple[int, LeasedCounter, int]
"""(place of the charge, its leased counter, the tokens that were left of that afterwards)."""


def left_of(leased: LeasedCounter) -> int:
    """Tokens that are left of a counter, as far as is known here: those at hand, and those the store had when it answered last."""
    held = leased._head
    return leased.level + held.granted - held.taken


def passes(leased: LeasedCounter, left: int) -> LocalVerdict:
    """What a charge of tokens held here is told. ``left``: what was left of the counter afterwards."""
    spec = leased.counter.spec
    capacity, window_us = spec.capacity, spec.window_us
    remaining = min(max(left, 0), capacity)
    if isinstance(spec, TokenBucket):
        reset_after_us = -(-(capacity - remaining) * window_us // capacity)
    else:
        # When the window began is not known; an estimated one looks back at the one before.
        reset_after_us = 2 * window_us if isinstance(spec, SlidingWindow) else window_us
    return new_local_verdict((ALLOWED, remaining, 0, reset_after_us, 0))


def denied(wait_us: int) -> LocalVerdict:
    """What a charge is told that is known to be refused for so long."""
    return new_local_verdict((DENIED, 0, wait_us, wait_us, 0))


def never_fits() -> LocalVerdict:
    """What a charge is told whose cost is above the limit. What is left of the counter is not known."""
    return new_local_verdict((NEVER_FITS, 0, None, 0, 0))


class LeasedAnswer(msgspec.Struct, frozen=True, gc=False):
    """A request all of whose charges were made from tokens held here. It is described when somebody asks for that.

    ``leased``: the counter of each charge; ``left``: what was left of it afterwards.
    """

    request: Request
    leased: Sequence[LeasedCounter]
    left: Sequence[int]
    at_us: int
    _known: tuple[Verdict, ...] | None = None

    admitted: ClassVar[bool] = True
    unanimous: ClassVar[bool] = True
    asked: ClassVar[bool] = False

    @property
    def now_us(self) -> int:
        """A time at which the store's clock certainly was when the request was decided, or a little before."""
        return self.leased[0].store_now_us(self.at_us)

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in order."""
        known = self._known
        if known is None:
            known = tuple([passes(leased, left) for leased, left in zip(self.leased, self.left, strict=True)])
            force_setattr(self, "_known", known)
        return known

    def refused(self) -> list[Charge]:
        """None."""
        return []

    def receipts(self) -> tuple[Receipt, ...]:
        """What a refund by the store needs."""
        at_us = self.at_us
        return tuple(
            [
                Receipt(counter, subject, cost, leased.store_now_us(at_us))
                for (counter, subject, cost), leased in zip(self.request, self.leased, strict=True)
            ]
        )


class MixedAnswer:
    """An answer put together: what was known here, what was taken of leases, and what the store said.

    ``known``: verdicts by place of the charge, None for the others. ``taken``: charges whose tokens are held here. ``parts``: (places,
    answer) of each question. Of a request that is refused, all that was charged is given back; a part may still be shown as charged.
    """

    __slots__ = ("_at_us", "_known", "_parts", "_taken", "_verdicts", "admitted", "now_us", "request", "unanimous")

    def __init__(
        self,
        request: Request,
        admitted: bool,
        times_us: tuple[int, int],
        known: Sequence[Verdict | None],
        taken: Sequence[Taken],
        parts: Sequence[tuple[Sequence[int], Answer]],
    ) -> None:
        self.request = request
        self.admitted = admitted
        self.now_us, self._at_us = times_us
        self._known = known
        self._taken = taken
        self._parts = parts
        self._verdicts: tuple[Verdict, ...] | None = None
        self.unanimous = (
            admitted
            and all(verdict is None or verdict.outcome is ALLOWED for verdict in known)
            and all(answer.unanimous for _, answer in parts)
        )

    @property
    def asked(self) -> bool:
        """Whether the store was asked."""
        return bool(self._parts)

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in order."""
        verdicts = self._verdicts
        if verdicts is None:
            found = list(self._known)
            for place, leased, left in self._taken:
                found[place] = passes(leased, left)
            for places, answer in self._parts:
                for place, verdict in zip(places, answer.verdicts(), strict=True):
                    found[place] = verdict
            verdicts = self._verdicts = tuple([NOT_ASKED if verdict is None else verdict for verdict in found])
        return verdicts

    def refused(self) -> list[Charge]:
        """The charges that did not pass, in order."""
        places = [
            place
            for place, verdict in enumerate(self._known)
            if verdict is not None and (verdict.outcome is DENIED or verdict.outcome is NEVER_FITS)
        ]
        for asked, answer in self._parts:
            if not answer.unanimous:
                keys = {(charge[0].prefix, charge[1]) for charge in answer.refused()}
                places += [place for place in asked if (self.request[place][0].prefix, self.request[place][1]) in keys]
        return [self.request[place] for place in sorted(places)]

    def receipts(self) -> tuple[Receipt, ...]:
        """One receipt per charge that was made, in order."""
        return tuple(receipts_of(self.request, self._taken, self._at_us, self._parts)) if self.admitted else ()


def receipts_of(
    request: Request, taken: Sequence[Taken], at_us: int, parts: Sequence[tuple[Sequence[int], Answer]]
) -> list[Receipt]:
    """Receipts of all that was charged, in the order of the request; those of parts of split counters behind."""
    made = {(one.counter.prefix, one.subject): one for _, answer in parts for one in answer.receipts()}
    for place, leased, _ in taken:
        counter, subject, cost = request[place]
        made[counter.prefix, subject] = Receipt(counter, subject, cost, leased.store_now_us(at_us))
    found = [made.pop((counter.prefix, subject), None) for counter, subject, _ in request]
    return [receipt for receipt in found if receipt is not None] + list(made.values())
