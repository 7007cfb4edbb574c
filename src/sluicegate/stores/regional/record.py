"""What a region's store keeps of one counter's units, and every change it can undergo: whose they are, and what is under way.

All changes here are pure. A broker reads a record, makes the next one and writes it back if nobody else has written meanwhile
(``PartStore.parts``), so each change happens once or not at all. ``docs/concepts/regions.md`` says why no unit is ever held by two regions.

A record has an *epoch*, drawn anew whenever it is begun: at first, when the server has lost it or come back, and for another table of regions.
Two regions deal with each other only under the epochs that both know, so what was under way with a record that is gone does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from sluicegate.stores.regional.plan import Plan
from sluicegate.stores.regional.units import first_of, mask_of, ranges_of

__all__ = ["Link", "Record", "begun", "claimed", "fenced", "heard", "pending", "read", "taken", "text_of"]


@dataclass(frozen=True, slots=True)
class Link:
    """What a region knows of another one. ``epoch``: the other's.

    ``knows``: it knows which of its units the other has; ``lent``: those, on their way included. ``taken``: number of the last transfer that was taken
    from there. ``given``: number of the last one from here to there, of the units ``out``.
    """

    epoch: str
    knows: bool = False
    lent: int = 0
    taken: int = 0
    given: int = 0
    out: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """The units a region holds of one counter, and what it is doing with them.

    ``mark``: of the plan it was begun by. ``life``: the server's incarnation. ``turn`` grows with every change. ``held``: its units.
    ``links``: by region. What follows is about use (``demand``): when it was last looked at and by a broker of which region, sums of
    tokens admitted and refused by then, units used, units it would like to have, units it would lend; until when it lends nothing, and for how long that was said.
    """

    mark: str
    life: str
    epoch: str
    held: int
    turn: int = 0
    links: Mapping[str, Link] = field(default_factory=dict)
    at_us: int = 0
    by: str = ""
    admitted: int = 0
    refused: int = 0
    use: int = 0
    goal: int = 0
    offer: int = 0
    calm_until_us: int = 0
    calm_us: int = 0

    def link(self, region: str) -> Link | None:
        """What is known of a region; None: nothing."""
        return self.links.get(region)

    @property
    def version(self) -> int:
        """That of its plan."""
        return int(self.mark.partition(":")[0])

    def with_link(self, region: str, link: Link, held: int) -> Record:
        """The next record, with these changes."""
        return replace(self, turn=self.turn + 1, held=held, links={**self.links, region: link})

    def lent(self) -> int:
        """The own units that others have, as far as it is known."""
        found = 0
        for link in self.links.values():
            found |= link.lent
        return found


_encode = msgspec.msgpack.Encoder().encode


def text_of(record: Record) -> bytes:
    """The record as it is kept."""
    links = {
        name: (link.epoch, link.knows, ranges_of(link.lent), link.taken, link.given, ranges_of(link.out))
        for name, link in record.links.items()
    }
    sums = (record.at_us, record.by, record.admitted, record.refused)
    use = (*sums, record.use, record.goal, record.offer, record.calm_until_us, record.calm_us)
    return _encode((record.mark, record.life, record.epoch, record.turn, ranges_of(record.held), links, use))


_LinkKept = tuple[str, bool, list[int], int, int, list[int]]
_UseKept = tuple[int, str, int, int, int, int, int, int, int]
_Kept = tuple[str, str, str, int, list[int], dict[str, _LinkKept], _UseKept]
_decode = msgspec.msgpack.Decoder(_Kept).decode


def read(text: bytes) -> Record | None:
    """The record of a text; None where it is none of ours, which is the same as none."""
    try:
        mark, life, epoch, turn, held, kept, use = _decode(text)
        links = {
            name: Link(epoch_there, knows, mask_of(lent), taken, given, mask_of(out))
            for name, (epoch_there, knows, lent, taken, given, out) in kept.items()
        }
        int(mark.partition(":")[0])
        return Record(mark, life, epoch, mask_of(held), turn, links, *use)
    except (msgspec.MsgspecError, ValueError):
        return None


def begun(plan: Plan, region: str, life: str, epoch: str, old: Record | None) -> Record:
    """A new record: what is never lent, and of the old one, where the same server wrote it, what is its own by the new table too.

    It has to ask all others before it may use the rest of its own units.
    """
    held = plan.kept(region)
    turn = 0
    if old is not None:
        turn = old.turn + 1
        if old.life == life:
            held |= old.held & plan.own(region)
    return _settled(plan, region, Record(plan.mark, life, epoch, held, turn))


def _settled(plan: Plan, region: str, record: Record) -> Record:
    """With all own units that nobody else has, once it knows that of every partner."""
    links = record.links
    if all(name == region or (name in links and links[name].knows) for name in plan.partners):
        return replace(record, held=record.held | (plan.own(region) & ~record.lent()))
    return record


def fenced(plan: Plan, me: str, record: Record, other: str, epoch: str) -> Record | None:
    """Take note of the other's epoch; None where it is known. Nothing of an earlier epoch is taken from then on.

    A record that is begun holds no units of others, and what was on its way to the one before is never taken. So where an
    earlier epoch of the other was known, it has nothing of this region's units now.
    """
    link = record.link(other)
    if link is not None and link.epoch == epoch:
        return None
    fresh = Link(epoch, knows=link is not None)
    return _settled(plan, me, record.with_link(other, fresh, record.held))


def heard(plan: Plan, me: str, record: Record, other: str, theirs: Record) -> Record | None:
    """Learn which own units the other has, which it tells after it took note of this epoch; None where that is known, or not yet told."""
    link, back = record.link(other), theirs.link(me)
    if link is None or link.knows or link.epoch != theirs.epoch or back is None or back.epoch != record.epoch:
        return None
    known = replace(link, knows=True, lent=theirs.held & plan.own(me))
    return _settled(plan, me, record.with_link(other, known, record.held))


def claimed(plan: Plan, me: str, record: Record, taker: str, theirs: Record, *, owed: int, spare: int) -> Record | None:
    """Give units to a taker: up to ``owed`` of its own, and up to ``spare`` of this region's, within what this one offers. None: there are none.

    The transfer before must have been taken, which the taker's record says. The units belong to nobody until they are taken.
    """
    link, back = record.link(taker), theirs.link(me)
    if link is None or back is None or link.epoch != theirs.epoch or back.epoch != record.epoch:
        return None
    if not link.knows or not back.knows or link.given != back.taken:
        return None
    lendable = record.held & plan.own(me) & ~plan.kept(me)
    spare = min(spare, record.offer, lendable.bit_count())
    units = first_of(record.held & plan.own(taker), owed) | first_of(lendable, spare)
    if not units:
        return None
    given = replace(link, given=link.given + 1, out=units, lent=link.lent | (units & plan.own(me)))
    after = record.with_link(taker, given, record.held & ~units)
    return replace(after, offer=record.offer - (units & plan.own(me)).bit_count())


def pending(me: str, record: Record, taker: str, theirs: Record) -> int:
    """The units that are on their way from here to a taker that has not taken them yet."""
    link, back = record.link(taker), theirs.link(me)
    if link is None or back is None or link.epoch != theirs.epoch or back.epoch != record.epoch:
        return 0
    return link.out if link.given == back.taken + 1 else 0


def taken(plan: Plan, me: str, record: Record, giver: str, theirs: Record) -> Record | None:
    """Take what a giver has on its way here; None where there is nothing, or it is of another epoch or was taken before."""
    units = pending(giver, theirs, me, record)
    link, back = record.link(giver), theirs.link(me)
    if not units or link is None or back is None:
        return None
    after = replace(link, taken=back.given, lent=link.lent & ~(units & plan.own(me)))
    return record.with_link(giver, after, record.held | units)
