"""An answer kept as counter states, described only when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import msgspec

from sluicegate.algorithms.spec import State
from sluicegate.algorithms.verdict import ALLOWED, DENIED, NEVER_FITS, Verdict, new_local_verdict
from sluicegate.errors import PartlyDecided, PartlyReached, StoreError
from sluicegate.stores.base import Answer, Charge, Receipt, Request, Single

__all__ = ["StateAnswer", "ToldAnswer", "answers_of", "single_of"]


class StateAnswer(msgspec.Struct, frozen=True, gc=False):
    """What was decided, with the states it was decided on. It refers to no live counter, so it never changes.

    ``states`` has one ``(_, state)`` per charge, as it stood after the decision; what comes first is the store's. ``notes`` has one ``(cost, passes)`` per charge:
    the cost to describe, which is 0 where a passing charge was not made, and whether it passed; None stands for the
    usual case, every charge made at its own cost. ``charged``: the notes with a cost that passed were really made.
    ``unanimous``: every charge passed, shadow ones included.
    """

    admitted: bool
    now_us: int
    request: Request
    states: Sequence[tuple[int, State | None]]
    notes: Sequence[tuple[int, bool]] | None = None
    charged: bool = True
    unanimous: bool = True

    asked: ClassVar[bool] = True

    @property
    def decided(self) -> Request:
        """The request by whose numbers it was decided."""
        return self.request

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in order."""
        now_us, request, states, notes = self.now_us, self.request, self.states, self.notes
        if len(request) == 1 == len(states):
            # One charge is the usual case; a loop would cost as much as its body.
            counter, _, cost = request[0]
            cost, passes = (cost, True) if notes is None else notes[0]
            return (counter[1].verdict(states[0][1], now_us, cost, passes),)
        if notes is None:
            return tuple(
                [
                    counter[1].verdict(state, now_us, cost, True)
                    for (counter, _, cost), (_, state) in zip(request, states)  # noqa: B905 - made as long; strict costs time
                ]
            )
        return tuple(
            [
                charge[0].spec.verdict(state, now_us, cost, passes)
                for charge, (_, state), (cost, passes) in zip(request, states, notes, strict=True)
            ]
        )

    def refused(self) -> list[Charge]:
        """The charges that did not pass, shadow ones included: what can be counted without describing anything."""
        request, notes = self.request, self.notes
        if notes is None:
            return []
        if len(request) == 1 == len(notes):
            return [] if notes[0][1] else [request[0]]
        return [charge for charge, (_, passes) in zip(request, notes, strict=True) if not passes]

    def receipts(self) -> tuple[Receipt, ...]:
        """One receipt per charge that was made."""
        if not self.charged:
            return ()
        notes = self.notes
        return tuple(
            Receipt(counter, subject, cost, self.now_us)
            for i, (counter, subject, cost) in enumerate(self.request)
            if notes is None or notes[i][1]
        )


class ToldAnswer(msgspec.Struct, frozen=True, gc=False):
    """What this process decided without asking the store: a refusal that was known before, or a charge of tokens it held.

    ``known``: one verdict per charge, NOT_ASKED where nobody looked. ``made``: receipts of what was charged.
    """

    admitted: bool
    now_us: int
    request: Request
    known: tuple[Verdict, ...]
    made: tuple[Receipt, ...] = ()

    asked: ClassVar[bool] = False

    @property
    def unanimous(self) -> bool:
        """Every charge passed, shadow ones included."""
        return all(verdict.outcome is ALLOWED for verdict in self.known)

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in order."""
        return self.known

    def refused(self) -> list[Charge]:
        """The charges that are known to be refused, shadow ones included."""
        return [
            charge
            for charge, verdict in zip(self.request, self.known, strict=True)
            if verdict.outcome is DENIED or verdict.outcome is NEVER_FITS
        ]

    def receipts(self) -> tuple[Receipt, ...]:
        """One receipt per charge that was made."""
        return self.made


def single_of(answer: Answer) -> Single:
    """An answer to a request of one charge in its lean form."""
    if type(answer) is StateAnswer:
        return answer.admitted, answer.states[0][1]
    outcome, remaining, retry_after_us, reset_after_us, delay_us = answer.verdicts()[0]
    return answer.admitted, new_local_verdict((outcome, remaining, retry_after_us, reset_after_us, delay_us))


def answers_of(error: StoreError, count: int) -> Sequence[Answer | StoreError]:
    """What a failed batch of ``count`` requests has for each: an answer, or why there is none."""
    if isinstance(error, PartlyReached):
        # It speaks of the counters of one request, and of a batch nobody knows which.
        error = StoreError(str(error), transient=error.transient)
    if not isinstance(error, PartlyDecided):
        return [error] * count
    answers = cast("Sequence[Answer | PartlyReached | None]", error.answers)
    return [error.cause if answer is None else answer for answer in answers]
