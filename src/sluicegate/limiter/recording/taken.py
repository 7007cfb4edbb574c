"""What was taken from a recorder: the parts of a batch."""

from __future__ import annotations

from msgspec import Struct

from sluicegate.events import (
    SCHEMA_VERSION,
    Admission,
    Batch,
    DecisionSample,
    Demand,
    Dropped,
    RequestCount,
    RuleCount,
    SubjectCount,
    SubjectTotal,
    Watching,
    sum_dropped,
)

__all__ = ["Taken"]


class Taken(Struct, frozen=True):
    """All that one interval has to tell; the fields of ``events.Batch`` by the same names."""

    at_us: int
    until_us: int
    requests: list[RequestCount]
    rules: list[RuleCount]
    subjects: list[SubjectCount]
    totals: list[SubjectTotal]
    decisions: list[DecisionSample]
    demand: list[Demand]
    admissions: list[Admission]
    watch: Watching | None
    dropped: Dropped

    @property
    def empty(self) -> bool:
        """Nothing happened, so there is nothing to tell."""
        return not (self.requests or self.rules or self.subjects or self.decisions or self.demand or self.admissions)

    def batch(self, node: str, identity: str, dropped: Dropped) -> Batch:
        """The batch of node ``node`` under the id ``identity``; ``dropped`` is told beside what the recorder dropped."""
        return Batch(
            v=SCHEMA_VERSION,
            id=identity,
            node=node,
            at_us=self.at_us,
            until_us=self.until_us,
            requests=self.requests,
            rules=self.rules,
            subjects=self.subjects,
            totals=self.totals,
            decisions=self.decisions,
            demand=self.demand,
            admissions=self.admissions,
            watch=self.watch,
            dropped=sum_dropped(self.dropped, dropped),
        )
