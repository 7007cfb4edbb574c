"""Who comes most, over nodes and time: merging heavy hitters with a stated error, and names that tell nobody."""

from __future__ import annotations

from sluicegate.analytics.offenders.batches import merged_batches, offenders_of, summaries_of
from sluicegate.analytics.offenders.merge import Bounds, Merger, Summary, merged
from sluicegate.analytics.offenders.names import Names, load_secrets, parse_secret

__all__ = [
    "Bounds",
    "Merger",
    "Names",
    "Summary",
    "load_secrets",
    "merged",
    "merged_batches",
    "offenders_of",
    "parse_secret",
    "summaries_of",
]
