"""Of judging what watched counters admitted."""

from __future__ import annotations

from typing import Final

__all__ = ["ACCURACY_CELLS_MAX", "ACCURACY_COUNTERS_MAX", "ACCURACY_SLACK_US"]

# Counters that a judge holds at a time. Nodes watch some hundreds; the asked-longest-ago one is let go, which can hide an excess and never makes one.
ACCURACY_COUNTERS_MAX: Final = 20_000

# Cells in which the admissions of one window are kept. A thousandth of a window is finer than its border matters.
ACCURACY_CELLS_MAX: Final = 1_000

# How far two times of admissions may be wrong against each other: a node tells a leased admission by its own estimate of the store's clock, which is as good as a
# call of the store is short. An excess that this explains is not reported: twice as much of a bucket's rate.
ACCURACY_SLACK_US: Final = 100_000
