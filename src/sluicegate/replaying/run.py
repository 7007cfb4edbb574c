"""A replay from end to end: logs in, report out.

log -> lines -> planner (memo) -> order -+
log -> lines -> planner (memo) -> order -+-> merged by time -> decided, in one batch after the other -> counted
"""

from __future__ import annotations

import heapq
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter

from sluicegate.bounds import (
    REPLAY_BAD_LINE_CHARS_SHOWN,
    REPLAY_BAD_LINES_SHOWN,
    REPLAY_BATCH_LINES,
    REPLAY_CLIENTS_SHOWN,
    REPLAY_HELD_LINES_MAX,
    REPLAY_LINE_CHARS_MAX,
    REPLAY_LOGS_MAX,
)
from sluicegate.errors import ConfigurationError
from sluicegate.replaying.bad_line import BadLine
from sluicegate.replaying.counting import Minutes, TopClients
from sluicegate.replaying.deciding import Refusal, Side
from sluicegate.replaying.json_log import JsonParser, parse_map
from sluicegate.replaying.lines import STANDARD_INPUT, TOO_LONG, Log, line_batches
from sluicegate.replaying.needs import facts_needed
from sluicegate.replaying.order import Orderer
from sluicegate.replaying.planner import Item, LineParser, Planner
from sluicegate.replaying.recording import Recording
from sluicegate.replaying.report import BadLineShown, Comparison, Report
from sluicegate.replaying.text_log import TextParser
from sluicegate.rules.model import RuleSet

__all__ = ["FORMATS", "Replay", "replay"]

FORMATS = ("auto", "combined", "common", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What to replay. Raises ConfigurationError for what cannot be meant.

    ``rules`` decide; ``against`` decide beside them, to compare. ``logs``: paths, ``-`` for standard input. ``log_format``: one of ``FORMATS``; ``auto``
    tells JSON from text by the first line of each log. ``window_us`` >= 0: how far out of order lines may be. ``fields``: ``FIELD=FACT`` for JSON.
    ``clients_shown``: how many of the most refused clients the report names.
    """

    rules: RuleSet
    logs: Sequence[str]
    against: RuleSet | None = None
    log_format: str = "auto"
    window_us: int = 120_000_000
    fields: Sequence[str] = ()
    clients_shown: int = REPLAY_CLIENTS_SHOWN
    field_of: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        if self.log_format not in FORMATS:
            raise ConfigurationError(f"format: want one of {', '.join(FORMATS)}, got {self.log_format!r}")
        if self.window_us < 0:
            raise ConfigurationError(f"window: want 0 or more microseconds, got {self.window_us}")
        if not 1 <= len(self.logs) <= REPLAY_LOGS_MAX:
            raise ConfigurationError(f"logs: want 1 to {REPLAY_LOGS_MAX}, got {len(self.logs)}")
        if list(self.logs).count(STANDARD_INPUT) > 1:
            raise ConfigurationError("logs: standard input (-) can be read once only")
        if self.fields and self.log_format in {"combined", "common"}:
            raise ConfigurationError(f"map: the fields of the format {self.log_format} are fixed; it is for JSON lines")
        object.__setattr__(self, "field_of", parse_map(self.fields))


def replay(
    what: Replay,
    started: Callable[[int], None],
    progress: Callable[[int], None],
    recording: Recording | None = None,
) -> Report:
    """Decide every line and report.

    ``started`` is called once with the size of all logs in bytes (0: not known), then ``progress`` with the bytes of
    each read. ``recording``: what else takes the decisions of ``rules``; it is slower then. Raises ConfigurationError where a log cannot be read or none has a valid line.
    """
    return _Run(what, recording).run(started, progress)


class _Run:
    """The state of one replay."""

    def __init__(self, what: Replay, recording: Recording | None) -> None:
        self._what = what
        self._recording = recording
        self._side = Side(what.rules, notes=recording is not None)
        self._other = None if what.against is None else Side(what.against)
        self._needed = facts_needed(what.rules)
        if what.against is not None:
            self._needed = facts_needed(what.against) | self._needed
        self._planners: dict[str, Planner] = {}
        self._orderers: list[Orderer] = []
        self._bad_lines = 0
        self._bad: list[BadLineShown] = []
        self._requests = self._refused = self._other_refused = 0
        self._top, self._top_refused, self._top_allowed = TopClients(), TopClients(), TopClients()
        self._newly_refused: Counts[str] = Counts()
        self._newly_allowed: Counts[str] = Counts()
        self._minutes = Minutes()

    def run(self, started: Callable[[int], None], progress: Callable[[int], None]) -> Report:
        with ExitStack() as stack:
            logs = []
            for name in self._what.logs:
                logs.append(Log(name))
                stack.callback(logs[-1].close)
            sizes = [log.size_bytes for log in logs]
            started(sum(sizes) if all(sizes) else 0)
            for items in self._merged(logs, progress):
                self._decide(items)
        if self._recording is not None:
            self._recording.finish()
        if not self._requests:
            first = f", the first: {self._bad[0].log}:{self._bad[0].line}: {self._bad[0].reason}" if self._bad else ""
            raise ConfigurationError(f"no valid line in {', '.join(self._what.logs)} ({self._bad_lines} bad{first})")
        return self._report()

    def _merged(self, logs: Sequence[Log], progress: Callable[[int], None]) -> Iterator[list[Item]]:
        """The requests of all logs in order of time; of equal times those of the earlier named log first."""
        streams = [self._ordered(log, REPLAY_HELD_LINES_MAX // len(logs), progress) for log in logs]
        if len(streams) == 1:
            yield from streams[0]
            return
        singles = [(item for items in stream for item in items) for stream in streams]
        merged = heapq.merge(*singles, key=itemgetter(0))
        while items := list(islice(merged, REPLAY_BATCH_LINES)):
            yield items

    def _ordered(self, log: Log, lines_max: int, progress: Callable[[int], None]) -> Iterator[list[Item]]:
        orderer = Orderer(self._what.window_us, lines_max)
        self._orderers.append(orderer)
        planner: Planner | None = None
        before = 0
        for lines in line_batches(log.pieces(progress)):
            if planner is None:
                planner = self._planner(lines)
            if planner is not None:
                items, bad = planner.items(lines)
                for index, error in bad:
                    self._note(log, before + index, lines[index], error)
                ordered = orderer.feed(items)
                if ordered:
                    yield ordered
            before += len(lines)
        yield orderer.finish()

    def _planner(self, lines: Iterable[str]) -> Planner | None:
        """The planner for a log that begins so; None where there are only blank lines yet."""
        log_format = self._what.log_format
        if log_format == "auto":
            first = next((line for line in lines if line and not line.isspace()), None)
            if first is None:
                return None
            log_format = "json" if first.lstrip().startswith("{") else "text"
        planner = self._planners.get(log_format)
        if planner is None:
            parser = self._parser(log_format)
            other = None if self._other is None else self._other.plan
            planner = self._planners[log_format] = Planner(parser, self._needed, self._side.plan, other)
        return planner

    def _parser(self, log_format: str) -> LineParser:
        if log_format == "json":
            return JsonParser(self._needed, self._what.field_of)
        return TextParser(self._needed, combined={"combined": True, "common": False}.get(log_format))

    def _note(self, log: Log, index: int, line: str, error: BadLine) -> None:
        """Count a bad line; a blank one is none."""
        text = ascii(line[:REPLAY_BAD_LINE_CHARS_SHOWN])
        if line is TOO_LONG:
            error, text = BadLine(f"it has more than {REPLAY_LINE_CHARS_MAX} characters"), "(dropped)"
        elif not line or line.isspace():
            return
        self._bad_lines += 1
        if len(self._bad) < REPLAY_BAD_LINES_SHOWN:
            name = "standard input" if log.name == STANDARD_INPUT else log.name
            self._bad.append(BadLineShown(name, index + 1, error.reason, text))

    def _decide(self, items: Sequence[Item]) -> None:
        refusals = self._side.decide(items)
        if self._recording is not None:
            self._recording.add(items, self._side.noted)
        self._requests += len(items)
        self._refused += len(refusals)
        self._minutes.add(items, [refusal.place for refusal in refusals])
        add = self._top.add
        for place, _, subject in refusals:
            add(items[place][1].key(subject))
        if self._other is not None:
            self._compare(items, refusals, self._other)

    def _compare(self, items: Sequence[Item], refusals: Sequence[Refusal], other: Side) -> None:
        """Decide the same batch by the other rules, and count where the answers differ."""
        before = other.decide([(now_us, planned.other or planned) for now_us, planned in items])
        self._other_refused += len(before)
        refused, refused_before = {r.place for r in refusals}, {r.place for r in before}
        for found, known, side, by_rule, top in (
            (refusals, refused_before, self._side, self._newly_refused, self._top_refused),
            (before, refused, other, self._newly_allowed, self._top_allowed),
        ):
            for refusal in found:
                if refusal.place not in known:
                    by_rule[side.rule_of(refusal)] += 1
                    top.add(items[refusal.place][1].key(refusal.subject))

    def _report(self) -> Report:
        seen: set[str] = set().union(*(planner.seen for planner in self._planners.values()))
        # A route is only looked at where a framework names it; the pattern of the rule stands in for it.
        unknown = {fact: rule for fact, rule in self._needed.items() if fact not in seen and fact != "route"}
        return Report(
            requests=self._requests,
            bad_lines=self._bad_lines,
            refused=self._refused,
            rules=self._side.counts(),
            top_refused=self._top.top(self._what.clients_shown),
            top_refused_error=self._top.error,
            first_us=min(orderer.first_us for orderer in self._orderers if orderer.first_us is not None),
            last_us=max(orderer.last_us for orderer in self._orderers if orderer.last_us is not None),
            late=sum(orderer.late for orderer in self._orderers),
            window_shortened=any(orderer.shortened for orderer in self._orderers),
            busiest_minutes=self._minutes.busiest(),
            bad=self._bad,
            unknown_facts=unknown,
            forgotten=self._side.forgotten + (0 if self._other is None else self._other.forgotten),
            against=None if self._other is None else self._comparison(self._other),
        )

    def _comparison(self, other: Side) -> Comparison:
        return Comparison(
            source=other.ruleset.source,
            refused=self._other_refused,
            rules=other.counts(),
            newly_refused=self._newly_refused.total(),
            newly_allowed=self._newly_allowed.total(),
            newly_refused_by=self._newly_refused,
            newly_allowed_by=self._newly_allowed,
            top_newly_refused=self._top_refused.top(self._what.clients_shown),
            top_newly_allowed=self._top_allowed.top(self._what.clients_shown),
        )
