"""A request cut into parts, each of one hash slot, and their answers put together again. No input or output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sluicegate.algorithms.verdict import Verdict
from sluicegate.errors import PartlyReached, StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, Charge, Receipt, Request

__all__ = ["ComposedAnswer", "Part", "concluded", "receipts_of", "refuses"]


class Part:
    """Some charges of a request, all of one slot. ``places``: where they stand in it. ``peek``: nothing is charged.

    ``found``: what the store said, or why it did not; None before it was asked.
    """

    __slots__ = ("found", "peek", "places", "request", "slot")

    def __init__(self, slot: int, places: Sequence[int], request: Request, *, peek: bool) -> None:
        self.slot = slot
        self.places = places
        self.request = request
        self.peek = peek
        self.found: StateAnswer | StoreError | None = None


class ComposedAnswer:
    """An answer made of several, each at its own server's time; ``now_us`` is the latest of them.

    Where the request is refused, its other parts were charged and gave it back. Their verdicts describe the counters without the
    charge, or (a leaky bucket with another charge behind it) with it, which is on the safe side.
    """

    __slots__ = ("_count", "_parts", "admitted", "now_us", "unanimous")

    asked: ClassVar[bool] = True

    def __init__(self, parts: Sequence[tuple[Sequence[int], StateAnswer]]) -> None:
        self._parts = parts
        self._count = sum(len(places) for places, _ in parts)
        self.admitted = all(answer.admitted for _, answer in parts)
        self.unanimous = all(answer.unanimous for _, answer in parts)
        self.now_us = max([answer.now_us for _, answer in parts])

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in the order of the request."""
        found: dict[int, Verdict] = {}
        for places, answer in self._parts:
            shown = answer.verdicts() if self.admitted or not answer.admitted else _without_charges(answer)
            found.update(zip(places, shown, strict=True))
        return tuple([found[place] for place in range(self._count)])

    def refused(self) -> list[Charge]:
        """The charges that did not pass, shadow ones included, in the order of the request."""
        found = [
            (place, charge)
            for places, answer in self._parts
            if answer.notes is not None
            for place, charge, (_, passes) in zip(places, answer.request, answer.notes, strict=True)
            if not passes
        ]
        found.sort(key=lambda item: item[0])
        return [charge for _, charge in found]

    def receipts(self) -> tuple[Receipt, ...]:
        """One receipt per charge that was made, in the order of the request, each with its own server's time."""
        return tuple(receipts_of(self._parts)) if self.admitted else ()


def refuses(found: StateAnswer | StoreError | None) -> bool:
    """Whether a part was decided and an enforced counter of it refused."""
    return isinstance(found, StateAnswer) and not found.admitted


def receipts_of(parts: Sequence[tuple[Sequence[int], StateAnswer]]) -> list[Receipt]:
    """The receipts of all charges that were made in these parts, in the order of the request."""
    found: list[tuple[int, Receipt]] = []
    for places, answer in parts:
        if not answer.charged:
            continue
        notes = answer.notes
        for index, (place, (counter, subject, cost)) in enumerate(zip(places, answer.request, strict=True)):
            if notes is None or notes[index][1]:
                found.append((place, Receipt(counter, subject, cost, answer.now_us)))
    found.sort(key=lambda item: item[0])
    return [receipt for _, receipt in found]


def concluded(request: Request, parts: Sequence[Part]) -> tuple[Answer | StoreError, list[Receipt]]:
    """The answer to a request whose parts were all asked, and the charges that must be given back.

    PartlyReached where some parts have no answer: with receipts of the charges that stand, or, where a counter that was
    reached refuses, with none.
    """
    if len(parts) == 1:
        found = parts[0].found
        assert found is not None
        return found, []
    reached = [(part.places, part.found) for part in parts if isinstance(part.found, StateAnswer)]
    faults = [part.found for part in parts if isinstance(part.found, StoreError)]
    if not reached:
        return faults[0], []
    answer = ComposedAnswer(reached)
    undo = [] if answer.admitted else receipts_of([part for part in reached if part[1].admitted])
    if not faults:
        return answer, undo
    verdicts: list[Verdict | None] = [None] * len(request)
    for places, found in reached:
        undone = found.admitted and not answer.admitted
        for place, verdict in zip(places, _without_charges(found) if undone else found.verdicts(), strict=True):
            verdicts[place] = verdict
    return PartlyReached(faults[0], verdicts, answer.receipts(), answer.now_us), undo


def _without_charges(answer: StateAnswer) -> list[Verdict]:
    """What the verdicts of an answer would be had it been a peek."""
    shown = list(answer.verdicts())
    if not answer.charged:
        return shown
    now_us, notes = answer.now_us, answer.notes
    for index, (charge, (_, state)) in enumerate(zip(answer.request, answer.states, strict=True)):
        if notes is None or notes[index][1]:
            shown[index] = _before(charge, state, now_us)
    return shown


def _before(charge: Charge, state: object, now_us: int) -> Verdict:
    counter, _, cost = charge
    spec = counter.spec
    before = state if state is None else spec.refund(state, now_us, cost, now_us)
    return spec.verdict(before, now_us, 0, True)
