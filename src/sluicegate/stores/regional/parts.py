"""From the counters of rules to those of a region: which part of each is decided here, and which parts move."""

from __future__ import annotations

from collections.abc import Iterator

from sluicegate.algorithms import TokenBucket
from sluicegate.bounds import COUNTER_MEMO_MAX, REGION_COUNTERS_MAX, REGION_QUIET_US
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import EVERYBODY
from sluicegate.stores.regional.broker import Use
from sluicegate.stores.regional.counters import Moving, standing
from sluicegate.stores.regional.plan import EACH, Plan
from sluicegate.stores.regional.units import part_of

__all__ = ["Parts", "Watched"]

_ENDPOINT = "endpoint:"


def _is_shared(subject: str) -> bool:
    """Whether a counter is one that all clients share: it has no dimension, or the endpoint alone."""
    return subject == EVERYBODY or (subject.startswith(_ENDPOINT) and "|" not in subject)


class Watched:
    """A counter whose parts move, and what was charged to it here since a broker last asked."""

    __slots__ = ("admitted", "gone", "moving", "refused", "seen_us", "used")

    def __init__(self, moving: Moving) -> None:
        self.moving = moving
        self.admitted = self.refused = 0
        self.used = True
        self.seen_us = 0
        self.gone = False
        """Nobody looks at it any more: a charge that comes all the same needs another one."""


class Parts:
    """The parts of one region. Not safe for several threads at once, but for ``of``, which may be called from any."""

    __slots__ = ("_all", "_by_key", "_here", "_plan", "_region", "_shared")

    def __init__(self, plan: Plan, region: str) -> None:
        self._plan = plan
        self._region = region
        # By identity, as hashing a counter takes longer than deciding by it; the entry keeps its counter, so no id is used twice.
        self._here: dict[int, tuple[Counter, Counter]] = {}
        self._shared: dict[tuple[int, str], tuple[Counter, Counter, Watched | None]] = {}
        self._all: dict[int, tuple[Counter, Counter]] = {}
        self._by_key: dict[str, Watched] = {}

    def of(self, counter: Counter, subject: str) -> tuple[Counter, Watched | None]:
        """The counter that stands for this one here, and where its use is counted if its parts move."""
        if subject[0] not in "*e" or not _is_shared(subject):
            return self._of_client(counter), None
        found = self._shared.get((id(counter), subject))
        if found is None or (found[2] is not None and found[2].gone):
            if len(self._shared) >= COUNTER_MEMO_MAX:
                self._shared.clear()
                self._all.clear()
            part, watched = self._of_all(counter, subject)
            found = self._shared[id(counter), subject] = counter, part, watched
        return found[1], found[2]

    def least(self, counter: Counter) -> Counter:
        """The counter with what is this region's whatever happens: its own part, or of one whose parts move what it never lends.

        Whether all clients share it is known once it was charged.
        """
        found = self._all.get(id(counter))
        return self._of_client(counter) if found is None else found[1]

    def uses(self, now_us: int) -> Iterator[Use]:
        """What is to be looked at now: counters that were charged lately, each with its use since this was last asked."""
        for key, watched in list(self._by_key.items()):
            if watched.used:
                watched.used, watched.seen_us = False, now_us
            elif now_us - watched.seen_us >= REGION_QUIET_US:
                del self._by_key[key]
                watched.gone = True
                continue
            admitted, watched.admitted = watched.admitted, 0
            refused, watched.refused = watched.refused, 0
            yield Use(watched.moving, admitted, refused)

    def _moves(self, counter: Counter) -> bool:
        return self._plan.moves(counter, shared=True) and self._plan.own(self._region) != 0

    def _of_client(self, counter: Counter) -> Counter:
        found = self._here.get(id(counter))
        if found is None:
            if len(self._here) >= COUNTER_MEMO_MAX:
                self._here.clear()
            each = self._plan.clients == EACH
            part = counter if each else self._own_part(counter)
            found = self._here[id(counter)] = counter, part
        return found[1]

    def _own_part(self, counter: Counter) -> Counter:
        return counter._replace(spec=part_of(counter.spec, self._plan.own(self._region)))

    def _of_all(self, counter: Counter, subject: str) -> tuple[Counter, Watched | None]:
        watched = self._by_key.get(counter.prefix + subject)
        owed = watched is not None and counter.denied_counts
        if not owed and not self._moves(counter):
            part = self._own_part(counter)
            self._all[id(counter)] = counter, part
            return part, None
        part = standing(counter, self._plan.kept(self._region))
        if owed:
            # A debt from a time without the store. A refusal would cut the count of a window that may be above its limit for the moment.
            return part._replace(denied_counts=isinstance(counter.spec, TokenBucket)), None
        self._all[id(counter)] = counter, part
        if watched is None:
            if len(self._by_key) >= REGION_COUNTERS_MAX:
                # It stays at what is never lent.
                return part, None
            watched = self._by_key[counter.prefix + subject] = Watched(Moving(counter, subject))
        elif watched.moving.counter.spec != counter.spec:
            # Its rule has other numbers now.
            watched.moving = Moving(counter, subject)
        return part, watched
