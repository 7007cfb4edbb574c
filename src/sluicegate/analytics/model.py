"""What is asked of a home, and the rows that it answers with.

Times are microseconds since 1970 UTC on the clocks of the nodes that told of them; a count belongs to the second in which its
interval began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from sluicegate.bounds import TRAFFIC_STEPS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import InvalidRequest
from sluicegate.events import Admission, DecisionSample

__all__ = [
    "ANYTHING",
    "DIMENSIONS",
    "HOUR_S",
    "MINUTE_S",
    "RESOLUTIONS_S",
    "SECOND_S",
    "CountRow",
    "DecisionRow",
    "HomeStatus",
    "Kind",
    "OffenderRow",
    "Offenders",
    "Span",
    "WatchLevel",
    "Watched",
    "Where",
    "cells_of",
    "check_step",
]

SECOND_S: Final = 1
MINUTE_S: Final = 60
HOUR_S: Final = 3_600
RESOLUTIONS_S: Final = (SECOND_S, MINUTE_S, HOUR_S)
"""Lengths of the cells in which counts are kept, the finest first; each divides the next."""

DIMENSIONS: Final = ("rule", "outcome", "tier", "version", "node", "degraded")
"""What counts may be grouped by. ``degraded`` is of requests only."""

Kind = Literal["refused", "asked"]


class Span(Struct, frozen=True):
    """The time from ``since_us`` on and before ``until_us``; empty where they are equal.

    Raises InvalidRequest where it ends before it begins or begins before 1970.
    """

    since_us: int
    until_us: int

    def __post_init__(self) -> None:
        if self.since_us < 0:
            raise InvalidRequest("since", f"must not be before 1970, got {self.since_us} us")
        if self.until_us < self.since_us:
            raise InvalidRequest("until", f"must not be before since, got {self.since_us} to {self.until_us} us")

    @property
    def length_us(self) -> int:
        """How long it is, >= 0."""
        return self.until_us - self.since_us

    def in_cells_of(self, resolution_s: int) -> Span:
        """The same, widened to whole cells at both ends; an empty span stays empty."""
        if self.since_us == self.until_us:
            return self
        cell_us = resolution_s * US_PER_S
        return Span(self.since_us // cell_us * cell_us, -(-self.until_us // cell_us) * cell_us)


class Where(Struct, frozen=True):
    """Which counts are meant: those whose every field is among the values given. None: any value. An empty tuple: none at all.

    ``rule`` "" is what no rule decided, ``tier`` "" what belongs to none.
    """

    rule: tuple[str, ...] | None = None
    outcome: tuple[str, ...] | None = None
    tier: tuple[str, ...] | None = None
    version: tuple[int, ...] | None = None
    node: tuple[str, ...] | None = None

    def given(self) -> dict[str, tuple[str, ...] | tuple[int, ...]]:
        """The fields that are restricted, by name."""
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: values for name, values in found.items() if values is not None}


ANYTHING: Final = Where()


class CountRow(Struct, frozen=True, omit_defaults=True):
    """Decisions of one group in one step. A field that was not grouped by is None.

    ``at_us``: start of the step; None where no step was asked for. ``tokens``: the sum of the costs asked.
    """

    decisions: int
    tokens: int
    at_us: int | None = None
    rule: str | None = None
    outcome: str | None = None
    tier: str | None = None
    version: int | None = None
    node: str | None = None
    degraded: bool | None = None


class OffenderRow(Struct, frozen=True, omit_defaults=True):
    """One client: it came at least ``times - error`` times and at most ``times``. ``rule`` "": overall."""

    rule: str
    subject: str
    times: int
    error: int = 0


class Offenders(Struct, frozen=True):
    """The clients that came most, the first the most; ties by rule and subject.

    ``total``: all events of the kind in the span, those of clients that are not among ``rows`` included; None where it is not known.
    ``error``: a client that the home does not know of came at most this often. ``more``: it knows of clients that ``rows`` had no room for, each of
    which came at most as often as the last row's ``times``. ``sample_rate``: the least share of requests that was looked at; below 1 the numbers are
    estimates, scaled up, and the bounds only likely.
    """

    kind: Kind
    rows: tuple[OffenderRow, ...]
    total: int | None
    error: int
    more: bool = False
    sample_rate: float = 1.0


class DecisionRow(Struct, frozen=True):
    """A sampled decision and the node that made it."""

    node: str
    decision: DecisionSample


class WatchLevel(Struct, frozen=True):
    """Which counters one node watched from ``at_us`` on and before ``until_us``; see ``events.Watching``. None: none at all."""

    node: str
    at_us: int
    until_us: int
    level: int | None


class Watched(Struct, frozen=True):
    """Everything that was asked of watched counters, by time, and which ones each node watched meanwhile, by node and time."""

    admissions: tuple[Admission, ...]
    levels: tuple[WatchLevel, ...]


class HomeStatus(Struct, frozen=True, omit_defaults=True):
    """A home as a whole.

    ``kind``: "embedded" or "clickhouse". ``first_us``, ``last_us``: the interval of all counts kept; None where there are none.
    ``kept_since_us``: since when counts of each resolution are complete, by its length in seconds. ``size_bytes``: on disk; None where not known.
    ``clients_since_us``: since when clients are complete by seconds; at least the last minutes. ``schema``: version of its tables.
    """

    kind: str
    schema: int
    batches: int
    first_us: int | None = None
    last_us: int | None = None
    size_bytes: int | None = None
    kept_since_us: Mapping[int, int] = {}
    clients_since_us: int = 0

    @property
    def clients_kept_us(self) -> dict[int, int]:
        """Since when clients of each resolution are complete, by its length in seconds."""
        seconds_us = max(self.kept_since_us.get(SECOND_S, 0), self.clients_since_us)
        return {**self.kept_since_us, SECOND_S: seconds_us}


def check_step(span: Span, step_s: int | None) -> None:
    """Raise InvalidRequest for a step that is not positive or makes more than TRAFFIC_STEPS_MAX rows of one group."""
    if step_s is None:
        return
    if step_s < 1:
        raise InvalidRequest("step", f"must be 1 s or longer, got {step_s} s")
    steps = span.length_us // (step_s * US_PER_S)
    if steps > TRAFFIC_STEPS_MAX:
        raise InvalidRequest("step", f"{step_s} s makes {steps} steps of the span; at most {TRAFFIC_STEPS_MAX}")


def cells_of(span: Span, step_s: int | None, kept_since_us: Mapping[int, int]) -> int:
    """The length of the cells that answer a question, in seconds: every home chooses by this.

    ``kept_since_us``: since when cells of each length are complete. Of those kept since the span began, the longest whose borders fall
    on the span's and the step's, which is exact and the least work; else the shortest, to whose cells the span is widened, and a shorter
    step lengthened. Where even the longest are not kept since then, those.
    """
    kept = [length for length in RESOLUTIONS_S if kept_since_us.get(length, 0) <= span.since_us] or [RESOLUTIONS_S[-1]]
    borders = (span.since_us, span.until_us, 0 if step_s is None else step_s * US_PER_S)
    exact = [length for length in kept if all(border % (length * US_PER_S) == 0 for border in borders)]
    return exact[-1] if exact else kept[0]
