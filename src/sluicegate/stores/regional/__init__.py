"""A store of one region, whose counters have the region's part of each limit. See ``docs/concepts/regions.md``."""

from __future__ import annotations

__all__: list[str] = []
