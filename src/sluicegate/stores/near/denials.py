"""The deny cache: counters that a store has refused, and until when they certainly refuse.

It says no or nothing, never yes. A refusal that the store answered with "wait w" stays one for as long, because use only grows between: no
counter that refuses a cost passes it, or a higher one, before w is over, whoever else asks, unless somebody gives something back. Who does that
says so: ``forget`` here, ``heard`` in every other process. What was refused under one quota says nothing of another: where a client's requests have
different tiers, each is asked about.

The store answers with a duration, so no clock is compared with another. Here it is counted from the moment at which the question was *sent*,
and shortened by how wrong both clocks may run, so it ends here before it ends there. Whatever is not heard of (news that was lost, a store that
lost writes, a clock that was set forward) costs at most ``trust_us``: after that the store is asked again.

A plain object: no clock, no lock of its own, no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import DENIAL_MARKS, DENIALS_DROPPED_AT_ONCE

__all__ = ["Denials"]

_MASK: Final = DENIAL_MARKS - 1

_Entry: TypeAlias = tuple[int, int, int, int, int, Spec]
"""(the least cost that was refused, when trust in it ends, when the cost passes at the earliest, the mark's place, the epoch of the question, by which
numbers)."""


class Denials:
    """At most ``most`` counters that refuse, 0: none is remembered. ``trust_us`` (>= 1): the longest that a refusal is repeated without asking again.

    ``terms`` say how far clocks are trusted. ``name_of`` gives a counter's number in news, the same in all processes that hear of each other.

    ``refuses`` and ``active`` change nothing and may be called beside anything else; all else is called by one thread at a time.
    ``epoch`` grows with everything that is forgotten; ``active`` is False while nothing is known.

    Memory: what ends first leaves first, as far as ``trust_us`` decides when: in the order in which it was learned. Nothing costs more than a few
    steps, however many counters there are, apart from forgetting all.
    """

    __slots__ = ("_entries", "_floor", "_get", "_marks", "_most", "_name_of", "_terms", "_trust_us", "active", "epoch")

    def __init__(self, most: int, trust_us: int, terms: LeaseTerms, name_of: Callable[[str], int] = hash) -> None:
        self._most = most
        self._trust_us = trust_us
        self._terms = terms
        self._name_of = name_of
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._get = self._entries.get
        # Of all counters whose numbers end alike: the epoch at which one was last forgotten. So a number is enough to forget a counter, and
        # an answer that is under way meanwhile is not learned, in a memory that does not grow.
        self._marks = [0] * DENIAL_MARKS
        self._floor = 0
        self.active = False
        self.epoch = 0

    def __len__(self) -> int:
        """The counters held, ended ones that have not left yet included."""
        return len(self._entries)

    def refuses(self, key: str, spec: Spec, cost: int, now_us: int) -> int | None:
        """Microseconds (>= 1) until ``cost`` passes by these numbers if nobody else asks; None: not known to be refused.

        Where it answers, the store would refuse, as far as its news was heard.
        """
        entry = self._get(key)
        if entry is None:
            return None
        least, ends_us, ready_us, place, epoch, known = entry
        if now_us < ends_us and cost >= least and self._marks[place] <= epoch and (spec is known or spec == known):
            return ready_us - now_us
        return None

    def learn(
        self, key: str, spec: Spec, cost: int, retry_after_us: int, sent_us: int, epoch: int, came_us: int
    ) -> None:
        """A store's refusal of ``cost``: it would pass after ``retry_after_us`` (>= 1), if nobody else asked.

        ``sent_us``, ``epoch``: the steady time and ``self.epoch`` before the question was sent. Nothing is learned where this counter may have
        been forgotten since. ``came_us``: when the answer came; a client is told to wait from then on.
        Not for counters that count what they refuse (``denied_counts``), whose waits get longer with every question.
        """
        if not self._most:
            return
        place = self._name_of(key) & _MASK
        if epoch < self._floor or self._marks[place] > epoch:
            return
        entries = self._entries
        ends_us = sent_us + min(self._terms.usable_us(retry_after_us), self._trust_us)
        entry = (cost, ends_us, came_us + retry_after_us, place, epoch, spec)
        known = entries.pop(key, None)
        if known is not None and self._marks[place] <= known[4] and known[5] == spec:
            entry = _better(known, entry, sent_us)
        self._make_room(sent_us)
        entries[key] = entry
        self.active = True

    def forget(self, keys: Iterable[str] | None) -> None:
        """These counters may pass now, None: all of them. For what this process did or was told itself."""
        if keys is None:
            self._forget_all()
            return
        self.epoch = epoch = self.epoch + 1
        for key in keys:
            self._entries.pop(key, None)
            self._marks[self._name_of(key) & _MASK] = epoch
        self.active = bool(self._entries)

    def heard(self, names: Iterable[int] | None) -> None:
        """``forget`` by what ``name_of`` gives; some others are forgotten with them, and only asked for once more. None: all of them."""
        if names is None:
            self._forget_all()
            return
        self.epoch = epoch = self.epoch + 1
        for name in names:
            self._marks[name & _MASK] = epoch

    def _forget_all(self) -> None:
        self.epoch += 1
        self._floor = self.epoch
        # A new table: whoever is looking something up has the old one, and the time to free a large one is nobody's request's.
        self._entries = OrderedDict()
        self._get = self._entries.get
        self.active = False

    def _make_room(self, now_us: int) -> None:
        """Let a few go that have ended, and the oldest where the table is full."""
        entries = self._entries
        for _ in range(DENIALS_DROPPED_AT_ONCE):
            if not entries:
                return
            key = next(iter(entries))
            if entries[key][1] > now_us and len(entries) < self._most:
                return
            del entries[key]


def _better(known: _Entry, entry: _Entry, now_us: int) -> _Entry:
    """Which of two refusals of one counter to keep, where both are true: that of the lower cost, which stands for more requests; else the longer."""
    if known[1] <= now_us or entry[0] < known[0]:
        return entry
    return entry if entry[0] == known[0] and entry[1] >= known[1] else known
