"""Algorithms: pure functions of (numbers, state, time, cost). They read no clock, keep no state and do no I/O."""

from __future__ import annotations

from sluicegate.algorithms.ban import Ban
from sluicegate.algorithms.decide import decide
from sluicegate.algorithms.fixed_window import FixedWindow
from sluicegate.algorithms.leaky_bucket import LeakyBucket
from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.sliding_log import SlidingLog
from sluicegate.algorithms.sliding_window import SlidingWindow
from sluicegate.algorithms.spec import OnChange, Spec, State
from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.algorithms.verdict import Outcome, Verdict

__all__ = [
    "Ban",
    "FixedWindow",
    "LeakyBucket",
    "OnChange",
    "Outcome",
    "Precision",
    "SlidingLog",
    "SlidingWindow",
    "Spec",
    "State",
    "TokenBucket",
    "Verdict",
    "decide",
]
