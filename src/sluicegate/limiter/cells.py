"""Every decision counted once.

A decision's shape is what is told of it: its rules and what each said, tier, version, outcome. Decisions of one shape share a cell. A cell's
count only grows; what is new since the last take is the difference, so nothing that other threads count meanwhile is lost or told twice.

Usual decisions, all of whose charges are of one token, count down ``Cell.left`` of a cell that their plan brings along, or that is found by the
identity of their counters. That is a line without a call, in which CPython with its global lock changes no thread. All others take a lock.
Counting down tells also when it is time to look at a decision again: when nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

from sluicegate.bounds import RECORDED_CELLS_MAX, RECORDED_ROWS_MAX
from sluicegate.events import ALLOWED, SHADOW_DENIED, UNDECIDED, RequestCount, RuleCount
from sluicegate.stores.base import Counter
from sluicegate.stores.locks import Locked

__all__ = ["OTHER", "Cell", "Cells", "RequestKey", "RuleKey", "key_of", "rule_of"]

OTHER = "other"
"""The name under which rules are counted that no longer fit."""

K = TypeVar("K")

_IDLE_TAKES_MAX = 60
_WORST = (ALLOWED, SHADOW_DENIED, UNDECIDED)


class RequestKey(NamedTuple):
    """What decisions have in common that are told in one RequestCount."""

    rule: str
    outcome: str
    tier: str
    version: int
    degraded: bool = False


class RuleKey(NamedTuple):
    """What they have in common in one RuleCount."""

    rule: str
    outcome: str
    tier: str
    version: int


class Cell:
    """Decisions of one shape: ``given - left`` of them. ``rules``: one row per rule, with the place of its (first) charge among the costs.

    ``kept``: counters by whose identity the cell is found. Without ``weighed`` every cost is 1. ``pinned``: plans hold it, so it is kept until it is retired.
    """

    __slots__ = (
        "costs",
        "given",
        "idle",
        "kept",
        "left",
        "pinned",
        "request",
        "rules",
        "seen",
        "seen_costs",
        "seen_tokens",
        "tokens",
        "weighed",
    )

    def __init__(
        self, request: RequestKey, outcomes: Sequence[tuple[str, str]], kept: Sequence[Counter], *, weighed: bool
    ) -> None:
        self.given = self.left = self.tokens = self.seen = self.seen_tokens = self.idle = 0
        self.request = request
        self.rules = _rule_keys(request, outcomes)
        self.kept = tuple(kept)
        self.pinned = False
        self.weighed = weighed
        self.costs = [0] * len(self.rules)
        self.seen_costs = [0] * len(self.rules)

    def give(self, more: int) -> None:
        """So many more may be counted before the next look; changes no count."""
        # Without a call in it, as counting is.
        self.given += more
        self.left += more

    def leave(self, most: int) -> None:
        """Look again after ``most`` decisions at the latest; changes no count."""
        less = self.left - most
        if less > 0:
            self.left -= less
            self.given -= less


class Cells(Locked):
    """Counts of one limiter. Safe from any thread.

    ``plain`` has the cells of usual decisions; whoever finds one counts ``left`` down by 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plain: dict[Hashable, Cell] = {}
        self._retired: list[Cell] = []
        self._weighed: dict[Hashable, Cell] = {}
        self._requests: dict[RequestKey, list[int]] = {}
        self._rules: dict[RuleKey, list[int]] = {}
        self._sources: dict[Callable[[], int], tuple[Cell, int]] = {}

    def of(self, counters: Sequence[Counter], tier: str | None, version: int) -> Cell | None:
        """The cell of usual decisions of these counters, for who keeps it until ``retire``; None: there is no room."""
        if not counters:
            return None
        cell = self.made(key_of(counters), RequestKey("", ALLOWED, tier or "", version), _passed(counters), counters)
        if cell is not None:
            cell.pinned = True
        return cell

    def made(
        self, key: Hashable, request: RequestKey, outcomes: Sequence[tuple[str, str]], counters: Sequence[Counter]
    ) -> Cell | None:
        """The plain cell of this key, made where it is missing; None: there is no room."""
        with self._lock:
            cell = self.plain.get(key)
            if cell is None and len(self.plain) < RECORDED_CELLS_MAX:
                cell = self.plain[key] = Cell(request, outcomes, counters, weighed=False)
            return cell

    def retire(self) -> None:
        """The rules have changed: plans with cells of before end soon, within a minute of takes."""
        with self._lock:
            found = list(self.plain.values())
            self.plain.clear()
            for cell in found:
                cell.idle = 0
            self._retired += found

    def add(
        self,
        request: RequestKey,
        outcomes: Sequence[tuple[str, str]],
        costs: Sequence[int],
        tokens: int,
        times: int = 1,
    ) -> None:
        """Count a decision. ``outcomes``: (counter's name, what it said) in order; ``costs``: of each; ``tokens``: asked of the request, in all."""
        key = (request, tuple(outcomes))
        with self._lock:
            cell = self._weighed.get(key)
            if cell is None:
                self._make_room()
                cell = self._weighed[key] = Cell(request, outcomes, (), weighed=True)
            cell.given += times
            cell.tokens += tokens
            for index, (_, place) in enumerate(cell.rules):
                cell.costs[index] += costs[place]

    def watch(self, source: Callable[[], int], counter: Counter, version: int) -> None:
        """Count also what ``source`` counts: allowed decisions of this counter at cost 1; it only grows."""
        cell = Cell(RequestKey("", ALLOWED, "", version), [(counter.name, ALLOWED)], (counter,), weighed=False)
        with self._lock:
            self._sources[source] = (cell, source())

    def unwatch(self, source: Callable[[], int]) -> None:
        """The source counts no more."""
        with self._lock:
            found = self._sources.pop(source, None)
            if found is not None:
                cell, begun = found
                cell.given = source() - begun
                self._settle(cell)

    def take(self) -> tuple[list[RequestCount], list[RuleCount]]:
        """What was counted since the last take."""
        with self._lock:
            for source, (cell, begun) in self._sources.items():
                cell.given = source() - begun
                self._settle(cell)
            for cells in (self.plain, self._weighed):
                for key, cell in list(cells.items()):
                    cell.idle = 0 if self._settle(cell) else cell.idle + 1
                    if cell.idle > _IDLE_TAKES_MAX and not cell.pinned:
                        # First out of reach, then looked at once more: whoever found it before has counted by then.
                        del cells[key]
                        self._settle(cell)
            for cell in self._retired:
                cell.idle += 1
                self._settle(cell)
            self._retired = [cell for cell in self._retired if cell.idle <= _IDLE_TAKES_MAX]
            requests, self._requests = self._requests, {}
            rules, self._rules = self._rules, {}
        return (
            [
                RequestCount(key.rule, key.outcome, key.tier, key.version, decisions, tokens, key.degraded)
                for key, (decisions, tokens) in requests.items()
            ],
            [RuleCount(*rule_key, decisions, tokens) for rule_key, (decisions, tokens) in rules.items()],
        )

    def put_back(self, requests: Sequence[RequestCount], rules: Sequence[RuleCount]) -> None:
        """What was taken and could not be told; it comes with the next take."""
        with self._lock:
            for row in requests:
                key = RequestKey(row.rule, row.outcome, row.tier, row.version, row.degraded)
                _sum(self._requests, key, _other_request, row.decisions, row.tokens)
            for told in rules:
                rule_key = RuleKey(told.rule, told.outcome, told.tier, told.version)
                _sum(self._rules, rule_key, _other_rule, told.decisions, told.tokens)

    def leave(self, most: int) -> None:
        """Let no cell count more than ``most`` decisions before the next look."""
        with self._lock:
            for cell in list(self.plain.values()):
                cell.leave(most)

    def _make_room(self) -> None:
        if len(self._weighed) >= RECORDED_CELLS_MAX:
            for key in list(self._weighed):
                self._settle(self._weighed.pop(key))

    def _settle(self, cell: Cell) -> bool:
        """Add up what is new of a cell; whether anything was."""
        n = cell.given - cell.left
        fresh = n - cell.seen
        if not fresh:
            return False
        cell.seen = n
        tokens = cell.tokens - cell.seen_tokens if cell.weighed else fresh
        cell.seen_tokens = cell.tokens
        _sum(self._requests, cell.request, _other_request, fresh, tokens)
        for index, (key, _) in enumerate(cell.rules):
            cost = cell.costs[index] - cell.seen_costs[index] if cell.weighed else fresh
            cell.seen_costs[index] = cell.costs[index]
            _sum(self._rules, key, _other_rule, fresh, cost)
        return True


def key_of(counters: Sequence[Counter]) -> Hashable:
    """By what the cell of usual decisions of these counters is found."""
    return id(counters[0]) if len(counters) == 1 else tuple([id(counter) for counter in counters])


def rule_of(counter_name: str) -> str:
    """The rule of a counter: ``api`` for ``api`` and ``api#2``."""
    return counter_name.partition("#")[0]


def _rule_keys(request: RequestKey, outcomes: Sequence[tuple[str, str]]) -> list[tuple[RuleKey, int]]:
    """One row per rule: of several parts, the worst."""
    found: dict[str, tuple[str, int]] = {}
    for place, (name, outcome) in enumerate(outcomes):
        rule = rule_of(name)
        known = found.get(rule)
        if known is None:
            found[rule] = (outcome, place)
        elif _badness(outcome) > _badness(known[0]):
            found[rule] = (outcome, known[1])
    return [(RuleKey(rule, outcome, request.tier, request.version), place) for rule, (outcome, place) in found.items()]


def _badness(outcome: str) -> int:
    return _WORST.index(outcome) if outcome in _WORST else len(_WORST) + (outcome != "denied")


def _passed(counters: Sequence[Counter]) -> list[tuple[str, str]]:
    return [(counter.name, ALLOWED) for counter in counters]


def _other_request(key: RequestKey) -> RequestKey:
    return key._replace(rule=OTHER if key.rule else "")


def _other_rule(key: RuleKey) -> RuleKey:
    return key._replace(rule=OTHER)


def _sum(sums: dict[K, list[int]], key: K, other: Callable[[K], K], decisions: int, tokens: int) -> None:
    row = sums.get(key)
    if row is None:
        if len(sums) >= RECORDED_ROWS_MAX:
            key = other(key)
        row = sums.setdefault(key, [0, 0])
    row[0] += decisions
    row[1] += tokens
