"""What the store is asked instead of a request, and what its answer says of the request."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from sluicegate.algorithms.verdict import ALLOWED, DENIED, NEVER_FITS, LocalVerdict, Verdict, new_local_verdict
from sluicegate.errors import PartlyReached, StoreError
from sluicegate.stores.base import Answer, Charge, Receipt, Request
from sluicegate.stores.near.answers import denied
from sluicegate.stores.near.estimates import Estimate
from sluicegate.stores.near.splits import Split, Whole

__all__ = ["Kind", "Route", "RoutedAnswer", "Span"]


class Kind(Enum):
    """How one charge of a request is decided."""

    PLAIN = "plain"
    """By the store, as it is."""
    WHOLE = "whole"
    """By the store, with the gate of a counter that may be split."""
    PARTS = "parts"
    """By the store, as charges of parts."""
    UNKNOWN = "unknown"
    """By the store, as it is, because there is no figure to draw by yet."""
    CHANCE = "chance"
    """Drawn here."""


class Span:
    """One charge of a request, and the charges that the store is asked in its place.

    ``verdict``: what was drawn. ``whole``, ``split``, ``one``: whom it belongs to, by its kind.
    """

    __slots__ = ("asked", "charge", "kind", "one", "split", "verdict", "whole")

    def __init__(self, charge: Charge, kind: Kind, asked: Sequence[Charge]) -> None:
        self.charge = charge
        self.kind = kind
        self.asked = asked
        self.whole: Whole | None = None
        self.split: Split | None = None
        self.one: Estimate | None = None
        self.verdict: LocalVerdict | None = None

    def told(self, found: Sequence[Verdict | None]) -> Verdict | None:
        """The verdict of the charge, from those of ``asked``; None where it is not known."""
        if self.kind is Kind.CHANCE:
            return self.verdict
        if self.kind is Kind.WHOLE:
            whole, gate = found
            return denied(gate.retry_after_us or 1) if gate is not None and gate.outcome is DENIED else whole
        return _together(found) if self.kind is Kind.PARTS else found[0]


def _together(found: Sequence[Verdict | None]) -> Verdict | None:
    """The verdict of a charge that was made of several parts. What the part has left is certainly left; others may have more."""
    known = [verdict for verdict in found if verdict is not None]
    waits_us = [verdict.retry_after_us or 0 for verdict in known if verdict.outcome is not ALLOWED]
    if waits_us:
        return new_local_verdict(
            (DENIED, min([verdict.remaining for verdict in known]), max(waits_us), max(waits_us), 0)
        )
    if len(known) < len(found):
        return None
    remaining, reset_us = min([one.remaining for one in known]), max([one.reset_after_us for one in known])
    return new_local_verdict((ALLOWED, remaining, 0, reset_us, 0))


class Route:
    """A request by its spans. ``sent``: what the store is asked; nothing where all is known. ``rerouted``: a gate has refused once."""

    __slots__ = ("request", "rerouted", "sent", "sent_us", "spans")

    def __init__(self, request: Request, spans: Sequence[Span], now_us: int) -> None:
        self.request = request
        self.spans = spans
        self.rerouted = False
        self.begin(now_us)

    def begin(self, now_us: int) -> None:
        """The spans are known: ask."""
        self.sent_us = now_us
        self.sent: Request = [charge for span in self.spans for charge in span.asked]

    def pieces(self, found: Sequence[Verdict | None]) -> list[tuple[Span, Sequence[Verdict | None]]]:
        """Each span with the verdicts of what was asked in its place."""
        pieces, first = [], 0
        for span in self.spans:
            after = first + len(span.asked)
            pieces.append((span, found[first:after]))
            first = after
        return pieces

    def told(self, found: Sequence[Verdict | None]) -> list[Verdict | None]:
        """One verdict per charge of the request, None where it is not known."""
        return [span.told(piece) for span, piece in self.pieces(found)]

    def standing(self, receipts: Sequence[Receipt]) -> tuple[Receipt, ...]:
        """Receipts without those of gates, to which nothing is given back. What parts were charged is given back to them."""
        gates = [span.whole.gate for span in self.spans if span.whole is not None]
        return tuple([receipt for receipt in receipts if receipt.counter not in gates]) if gates else tuple(receipts)

    def failed(self, error: StoreError) -> StoreError:
        """The error of the store, speaking of the request's own charges."""
        if not isinstance(error, PartlyReached):
            return error
        found = [verdict if isinstance(verdict, Verdict) else None for verdict in error.verdicts]
        receipts = [receipt for receipt in error.receipts if isinstance(receipt, Receipt)]
        return PartlyReached(error.cause, self.told(found), self.standing(receipts), error.now_us)


class RoutedAnswer:
    """The store's answer to what it was asked, as an answer to the request."""

    __slots__ = ("_answer", "_route", "_verdicts", "admitted", "now_us", "unanimous")

    def __init__(self, route: Route, answer: Answer) -> None:
        self._route = route
        self._answer = answer
        self._verdicts: tuple[Verdict, ...] | None = None
        self.admitted = answer.admitted
        self.now_us = answer.now_us
        drawn = [span.verdict for span in route.spans if span.verdict is not None]
        self.unanimous = answer.unanimous and all(verdict.outcome is ALLOWED for verdict in drawn)

    @property
    def asked(self) -> bool:
        """The store was asked."""
        return True

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in order."""
        known = self._verdicts
        if known is None:
            told = self._route.told(self._answer.verdicts())
            known = self._verdicts = tuple([verdict for verdict in told if verdict is not None])
        return known

    def refused(self) -> list[Charge]:
        """The charges that did not pass, in order."""
        if self.unanimous:
            return []
        return [
            charge
            for charge, verdict in zip(self._route.request, self.verdicts(), strict=True)
            if verdict.outcome is DENIED or verdict.outcome is NEVER_FITS
        ]

    def receipts(self) -> tuple[Receipt, ...]:
        """One receipt per charge that the store made, of parts where parts were charged; none of what was drawn."""
        return self._route.standing(self._answer.receipts())
