"""The deny cache: counters that a store has refused, and until when they certainly refuse.

It says no or nothing, never yes. A refusal that the store answered with "wait w" stays one for as long, because use only grows between: no
counter that refuses a cost passes it, or a higher one, before w is over, whoever else asks, unless somebody gives something back. Who does that
says so: ``forget`` here, ``heard`` in every other process. What was refused under one quota says nothing of another: where a client's requests have
different tiers, each is asked about.

The store answers with a duration, so no clock is compared with another. Here it is counted from the moment at which the question was *sent*,
and shortened by how wrong both clocks may run, so it ends here before it ends there. Whatever is not heard of (news that was lost, a store that
lost writes, a clock that was set forward) costs at most ``trust_us``: after that the store is asked again.

Where several processes are hammered for one counter, its refusals last longer than the store said: see ``rechecks``. That is no refusal of the
store any more, and costs at most ``stretch_max_us``. It takes a few checks that come before the store's own wait is over, one of them within this wait, so
whoever comes back when he was told is asked about, whatever he did before.

A plain object: no clock, no lock of its own, no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import DENIAL_MARKS, DENIALS_DROPPED_AT_ONCE
from sluicegate.stores.near.rechecks import HAMMERED, Rechecks, room_us

__all__ = ["Denials"]

_MASK: Final = DENIAL_MARKS - 1


class _Entry:
    """One counter that refuses, by ``spec``: ``cost`` is the least that was refused, ``place`` its mark's, ``epoch`` the question's.

    Until ``ends_us`` the store refuses. ``ready_us``: when a client is told to come back. Checks are counted in ``turned``, with what is left of those before, until they
    are ``HAMMERED``; from then on (``quiet_us`` says so) they are refused until ``far_us``. ``due_us``, ``factor``: see ``Rechecks``.
    """

    __slots__ = (
        "cost", "due_us", "ends_us", "epoch", "factor", "far_us", "place", "quiet_us", "ready_us", "spec", "turned",
    )  # fmt: skip

    def __init__(self, cost: int, spec: Spec, place: int, epoch: int) -> None:
        self.cost = cost
        self.spec = spec
        self.place = place
        self.epoch = epoch
        self.factor = 1
        self.turned = 0
        self.ends_us = self.far_us = self.quiet_us = self.ready_us = self.due_us = 0

    @property
    def last_us(self) -> int:
        """Until when it refuses."""
        return self.far_us if self.turned >= HAMMERED else self.ends_us

    def turn_away(self) -> None:
        """One check more is refused that may be the one too many."""
        # Threads may lose some of these; then it takes a few more.
        self.turned += 1
        if self.turned >= HAMMERED:
            self.ready_us = max(self.ready_us, self.far_us)
            self.quiet_us = self.far_us


class Denials:
    """At most ``most`` counters that refuse, 0: none is remembered. ``trust_us`` (>= 1): the longest that a refusal is repeated without asking again.

    ``terms`` say how far clocks are trusted. ``name_of`` gives a counter's number in news, the same in all processes that hear of each other.
    ``stretch_max_us``: the longest that a refusal of a counter is repeated for which several of ``nodes()`` processes are hammered, 0: no longer than the store said.

    ``refuses`` and ``active`` may be called beside anything else; all else is called by one thread at a time.
    ``epoch`` grows with everything that is forgotten; ``active`` is False while nothing is known.

    Memory: what was learned first leaves first; that is about the order in which it ends. Nothing costs more than a few
    steps, however many counters there are, apart from forgetting all.
    """

    __slots__ = (
        "_entries", "_floor", "_get", "_marks", "_most", "_name_of", "_nodes", "_rechecks", "active", "epoch",
    )  # fmt: skip

    def __init__(
        self,
        most: int,
        trust_us: int,
        terms: LeaseTerms,
        name_of: Callable[[str], int] = hash,
        nodes: Callable[[], int] = lambda: 1,
        stretch_max_us: int = 0,
    ) -> None:
        self._most = most
        self._rechecks = Rechecks(terms, trust_us, stretch_max_us)
        self._nodes = nodes
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

        Where it answers, the store would refuse, as far as its news was heard; or several processes are hammered for this counter.
        """
        entry = self._get(key)
        if entry is None or cost < entry.cost or self._marks[entry.place] > entry.epoch:
            return None
        known = entry.spec
        if spec is not known and spec != known:
            return None
        if now_us >= entry.quiet_us:
            if now_us >= entry.ends_us:
                return None
            entry.turn_away()
        return entry.ready_us - now_us

    def learn(
        self,
        key: str,
        spec: Spec,
        cost: int,
        retry_after_us: int,
        sent_us: int,
        epoch: int,
        came_us: int,
        *,
        passed: bool = False,
    ) -> None:
        """A store's refusal of ``cost``: it would pass after ``retry_after_us`` (>= 1), if nobody else asked.

        ``sent_us``, ``epoch``: the steady time and ``self.epoch`` before the question was sent. Nothing is learned where this counter may have
        been forgotten since. ``came_us``: when the answer came; a client is told to wait from then on. ``passed``: this one was admitted, and took what was left.
        Not for counters that count what they refuse (``denied_counts``), whose waits get longer with every question.
        """
        if not self._most:
            return
        place = self._name_of(key) & _MASK
        if epoch < self._floor or self._marks[place] > epoch:
            return
        entries, rechecks = self._entries, self._rechecks
        entry = _Entry(cost, spec, place, epoch)
        entry.ends_us = entry.far_us = entry.quiet_us = sent_us + rechecks.plain_us(retry_after_us)
        entry.ready_us = came_us + retry_after_us
        known = entries.pop(key, None)
        if known is not None and not (self._marks[place] <= known.epoch and known.spec == spec):
            known = None
        if rechecks.stretch_max_us and (nodes := self._nodes()) > 1 and room_us(spec):
            self._follow(entry, known, retry_after_us, sent_us, came_us, nodes, passed=passed)
        if known is not None:
            entry = _better(known, entry, sent_us)
        self._make_room(sent_us)
        entries[key] = entry
        self.active = True

    def _follow(
        self, entry: _Entry, known: _Entry | None, wait_us: int, sent_us: int, came_us: int, nodes: int, *, passed: bool
    ) -> None:
        """What a refusal that may last longer takes over from the one before it."""
        rechecks = self._rechecks
        entry.due_us = rechecks.due_us(wait_us, came_us)
        # From the first check on, they are counted.
        entry.quiet_us = 0
        if known is not None and sent_us - known.last_us <= rechecks.stretch_max_us:
            # Whatever there was before: a check that comes too early must be the last straw.
            turned = min(known.turned, HAMMERED - 1)
            entry.turned = turned // 2 if passed else turned
            entry.factor = known.factor
            # Not for another cost, nor for a question that was under way with the last one.
            if passed or (known.cost == entry.cost and sent_us >= known.last_us):
                taken = known.turned >= HAMMERED and rechecks.taken(wait_us, sent_us, known.due_us)
                entry.factor = rechecks.factor(known.factor, nodes, passed=passed, taken=taken)
        entry.far_us = sent_us + rechecks.stretched_us(entry.spec, wait_us, entry.factor, sent_us)

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
            if len(entries) < self._most:
                entry = entries[key]
                kept_us = self._rechecks.stretch_max_us if entry.turned else 0
                if entry.last_us + kept_us > now_us:
                    return
            del entries[key]


def _better(known: _Entry, entry: _Entry, now_us: int) -> _Entry:
    """Which of two refusals of one counter to keep, where both are true: that of the lower cost, which stands for more requests; else the longer."""
    if known.ends_us <= now_us or entry.cost < known.cost:
        return entry
    return entry if entry.cost == known.cost and entry.ends_us >= known.ends_us else known
