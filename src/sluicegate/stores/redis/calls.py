"""What is asked of a Redis, step by step, without any input or output.

Each operation is a generator that yields commands to be sent side by side, gets their replies and returns the result. The
synchronous and the asynchronous store send what it yields, each in its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.bounds import LEASE_ITEMS_MAX, REDIS_BATCH_MAX, REGION_LOOKS_MAX
from sluicegate.errors import PartlyDecided, StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, Charge, Counter, LeaseItem, Receipt, Request, Single
from sluicegate.stores.redis.packing import Command, Packing
from sluicegate.stores.region_parts import PartStep, PartView

__all__ = ["Calls", "Steps", "Undo", "single_of"]

R = TypeVar("R")

Steps: TypeAlias = Generator[Sequence[Command], Sequence[Any], R]
"""An operation under way: yields commands, takes one reply (bytes, int) or StoreError for each, returns its result."""

_RETRIES = 2


class Undo(list[Command]):
    """Commands that take back charges of a refused request: they are still sent when the deadline has passed, see ``REDIS_UNDO_DIVISOR``."""

    __slots__ = ()


class Calls:
    """The operations of one server, made of a ``Packing``. Safe from any thread."""

    __slots__ = ("_packing",)

    def __init__(self, packing: Packing) -> None:
        self._packing = packing

    def decide(self, requests: Sequence[Request], *, peek: bool) -> Steps[list[Answer]]:
        """See ``Store.decide``; raises PartlyDecided where some requests have no answer."""
        answers: list[Answer | None] = []
        fault: StoreError | None = None
        for first in range(0, len(requests), REDIS_BATCH_MAX):
            batch = requests[first : first + REDIS_BATCH_MAX]
            try:
                found = yield from self.decide_batch(batch, peek=peek)
            except StoreError as error:
                if not answers:
                    raise
                fault = error
                answers += [None] * (len(requests) - len(answers))
                break
            for answer in found:
                if isinstance(answer, StoreError):
                    fault = answer
                    answers.append(None)
                else:
                    answers.append(answer)
        if fault is not None:
            raise PartlyDecided(fault, answers)
        return [answer for answer in answers if answer is not None]

    def decide_one(self, request: Request, *, peek: bool) -> Steps[Answer]:
        """See ``Store.decide_one``."""
        (answer,) = yield from self.decide_batch((request,), peek=peek)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool) -> Steps[tuple[int, list[Single]]]:
        """See ``Store.decide_singles``; the time is that of the first call where a batch takes several."""
        answers = yield from self.decide([(charge,) for charge in charges], peek=peek)
        now_us = answers[0].now_us if answers else self._packing.clock.now_us()
        return now_us, [single_of(answer) for answer in answers]

    def refund(self, receipts: Sequence[Receipt]) -> Steps[int]:
        """See ``Store.refund``. A key that cannot be read raises StoreError after the others are done."""
        changed = 0
        problem: StoreError | None = None
        for first in range(0, len(receipts), REDIS_BATCH_MAX):
            batch = receipts[first : first + REDIS_BATCH_MAX]
            done, fault = yield from _in_time(partial(self._packing.refund, batch), self._packing.refunded)
            changed += done
            problem = problem or fault
        if problem is not None:
            raise problem
        return changed

    def grant(self, charges: Sequence[Charge]) -> Steps[list[int]]:
        """See ``Store.grant``. A key that cannot be read raises StoreError after the others are done."""
        given: list[int] = []
        problem: StoreError | None = None
        for first in range(0, len(charges), REDIS_BATCH_MAX):
            batch = charges[first : first + REDIS_BATCH_MAX]
            read = partial(self._packing.granted, len(batch))
            done, fault = yield from _in_time(partial(self._packing.grant, batch), read)
            given += done
            problem = problem or fault
        if problem is not None:
            raise problem
        return given

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> Steps[list[LeaseGrant | StoreError]]:
        """See ``LeaseStore.lease``."""
        grants: list[LeaseGrant | StoreError] = []
        for first in range(0, len(items), LEASE_ITEMS_MAX):
            batch = items[first : first + LEASE_ITEMS_MAX]
            try:
                grants += yield from self.lease_batch(holder, terms, batch)
            except StoreError as error:
                grants += [error] * len(batch)
        return grants

    def lease_batch(
        self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]
    ) -> Steps[list[LeaseGrant | StoreError]]:
        """``lease`` of at most ``LEASE_ITEMS_MAX`` counters; raises StoreError where there is no answer at all."""
        read = partial(self._packing.leased, len(items))
        found, _ = yield from _in_time(partial(self._packing.lease, holder, terms, items), read)
        return found

    def parts(self, steps: Sequence[PartStep]) -> Steps[list[PartView | StoreError]]:
        """See ``PartStore.parts``."""
        views: list[PartView | StoreError] = []
        for first in range(0, len(steps), REGION_LOOKS_MAX):
            batch = steps[first : first + REGION_LOOKS_MAX]
            try:
                views += yield from self.parts_batch(batch)
            except StoreError as error:
                views += [error] * len(batch)
        return views

    def parts_batch(self, steps: Sequence[PartStep]) -> Steps[list[PartView | StoreError]]:
        """``parts`` of at most ``REGION_LOOKS_MAX`` counters; raises StoreError where there is no answer at all."""
        found, _ = yield from _in_time(partial(self._packing.parts, steps), partial(self._packing.parted, len(steps)))
        return found

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> Steps[int]:
        """See ``Store.reset``. Counters that have recovered and are not yet collected count as existing."""
        existed = 0
        for first in range(0, len(keys), REDIS_BATCH_MAX):
            existed += yield from _one(self._packing.reset(keys[first : first + REDIS_BATCH_MAX]))
        return existed

    def decide_batch(self, requests: Sequence[Request], *, peek: bool) -> Steps[list[StateAnswer | StoreError]]:
        """An answer or an error for each of at most ``REDIS_BATCH_MAX`` requests; raises StoreError where there is none at all."""
        guess_us = 0
        for _ in range(_RETRIES):
            reply = yield from _one(self._packing.decide(requests, guess_us, peek=peek))
            guess_us, answers = self._packing.decided(requests, reply, peek=peek)
            if answers is not None:
                return answers
        raise StoreError("Redis' time runs away from its calendar windows")


def _in_time(
    make: Callable[[int], Command], read: Callable[[bytes], tuple[int, R | None, StoreError | None]]
) -> Steps[tuple[R, StoreError | None]]:
    """What a command did that is made from a guess of the server's time, and its error; it is made again where the guess was wrong."""
    guess_us = 0
    for _ in range(_RETRIES):
        reply = yield from _one(make(guess_us))
        guess_us, done, problem = read(reply)
        if done is not None:
            return done, problem
    raise StoreError("Redis' time runs away from its calendar windows")


def _one(command: Command) -> Steps[Any]:
    """The reply to a single command; raises the StoreError it got."""
    (reply,) = yield (command,)
    if isinstance(reply, StoreError):
        raise reply
    return reply


def single_of(answer: Answer) -> Single:
    """An answer to a request of one charge, in the lean form."""
    assert isinstance(answer, StateAnswer)
    return answer.admitted, answer.states[0][1]
