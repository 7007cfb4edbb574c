"""Of judging what watched counters admitted."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ACCURACY_BACK_US",
    "ACCURACY_BLIND_US",
    "ACCURACY_CELLS_MAX",
    "ACCURACY_COUNTERS_MAX",
    "ACCURACY_EVERY_S",
    "ACCURACY_GIVEN_US",
    "ACCURACY_MARGIN_US",
    "ACCURACY_PIECE_US",
    "ACCURACY_RECENT_US",
    "ACCURACY_RESETS_MAX",
    "ACCURACY_SLACK_US",
]

# Counters that a judge holds at a time. Nodes watch some hundreds; the asked-longest-ago one is let go, which can hide an excess and never makes one.
ACCURACY_COUNTERS_MAX: Final = 20_000

# Cells in which the admissions of one window are kept. A thousandth of a window is finer than its border matters.
ACCURACY_CELLS_MAX: Final = 1_000

# How far two times of admissions may be wrong against each other: a node tells a leased admission by its own estimate of the store's clock, which is as good as a
# call of the store is short. An excess that this explains is not reported: twice as much of a bucket's rate.
ACCURACY_SLACK_US: Final = 100_000

# How long before a node tells of it somebody else may have changed counters by hand: the rules service tells nodes within a second where they are connected.
ACCURACY_BACK_US: Final = 10_000_000

# How long after a counter was forgotten nothing is said of it: what other nodes had leased of the forgotten one may still be spent, for LEASE_HOLD_US_MAX.
ACCURACY_BLIND_US: Final = 6_000_000

# How long tokens that were given back and found nothing used may meet a charge that is told as later: a call of the store, and what two clocks differ by.
ACCURACY_GIVEN_US: Final = 2_000_000

# Resets that a judge remembers; of one that is forgotten the counters are forgotten with it.
ACCURACY_RESETS_MAX: Final = 1_000

# How often what is new in a home is judged, in seconds: well below the margin, so that the margin is what a breach takes to be told.
ACCURACY_EVERY_S: Final = 5.0

# How old asks are when they are judged: ACCURACY_BACK_US, and the few seconds that a batch takes into its home. What comes later is counted as late.
ACCURACY_MARGIN_US: Final = 15_000_000

# The most time judged in one piece, which bounds what is read at once when a home was away: 2,000 asks a second of each node.
ACCURACY_PIECE_US: Final = 30_000_000

# What "recent" means in the metric of recent overshoot: long enough for a scrape and an alert, short enough to show that it is over.
ACCURACY_RECENT_US: Final = 600_000_000
