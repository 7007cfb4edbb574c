"""The allow and the block list in a process's memory.

    allow list    the request passes, and is charged to nobody
    block list    the request is refused, before any rule and before the store is asked
    neither       the rules decide

Allow beats block: block lists are imported in bulk, an entry of the allow list is a deliberate act. Of several entries on one list that a
request is on, the one that lasts longest counts, so that a blocked client is told the time at which nothing blocks it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sluicegate.bounds import LIST_ENTRIES_MAX, LIST_VALUE_CHARS_MAX, PENALTY_FORGETS_MAX
from sluicegate.clock import Clock
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.due import Due
from sluicegate.limiter.fed import FedTable, Shared
from sluicegate.limiter.list_table import ListTable, Match, Place, Record, place_of
from sluicegate.limiter.listed import ALLOW, BLOCK, Listed
from sluicegate.rules.facts import Facts
from sluicegate.rules.feed import ListEntry, ListKey, ListKind, ListName
from sluicegate.rules.identity.addresses import AddressNumbers

__all__ = ["Lists"]


class _Both:
    """The two lists as they are at one time."""

    __slots__ = ("allow", "block")

    def __init__(self) -> None:
        self.allow = ListTable()
        self.block = ListTable()

    def __len__(self) -> int:
        return len(self.allow) + len(self.block)

    def of(self, name: str) -> ListTable:
        return self.allow if name == ALLOW else self.block


class Lists(FedTable[_Both, ListEntry, ListKey]):
    """Who passes uncharged, and who is refused. Looking up takes no lock.

    An entry counts while the wall clock is before its ``expires_us``. At most ``LIST_ENTRIES_MAX`` entries. ``active``: whether there is
    any. What was penalised here stays when the lists are replaced, until it ends, or a service puts or removes an entry with its key.
    """

    __slots__ = ("_numbers", "_own", "_own_due", "_records", "active")

    def __init__(self, clock: Clock, changed: Callable[[], None] | None = None) -> None:
        super().__init__("lists", clock, changed)
        self._numbers = AddressNumbers()
        self._records: Shared[Record] = Shared()
        self._own: dict[Place, Record] = {}
        self._own_due: Due[Place] = Due()
        self.active = False

    # ------------------------------------------------------------------ looking up

    def find(self, facts: Facts) -> Listed | None:
        """What is said of a request with these facts; None where it is on no list.

        An address that is none is on no list; whether it is an error is for the rules to say.
        """
        both = self._state
        ip = facts.ip
        known = self._numbers[ip] if ip else None
        if both.allow.may_match(known, facts):
            listed = self._longest(ALLOW, both.allow.matches(known, facts))
            if listed is not None:
                return listed
        if both.block.may_match(known, facts):
            return self._longest(BLOCK, both.block.matches(known, facts))
        return None

    def _longest(self, name: ListName, matches: Iterable[Match]) -> Listed | None:
        """The entry that counts, of those that have not ended; the first of equals."""
        now_us = self._clock.now_us()
        best: Match | None = None
        most_us: int | None = now_us
        for match in matches:
            expires_us, _ = match.record
            if most_us is not None and (expires_us is None or expires_us > most_us):
                best, most_us = match, expires_us
        if best is None:
            return None
        kind, at, (expires_us, source) = best
        return Listed(name, kind, at, expires_us, source, None if expires_us is None else expires_us - now_us)

    def get(self, key: ListKey) -> ListEntry | None:
        """The entry with this key, in any spelling of its address; None where there is none, or it has ended."""
        place = place_of(key)
        record = self._state.of(place.list).get(place.at, place.kind)
        if record is None or (record[0] is not None and record[0] <= self._clock.now_us()):
            return None
        return ListEntry(key[0], place.kind, str(place.at), *record)

    def sizes(self) -> dict[tuple[ListName, ListKind], int]:
        """Entries by list and kind, for metrics; some that have ended may be among them for a minute after the next change."""
        both = self._state
        names: tuple[ListName, ...] = (ALLOW, BLOCK)
        return {(name, kind): count for name in names for kind, count in both.of(name).sizes().items()}

    def __len__(self) -> int:
        return len(self._state)

    # ------------------------------------------------------------------ changing

    def remove(self, key: ListKey) -> bool:
        """Take an entry off, in any spelling of its address; whether it was there."""
        place = place_of(key)
        with self._lock:
            found = self._drop(place)
            self._note_change()
        return found

    def penalize(self, entry: ListEntry) -> bool:
        """Put an entry of this process's own on a list, unless one that lasts longer is there; whether there was room."""
        place, record = place_of(entry.key), self._record(entry)
        with self._lock:
            # A request waits for this, and a million entries may have ended at once.
            self._forget_ended(self._clock.now_us(), PENALTY_FORGETS_MAX)
            table = self._state.of(place.list)
            known = table.get(place.at, place.kind)
            if known is not None and _outlasts(known[0], record[0]):
                return True
            if len(self._state) >= LIST_ENTRIES_MAX:
                return False
            self._own[place] = record
            if record[0] is not None:
                self._own_due.add(record[0], place)
            table.put(place.at, place.kind, record)
            self._note_change()
        return True

    # ------------------------------------------------------------------ inside

    def _fresh(self) -> _Both:
        return _Both()

    def _fill(self, state: _Both, put: Iterable[ListEntry], remove: Iterable[ListKey]) -> None:
        for key in remove:
            place = place_of(key)
            state.of(place.list).remove(place.at, place.kind)
        count = len(state)
        for entry in put:
            # Entries that replace others are counted twice here; what matters is that no stream fills the memory.
            count += 1
            self._check_room(count, LIST_ENTRIES_MAX)
            place = place_of(entry.key)
            state.of(place.list).put(place.at, place.kind, self._record(entry))

    def _change(self, put: Iterable[ListEntry], remove: Iterable[ListKey]) -> None:
        placed = [(place_of(entry.key), self._record(entry)) for entry in put]
        gone = [place_of(key) for key in remove]
        with self._lock:
            self._prune()
            state = self._state
            if len(state) + len(placed) > LIST_ENTRIES_MAX:
                new = sum(state.of(place.list).get(place.at, place.kind) is None for place, _ in placed)
                self._check_room(len(state) + new, LIST_ENTRIES_MAX)
            for place in gone:
                self._drop(place)
            for place, record in placed:
                self._own.pop(place, None)
                state.of(place.list).put(place.at, place.kind, record)
            self._note_change()

    def _serve(self, state: _Both) -> None:
        now_us = self._clock.now_us()
        with self._lock:
            for place, record in list(self._own.items()):
                table = state.of(place.list)
                if table.get(place.at, place.kind) is not None or (record[0] is not None and record[0] <= now_us):
                    del self._own[place]
                else:
                    table.put(place.at, place.kind, record)
            self._state = state
            self._note_change()

    def _drop(self, place: Place) -> bool:
        self._own.pop(place, None)
        return self._state.of(place.list).remove(place.at, place.kind)

    def _record(self, entry: ListEntry) -> Record:
        """Expiry and source, as one object for all entries that have the same."""
        # Nobody has checked the types of what a caller made himself.
        expires_us: Any = entry.expires_us
        source: Any = entry.source
        if not (expires_us is None or (type(expires_us) is int and expires_us >= 0)):
            raise InvalidRequest("expires_us", f"want microseconds >= 0 or None, got {expires_us!r:.64}")
        if not isinstance(source, str) or len(source) > LIST_VALUE_CHARS_MAX:
            raise InvalidRequest("source", f"want at most {LIST_VALUE_CHARS_MAX} characters, got {source!r:.64}")
        return self._records[expires_us, source]

    def _forget_ended(self, now_us: int, at_most: int | None = None) -> None:
        self._state.allow.prune(now_us, at_most)
        self._state.block.prune(now_us, at_most)
        for place in self._own_due.take(now_us, at_most):
            expires_us, _ = self._own.get(place, (None, ""))
            if expires_us is not None and expires_us <= now_us:
                del self._own[place]

    def _note_change(self) -> None:
        self.active = len(self._state) > 0
        super()._note_change()


def _outlasts(end_us: int | None, other_us: int | None) -> bool:
    return end_us is None or (other_us is not None and end_us >= other_us)
