"""What a request will be charged, before any store is asked."""

from __future__ import annotations

import msgspec

from sluicegate.bounds import COST_MAX
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.cells import Cell
from sluicegate.limiter.listed import Listed
from sluicegate.rules.facts import Facts
from sluicegate.stores.base import Charge, Counter

__all__ = ["Plan", "check_cost", "plan_of"]


class Plan(msgspec.Struct, frozen=True, gc=False):
    """The charges of one request, in order of evaluation, with what is needed to describe the answer.

    ``charges`` is the ``Request`` for the store; where it is empty the store need not be asked and
    ``Engine.conclude(plan, None)`` gives the decision. ``tier`` is the tier the request was counted as (None: the
    rule set has no tiers). ``version`` is the rule set's. ``unidentified`` holds the counters of rules with ``on_missing: deny``
    whose dimension is not known; if one of them is enforced the request is refused and ``charges`` is empty. ``listed``: the entry of a list that
    decides the request before any rule; ``charges`` is empty then. ``cost``: what was asked, before rules multiply it. ``facts``: of the request,
    only where decisions are recorded. ``special``: the cost is not 1, or the charges are by the numbers of a single client.
    ``cell``: what the decision is counted in where all charges pass; None: nothing, or what else is found.
    """

    charges: list[Charge]
    tier: str | None = None
    version: int = 0
    unidentified: tuple[Counter, ...] = ()
    listed: Listed | None = None
    cost: int = 1
    facts: Facts | None = None
    special: bool = False
    cell: Cell | None = None

    @property
    def refused(self) -> bool:
        """True where the request is refused whatever the counters hold."""
        if self.listed is not None:
            return self.listed.blocked
        return any(not counter.shadow for counter in self.unidentified)


def plan_of(counter: Counter, subject: str, cost: int) -> Plan:
    """The plan of one charge that no rule names."""
    return Plan([(counter, subject, cost)], None, 0, (), None, cost, None, cost != 1)


def check_cost(cost: object, *, least: int = 1) -> int:
    """``cost`` if it is an int in ``least..COST_MAX``; ``least`` 0 is for peeks. Raises InvalidRequest("cost")."""
    if type(cost) is not int:
        raise InvalidRequest("cost", f"must be a whole number, got {cost!r:.64}")
    if not least <= cost <= COST_MAX:
        shown = str(cost) if abs(cost) < 10 * COST_MAX else "a larger number" if cost > 0 else "a smaller number"
        raise InvalidRequest("cost", f"must be in {least}..{COST_MAX}, got {shown}")
    return cost
