"""The interface of every home, and of what a node hands its batches to.

A home keeps what nodes tell, each batch once, and answers questions about it. There are several (a SQLite file, ClickHouse); they
answer alike, and one suite holds them to that (tests/analytics/homes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sluicegate.analytics.model import (
    ANYTHING,
    CountRow,
    DecisionRow,
    HomeStatus,
    Kind,
    Offenders,
    Span,
    Watched,
    Where,
)
from sluicegate.errors import AnalyticsError
from sluicegate.events import Batch, Demand, Dropped

__all__ = ["Home", "Parcel", "Sink", "SinkFull", "SinkStats"]


class Home(Protocol):
    """What was told, and what is asked of it. Safe from any thread; every call may take its time, so none belongs on a request's path.

    Every method raises AnalyticsError where the home cannot be reached or used, and InvalidRequest for a question that cannot be answered.
    """

    def ingest(self, batches: Sequence[Batch]) -> None:
        """Keep batches: all of them or, where it raises, perhaps some. One that was kept before, by its ``id``, changes nothing.

        For how long an id is known is the home's to say; it is at least an hour after the batch was first kept.
        """
        ...

    def requests(
        self, span: Span, *, step_s: int | None = None, by: Sequence[str] = (), where: Where = ANYTHING
    ) -> list[CountRow]:
        """Every decision of the span, counted once. ``by``: of ``DIMENSIONS``. Ordered by step and then by the groups as they were named.

        Without ``step_s`` one row per group. A group or step in which nothing happened has no row. Which cells answer, and so how far
        the span is widened, is told by ``cells_of``. Steps begin at multiples of ``step_s``, so the first may begin before the span.
        """
        ...

    def rules(
        self, span: Span, *, step_s: int | None = None, by: Sequence[str] = (), where: Where = ANYTHING
    ) -> list[CountRow]:
        """What rules did to the requests that they applied to, as ``requests``; one request is counted for each of its rules.

        ``degraded`` is not among the dimensions here.
        """
        ...

    def offenders(
        self,
        span: Span,
        *,
        rule: str | None = None,
        kind: Kind = "refused",
        limit: int = 20,
        subject: str | None = None,
    ) -> Offenders:
        """The clients that came most, merged over nodes and time. ``rule``: of that rule; "": overall; None: of each rule, overall left out.

        ``subject``: of that client only. The span is widened to whole cells as counts are, by ``HomeStatus.clients_kept_us``: seconds at least for
        the last minutes, before that minutes and hours.
        """
        ...

    def decisions(
        self,
        span: Span,
        *,
        rule: str | None = None,
        outcome: str | None = None,
        subject: str | None = None,
        limit: int = 100,
    ) -> list[DecisionRow]:
        """Sampled decisions, the newest first. ``subject``: of any dimension, written as it was told (a digest where those are told)."""
        ...

    def demand(self, span: Span, *, rule: str | None = None, tier: str | None = None) -> list[Demand]:
        """What sampled clients asked for, by time; as it was told."""
        ...

    def admissions(self, span: Span) -> Watched:
        """Everything that was asked of watched counters, and which were watched."""
        ...

    def dropped(self, span: Span) -> Dropped:
        """What nodes could not tell of the span, summed."""
        ...

    def nodes(self, span: Span) -> list[str]:
        """The names of the nodes that told of the span, sorted."""
        ...

    def status(self) -> HomeStatus:
        """The home as a whole."""
        ...

    def prune(self, now_us: int) -> None:
        """Let go of what is past its retention. Where the home does so by itself nothing happens."""
        ...

    def close(self) -> None:
        """Let go of connections and files. Nothing else may be called afterwards; twice is once."""
        ...


class SinkFull(AnalyticsError):
    """A sink takes no batch at present. The caller keeps it and offers it again, or drops and counts it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A batch and its bytes, made once: a batch that is offered again is the same, byte for byte."""

    batch: Batch
    encoded: bytes


@dataclass(slots=True)
class SinkStats:
    """Counts of one sink since it was made. Written by the flusher's thread, read from any.

    ``batches``, ``decisions``: acknowledged by whoever keeps them. ``errors``: attempts that failed, whatever became of the batch.
    ``lost_batches``, ``lost_decisions``: taken and given up. ``last_us``: when the last batch was acknowledged, 0: never.
    """

    batches: int = 0
    decisions: int = 0
    errors: int = 0
    lost_batches: int = 0
    lost_decisions: int = 0
    last_us: int = 0


class Sink(Protocol):
    """Where a node's batches go. Called from one thread only, the flusher's."""

    @property
    def name(self) -> str:
        """A label of metrics: "embedded", "kafka", "control"."""
        ...

    @property
    def stats(self) -> SinkStats:
        """Its counts; the same object for ever."""
        ...

    def offer(self, parcel: Parcel) -> None:
        """Take a batch. Never blocks longer than a few seconds.

        Raises SinkFull where it cannot be taken now, and another AnalyticsError where this batch never can be.
        """
        ...

    def tick(self) -> None:
        """Called about once a second, whether there are batches or not: acknowledgements are read, what is old is pruned."""
        ...

    def flush(self, timeout_s: float) -> None:
        """Wait until everything taken is acknowledged, or ``timeout_s`` has passed; what is not by then is counted as lost in ``stats``."""
        ...

    def close(self) -> None:
        """Let go of connections and files; twice is once."""
        ...
