"""What a replay found: as data, as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from sluicegate.clock import US_PER_S
from sluicegate.replaying.counting import Minute
from sluicegate.replaying.deciding import RuleCounts

__all__ = ["BadLineShown", "Comparison", "Report"]

Ranked = Sequence[tuple[str, int]]
"""Names with counts, largest first."""


class BadLineShown(NamedTuple):
    """One line that could not be decided. ``line`` counts from 1; ``text`` is its beginning, in printable ASCII."""

    log: str
    line: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same log under the rules it is compared with (``source``). "Newly" is from those to the rules replayed.

    ``newly_refused_by``: by the rule that refuses now. ``newly_allowed_by``: by the rule that refused there.
    """

    source: str
    refused: int
    rules: Mapping[str, RuleCounts]
    newly_refused: int
    newly_allowed: int
    newly_refused_by: Mapping[str, int]
    newly_allowed_by: Mapping[str, int]
    top_newly_refused: Ranked
    top_newly_allowed: Ranked


@dataclass(frozen=True, slots=True)
class Report:
    """What rules would have done to a log.

    ``requests``: lines decided, refused or not; ``late`` of them were further out of order than the window. ``top_refused`` has counts that are at
    most ``top_refused_error`` too small. ``first_us``, ``last_us``: time of the earliest and the latest request. ``unknown_facts``: facts that a
    rule looks at and no line knew, each with such a rule. ``forgotten``: counters lost because there were too many.
    """

    requests: int
    bad_lines: int
    refused: int
    rules: Mapping[str, RuleCounts]
    top_refused: Ranked
    top_refused_error: int
    first_us: int
    last_us: int
    late: int
    window_shortened: bool
    busiest_minutes: Sequence[Minute]
    bad: Sequence[BadLineShown]
    unknown_facts: Mapping[str, str] = field(default_factory=dict)
    forgotten: int = 0
    against: Comparison | None = None

    @property
    def allowed(self) -> int:
        """Requests that were not refused."""
        return self.requests - self.refused

    @property
    def span_s(self) -> int | float:
        """Seconds from the first request to the last."""
        whole, rest_us = divmod(self.last_us - self.first_us, US_PER_S)
        return whole + rest_us / US_PER_S if rest_us else whole

    def to_dict(self) -> dict[str, object]:
        """For JSON. The first seven entries are what other programs may rely on."""
        document: dict[str, object] = {
            "requests": self.requests,
            "bad_lines": self.bad_lines,
            "allowed": self.allowed,
            "refused": self.refused,
            "rules": _rules_dict(self.rules),
            "top_refused": [list(entry) for entry in self.top_refused],
            "span_s": self.span_s,
            "first": _iso(self.first_us),
            "last": _iso(self.last_us),
            "late_lines": self.late,
            "window_shortened": self.window_shortened,
            "top_refused_error": self.top_refused_error,
            "busiest_minutes": [
                {"start": _iso(minute.start_us), "requests": minute.requests, "refused": minute.refused}
                for minute in self.busiest_minutes
            ],
            "bad": [bad._asdict() for bad in self.bad],
            "unknown_facts": list(self.unknown_facts),
            "counters_forgotten": self.forgotten,
        }
        if self.against is not None:
            document["against"] = self._against_dict(self.against)
        return document

    def _against_dict(self, against: Comparison) -> dict[str, object]:
        return {
            "source": against.source,
            "allowed": self.requests - against.refused,
            "refused": against.refused,
            "rules": _rules_dict(against.rules),
            "newly_refused": against.newly_refused,
            "newly_allowed": against.newly_allowed,
            "newly_refused_by_rule": dict(against.newly_refused_by),
            "newly_allowed_by_rule": dict(against.newly_allowed_by),
            "top_newly_refused": [list(entry) for entry in against.top_newly_refused],
            "top_newly_allowed": [list(entry) for entry in against.top_newly_allowed],
        }

    def text(self) -> str:
        """For people."""
        span = timedelta(microseconds=self.last_us - self.first_us)
        lines = [
            f"requests  {self.requests:>12,}   {_day(self.first_us)} to {_day(self.last_us)} UTC ({span})",
            f"allowed   {self.allowed:>12,}   {_percent(self.allowed, self.requests)}",
            f"refused   {self.refused:>12,}   {_percent(self.refused, self.requests)}",
            "",
            *_rules_table(self.rules),
        ]
        if self.top_refused:
            lines += ["", "refused most", *_ranked(self.top_refused)]
            if self.top_refused_error:
                lines.append(f"  (there are many clients: a count may be up to {self.top_refused_error:,} too small)")
        lines += ["", f"{'busiest minutes (UTC)':<28}{'requests':>12}{'refused':>12}"]
        lines += [f"  {_day(m.start_us)[:16]:<26}{m.requests:>12,}{m.refused:>12,}" for m in self.busiest_minutes]
        if self.against is not None:
            lines += ["", *self._against_lines(self.against)]
        notes = self._notes()
        return "\n".join([*lines, "", *notes] if notes else lines)

    def _against_lines(self, against: Comparison) -> list[str]:
        lines = [
            f"against {against.source}: refused there {against.refused:,}, {_percent(against.refused, self.requests)}",
            f"  newly refused {against.newly_refused:,}, newly allowed {against.newly_allowed:,}",
        ]
        for title, by_rule, top in (
            ("newly refused", against.newly_refused_by, against.top_newly_refused),
            ("newly allowed", against.newly_allowed_by, against.top_newly_allowed),
        ):
            if by_rule:
                rules = sorted(by_rule.items(), key=lambda entry: (-entry[1], entry[0]))
                lines += ["", f"{title}, by rule", *_ranked(rules), f"{title}, by client", *_ranked(top)]
        return lines

    def _notes(self) -> list[str]:
        notes = []
        if self.bad_lines:
            notes.append(f"bad lines: {self.bad_lines:,}, not decided" + (", the first of them:" if self.bad else ""))
            notes += [f"  {bad.log}:{bad.line}: {bad.reason}: {bad.text}" for bad in self.bad]
        if self.late:
            notes.append(
                f"late lines: {self.late:,}, out of order by more than --window, decided at the time the log had reached"
            )
        if self.window_shortened:
            notes.append("the window holds too many lines for memory: it was shortened where the log is dense")
        notes += [
            f"no line knows {fact}, which the rule {rule!r} looks at" for fact, rule in self.unknown_facts.items()
        ]
        if self.forgotten:
            notes.append(f"{self.forgotten:,} live counters were forgotten for want of room: some clients got too much")
        return notes


def _rules_dict(rules: Mapping[str, RuleCounts]) -> dict[str, dict[str, int]]:
    return {
        name: {
            "matched": counts.matched,
            "refused": counts.refused,
            "shadow_refused": counts.shadow_refused,
            "also_refused": counts.also_refused,
        }
        for name, counts in rules.items()
    }


def _rules_table(rules: Mapping[str, RuleCounts]) -> list[str]:
    width = max(28, *(len(name) + 4 for name in rules)) if rules else 28
    rows = [f"{'rule':<{width}}{'matched':>12}{'refused':>12}{'also refused':>14}{'shadow refused':>16}"]
    for name, counts in rules.items():
        numbers = f"{counts.matched:>12,}{counts.refused:>12,}{counts.also_refused:>14,}{counts.shadow_refused:>16,}"
        rows.append(f"  {name:<{width - 2}}{numbers}")
    return rows


def _ranked(entries: Ranked) -> list[str]:
    return [f"  {count:>10,}  {name}" for name, count in entries]


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def _moment(us: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def _iso(us: int) -> str:
    return _moment(us).isoformat().replace("+00:00", "Z")


def _day(us: int) -> str:
    return f"{_moment(us):%Y-%m-%d %H:%M:%S}"
