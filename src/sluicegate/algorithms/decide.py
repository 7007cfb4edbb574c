"""The readable composition of an algorithm's methods: the oracle that stores and ports are compared with."""

from __future__ import annotations

from sluicegate.algorithms.spec import Spec, State
from sluicegate.algorithms.verdict import Outcome, Verdict
from sluicegate.bounds import COST_MAX
from sluicegate.errors import InvalidRequest

__all__ = ["check_cost", "decide"]


def check_cost(cost: object) -> int:
    """``cost``, an int within 0..``COST_MAX``; else InvalidRequest for the field ``cost``. A bool is not an int here."""
    if type(cost) is not int:
        raise InvalidRequest("cost", f"must be an integer, got {cost!r}")
    if not 0 <= cost <= COST_MAX:
        raise InvalidRequest("cost", f"must be within 0..{COST_MAX}, got {cost}")
    return cost


def decide(spec: Spec, state: State | None, now_us: int, cost: int) -> tuple[Verdict, State | None]:
    """One decision on one counter: the answer, and the state to keep (None: no counter).

    ``cost`` 0 is a peek: it describes the counter, and creates and changes nothing. A refusal returns the state it was
    given, except that a state left in the future by a clock stepped back is brought to now (``Spec.clamp``); a cost
    that never fits changes nothing at all. InvalidRequest for a negative cost, one above ``COST_MAX``, or no int.
    """
    if check_cost(cost) == 0:
        return spec.verdict(state, now_us, 0, True), state
    after = spec.admit(state, now_us, cost)
    if after is not None:
        return spec.verdict(after, now_us, cost, True), after
    verdict = spec.verdict(state, now_us, cost, False)
    if state is not None and verdict.outcome is not Outcome.NEVER_FITS:
        state = spec.clamp(state, now_us)
    return verdict, state
