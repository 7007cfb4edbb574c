"""Bounds of what a server tells of itself."""

from __future__ import annotations

from typing import Final

__all__ = ["DURATION_SAMPLE_ONE_IN"]

# Of so many checks the duration of one is measured: reading the clock twice for each would cost a few hundredths of the throughput in memory, and a
# thousand checks a second still give sixty durations.
DURATION_SAMPLE_ONE_IN: Final = 16
