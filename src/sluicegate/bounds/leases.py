"""Of leases."""

from __future__ import annotations

from typing import Final

__all__ = [
    "DENIALS_DROPPED_AT_ONCE",
    "DENIAL_MARKS",
    "LEASED_KEEP_US",
    "LEASES_PER_COUNTER_MAX",
    "LEASE_DRIFT_PPM_MAX",
    "LEASE_DRIFT_PPM_MIN",
    "LEASE_HOLD_US_MAX",
    "LEASE_ITEMS_MAX",
    "LEASE_REPORTS_MAX",
    "LEASE_SERIAL_MAX",
    "LEASE_SPENDS_MAX",
    "LEASE_TTL_US_MAX",
    "LEASE_TTL_US_MIN",
]

# Shortest lease: below this the time on the way to the store eats what was granted.
LEASE_TTL_US_MIN: Final = 20_000

# Longest lease: what a crashed process held is lost for so long, and a lowered limit binds after it.
LEASE_TTL_US_MAX: Final = 5_000_000

# By how much a clock may run fast or slow, in parts per million: quartz is within 100; below that one would trust it too much.
LEASE_DRIFT_PPM_MIN: Final = 100

# Above a tenth a clock is broken, and leases would hardly last.
LEASE_DRIFT_PPM_MAX: Final = 100_000

# The longest a store waits for a lease: the longest lease by the worst clock. A lease that would end later was written before the
# clock went back. Below CLOCK_BEHIND_US_MAX, so that a log's entries, which stand at the end of their lease, are not taken for that.
LEASE_HOLD_US_MAX: Final = 5_500_000

# Leases of one counter at a time. Each is 40 bytes in the counter, which is read and written whole.
LEASES_PER_COUNTER_MAX: Final = 1_024

# Counters in one call of the script: they take about a millisecond, in which the server does nothing else.
LEASE_ITEMS_MAX: Final = 64

# Leases of one counter that one call reports. A process holds two of a counter, the one it spends and the next.
LEASE_REPORTS_MAX: Final = 8

# Leases that a process asks for in its life, per counter: six bytes. At a thousand a second it would take 8,900 years.
LEASE_SERIAL_MAX: Final = (1 << 48) - 1

# Spends of one lease that wait for their request to be decided. More are refused, and the request is decided by the store.
LEASE_SPENDS_MAX: Final = 100_000

# How long a counter that was leased is kept when nobody uses it. One that is gone has to be taken for lost, and starts empty.
LEASED_KEEP_US: Final = 86_400 * 1_000_000

# Deny cache: places at which is noted when a counter was last forgotten, a power of two. Counters that share one are forgotten together, and
# each costs one more question: with 1,000 refunds a second a counter is asked for once more in 16 seconds. 128 KiB.
DENIAL_MARKS: Final = 16_384

# Deny cache: counters that leave the table when one comes, at most. More than one, so that those that have ended get fewer in time; few, so
# that nobody waits for it.
DENIALS_DROPPED_AT_ONCE: Final = 4
