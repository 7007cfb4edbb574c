"""The frozen record of one decision, handed to observers that can neither change nor delay it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["DecisionEvent", "EventSink"]


class DecisionEvent(NamedTuple):
    """What was decided. ``rule`` is None where no rule matched; times are the store's microseconds."""

    now_us: int
    outcome: str
    rule: str | None
    cost: int
    tier: str | None
    version: int
    degraded: bool


class EventSink(Protocol):
    """An observer. An exception it raises is counted and otherwise ignored."""

    def record(self, event: DecisionEvent) -> None: ...
