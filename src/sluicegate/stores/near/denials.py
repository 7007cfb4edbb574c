"""The deny cache: counters that a store has refused, and until when they certainly refuse.

It says no or nothing, never yes. A refusal that the store answered with "wait w" stays one for as long, because use only grows between: no
counter that refuses a cost passes it, or a higher one, before w is over, whoever else asks, unless somebody gives something back. Who does that
says so: ``forget`` here, ``heard`` in every other process. What was refused under one quota says nothing of another: where a client's requests have
different tiers, each is asked about.

The store answers with a duration, so no clock is compared with another. Here it is counted from the moment at which the question was *sent*,
and shortened by how wrong both clocks may run, so it ends here before it ends there. Whatever is not heard of (news that was lost, a store that
lost writes, a clock that was set forward) costs at most ``trust_us``: after that the store is asked again.

**A token bucket that is hammered in many processes** is asked about more rarely. Each process would ask for every token that comes back, and one of
them would get it. So where a process has refused a client as often as there are processes while one refusal lasted, the next one lasts for as many
tokens as there are processes, of which one is this process's share. No token is lost by that: they gather in the bucket, of which no more
than a quarter fills meanwhile, and pass together. It never lasts longer than ``trust_us``, and whoever is refused is told when it ends. A client that
comes back when it was told is not refused so often, and gets each token when the store said; one that hammered, and stops, may be told once more to wait.

A plain object: no clock, no lock of its own, no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from sluicegate.algorithms import TokenBucket
from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import DENIAL_MARKS, DENIALS_DROPPED_AT_ONCE

__all__ = ["Denials"]

_MASK: Final = DENIAL_MARKS - 1

_LEAST_TURNED: Final = 2
_FULL: Final = 4
"""The part of a bucket, 1 by this, that may fill while nobody asks."""


class _Entry:
    """The refusal of one counter: the least ``cost`` that was refused, when trust in it ends, when the client is told to come back, the mark's place,
    the epoch of the question, by which numbers; ``turned``: about how often it was repeated.
    """

    __slots__ = ("cost", "ends_us", "epoch", "place", "ready_us", "spec", "turned")

    def __init__(self, cost: int, ends_us: int, ready_us: int, place: int, epoch: int, spec: Spec) -> None:
        self.cost = cost
        self.ends_us = ends_us
        self.ready_us = ready_us
        self.place = place
        self.epoch = epoch
        self.spec = spec
        self.turned = 0


class Denials:
    """At most ``most`` counters that refuse, 0: none is remembered. ``trust_us`` (>= 1): the longest that a refusal is repeated without asking again.

    ``terms`` say how far clocks are trusted. ``name_of`` gives a counter's number in news, the same in all processes that hear of each other. ``nodes`` says
    how many processes ask the store; while it is 1 nothing is refused for longer than the store said.

    ``refuses`` and ``active`` may be called beside anything else; all else is called by one thread at a time.
    ``epoch`` grows with everything that is forgotten; ``active`` is False while nothing is known.

    Memory: what ends first leaves first, as far as ``trust_us`` decides when: in the order in which it was learned. Nothing costs more than a few
    steps, however many counters there are, apart from forgetting all.
    """

    __slots__ = (
        "_entries", "_floor", "_get", "_marks", "_most", "_name_of", "_nodes", "_terms", "_trust_us", "active", "epoch",
    )  # fmt: skip

    def __init__(
        self,
        most: int,
        trust_us: int,
        terms: LeaseTerms,
        name_of: Callable[[str], int] = hash,
        nodes: Callable[[], int] = lambda: 1,
    ) -> None:
        self._most = most
        self._trust_us = trust_us
        self._terms = terms
        self._name_of = name_of
        self._nodes = nodes
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

        Where it answers, the store would refuse, as far as its news was heard; or the counter is a bucket that is hammered.
        """
        entry = self._get(key)
        if entry is None or now_us >= entry.ends_us or cost < entry.cost or self._marks[entry.place] > entry.epoch:
            return None
        known = entry.spec
        if spec is known or spec == known:
            # Threads may lose a few of these; it says only whether there were many.
            entry.turned += 1
            return entry.ready_us - now_us
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
        entry = _Entry(cost, ends_us, came_us + retry_after_us, place, epoch, spec)
        known = entries.pop(key, None)
        if known is not None and self._marks[place] <= known.epoch and known.spec == spec:
            self._stretch(known, entry, sent_us)
            entry = _better(known, entry, sent_us)
        self._make_room(sent_us)
        entries[key] = entry
        self.active = True

    def _stretch(self, known: _Entry, entry: _Entry, sent_us: int) -> None:
        """Have a refusal last longer where the one before it was repeated as often as there are processes, and its counter is a bucket."""
        spec = entry.spec
        if (
            known.turned < _LEAST_TURNED
            or sent_us - known.ends_us > self._trust_us
            or not isinstance(spec, TokenBucket)
        ):
            return
        nodes = self._nodes()
        if nodes < 2 or known.turned < nodes:
            return
        tokens = min(nodes * entry.cost, spec.capacity // _FULL)
        pause_us = min(tokens * spec.period_us // spec.tokens, self._trust_us)
        # Processes that were refused at the same time should not ask at the same time; the time of asking is as good as drawn.
        pause_us -= pause_us * (sent_us & 255) >> 10
        if sent_us + pause_us > entry.ends_us:
            entry.ends_us = sent_us + pause_us
            entry.ready_us = max(entry.ready_us, entry.ends_us)

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
            if entries[key].ends_us > now_us and len(entries) < self._most:
                return
            del entries[key]


def _better(known: _Entry, entry: _Entry, now_us: int) -> _Entry:
    """Which of two refusals of one counter to keep, where both are true: that of the lower cost, which stands for more requests; else the longer."""
    if known.ends_us <= now_us or entry.cost < known.cost:
        return entry
    return entry if entry.cost == known.cost and entry.ends_us >= known.ends_us else known
