"""What a process can say of its region's parts, for metrics and health."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from sluicegate.bounds import REGION_UNITS
from sluicegate.stores.regional.broker import Broker, BrokerStats

__all__ = ["CounterShare", "RegionStatus", "status_of"]


class CounterShare(NamedTuple):
    """One counter's part here: what it ``held``, ``lent`` to others and ``borrowed`` from them, as parts of the whole (0 to 1)."""

    held: float
    lent: float
    borrowed: float


class RegionStatus(NamedTuple):
    """``counters``: by key, those whose parts move and that were in use lately. ``unreachable_us``: for how long each region that was tried last in vain has not been reached. ``errors``: what the last try of each said."""

    region: str
    counters: Mapping[str, CounterShare]
    unreachable_us: Mapping[str, int]
    stats: BrokerStats
    errors: Mapping[str, str] = MappingProxyType({})


def status_of(broker: Broker, now_us: int) -> RegionStatus:
    """As the broker last saw it; ``now_us``: its clock."""
    own = broker.plan.own(broker.region)
    shares = {
        key: CounterShare(
            record.held.bit_count() / REGION_UNITS,
            (record.lent() & own).bit_count() / REGION_UNITS,
            (record.held & ~own).bit_count() / REGION_UNITS,
        )
        for key, record in list(broker.records.items())
    }
    away = {name: now_us - since_us for name, since_us in list(broker.unreachable_us.items())}
    return RegionStatus(broker.region, shares, away, broker.stats, dict(broker.errors))
