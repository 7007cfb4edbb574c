"""An answer that the store did not give, or not alone."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from sluicegate.algorithms.verdict import ALLOWED, DENIED, NEVER_FITS, Outcome, Verdict
from sluicegate.bounds import STORE_RETRY_US
from sluicegate.stores.base import Charge, Receipt

__all__ = [
    "CLOSED",
    "CLOSED_VERDICT",
    "HANDOVER",
    "LOCAL",
    "OPEN",
    "OPEN_VERDICT",
    "STICKY",
    "FallbackAnswer",
    "as_local",
]

LOCAL: Final = "local"
STICKY: Final = "sticky"
"""Local, with the whole limit on every node."""
OPEN: Final = "open"
CLOSED: Final = "closed"
HANDOVER: Final = "handover"
"""Refused by the local counter of an outage that is over, before the store was asked."""

OPEN_VERDICT: Final = Verdict(Outcome.UNDECIDED, 0, 0, 0)
"""No wait: a decision takes an undecided rule that asks for none as one that does not refuse."""

CLOSED_VERDICT: Final = Verdict(Outcome.UNDECIDED, 0, STORE_RETRY_US, STORE_RETRY_US)


class FallbackAnswer(msgspec.Struct, frozen=True, gc=False):
    """An answer put together from policies, from local counters, and from the part of the store that was reached.

    ``how`` says by charge what decided it: one of the words above, None for the store and for what was not asked.
    ``reached``: charges that stand in the store; ``charged``: those in the local counters.
    """

    admitted: bool
    now_us: int
    known: tuple[Verdict, ...]
    how: tuple[str | None, ...]
    reached: tuple[Receipt, ...] = ()
    charged: tuple[Receipt, ...] = ()

    asked: ClassVar[bool] = False

    @property
    def unanimous(self) -> bool:
        """No rule refused, shadow ones included; an undecided open rule counts as passed."""
        return all(verdict.outcome is ALLOWED or verdict is OPEN_VERDICT for verdict in self.known)

    def verdicts(self) -> tuple[Verdict, ...]:
        """One verdict per charge, in order."""
        return self.known

    def refused(self) -> list[Charge]:
        """None: a part of a limit, which decides without the store, is less than the client may use."""
        return []

    def receipts(self) -> tuple[Receipt, ...]:
        """The charges made, wherever they were."""
        return self.reached + self.charged


def as_local(verdict: Verdict, cost: int, capacity: int, retry_us: int = STORE_RETRY_US) -> Verdict:
    """A local counter's verdict as one of the rule's, whose capacity is ``capacity``.

    What is too much for the share and not for the rule is refused for now: it fits when the store is back.
    """
    if verdict.outcome is NEVER_FITS and cost <= capacity:
        return Verdict(DENIED, verdict.remaining, retry_us, retry_us)
    return verdict
