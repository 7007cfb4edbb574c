"""Requests that ask about several things at once: sets of charges that one call of the store decides, all or none.

A request of Envoy's rate limit service has one or more descriptors. Each is facts of its own and makes its own set of charges, by the
rules that name a domain. The other rules know nothing of descriptors as a list: they apply to the request as a whole, once.
Where two sets charge the same counter it is charged once, with the sum of their costs: both fit or neither does, and no set is decided on
a counter that another is about to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace as with_fields

from sluicegate.limiter.engine import Engine
from sluicegate.limiter.plan import Plan, check_cost
from sluicegate.rules.facts import Facts
from sluicegate.stores.base import Charge, Counter

__all__ = ["PlannedSets", "SetOfCharges", "SetPlanner"]

SetOfCharges: TypeAlias = tuple[Facts, int] | Charge
"""(facts, cost) for what the rules say about them, or a charge that no rule names."""

_Key = tuple[str, str]


class PlannedSets(NamedTuple):
    """``plan``: the charges of all sets, and of the request as a whole, in order of evaluation.

    ``places``: for each set where its charges are in ``plan.charges``; none where the plan is refused as it stands. ``refused``: for each
    set whether an enforced rule refuses it because a dimension is not known.
    """

    plan: Plan
    places: tuple[tuple[int, ...], ...]
    refused: tuple[bool, ...]


class _Collected:
    """Charges by counter and subject, each with the sum of its costs; counters of rules that lack a dimension."""

    def __init__(self) -> None:
        self.charges: dict[_Key, Charge] = {}
        self.unidentified: dict[str, Counter] = {}

    def add(self, charge: Charge) -> _Key:
        counter, subject, cost = charge
        key = (counter.prefix, subject)
        known = self.charges.get(key)
        self.charges[key] = (counter, subject, check_cost(cost if known is None else cost + known[2]))
        return key

    def take(self, plan: Plan) -> list[_Key]:
        self.unidentified.update((counter.name, counter) for counter in plan.unidentified)
        return [self.add(charge) for charge in plan.charges]


class SetPlanner:
    """Plans requests of several sets by the rules of ``engine``. Safe from any thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        rules = engine.ruleset.rules
        named = tuple(rule for rule in rules if rule.match.domain)
        others = tuple(rule for rule in rules if not rule.match.domain)
        self._named = Engine(replace(engine.ruleset, rules=named), engine.namespace, engine.matched)
        self._others = Engine(replace(engine.ruleset, rules=others), engine.namespace, engine.matched)

    def plan(self, sets: Sequence[SetOfCharges], whole: Facts | None = None, cost: int = 1) -> PlannedSets:
        """The charges of ``sets``, by rules that name a domain, and of ``whole`` (None: nothing) at ``cost`` by those that name none.

        Raises InvalidRequest for what cannot be decided and for a cost that is not in ``1..COST_MAX``, also where it is a sum.
        """
        collected = _Collected()
        tier = None
        if whole is not None:
            plan = self._others.plan(whole, cost)
            tier = plan.tier
            collected.take(plan)
        found: list[list[_Key]] = []
        refused: list[bool] = []
        for each in sets:
            if len(each) == 3:
                found.append([collected.add(each)])
                refused.append(False)
                continue
            facts, own_cost = each
            plan = self._named.plan(facts, own_cost)
            tier = plan.tier
            found.append(collected.take(plan))
            refused.append(plan.refused)
        order = self.engine.order
        last = len(order)
        unidentified = tuple(sorted(collected.unidentified.values(), key=lambda counter: order[counter.name]))
        keys = sorted(collected.charges, key=lambda key: order.get(collected.charges[key][0].name, last))
        made = Plan(
            [collected.charges[key] for key in keys], tier, self.engine.version, unidentified, None, cost, whole, True
        )
        if made.refused:
            nowhere = tuple(() for _ in sets)
            return PlannedSets(with_fields(made, charges=[]), nowhere, tuple(refused))
        place_of = {key: place for place, key in enumerate(keys)}
        places = tuple(tuple(sorted({place_of[key] for key in each})) for each in found)
        return PlannedSets(made, places, tuple(refused))
