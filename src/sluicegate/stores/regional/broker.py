"""Moves units between regions: looks at every region's record of a counter and makes what changes are due, for whichever region they are.

There is no broker in charge. Any process of any region may do any step at any store: a step is written only if the record has not
changed since it was read. A process leaves a counter alone that another one of its region has looked at within a beat. What cannot be reached is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sluicegate.algorithms import TokenBucket
from sluicegate.bounds import REGION_LOOKS_MAX, REGION_QUIET_US, REGION_SETTLE_US
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter
from sluicegate.stores.region_parts import PartStep, PartStore, PartView
from sluicegate.stores.regional.counters import Moving
from sluicegate.stores.regional.demand import is_due, sampled
from sluicegate.stores.regional.plan import Plan
from sluicegate.stores.regional.record import Record, begun, claimed, fenced, heard, pending, read, taken, text_of
from sluicegate.stores.regional.units import tokens_of

__all__ = ["Broker", "BrokerStats", "Use"]


class Use(NamedTuple):
    """A counter that was charged here, and the tokens admitted and refused since the last step."""

    moving: Moving
    admitted: int
    refused: int


@dataclass(slots=True)
class BrokerStats:
    """What this process did for its own region: transfers given and taken, steps that another broker was faster at; and problems told by records."""

    given: int = 0
    taken: int = 0
    conflicts: int = 0
    begun: int = 0
    outdated: int = 0


class _Place:
    """A counter in one region during a step. ``record`` None: it cannot be dealt with now."""

    __slots__ = ("record", "view")

    def __init__(self, view: PartView) -> None:
        self.view = view
        self.record: Record | None = None


_Table = dict[str, _Place]
_Change = Callable[[Moving, str, _Table], Record | None]


class Broker:
    """The steps of one process. Not safe for several threads at once.

    ``stores``: that of each region that can be reached from here, its own among them. ``draw``: text of a new epoch, never the same twice.
    ``unreachable_us``: the regions where the last look failed, and since when by the clock of ``step``; ``errors``: what they said.
    """

    def __init__(self, plan: Plan, region: str, stores: Mapping[str, PartStore], draw: Callable[[], str]) -> None:
        self.plan = plan
        self.region = region
        self.stats = BrokerStats()
        self.unreachable_us: dict[str, int] = {}
        self.errors: dict[str, str] = {}
        self.records: dict[str, Record] = {}
        """This region's record of each counter, as last seen."""
        self._stores = {name: stores[name] for name in plan.partners if name in stores}
        self._draw = draw
        self._held: dict[tuple[str, str], int] = {}
        self._seen_us: dict[tuple[str, str, str, str, int], int] = {}
        self._losing: dict[tuple[str, str], tuple[str, int, int]] = {}
        """By counter and region: epoch and units as last seen, and since when none was missing of those that were seen before."""

    def step(self, uses: Sequence[Use], now_us: int) -> None:
        """Look at these counters everywhere and make what changes are due. ``now_us``: a steady clock. Raises nothing for an absent store."""
        tables: dict[str, tuple[Moving, _Table]] = {use.moving.key: (use.moving, {}) for use in uses}
        self._look(self.region, uses, tables, now_us)
        rest = []
        for use in uses:
            record = self._fresh(tables[use.moving.key][1].get(self.region))
            if record is None:
                rest.append(Use(use.moving, 0, 0))
            else:
                self.records[use.moving.key] = record
        for name in self._stores:
            if name != self.region:
                self._look(name, rest, tables, now_us)
        changed = [tables[use.moving.key] for use in rest]
        self._change(changed, self._kept_up)
        released = self._released(changed, now_us)
        self._change(changed, lambda moving, name, table: self._fenced(moving, name, table, released))
        self._change(changed, lambda moving, name, table: self._heard(moving, name, table, released))
        self._change(changed, self._given)
        self._change(changed, lambda moving, name, table: self._taken(moving, name, table, now_us))
        for moving, table in changed:
            place = table.get(self.region)
            if place is not None and place.record is not None:
                self.records[moving.key] = place.record
        self._seen_us = {key: seen for key, seen in self._seen_us.items() if now_us - seen < REGION_QUIET_US}
        self._forget_others(tables)

    def _forget_others(self, keys: Container[str]) -> None:
        """Know nothing of counters that are not in use any more: what is seen of them again is seen anew."""
        self.records = {key: record for key, record in self.records.items() if key in keys}
        self._held = {known: mask for known, mask in self._held.items() if known[1] in keys}
        self._losing = {known: losing for known, losing in self._losing.items() if known[0] in keys}

    # ------------------------------------------------------------------ looking

    def _look(self, name: str, uses: Sequence[Use], tables: Mapping[str, tuple[Moving, _Table]], now_us: int) -> None:
        for first in range(0, len(uses), REGION_LOOKS_MAX):
            batch = uses[first : first + REGION_LOOKS_MAX]
            steps = [
                PartStep(
                    self._standing(name, use.moving), use.moving.subject, admitted=use.admitted, refused=use.refused
                )
                for use in batch
            ]
            error: StoreError | None = None
            for use, view in zip(batch, self._ask(name, steps), strict=True):
                if isinstance(view, PartView):
                    tables[use.moving.key][1][name] = _Place(view)
                else:
                    error = view
            if error is None:
                self.unreachable_us.pop(name, None)
                self.errors.pop(name, None)
            else:
                self.unreachable_us.setdefault(name, now_us)
                self.errors[name] = str(error)

    def _ask(self, name: str, steps: Sequence[PartStep]) -> Sequence[PartView | StoreError]:
        try:
            return self._stores[name].parts(steps)
        except StoreError as error:
            return [error] * len(steps)

    def _standing(self, name: str, moving: Moving) -> Counter:
        return moving.with_units(self._held.get((name, moving.key), self.plan.kept(name)))

    def _fresh(self, place: _Place | None) -> Record | None:
        """The record of a counter that another process of this region has dealt with within this beat; None: it is this one's turn."""
        record = None if place is None else read(place.view.record)
        if place is None or record is None or record.mark != self.plan.mark or record.life != place.view.life:
            return None
        return record if record.by == self.region and not is_due(record, place.view.now_us) else None

    # ------------------------------------------------------------------ changing

    def _change(self, tables: Sequence[tuple[Moving, _Table]], change: _Change) -> None:
        """Work out the next record of every counter in every region, and write what has changed: all of one region together."""
        due: dict[str, list[tuple[Moving, _Table, Record]]] = {}
        for moving, table in tables:
            for name in table:
                after = change(moving, name, table)
                if after is not None:
                    due.setdefault(name, []).append((moving, table, after))
        for name, writes in due.items():
            for first in range(0, len(writes), REGION_LOOKS_MAX):
                self._write(name, writes[first : first + REGION_LOOKS_MAX])

    def _write(self, name: str, writes: Sequence[tuple[Moving, _Table, Record]]) -> None:
        steps = []
        for moving, table, after in writes:
            view = table[name].view
            steps.append(
                PartStep(
                    moving.with_units(after.held),
                    moving.subject,
                    text_of(after),
                    view.record,
                    view.life,
                    tokens_of(self.plan.kept(name), moving.counter.spec.capacity),
                )
            )
        for (moving, table, after), found in zip(writes, self._ask(name, steps), strict=True):
            if isinstance(found, PartView) and found.written:
                table[name].view, table[name].record = found, after
                self._held[name, moving.key] = after.held
            else:
                # Another broker was faster, or nobody knows whether it was written: the next look will tell.
                self.stats.conflicts += isinstance(found, PartView)
                del table[name]

    def _kept_up(self, moving: Moving, name: str, table: _Table) -> Record | None:
        """Begin a record, give a counter its numbers again, or take a sample."""
        place, plan = table[name], self.plan
        view, record = place.view, read(place.view.record)
        if record is not None and record.mark != plan.mark and record.version >= plan.version:
            # Somebody has a newer table, or another one under the same version.
            self.stats.outdated += 1
            return None
        if record is None or record.life != view.life or record.mark != plan.mark:
            self.stats.begun += name == self.region
            return begun(plan, name, view.life, self._draw(), record)
        place.record = record
        known = self._held.get((name, moving.key), plan.kept(name)) == record.held
        self._held[name, moving.key] = record.held
        if is_due(record, view.now_us):
            return sampled(plan, name, record, view, moving.counter.spec, self.region)
        if known and view.differs:
            return replace(record, turn=record.turn + 1)
        return None

    def _released(self, tables: Sequence[tuple[Moving, _Table]], now_us: int) -> set[tuple[str, str]]:
        """Counters (by key) in regions that use nothing beyond what their record says they hold, and will not again if their server loses its last writes."""
        found = set()
        for moving, table in tables:
            for name, place in table.items():
                record = place.record
                if record is None:
                    continue
                known = moving.key, name
                epoch, held, since_us = self._losing.get(known, ("", 0, 0))
                if epoch != record.epoch or held & ~record.held:
                    since_us = now_us
                self._losing[known] = record.epoch, record.held, since_us
                if now_us - since_us >= REGION_SETTLE_US and _has_let_go(moving, record, place.view):
                    found.add(known)
        return found

    def _fenced(self, moving: Moving, name: str, table: _Table, released: Container[tuple[str, str]]) -> Record | None:
        here = table[name].view

        def fence(record: Record, other: str, theirs: Record) -> Record | None:
            # Where an earlier epoch was known, what that had comes back.
            back = record.link(other) is not None
            if back and not ((moving.key, other) in released and _has_caught_up(moving, here, table[other].view)):
                return None
            return fenced(self.plan, name, record, other, theirs.epoch)

        return self._chain(name, table, fence)

    def _heard(self, moving: Moving, name: str, table: _Table, released: Container[tuple[str, str]]) -> Record | None:
        here = table[name].view

        def hear(record: Record, other: str, theirs: Record) -> Record | None:
            if (moving.key, other) not in released or not _has_caught_up(moving, here, table[other].view):
                return None
            return heard(self.plan, name, record, other, theirs)

        return self._chain(name, table, hear)

    def _given(self, _moving: Moving, name: str, table: _Table) -> Record | None:
        """Give to those who want more than they have: first what is theirs, then equal parts of what is offered."""
        here = table[name].record
        short = [
            other
            for other, place in table.items()
            if other != name and place.record is not None and place.record.goal > place.record.held.bit_count()
        ]
        if here is None or not short:
            return None
        spare = -(-here.offer // len(short))

        def give(record: Record, other: str, theirs: Record) -> Record | None:
            if other not in short:
                return None
            wants = theirs.goal - theirs.held.bit_count()
            owed = min(wants, (record.held & self.plan.own(other)).bit_count())
            return claimed(self.plan, name, record, other, theirs, owed=owed, spare=min(spare, wants - owed))

        after = self._chain(name, table, give)
        self.stats.given += after is not None and name == self.region
        return after

    def _taken(self, moving: Moving, name: str, table: _Table, now_us: int) -> Record | None:
        here = table[name]

        def take(record: Record, other: str, theirs: Record) -> Record | None:
            if not pending(other, theirs, name, record):
                return None
            link = theirs.links[name]
            seen_us = self._seen_us.setdefault((moving.key, other, name, theirs.epoch, link.given), now_us)
            there = table[other].view
            if now_us - seen_us < REGION_SETTLE_US or not _has_let_go(moving, theirs, there):
                return None
            if not _has_caught_up(moving, here.view, there):
                return None
            return taken(self.plan, name, record, other, theirs)

        after = self._chain(name, table, take)
        self.stats.taken += after is not None and name == self.region
        return after

    def _chain(self, name: str, table: _Table, change: Callable[[Record, str, Record], Record | None]) -> Record | None:
        """A region's record after a change for each other region; None where none is due."""
        first = record = table[name].record
        if record is None:
            return None
        for other, place in table.items():
            if other != name and place.record is not None:
                record = change(record, other, place.record) or record
        return None if record is first else record


def _has_let_go(moving: Moving, record: Record, view: PartView) -> bool:
    """Whether a region uses no more than the units of its record: nothing beyond is granted as a lease, or counted in a window."""
    if view.differs and view.capacity:
        return False
    room = tokens_of(record.held, moving.counter.spec.capacity)
    return (view.out if isinstance(moving.counter.spec, TokenBucket) else view.used) <= room


def _has_caught_up(moving: Moving, here: PartView, there: PartView) -> bool:
    """Whether the clock here has come to where the one there was, so that no window there is one that is still to come here: its units may be used up."""
    return isinstance(moving.counter.spec, TokenBucket) or here.now_us >= there.now_us
