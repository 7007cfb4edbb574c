"""Of hot counters."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ESTIMATES_IN_PROCESS_MAX",
    "ESTIMATE_BURST_DIVISOR",
    "ESTIMATE_REFRESH_US",
    "ESTIMATE_SAMPLES",
    "ESTIMATE_TRUST_US",
    "HEAT_COUNTERS_MAX",
    "HEAT_WINDOW_US",
    "HOT_COUNTERS_MAX",
    "SPLITS_IN_PROCESS_MAX",
    "SPLIT_HOLD_US",
    "SPLIT_MARGIN_US",
    "SPLIT_PARTS_MAX",
    "SPLIT_PART_TOKENS_MIN",
    "SPLIT_RENEW_US",
    "SPLIT_USE_US",
]

# Counters among which a process looks for hot ones: of N calls in a window each is known to within N / 1,000, so at 10,000 calls a second
# no counter with more than 10 a second above the threshold escapes. About 200 kB.
HEAT_COUNTERS_MAX: Final = 1_000

# The time over which calls are counted. Shorter ones would take a burst for heat.
HEAT_WINDOW_US: Final = 1_000_000

# Counters that are hot at one time in one process. More cannot be: at 50 calls a second each they would be half a million calls.
HOT_COUNTERS_MAX: Final = 10_000

# Counters that one process sees split at one time: each is told about twice a second to the server that has it.
SPLITS_IN_PROCESS_MAX: Final = 256

# Parts of one split counter. With 64 on eight masters the fullest has hardly more than twice its share, wherever the parts fall.
SPLIT_PARTS_MAX: Final = 64

# Tokens of the smallest part: of fewer, the luck of the draw refuses too many requests that the whole would pass.
SPLIT_PART_TOKENS_MIN: Final = 10

# For so long, at least, nobody is admitted by the whole of a counter after a process last said that it is split.
SPLIT_HOLD_US: Final = 2_000_000

# How often a process says so, and what it has admitted: four tries within the time for which it may use the parts.
SPLIT_RENEW_US: Final = 400_000

# How long a process uses the parts after it last said so, counted from the send. What is left to the hold is for a clock that runs wrong,
# and for commands that are under way.
SPLIT_USE_US: Final = 1_800_000

# The same for a process that was only told that a counter is split: it stops so long before the whole opens.
SPLIT_MARGIN_US: Final = 200_000

# Counters that one process estimates at one time: each costs it ten calls a second.
ESTIMATES_IN_PROCESS_MAX: Final = 256

# How often a process says what it was offered and asks for the sum.
ESTIMATE_REFRESH_US: Final = 100_000

# Sums from which the rate is taken, the newest first: four of them are 0.3 seconds, over which the other processes' turns are evenly seen.
ESTIMATE_SAMPLES: Final = 4

# A figure older than this is none: four refreshes have failed, and the counter is decided exactly or by the failure policy.
ESTIMATE_TRUST_US: Final = 500_000

# What a process may admit beyond twice its share of the rate: the rate of so small a part (1/20) of a second, so that a request more or less
# is no reason to refuse.
ESTIMATE_BURST_DIVISOR: Final = 20
