"""The other regions as one server process sees them: the log says when one cannot be reached and why, and when it can again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from sluicegate.app import logs
from sluicegate.clock import US_PER_S
from sluicegate.stores.regional.status import RegionStatus

__all__ = ["RegionWatch"]

_TOLD_AFTER_US: Final = US_PER_S
"""For how long a region must not have been reached before it is told: an exchange that was late once is no news."""


class RegionWatch:
    """``status``: what the region's store says of itself. Its own server is not told of here: that is the store's affair."""

    def __init__(self, status: Callable[[], RegionStatus]) -> None:
        self._status = status
        self._away: set[str] = set()

    def look(self) -> None:
        """Log what has changed since the last look."""
        status = self._status()
        away = {
            name
            for name, away_us in status.unreachable_us.items()
            if name != status.region and (name in self._away or away_us >= _TOLD_AFTER_US)
        }
        for name in sorted(away - self._away):
            logs.event(logging.WARNING, "region_unreachable", region=name, error=status.errors.get(name))
        for name in sorted(self._away - away):
            logs.event(logging.INFO, "region_reached", region=name)
        self._away = away

    def detail(self, time_of: Callable[[int], str]) -> dict[str, Any]:
        """What ``/readyz`` says of regions. ``time_of``: the wall time of so many microseconds ago."""
        status = self._status()
        return {
            "region": status.region,
            "regions_unreachable": [
                {"region": name, "since": time_of(away_us), "error": status.errors.get(name)}
                for name, away_us in sorted(status.unreachable_us.items())
            ],
        }
