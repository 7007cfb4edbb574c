"""The region a server is in: what it is told, and its store made of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sluicegate.bounds import REGION_TIMEOUT_MS
from sluicegate.clock import Clock
from sluicegate.errors import ConfigurationError
from sluicegate.stores.base import Store
from sluicegate.stores.redis.settings import SCHEMES, RedisSettings
from sluicegate.stores.regional.plan import Plan
from sluicegate.stores.regional.store import HomeStore, PartnerStore, RegionalStore

__all__ = ["RegionSettings", "in_region"]


@dataclass(frozen=True, slots=True)
class RegionSettings:
    """``region``: where the server is. ``plan``: the table of all regions. ``stores``: URLs of other regions' stores, by region.

    Raises ConfigurationError, which never shows a URL, for a region that is not in the table and a store that is no Redis.
    """

    region: str
    plan: Plan
    stores: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        names = self.plan.names
        if self.region not in names:
            raise ConfigurationError(f"--region: {self.region!r} is none of the regions, which are {', '.join(names)}")
        for name, url in self.stores.items():
            if name not in names:
                raise ConfigurationError(
                    f"--region-store: {name!r} is none of the regions, which are {', '.join(names)}"
                )
            if name == self.region:
                raise ConfigurationError(
                    f"--region-store: {name!r} is the region of this server, whose store is --store"
                )
            if url.partition("://")[0].lower() not in SCHEMES:
                raise ConfigurationError(f"--region-store: {name}: want a Redis (redis://, rediss://, ...)")

    def check_store(self, url: str) -> None:
        """ConfigurationError where this cannot be the region's own store."""
        if url.partition("://")[0].lower() not in SCHEMES:
            raise ConfigurationError(
                "--store: the store of a region is a Redis that other regions can reach (redis://, rediss://, ...)"
            )
        found = {self.region: RedisSettings.from_url(url)}
        for name, other in self.stores.items():
            settings = _partner_settings(name, other)
            for known, taken in found.items():
                # In one store both would decide by one counter, and each take the other's record for its own.
                if (settings.address, settings.db) == (taken.address, taken.db):
                    raise ConfigurationError(
                        f"--region-store: {name}: {settings.address} is the store of {known!r}; each region has one of its own"
                    )
            found[name] = settings


def in_region(settings: RegionSettings, store: Store, clock: Clock) -> RegionalStore:
    """The region's store in front of ``store``. Raises ConfigurationError where that cannot be a region's."""
    # A store from elsewhere may be able to do less.
    if not isinstance(store, HomeStore):
        raise ConfigurationError(f"region: {type(store).__name__} cannot be the store of a region")
    others = {name: _partner(name, url, clock) for name, url in settings.stores.items()}
    return RegionalStore(store, settings.plan, settings.region, others, clock)


def _partner(name: str, url: str, clock: Clock) -> PartnerStore:
    from sluicegate.stores.redis import RedisStore

    return RedisStore(_partner_settings(name, url), clock=clock, counted=False)


def _partner_settings(name: str, url: str) -> RedisSettings:
    try:
        found = RedisSettings.from_url(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"--region-store: {name}: {str(error).removeprefix('store: ')}") from None
    # No decision waits for it, and it is far away.
    return found if "timeout_ms=" in url else replace(found, timeout_ms=REGION_TIMEOUT_MS)
