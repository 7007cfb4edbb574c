"""Deciding requests whose counters are in several hash slots of a cluster.

One command decides the counters of one slot: all of them or none. A request over several slots is decided by one command for
each, sent side by side. Where all pass, every charge was made and the request is admitted. Where one refuses, what the others
charged is given back by receipt, in a second round of commands; the same where a slot is being moved and its counters have to be
decided key by key (TRYAGAIN).

What holds, at any time and whatever else is under way:

- An admitted request has all its charges, so no counter is ever over-admitted.
- Until the give-back arrives the provisional charges of refused requests can refuse others: at most the costs of the requests
  that are under way.
- A refused request costs a counter in another slot what a refund does not give back. delay is the time from the charge to the
  give-back, one exchange with a server: a bucket loses at most min(cost, rate * delay), a window nothing unless it ended
  meanwhile, a log nothing, a leaky bucket the cost where another charge came behind it. A counter that refused
  lately is decided alone first (``suspects``), so a client causes at most one such loss per request that it was admitted.
- A give-back that is lost, and a charge whose reply is lost, cost at most the charge itself. Nothing is sent twice.
- A counter with ``denied_counts`` is charged by a refusal where it refuses itself; not where it was only looked at because another
  counter was decided first.

In a batch each slot is charged in the order of the requests, and they see the provisional charges of those before them: a
request may be refused that one after the other would have been admitted; never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.algorithms.verdict import Outcome
from sluicegate.bounds import LEASE_ITEMS_MAX, REDIS_BATCH_MAX, REGION_LOOKS_MAX
from sluicegate.errors import StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, Charge, Counter, LeaseItem, Receipt, Request
from sluicegate.stores.redis.calls import Calls, Steps
from sluicegate.stores.redis.faults import ServerFault
from sluicegate.stores.redis.parts import Part, concluded, refuses
from sluicegate.stores.redis.side_by_side import side_by_side, undoing
from sluicegate.stores.redis.stats import RedisStats
from sluicegate.stores.redis.suspects import Suspects
from sluicegate.stores.region_parts import PartStep, PartView

__all__ = ["Composition", "SlotOf"]

R = TypeVar("R")
T = TypeVar("T")

SlotOf = Callable[[str], int]
"""The hash slot of a subject's counters, by the secret known now."""


class Composition:
    """Decides requests over several slots of one cluster, and keeps no state but what refused lately. Safe from any thread."""

    __slots__ = ("_calls", "_slot_of", "_stats", "_suspects")

    def __init__(self, calls: Calls, slot_of: SlotOf, suspects: Suspects, stats: RedisStats) -> None:
        self._calls = calls
        self._slot_of = slot_of
        self._suspects = suspects
        self._stats = stats

    def decide_one(self, request: Request, *, peek: bool) -> Steps[Answer]:
        """Decide a request. Raises PartlyReached where only some of its counters were reached."""
        parts = self.begin(request, peek=peek)
        yield from self._ask([parts])
        return (yield from self.finish(request, parts, peek=peek))

    def begin(self, request: Request, *, peek: bool) -> list[Part]:
        """The parts of a request, each of which is to be decided (or looked at) side by side, before ``finish``."""
        parts = self._parts(request, peek=peek)
        if len(parts) > 1 and not peek:
            self._look_first(parts)
        return parts

    def finish(self, request: Request, parts: list[Part], *, peek: bool) -> Steps[Answer]:
        """What follows when all parts have their answer or error: the rest is decided, what must be is given back."""
        (answer,), undo = yield from self._finish((request,), [parts], [[]], peek=peek)
        if undo:
            yield from self.give_back(undo)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def decide(self, requests: Sequence[Request], *, peek: bool) -> Steps[list[Answer | StoreError]]:
        """Decide a batch in order, at most ``REDIS_BATCH_MAX`` requests. What a partly reached request charged stands."""
        first, later = self._rounds(requests, peek=peek)
        yield from self._ask(first)
        answers, undo = yield from self._finish(requests, first, later, peek=peek)
        if undo:
            yield from self.give_back(undo)
        return answers

    def give_back(self, receipts: Sequence[Receipt]) -> Steps[None]:
        """Undo charges. What cannot be given back is lost, and counted."""
        groups = self._by_slot(receipts, [receipt.subject for receipt in receipts])
        self._stats.undone += len(receipts)
        results = yield from undoing(side_by_side([_by_key_too(self._calls.refund, group, sum) for group in groups]))
        self._stats.undo_lost += sum(
            len(group) for group, result in zip(groups, results, strict=True) if isinstance(result, StoreError)
        )

    def refund(self, receipts: Sequence[Receipt]) -> Steps[int]:
        """See ``Store.refund``; one command for each slot."""
        groups = self._by_slot(receipts, [receipt.subject for receipt in receipts])
        return (yield from _sum_of([_by_key_too(self._calls.refund, group, sum) for group in groups]))

    def grant(self, charges: Sequence[Charge]) -> Steps[list[int]]:
        """See ``Store.grant``; one command for each slot."""
        places = self._by_slot(range(len(charges)), [subject for _, subject, _ in charges])
        groups = [[charges[place] for place in group] for group in places]
        results = yield from side_by_side([_by_key_too(self._calls.grant, group, _joined) for group in groups])
        given = [0] * len(charges)
        for group, result in zip(places, _successes(results), strict=True):
            for place, tokens in zip(group, result, strict=True):
                given[place] = tokens
        return given

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> Steps[list[LeaseGrant | StoreError]]:
        """See ``LeaseStore.lease``; one command for each slot."""
        operation = partial(self._calls.lease_batch, holder, terms)
        return (yield from self._each(items, [item.subject for item in items], LEASE_ITEMS_MAX, operation))

    def parts(self, steps: Sequence[PartStep]) -> Steps[list[PartView | StoreError]]:
        """See ``PartStore.parts``; one command for each slot."""
        subjects = [step.subject for step in steps]
        return (yield from self._each(steps, subjects, REGION_LOOKS_MAX, self._calls.parts_batch))

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> Steps[int]:
        """See ``Store.reset``; one command for each slot."""
        groups = self._by_slot(keys, [subject for _, subject in keys])
        return (yield from _sum_of([_by_key_too(self._calls.reset, group, sum) for group in groups]))

    def _each(
        self,
        items: Sequence[T],
        subjects: Sequence[str],
        most: int,
        operation: Callable[[Sequence[T]], Steps[list[R | StoreError]]],
    ) -> Steps[list[R | StoreError]]:
        """A result for each item, or why there is none; at most ``most`` in one command."""
        places = self._by_slot(range(len(items)), subjects, most)
        groups = [[items[place] for place in group] for group in places]
        results = yield from side_by_side([_by_key_too(operation, group, _joined) for group in groups])
        found: dict[int, R | StoreError] = {}
        for group, result in zip(places, results, strict=True):
            each: Sequence[R | StoreError] = [result] * len(group) if isinstance(result, StoreError) else result
            found.update(zip(group, each, strict=True))
        return [found[place] for place in range(len(items))]

    def _finish(
        self, requests: Sequence[Request], first: list[list[Part]], later: list[list[Part]], *, peek: bool
    ) -> Steps[tuple[list[Answer | StoreError], list[Receipt]]]:
        """(an answer or the reason for none of each request, the charges to give back), when ``first`` was asked."""
        yield from self._ask_by_key(first)
        # What was only looked at so far is charged where those that were to be decided first have passed.
        rest = [waiting or _to_charge(asked, peek=peek) for asked, waiting in zip(first, later, strict=True)]
        if any(rest):
            yield from self._ask(rest)
            yield from self._ask_by_key(rest)
        parts = [
            [part for part in asked if not part.peek] + more if more else asked
            for asked, more in zip(first, rest, strict=True)
        ]
        answers: list[Answer | StoreError] = []
        undo: list[Receipt] = []
        for request, asked in zip(requests, parts, strict=True):
            answer, receipts = concluded(request, asked)
            answers.append(answer)
            undo += receipts
            if len(asked) > 1:
                self._remember(asked)
        return answers, undo

    def _rounds(self, requests: Sequence[Request], *, peek: bool) -> tuple[list[list[Part]], list[list[Part]]]:
        """What of each request is asked first, and which requests wait for the second round altogether.

        Those that would charge a slot before an earlier request does wait, so that each slot is charged in the order of the batch.
        """
        first: list[list[Part]] = []
        later: list[list[Part]] = []
        taken: set[int] = set()
        for request in requests:
            parts = self.begin(request, peek=peek)
            if taken and any(part.slot in taken for part in parts if not part.peek):
                for part in parts:
                    part.peek = peek
                    taken.add(part.slot)
                first.append([])
                later.append(parts)
                continue
            if not peek:
                taken.update([part.slot for part in parts if part.peek])
            first.append(parts)
            later.append([])
        return first, later

    def _parts(self, request: Request, *, peek: bool) -> list[Part]:
        """The request's parts, by slot."""
        slots: dict[int, list[int]] = {}
        for place, (_, subject, _) in enumerate(request):
            slots.setdefault(self._slot_of(subject), []).append(place)
        if len(slots) == 1:
            ((slot, places),) = slots.items()
            return [Part(slot, places, request, peek=peek)]
        return [Part(slot, places, [request[place] for place in places], peek=peek) for slot, places in slots.items()]

    def _look_first(self, parts: Sequence[Part]) -> None:
        """Where some parts hold suspects, only those are to be charged for now, and the others looked at."""
        held = [any(self._suspects.holds(charge) for charge in part.request) for part in parts]
        if any(held):
            for part, suspect in zip(parts, held, strict=True):
                part.peek = not suspect

    def _ask(self, parts: Sequence[list[Part]]) -> Steps[None]:
        """Fill in what is found, by one command for each slot."""
        groups: dict[tuple[int, bool], list[Part]] = {}
        for asked in parts:
            for part in asked:
                groups.setdefault((part.slot, part.peek), []).append(part)
        yield from self._ask_groups(groups.values())

    def _ask_by_key(self, parts: Sequence[list[Part]]) -> Steps[None]:
        """Put one part for each charge in the place of those whose slot is being moved, and fill these in."""
        singles: list[list[Part]] = []
        for asked in parts:
            if any(_is_moving(part) for part in asked):
                asked[:] = [single for part in asked for single in (_by_key(part) if _is_moving(part) else (part,))]
                singles += [[part] for part in asked if part.found is None]
        if singles:
            yield from self._ask_groups(singles)

    def _ask_groups(self, groups: Iterable[list[Part]]) -> Steps[None]:
        kept = list(groups)
        results = yield from side_by_side(
            [self._calls.decide_batch([part.request for part in group], peek=group[0].peek) for group in kept]
        )
        for group, result in zip(kept, results, strict=True):
            for index, part in enumerate(group):
                part.found = result if isinstance(result, StoreError) else result[index]

    def _remember(self, parts: Sequence[Part]) -> None:
        """Note which counters of a request over several slots refused."""
        for part in parts:
            found = part.found
            if isinstance(found, StateAnswer) and not found.admitted:
                for charge, verdict in zip(part.request, found.verdicts(), strict=True):
                    if verdict.outcome is not Outcome.ALLOWED and not charge[0].shadow:
                        self._suspects.refused(charge, verdict.retry_after_us)

    def _by_slot(self, items: Sequence[T], subjects: Sequence[str], most: int = REDIS_BATCH_MAX) -> list[list[T]]:
        """The items by slot, at most ``most`` together, which is what one command takes."""
        slots: dict[int, list[T]] = {}
        for item, subject in zip(items, subjects, strict=True):
            slots.setdefault(self._slot_of(subject), []).append(item)
        return [group[first : first + most] for group in slots.values() for first in range(0, len(group), most)]


def _to_charge(asked: Sequence[Part], *, peek: bool) -> list[Part]:
    """The parts of a request that were only looked at and are to be charged now: none where one refused that was charged."""
    if peek or not any(part.peek for part in asked) or any(refuses(part.found) for part in asked if not part.peek):
        return []
    return [Part(part.slot, part.places, part.request, peek=False) for part in asked if part.peek]


def _is_moving(part: Part) -> bool:
    """Whether a part was not decided because its slot is being moved, and its keys are in two places."""
    return _says_moving(part.found)


def _says_moving(found: object) -> bool:
    return isinstance(found, ServerFault) and found.code == "TRYAGAIN"


def _by_key(part: Part) -> list[Part]:
    """The part as one part for each charge."""
    return [
        Part(part.slot, (place,), (charge,), peek=part.peek)
        for place, charge in zip(part.places, part.request, strict=True)
    ]


def _by_key_too(
    operation: Callable[[Sequence[T]], Steps[R]], group: Sequence[T], together: Callable[[list[R]], R]
) -> Steps[R]:
    """An operation on counters of one slot; one by one where the slot is being moved, in which case nothing was done."""
    try:
        return (yield from operation(group))
    except StoreError as error:
        if not _says_moving(error) or len(group) == 1:
            raise
    results = yield from side_by_side([operation([item]) for item in group])
    return together(_successes(results))


def _sum_of(operations: Sequence[Steps[int]]) -> Steps[int]:
    """The sum of what was changed; raises the first StoreError after all are done."""
    results = yield from side_by_side(operations)
    return sum(_successes(results))


def _successes(results: Sequence[R | StoreError]) -> list[R]:
    """The results; raises the first StoreError among them."""
    found: list[R] = []
    for result in results:
        if isinstance(result, StoreError):
            raise result
        found.append(result)
    return found


def _joined(results: list[list[T]]) -> list[T]:
    return [each for result in results for each in result]
