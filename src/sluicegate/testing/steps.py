"""Step tables: an algorithm's behaviour as rows of (time, cost, answer), run by one runner.

    run_steps(TokenBucket(2, 1, 1_000_000), [
        Step(0, 1, ALLOWED, remaining=1),
        Step(0, 1, ALLOWED, remaining=0),
        Step(400_000, 1, DENIED, remaining=0, retry_after_us=600_000),
        Step(1_000_000, 1, ALLOWED, remaining=0),
    ])

A row that fails is named with its number, time and cost, and every field that differs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sluicegate.algorithms import Outcome, Spec, State, decide

__all__ = ["ALLOWED", "DENIED", "NEVER_FITS", "Step", "run_steps"]

ALLOWED: Final = Outcome.ALLOWED
DENIED: Final = Outcome.DENIED
NEVER_FITS: Final = Outcome.NEVER_FITS

UNCHECKED: Final = -1


class Step(NamedTuple):
    """One decision and what it must answer. ``at_us`` is counted from the table's start and may go back.

    A field left at its default is not checked, except that ``retry_after_us`` of a pass is always 0, and None of a
    cost that never fits. ``cost`` 0 peeks.
    """

    at_us: int
    cost: int
    outcome: Outcome
    remaining: int = UNCHECKED
    retry_after_us: int | None = UNCHECKED
    reset_after_us: int = UNCHECKED
    delay_us: int = UNCHECKED


def run_steps(
    spec: Spec, steps: Iterable[Step], *, start_us: int = 1_700_000_000_000_000, state: State | None = None
) -> State | None:
    """Decide every step in order; the final state. AssertionError names the first row that differs."""
    for number, step in enumerate(steps, 1):
        verdict, state = decide(spec, state, start_us + step.at_us, step.cost)
        expected = step._asdict()
        del expected["at_us"], expected["cost"]
        if step.outcome in {Outcome.ALLOWED, Outcome.NEVER_FITS}:
            expected["retry_after_us"] = 0 if step.outcome is Outcome.ALLOWED else None
        actual = verdict._asdict()
        wrong = [
            f"{name}: expected {value}, got {actual[name]}"
            for name, value in expected.items()
            if value != UNCHECKED and value != actual[name]
        ]
        if wrong:
            raise AssertionError(f"row {number} (t={step.at_us} us, cost {step.cost}) of {spec}: {'; '.join(wrong)}")
    return state
