"""How much of a counter a region needs, from what its store says of it: what it would lend, and what it would like to have.

A region is *short* where requests were refused or a tenth or less of its part is left unused; then it wants what it was asked for and a quarter more,
or three times what it has if that is more, because refusals are not all seen. It offers what is beyond its use and a quarter more, if that is
2 % of the whole or more. One that has asked for its own back lends nothing for a while, each time longer, so that units do not go to and fro.
"""

from __future__ import annotations

from dataclasses import replace

from sluicegate.algorithms import TokenBucket
from sluicegate.algorithms.spec import Spec
from sluicegate.bounds import REGION_BEAT_US, REGION_CALM_US, REGION_CALM_US_MAX, REGION_UNITS
from sluicegate.stores.region_parts import PartView
from sluicegate.stores.regional.plan import Plan
from sluicegate.stores.regional.record import Record
from sluicegate.stores.regional.units import tokens_of

__all__ = ["is_due", "sampled"]

_LEAST = REGION_UNITS // 50
_ROOM = REGION_UNITS // 100


def is_due(record: Record, now_us: int) -> bool:
    """Whether the last sample is about a beat old, or from a clock that was set back."""
    return not 0 <= now_us - record.at_us < REGION_BEAT_US * 4 // 5


def sampled(plan: Plan, region: str, record: Record, view: PartView, spec: Spec, by: str) -> Record:
    """The record with what its region uses, wants and offers now. ``spec``: the whole counter's; ``by``: the region of who looks."""
    now_us, held = view.now_us, record.held.bit_count()
    first = record.at_us == 0 or now_us <= record.at_us
    # Sums that went back were lost, and begin again.
    admitted = view.admitted - record.admitted if view.admitted >= record.admitted else view.admitted
    refused = view.refused - record.refused if view.refused >= record.refused else view.refused
    seen = replace(
        record, turn=record.turn + 1, at_us=now_us, by=by, admitted=view.admitted, refused=view.refused, goal=0
    )
    if first:
        return replace(seen, offer=0)
    elapsed_us = now_us - record.at_us
    if isinstance(spec, TokenBucket):
        whole = max(1, spec.tokens * elapsed_us // spec.period_us)
        used = REGION_UNITS * admitted // whole
        short = refused > 0 or (10 * used >= 9 * held and view.left * 10 <= view.capacity)
    else:
        whole = max(1, spec.capacity)
        used = REGION_UNITS * view.used // whole
        short = refused > 0 or view.used * 10 >= tokens_of(record.held, spec.capacity) * 9
    asked = min(REGION_UNITS, used + REGION_UNITS * refused // whole)
    use = min(REGION_UNITS, max(used, record.use * 3 // 4))
    if short:
        calm = _calmer(seen, now_us) if record.lent() else seen
        return replace(calm, use=use, goal=min(REGION_UNITS, max(asked * 5 // 4, 3 * held)), offer=0)
    offer = 0
    if now_us >= record.calm_until_us:
        lendable = (record.held & plan.own(region) & ~plan.kept(region)).bit_count()
        offer = min(lendable, held - use * 5 // 4 - _ROOM)
    return replace(seen, use=use, offer=offer if offer >= _LEAST else 0)


def _calmer(record: Record, now_us: int) -> Record:
    """A region that asks for its own back: it lends nothing for a while."""
    if now_us < record.calm_until_us:
        return record
    again = now_us < record.calm_until_us + 2 * record.calm_us
    calm_us = min(2 * record.calm_us, REGION_CALM_US_MAX) if again else REGION_CALM_US
    return replace(record, calm_until_us=now_us + calm_us, calm_us=calm_us)
