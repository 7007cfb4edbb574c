"""What a limit is in each region, for ``rules bounds``."""

from __future__ import annotations

from collections.abc import Callable

from sluicegate.algorithms.spec import Spec
from sluicegate.rules.model import Rule
from sluicegate.rules.read_match import client_dimensions
from sluicegate.stores.base import Counter
from sluicegate.stores.regional.plan import EACH, Plan
from sluicegate.stores.regional.units import tokens_of

__all__ = ["region_words"]


def region_words(plan: Plan) -> Callable[[Rule, Spec], str]:
    """A function that says in words what a limit is in each region; "" of one that is the same in all.

    ``docs/concepts/regions.md`` has the arguments for these numbers: together the regions never have more than the whole.
    """

    def words(rule: Rule, spec: Spec) -> str:
        clients = bool(client_dimensions(rule.per))
        if clients and plan.clients == EACH:
            return f"all of it in each region, so up to {len(plan.partners) * spec.capacity:,} for a client who uses all of them"
        counter = Counter(rule.name, spec, "", denied_counts=rule.denied_counts)
        moves = plan.moves(counter, shared=not clients)
        return "; ".join(_of_region(plan, name, spec.capacity, moves=moves) for name in plan.partners)

    return words


def _of_region(plan: Plan, region: str, capacity: int, *, moves: bool) -> str:
    own = plan.own(region)
    text = f"{region} {tokens_of(own, capacity):,}"
    if not moves:
        return text
    most = own
    for other in plan.partners:
        most |= plan.own(other) & ~plan.kept(other)
    return f"{text} ({tokens_of(plan.kept(region), capacity):,} to {tokens_of(most, capacity):,})"
