"""What the rules service asks about traffic, of whoever keeps it. It keeps nothing itself: who starts it brings a ``Traffic`` or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from sluicegate.control.offenders import OffendersAnswer, OffendersQuestion
from sluicegate.control.suggestions import SuggestionsQuestion
from sluicegate.rules.proposals import Suggestion

__all__ = ["Traffic", "TrafficAnswer", "TrafficQuestion", "TrafficRow"]


class TrafficQuestion(Struct, frozen=True):
    """Counts of a span, ``since_us`` up to and without ``until_us``. ``of``: decisions, each once, or what rules did to the requests they applied to.

    ``by``: what to group by, of rule, outcome, tier, version, node and degraded. The other fields, where not None: only such counts.
    """

    since_us: int
    until_us: int
    of: Literal["requests", "rules"] = "requests"
    step_s: int | None = None
    by: tuple[str, ...] = ()
    rule: str | None = None
    outcome: str | None = None
    tier: str | None = None
    version: int | None = None
    node: str | None = None


class TrafficRow(Struct, frozen=True, omit_defaults=True):
    """Counts of one group in one step; what was not grouped by is left out. ``at_us``: start of the step. ``tokens``: the costs asked."""

    decisions: int
    tokens: int
    at_us: int | None = None
    rule: str | None = None
    outcome: str | None = None
    tier: str | None = None
    version: int | None = None
    node: str | None = None
    degraded: bool | None = None


class TrafficAnswer(Struct, frozen=True):
    """``since_us`` to ``until_us``: the span, widened to the cells in which counts are kept (``cell_s`` seconds). ``step_s``: of the rows; null: one row of a group.

    ``nodes``: that told of the span. ``dropped_decisions``: decisions that they made and could not tell of, so that no row has them.
    """

    since_us: int
    until_us: int
    cell_s: int
    step_s: int | None
    rows: list[TrafficRow]
    nodes: list[str]
    dropped_decisions: int


class Traffic(Protocol):
    """What is kept about traffic. Raises Invalid for a question that cannot be answered, Conflict where nothing was kept, Unavailable where it cannot be asked now."""

    async def counts(self, question: TrafficQuestion) -> TrafficAnswer:
        """Counts of a span."""
        ...

    async def offenders(self, question: OffendersQuestion, now_us: int) -> OffendersAnswer:
        """Who came most. ``now_us``: the time, for what is told as being now."""
        ...

    async def suggestions(self, question: SuggestionsQuestion, document: Mapping[str, Any]) -> list[Suggestion]:
        """Quotas proposed for the rules of a document, a rules file as JSON, by what was asked."""
        ...

    async def take(self, batches: Sequence[bytes]) -> None:
        """Keep batches of a node (``events.encode``), each once by its id. Raises Invalid where one is none; nothing is kept then."""
        ...
