"""The usual decision, counted by the shortest way there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias
from zlib import crc32

from sluicegate.events import ALLOWED
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.plan import Plan
from sluicegate.limiter.recording.cells import Cells, RequestKey
from sluicegate.limiter.recording.following import Following
from sluicegate.limiter.recording.looks import Looks
from sluicegate.stores.base import Answer

__all__ = ["Passed", "Passing", "passing"]

Passed: TypeAlias = Callable[[Plan, Answer], None]


class Passing(NamedTuple):
    """Functions that share the count of decisions to pass over before the next look.

    ``passed``: a decision of charges that all passed. ``look``: perhaps look at another one. ``look_next``: the next is looked at. ``restart``: how often
    to look has changed.
    """

    passed: Passed
    look: Callable[[Decision], None]
    look_next: Callable[[], None]
    restart: Callable[[], None]


def passing(cells: Cells, looks: Looks, following: Following | None) -> Passing:
    """The functions of one recorder. Local variables of a closure cost half of what attributes do."""
    plain, first, one = cells.plain, cells.first, 1
    left = 0

    def weigh(plan: Plan) -> None:
        costs = [charge[2] for charge in plan.charges]
        if not plan.special and costs.count(1) == len(costs):
            first(plan)
            return
        request = RequestKey("", ALLOWED, plan.tier or "", plan.version)
        cells.add(request, [(charge[0].name, ALLOWED) for charge in plan.charges], costs, plan.cost)

    def passed(plan: Plan, answer: Answer) -> None:
        nonlocal left
        charges = plan.charges
        try:
            # Between finding the cell and adding 1 nothing is called, so no thread comes in between.
            if plan.special:
                weigh(plan)
            elif len(charges) == 1:
                counter, _, cost = charges[0]
                if cost is one:
                    plain[id(counter)].n += 1
                else:
                    weigh(plan)
            elif all([charge[2] is one for charge in charges]):  # noqa: C419 -- a generator costs twice as much
                plain[tuple([id(charge[0]) for charge in charges])].n += 1
            else:
                weigh(plan)
        except KeyError:
            first(plan)
        left -= 1
        if left < 0:
            left = looks.look(plan, answer)

    def look(decision: Decision) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            left = looks.look(decision.plan, decision.answer, decision)

    def look_next() -> None:
        nonlocal left
        left = 0

    def restart() -> None:
        nonlocal left
        left = looks.skip()

    whole = passed if following is None else _followed(passed, following)
    return Passing(whole, look, look_next, restart)


def _followed(passed: Passed, following: Following) -> Passed:
    """``passed``, and clients are followed."""

    def followed(plan: Plan, answer: Answer) -> None:
        passed(plan, answer)
        limit = following.limit
        for charge in plan.charges:
            digest = crc32(charge[1].encode("utf-8", "surrogatepass"))
            if digest < limit:
                now_us = answer.now_us
                following.saw(charge, digest, plan.tier or "", plan.version, now_us, allowed=True, fits=True)

    return followed
