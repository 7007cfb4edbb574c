"""Of leases."""

from __future__ import annotations

from typing import Final

__all__ = [
    "DENIALS_DROPPED_AT_ONCE",
    "DENIALS_MAX",
    "DENIAL_MARKS",
    "EXACT_BELOW_MAX",
    "HOT_PER_S_MAX",
    "KEEPER_CLOSE_MS",
    "LEASED_KEEP_US",
    "LEASES_IN_PROCESS_MAX",
    "LEASES_PER_COUNTER_MAX",
    "LEASE_BEGIN_REQUESTS",
    "LEASE_CONFIRM_DIVISOR",
    "LEASE_DRIFT_PPM_MAX",
    "LEASE_DRIFT_PPM_MIN",
    "LEASE_GAP_US_MAX",
    "LEASE_HOLD_US_MAX",
    "LEASE_HORIZON_US_MAX",
    "LEASE_HORIZON_US_MIN",
    "LEASE_ITEMS_MAX",
    "LEASE_LIVES_MAX",
    "LEASE_LOG_HOLDS_MIN",
    "LEASE_REPORTS_MAX",
    "LEASE_SERIAL_MAX",
    "LEASE_SLIDING_HORIZONS_MIN",
    "LEASE_SPENDS_MAX",
    "LEASE_STEP_ITEMS_MAX",
    "LEASE_SUB_HORIZONS_MIN",
    "LEASE_TTL_US_MAX",
    "LEASE_TTL_US_MIN",
    "STRETCH_US_MAX",
    "TRUST_US_MAX",
    "TRUST_US_MIN",
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

# The longest look ahead for which tokens are taken, half of the longest lease: what is taken for longer is stranded where load moves.
LEASE_HORIZON_US_MAX: Final = 2_500_000

# The shortest: a quarter of it is the pace of asking, and below 2 ms the way to the store is longer.
LEASE_HORIZON_US_MIN: Final = 8_000

# Counters that one process leases at one time. Each is about 1.5 KB in the process, and some 50 bytes in the store.
LEASES_IN_PROCESS_MAX: Final = 1_000_000

# Counters in one step of a process. What is due beyond them is sent in the next, which follows at once, so that no call takes long.
LEASE_STEP_ITEMS_MAX: Final = 512

# Requests of a counter within one horizon before the first tokens are taken in advance: an ask and a return cost two calls, so
# a counter that is asked for now and then is cheaper without.
LEASE_BEGIN_REQUESTS: Final = 4

# The longest pause between two asks that brought nothing. A token that comes back is noticed after it at the latest.
LEASE_GAP_US_MAX: Final = 1_000_000

# A log counts a token at the end of its lease, so each is gone for one window and one hold. Logs of fewer holds are decided exactly:
# at twenty a log admits at most a twentieth less.
LEASE_LOG_HOLDS_MIN: Final = 20

# A sliding window counts what is held and what waits to be shared out, a third of a horizon of its rate, as used. Shorter ones than five horizons
# would admit a tenth less, and are decided exactly.
LEASE_SLIDING_HORIZONS_MIN: Final = 5

# The same of each sub-window of a strict one, with which its leases end: at two horizons a window of eight of them admits up to 13 % less, at four
# less than a tenth.
LEASE_SUB_HORIZONS_MIN: Final = 4

# Lives of servers that a process remembers, to know for how long it has seen them: more than the masters of a large cluster.
LEASE_LIVES_MAX: Final = 1_024

# Below so many tokens per process a counter may be wished exact; above that, leases always serve.
EXACT_BELOW_MAX: Final = 1_000_000

# Refusals that one process remembers, about 460 bytes each with the text of the key.
DENIALS_MAX: Final = 10_000_000

# A refusal is trusted at least so long, or it would not be worth a look.
TRUST_US_MIN: Final = 1_000

# And at most so long without asking again: what is wrong because news was lost is wrong for as long.
TRUST_US_MAX: Final = 10_000_000

# A refusal of a counter for which several processes are hammered lasts so long at most: what nobody takes meanwhile gathers in the counter, and news that were lost
# are noticed as late.
STRETCH_US_MAX: Final = 10_000_000

# Calls per second of one counter at which it counts as hot, at most.
HOT_PER_S_MAX: Final = 1_000_000

# How long the end of a near store waits for its leases to go back. What does not go back in time ends by itself, one lease later.
KEEPER_CLOSE_MS: Final = 2_000

# The part of a store's deadline in which a replica must have what was granted, where that is asked for. The rest is for the grant itself.
LEASE_CONFIRM_DIVISOR: Final = 2
