"""What a fleet of processes admitted, and whether every interval of it is within an algorithm's bound."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from sluicegate.algorithms import FixedWindow, Spec
from sluicegate.testing.intervals import Excess, worst_span_excess

__all__ = ["ROW", "History", "Row", "read_history"]

ROW = struct.Struct("<qqHHH")
"""A row of a holder's log: see ``Row``."""

ROUNDING_US = 1
"""The server cuts its time off to microseconds, as the holders do theirs; the two of one admission may differ by one."""


class Row(NamedTuple):
    """Checks of one holder: when they began and ended, how many were asked and admitted, of which facts."""

    began_us: int
    ended_us: int
    asked: int
    admitted: int
    which: int


class History:
    """All rows of a fleet. ``ends``: the last words of the holders that came to their end; ``errors``: of those that should have and did not."""

    def __init__(
        self, name: str, rows: list[Row], ends: list[dict[str, Any]], errors: list[str], offset_us: int = 0
    ) -> None:
        self.name = name
        self.rows, self.ends, self.errors = rows, ends, errors
        self.stepped_us = offset_us
        """By how much the machine's wall clock was set meanwhile. Then the times say nothing."""
        self.found: Any = None

    def of(self, which: Iterable[int] | None = None) -> list[Row]:
        """The rows of these facts, None: of all."""
        chosen = None if which is None else set(which)
        return [row for row in self.rows if chosen is None or row.which in chosen]

    def admitted(self, which: Iterable[int] | None = None) -> int:
        return sum([row.admitted for row in self.of(which)])

    def asked(self, which: Iterable[int] | None = None) -> int:
        return sum([row.asked for row in self.of(which)])

    def total(self, name: str) -> int:
        """Of a number that holders say at their end, the sum."""
        return sum([end[name] for end in self.ends])

    def told(self, spec: Spec, which: Iterable[int] | None = None, more: int = 0, **since_until: int) -> str:
        """What a failing test says of ``excess``; "" where all is as it should be. AssertionError where the history says nothing."""
        assert not self.errors, f"{self.name}: " + "\n".join(self.errors)
        assert abs(self.stepped_us) < 1_000, "the machine's clock was set meanwhile"
        excess = self.excess(spec, which, more, **since_until)
        return "" if excess is None else f"{self.name}: {spec} and {more}: {excess}"

    def excess(
        self,
        spec: Spec,
        which: Iterable[int] | None = None,
        more: int = 0,
        since_us: int = 0,
        until_us: int | None = None,
    ) -> Excess | None:
        """The worst interval that certainly holds ``more`` tokens than the spec's bound allows, or more; all intervals are looked at.

        Of a fixed window each of its own windows is looked at as well. ``since_us``, ``until_us``: of the part in between.
        """
        spans = [
            (row.began_us, row.ended_us, row.admitted)
            for row in self.of(which)
            if row.began_us >= since_us and (until_us is None or row.ended_us < until_us)
        ]
        found = worst_span_excess(spans, lambda length_us: spec.most_admitted(length_us + ROUNDING_US) + more)
        if found is None and isinstance(spec, FixedWindow):
            sums: Counter[int] = Counter()
            for began_us, ended_us, cost in spans:
                start_us, end_us = spec.bounds_us(began_us - ROUNDING_US)
                if ended_us + ROUNDING_US < end_us:
                    sums[start_us] += cost
            start_us, most = max(sums.items(), key=lambda one: one[1], default=(0, 0))
            if most > spec.limit + more:
                found = Excess(start_us, start_us + spec.window_us, most, spec.limit + more)
        return found


def read_history(name: str, folder: Path, killed: Iterable[str], offset_us: int = 0) -> History:
    """What the holders of a folder have left there; ``killed`` are the logs of those that cannot have said last words."""
    rows: list[Row] = []
    ends, errors = [], []
    for log in sorted(folder.glob("holder-*")):
        if log.suffix == ".error":
            errors.append(log.read_text())
        if log.suffix:
            continue
        found = log.read_bytes()
        rows += [Row(*row) for row in ROW.iter_unpack(found[: len(found) // ROW.size * ROW.size])]
        end = log.with_name(log.name + ".end")
        if end.exists():
            ends.append(json.loads(end.read_text()))
        elif log.name not in killed:
            errors.append(f"{log.name} did not come to its end")
    return History(name, rows, ends, errors, offset_us)
