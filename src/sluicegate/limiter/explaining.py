"""Why a request is decided as it is: what every rule says to it, how its counters stand, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sluicegate.limiter.counters import CounterState
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.explain import Explained

__all__ = ["Explanation"]


class Explanation(NamedTuple):
    """``decision``: what the request would get now. ``rows``: one per rule, lists first. ``counters``: of all rules that apply.

    Nothing was charged for it. ``counters`` is None where the store gave no answer.
    """

    decision: Decision
    rows: Sequence[Explained]
    counters: Sequence[CounterState] | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        by_counter: dict[str, list[dict[str, Any]]] = {}
        for state in self.counters or ():
            # A rule on trial has its own name in ``rows``, and that of the file in the states.
            by_counter.setdefault(state.counter.partition("#")[0], []).append(state.to_dict())
        decision = self.decision.to_dict()
        # What the rules said is told below, at length.
        decision.pop("rules")
        return {
            "decision": decision,
            "store_answers": self.counters is not None,
            "rules": [{**_row(row), "counters": by_counter.get(row.rule, [])} for row in self.rows],
        }


def _row(row: Explained) -> dict[str, Any]:
    override = row.override
    return {
        "rule": row.rule,
        "applies": row.matched,
        "reason": row.reason,
        "mode": row.mode,
        "tier": row.tier,
        "quota": row.quota,
        "subject": row.subject,
        "cost": row.cost,
        "arm": row.arm,
        "override": None
        if override is None
        else {"factor": f"{override.numerator}/{override.denominator}", "until_us": override.until_us},
    }
