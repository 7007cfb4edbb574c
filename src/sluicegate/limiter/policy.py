"""What happens to a request when its counters cannot be reached.

Each rule says what to do (``on_store_failure``): ``local`` decides on a counter of this process with the rule's own
numbers, ``open`` lets the request pass, ``closed`` refuses it. One request may match rules of all three kinds:

- A ``closed`` rule refuses the request: "store" (503), unless a ``local`` rule before it in order refuses: "rate" (429).
- Where a ``closed`` rule refuses, the local counters are looked at and not charged: charge nobody unless all pass.
- Shadow rules are reported as undecided and refuse nobody.

The local counters begin full at the first failure and are kept afterwards, so that a store that fails now and then does
not give everybody a new allowance each time. Every node has its own, so N nodes admit up to N times the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sluicegate.algorithms.verdict import Outcome, Verdict
from sluicegate.bounds import STORE_RETRY_US
from sluicegate.clock import Clock
from sluicegate.errors import PartlyDecided, StoreError
from sluicegate.rules.model import FailurePolicy
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, Charge, Counter, Receipt, Single, Store
from sluicegate.stores.memory import MemoryStore

__all__ = ["Fallback", "FallbackAnswer", "PolicyOf"]

PolicyOf = Callable[[Counter], FailurePolicy]
"""The policy of the rule a counter belongs to."""

_OPEN = Verdict(Outcome.UNDECIDED, 0, 0, 0)
"""No wait: a decision takes an undecided rule that asks for none as one that does not refuse."""

_CLOSED = Verdict(Outcome.UNDECIDED, 0, STORE_RETRY_US, STORE_RETRY_US)


class FallbackAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer put together from policies and, for local rules, from the fallback store."""

    admitted: bool
    now_us: int
    known: tuple[Verdict, ...]
    charged: tuple[Receipt, ...]

    @property
    def unanimous(self) -> bool:
        """No rule refused, shadow ones included; an undecided open rule counts as passed."""
        return all(verdict.outcome is Outcome.ALLOWED or verdict is _OPEN for verdict in self.known)

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in order."""
        return self.known

    def receipts(self) -> tuple[Receipt, ...]:
        """The charges made in the fallback store."""
        return self.charged


class Fallback:
    """Decides without the store. ``store`` holds the local counters; its time is this process's wall clock."""

    __slots__ = ("_clock", "store")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.store: Store = MemoryStore(clock)

    def decide(self, charges: Sequence[Charge], policy_of: PolicyOf, *, peek: bool = False) -> Answer:
        """Decide one request by the policies of its rules."""
        policies = [policy_of(counter) for counter, _, _ in charges]
        closed = any(
            policy is FailurePolicy.CLOSED and not charge[0].shadow
            for policy, charge in zip(policies, charges, strict=True)
        )
        local = [
            charge
            for policy, charge in zip(policies, charges, strict=True)
            if policy is FailurePolicy.LOCAL and not charge[0].shadow
        ]
        answer = self.store.decide_one(local, peek=peek or closed) if local else None
        verdicts = iter(() if answer is None else answer.verdicts())
        known: list[Verdict] = []
        for policy, (counter, _, _) in zip(policies, charges, strict=True):
            if policy is FailurePolicy.LOCAL and not counter.shadow:
                known.append(next(verdicts))
            else:
                known.append(_CLOSED if policy is FailurePolicy.CLOSED and not counter.shadow else _OPEN)
        return FallbackAnswer(
            not closed and (answer is None or answer.admitted),
            self._clock.now_us() if answer is None else answer.now_us,
            tuple(known),
            () if answer is None else answer.receipts(),
        )

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        """Decide charges that belong to no rule: locally."""
        return self.store.decide_singles(charges, peek=peek)

    def complete_singles(self, charges: Sequence[Charge], error: StoreError) -> tuple[int, list[Single], int]:
        """Singles for all charges of a batch the store failed: its own, and local ones where it has none, and their number.

        A local single holds its Verdict in the place of a state. The time is the store's where it decided any, else this
        process's.
        """
        answers: Sequence[object] = error.answers if isinstance(error, PartlyDecided) else [None] * len(charges)
        missing = [
            charge for charge, answer in zip(charges, answers, strict=True) if not isinstance(answer, StateAnswer)
        ]
        now_us, local = self.decide_singles(missing)
        found = iter(
            [
                (admitted, counter.spec.verdict(state, now_us, cost, admitted))
                for (counter, _, cost), (admitted, state) in zip(missing, local, strict=True)
            ]
        )
        singles: list[Single] = []
        for answer in answers:
            if isinstance(answer, StateAnswer):
                now_us = answer.now_us
                singles.append((answer.admitted, answer.states[0][1]))
            else:
                singles.append(next(found))
        return now_us, singles, len(missing)

    def close(self) -> None:
        """Forget the local counters."""
        self.store.close()
