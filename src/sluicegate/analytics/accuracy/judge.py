"""Judges what watched counters admitted, as it becomes known.

Two numbers come out of it for each rule. ``overshoot_tokens``: by how much the worst of its counters exceeded its promise in any interval; 0 is what is promised.
``stranded_tokens``: what was refused although there was room, which leases and splits do within bounds that ``rules bounds`` prints.

Nothing that is not known makes an overshoot: asks that were not told can only hide one. Stranded tokens are counted only where every node that told of
the time watched the counter, and only of buckets and of fixed windows of less than a day. What is given back lowers what a counter is held to have admitted; one that was reset begins
anew, and nothing is said of it as long as leases of before may be spent. Admissions without the store (``degraded``) follow bounds of their own and are left out of both.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluicegate.analytics.accuracy.ledger import Ledger, Numbers, ledger_of
from sluicegate.analytics.model import Watched, WatchLevel
from sluicegate.bounds import (
    ACCURACY_BACK_US,
    ACCURACY_BLIND_US,
    ACCURACY_COUNTERS_MAX,
    ACCURACY_RESETS_MAX,
    ACCURACY_SLACK_US,
)
from sluicegate.clock import US_PER_S
from sluicegate.events import ASK, GIVEN_BACK, RESET, Admission

__all__ = ["Accuracy", "Judge", "Worst"]

_GAP_US: Final = US_PER_S
"""Batches of a node that follow each other may be so far apart and still leave nothing out."""
_NOTHING_WATCHED: Final = 33
_ANY: Final = ("", "")


class _Reset(NamedTuple):
    """Of when nothing is said of a counter, or of any."""

    key: tuple[str, str]
    since_us: int
    until_us: int


@dataclass(frozen=True, slots=True)
class Worst:
    """Where a promise was broken worst: the counter, and when the interval ended that holds too much."""

    rule: str
    subject: str
    at_us: int
    overshoot_tokens: int


@dataclass(slots=True)
class Accuracy:
    """What was found of one rule since the judge began. ``counters``: watched ones that were judged; ``asks``: of them, refused ones included."""

    rule: str
    asks: int = 0
    admitted_tokens: int = 0
    overshoot_tokens: int = 0
    stranded_tokens: int = 0
    worst: Worst | None = None


class Judge:
    """Takes admissions in pieces, each of later time than the piece before; holds at most ACCURACY_COUNTERS_MAX counters, those asked last.

    A counter begins as full when it is first seen, or seen again after it was let go: what it admitted before is not known, which can hide an excess
    for one drain of it and never make one. ``slack_us``: how far two times may be wrong against each other.
    """

    def __init__(self, slack_us: int = ACCURACY_SLACK_US) -> None:
        self.slack_us = slack_us
        self.late = 0
        self.let_go = 0
        """Asks that came too late to be judged, and counters let go for want of room."""
        self._counters: OrderedDict[tuple[str, str], Ledger] = OrderedDict()
        self._versions: dict[tuple[str, str], int] = {}
        self._rules: dict[str, Accuracy] = {}
        self._resets: deque[_Reset] = deque()
        self._until_us = self._cut_us = 0

    def rules(self) -> list[Accuracy]:
        """What was found, by rule."""
        return [self._rules[name] for name in sorted(self._rules)]

    def judge(self, watched: Watched, until_us: int | None = None) -> list[Worst]:
        """Go through a piece; the worst breach of each counter that broke its promise in it, the worst first.

        ``until_us``: what is later is left to the next piece, which has to hold it again; but of resets it is heeded now that there was one. None: all
        is judged.
        """
        for ask in watched.admissions:
            if ask.kind == RESET:
                self._note_reset(ask)
        complete = _least_complete(watched.levels)
        worst: dict[tuple[str, str], Worst] = {}
        for ask in sorted(watched.admissions, key=self._when):
            if until_us is not None and self._when(ask) >= until_us:
                break
            if ask.kind != ASK:
                self._give_back(ask)
                continue
            if ask.at_us < self._until_us:
                self.late += 1
                continue
            found = self._ask(ask, complete=ask.level >= complete)
            key = (ask.rule, ask.subject)
            if found is not None and (key not in worst or found.overshoot_tokens > worst[key].overshoot_tokens):
                worst[key] = found
            self._until_us = ask.at_us
        if until_us is not None:
            self._until_us = self._cut_us = max(self._cut_us, until_us)
        return sorted(worst.values(), key=lambda each: (-each.overshoot_tokens, each.rule, each.subject))

    def forget(self, subjects: Iterable[tuple[str, str]] | None = None) -> None:
        """Begin anew with these counters, (rule, subject), or with all: they were given back tokens, or reset."""
        for key in list(self._counters) if subjects is None else subjects:
            self._counters.pop(key, None)

    def _when(self, told: Admission) -> int:
        # What is given back may be used before its time says so, by the clock of another node or of the store.
        return told.at_us - self.slack_us if told.kind == GIVEN_BACK else told.at_us

    def _give_back(self, told: Admission) -> None:
        if told.kind != GIVEN_BACK or self._when(told) < self._cut_us:
            return
        # Also of a counter that is not known yet: its charge may be told as a little later.
        ledger = self._ledger(told)
        if ledger is not None:
            ledger.give_back(self._when(told), told.cost)

    def _note_reset(self, told: Admission) -> None:
        key = (told.rule, told.subject)
        back_us = ACCURACY_BACK_US if key == _ANY else self.slack_us
        reset = _Reset(key, told.at_us - back_us, told.at_us + ACCURACY_BLIND_US)
        if reset in self._resets:
            return
        self._resets.append(reset)
        if len(self._resets) > ACCURACY_RESETS_MAX:
            gone = self._resets.popleft().key
            self.forget(None if gone == _ANY else [gone])

    def _is_blind(self, key: tuple[str, str], at_us: int) -> bool:
        """Whether nothing is said of the counter at this time; its ledger is let go where it began before a reset."""
        blind = False
        for each in self._resets:
            if each.since_us > at_us or each.key not in (key, _ANY):
                continue
            blind = blind or at_us < each.until_us
            ledger = self._counters.get(key)
            if ledger is not None and ledger.made_us < each.until_us:
                del self._counters[key]
        return blind

    def _ask(self, ask: Admission, *, complete: bool) -> Worst | None:
        if self._resets and self._is_blind((ask.rule, ask.subject), ask.at_us):
            return None
        ledger = None if ask.degraded else self._ledger(ask)
        if ledger is None:
            return None
        rule = self._rules.setdefault(ask.rule.partition("#")[0], Accuracy(ask.rule.partition("#")[0]))
        rule.asks += 1
        if not complete:
            # Something may be missing from here back.
            ledger.began_us = ask.at_us
        if not ask.allowed:
            if not ask.fits and ask.cost <= ask.capacity and ledger.room(ask.at_us, ask.cost):
                rule.stranded_tokens += ask.cost
            return None
        rule.admitted_tokens += ask.cost
        over = ledger.admit(ask.at_us, ask.cost)
        if not over:
            return None
        found = Worst(ask.rule, ask.subject, ask.at_us, over)
        if over > rule.overshoot_tokens:
            rule.overshoot_tokens, rule.worst = over, found
        return found

    def _ledger(self, ask: Admission) -> Ledger | None:
        key, numbers = (ask.rule, ask.subject), Numbers.of(ask)
        ledger = self._counters.get(key)
        same = ledger is not None and ledger.numbers.algorithm == numbers.algorithm
        if ledger is not None and same and not self._is_newer(key, ask.version, ledger, numbers):
            ledger.use(numbers, ask.at_us)
            self._counters.move_to_end(key)
            return ledger
        # New, of another algorithm, or of newer rules: those may begin with a fresh counter, which `rules diff` says.
        fresh = ledger_of(numbers, ask.at_us, self.slack_us)
        if fresh is not None:
            self._counters[key] = fresh
            self._counters.move_to_end(key)
            self._versions[key] = max(ask.version, self._versions.get(key, 0))
        if len(self._counters) > ACCURACY_COUNTERS_MAX:
            gone, _ = self._counters.popitem(last=False)
            self._versions.pop(gone, None)
            self.let_go += 1
        return fresh

    def _is_newer(self, key: tuple[str, str], version: int, ledger: Ledger, numbers: Numbers) -> bool:
        if version <= self._versions.get(key, 0):
            return False
        self._versions[key] = version
        return numbers != ledger.numbers


def _least_complete(levels: Sequence[WatchLevel]) -> int:
    """The level from which on counters were watched by every node all the time of a piece."""
    found = 0 if levels else _NOTHING_WATCHED
    ended: dict[str, int] = {}
    for each in sorted(levels, key=lambda level: (level.node, level.at_us)):
        gap = each.at_us - ended.get(each.node, each.at_us)
        if each.level is None or gap > _GAP_US:
            return _NOTHING_WATCHED
        found = max(found, each.level)
        ended[each.node] = each.until_us
    return found
