"""The operations of a cluster: those of one server where the counters are in one hash slot, else composed."""

from __future__ import annotations

from collections.abc import Sequence

from sluicegate.algorithms.leasing import LeaseGrant, LeaseTerms
from sluicegate.bounds import REDIS_BATCH_MAX
from sluicegate.errors import PartlyDecided, PartlyReached, StoreError
from sluicegate.stores.base import Answer, Charge, Counter, LeaseItem, Receipt, Request, Single
from sluicegate.stores.redis.calls import Calls, Steps, single_of
from sluicegate.stores.redis.composition import Composition, SlotOf
from sluicegate.stores.redis.packing import Packing
from sluicegate.stores.redis.stats import RedisStats
from sluicegate.stores.redis.suspects import Suspects
from sluicegate.stores.region_parts import PartStep, PartView

__all__ = ["ClusterCalls"]


class ClusterCalls(Calls):
    """``Calls`` for a cluster. Safe from any thread.

    A batch is decided in rounds: its requests in one slot in order and in one step, those over several slots as ``composition``
    says. Each server has its own time: the times of a batch's answers are those of several servers. ``composition`` is for callers
    that send the parts of a request themselves.
    """

    __slots__ = ("composition",)

    def __init__(self, packing: Packing, slot_of: SlotOf, stats: RedisStats) -> None:
        super().__init__(packing)
        self.composition = Composition(Calls(packing), slot_of, Suspects(packing.clock), stats)

    def decide(self, requests: Sequence[Request], *, peek: bool) -> Steps[list[Answer]]:
        """See ``Store.decide``; raises PartlyDecided where some requests have no answer, and StoreError where none has."""
        answers: list[Answer | PartlyReached | None] = []
        fault: StoreError | None = None
        for first in range(0, len(requests), REDIS_BATCH_MAX):
            found = yield from self.composition.decide(requests[first : first + REDIS_BATCH_MAX], peek=peek)
            for answer in found:
                if isinstance(answer, PartlyReached):
                    fault = fault or answer.cause
                    answers.append(answer)
                elif isinstance(answer, StoreError):
                    fault = fault or answer
                    answers.append(None)
                else:
                    answers.append(answer)
        if fault is not None:
            if all(answer is None for answer in answers):
                raise fault
            raise PartlyDecided(fault, answers)
        return [answer for answer in answers if not isinstance(answer, PartlyReached | None)]

    def decide_one(self, request: Request, *, peek: bool) -> Steps[Answer]:
        """See ``Store.decide_one``; raises PartlyReached where only some counters of the request were reached."""
        return (yield from self.composition.decide_one(request, peek=peek))

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool) -> Steps[tuple[int, list[Single]]]:
        """See ``Store.decide_singles``. The time is the earliest of the servers', which is on the safe side for all answers."""
        answers = yield from self.decide([(charge,) for charge in charges], peek=peek)
        if not answers:
            return self._packing.clock.now_us(), []
        return min(answer.now_us for answer in answers), [single_of(answer) for answer in answers]

    def refund(self, receipts: Sequence[Receipt]) -> Steps[int]:
        """See ``Store.refund``."""
        return (yield from self.composition.refund(receipts))

    def grant(self, charges: Sequence[Charge]) -> Steps[list[int]]:
        """See ``Store.grant``."""
        return (yield from self.composition.grant(charges))

    def lease(self, holder: str, terms: LeaseTerms, items: Sequence[LeaseItem]) -> Steps[list[LeaseGrant | StoreError]]:
        """See ``LeaseStore.lease``."""
        return (yield from self.composition.lease(holder, terms, items))

    def parts(self, steps: Sequence[PartStep]) -> Steps[list[PartView | StoreError]]:
        """See ``PartStore.parts``."""
        return (yield from self.composition.parts(steps))

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> Steps[int]:
        """See ``Store.reset``."""
        return (yield from self.composition.reset(keys))
