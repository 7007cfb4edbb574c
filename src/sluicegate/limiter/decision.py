"""The limiter's answer to one request."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sluicegate.algorithms.verdict import Outcome

__all__ = ["Decision", "RuleResult"]


class RuleResult(NamedTuple):
    """What one matching rule said. ``shadow`` results never refuse a request.

    ``limit``: capacity of the counter. ``window_us``: its window or drain time. Times are microseconds.
    """

    rule: str
    outcome: Outcome
    limit: int
    remaining: int
    retry_after_us: int | None
    reset_after_us: int
    delay_us: int
    window_us: int
    algorithm: str
    shadow: bool


class Decision(Protocol):
    """Immutable and complete. True in a boolean context when the request may proceed.

    ``rule``: the first enforced rule that refused, else the one with the smallest absolute remaining, None where no rule
    matched (then ``limit``, ``remaining`` are None and no rate headers are sent).
    ``retry_after_us``: 0 when allowed; the maximum over the refusing rules; None when the cost can never pass.
    """

    allowed: bool
    outcome: Outcome
    rule: str | None
    limit: int | None
    remaining: int | None
    retry_after_us: int | None
    reset_after_us: int
    delay_us: int
    results: tuple[RuleResult, ...]
    version: int
    degraded: bool
    decision_id: str | None
    refusal: str | None
    """None, "rate" (429) or "store" (503: a fail-closed rule could not be decided)."""

    def __bool__(self) -> bool: ...
