"""Of algorithms, counters and the limiter."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CALENDAR_MEMO_MAX",
    "CAPACITY_MAX",
    "CLOCK_BEHIND_US_MAX",
    "COST_MAX",
    "COUNTER_MEMO_MAX",
    "DELAY_US_MAX",
    "DRAIN_US_MAX",
    "FALLBACK_COUNTERS_MAX",
    "FALLBACK_GAP_US",
    "FALLBACK_HANDOVER_US_MAX",
    "FALLBACK_OWED_US_MAX",
    "KEY_CHARS_MAX",
    "MEMORY_COUNTERS_CEILING",
    "MEMORY_COUNTERS_MAX",
    "MEMORY_EXAMINED_PER_STEP",
    "MEMORY_RESERVE_DIVISOR",
    "MEMORY_SEGMENTS",
    "MEMORY_SEGMENT_MIN",
    "MEMORY_SWEEP_CALLS",
    "MEMORY_SWEEP_STEP_MIN",
    "MEMORY_TABLE_SMALL",
    "NOW_US_MAX",
    "OFFENDERS_MAX",
    "PERIOD_US_MAX",
    "RECEIPTS_MAX",
    "RECEIPT_TTL_US",
    "REFUSAL_COUNTS_MAX",
    "SLIDING_LOG_LIMIT_MAX",
    "STORE_RETRY_US",
    "SUBJECT_CHARS_MAX",
    "SUBJECT_MEMO_MAX",
    "SUB_WINDOWS_MAX",
    "TOKENS_MAX",
    "WINDOW_US_MAX",
]

# Counters a memory store holds unless told otherwise. With short keys one takes about 300 bytes, so a full store takes
# about 300 MB; more clients than this within one window belong on a shared store.
MEMORY_COUNTERS_MAX: Final = 1 << 20

# The most a memory store can be told to hold: about 30 GB, beyond which a sweep takes longer than its period.
MEMORY_COUNTERS_CEILING: Final = 100_000_000

# Segments a full memory store is cut into. A dict of 131,072 keys grows in about 3 ms where one of a million takes 30 ms
# or more; every further segment costs a new key one more lookup.
MEMORY_SEGMENTS: Final = 8

# Counters a segment has at least; smaller ones would be rotated all the time.
MEMORY_SEGMENT_MIN: Final = 64

# Counters looked at in one call to make room for one: about a tenth of a millisecond.
MEMORY_EXAMINED_PER_STEP: Final = 512

# The share of a memory store (1/128) that stays free for new keys while a pass over the table finds only refusing
# counters. A pass looks at 512 for each added one, so it uses at most 1/512 of the table.
MEMORY_RESERVE_DIVISOR: Final = 128

# Up to this many counters a whole pass is one step (under 2 ms) and no reserve is needed.
MEMORY_TABLE_SMALL: Final = 4_096

# Calls over which a sweep is spread, so that a store of any size is swept by this many calls and one step of a full store
# of default size looks at about 128 counters (30 microseconds).
MEMORY_SWEEP_CALLS: Final = 8_192

# Counters a sweep step looks at, at least.
MEMORY_SWEEP_STEP_MIN: Final = 16

# Characters of one escaped part of a counter's key; a longer one is replaced by its SHA-256. 128 hold UUIDs, e-mail
# addresses and most tokens' ids readable, and keep a key of eight parts near a kilobyte.
SUBJECT_CHARS_MAX: Final = 128

# Finished key parts remembered per dimension. 16,384 entries of ordinary ids take about 4 MB; emptying a full memo pauses
# one request by about a millisecond.
SUBJECT_MEMO_MAX: Final = 16_384

# The numbers of a limit. State and arithmetic are exact integers in Python; a port to Lua has doubles, exact to 2^53.
# There a time is whole microseconds plus a remainder below `tokens`, and every product has two factors below 2^53, so
# that a port can compute and compare it exactly in two limbs (2^106). These two are the store's time (until the year
# 2112) and the time a drained bucket takes to fill, capacity * period_us / tokens (71 years): their sum is below 2^53.
NOW_US_MAX: Final = 1 << 52
DRAIN_US_MAX: Final = 1 << 51

# How far behind a counter's state a clock may be and still be taken for skew, in microseconds: time then stands still
# until it has caught up. Further behind, the clock was set back and the counter is brought to the new time. Without a
# tolerance two clocks that take turns (a failover, an NTP step undone) would refill the counter at every turn; with it
# a step back locks a caller out for at most ten seconds longer than a drain or a window.
CLOCK_BEHIND_US_MAX: Final = 10 * 1_000_000

# Tokens of a bucket or a window, and tokens per period after the fraction is reduced; a remainder is below the latter.
# They stand in the products capacity * period_us, cost * period_us, elapsed_us * tokens and count * overlap_us, all of
# them below 2^93.
CAPACITY_MAX: Final = 10**12
TOKENS_MAX: Final = 10**12

# Period and window, in microseconds: ten years of 365 days, below 2^49, so that the start of a window plus its length is
# below 2^53 too.
PERIOD_US_MAX: Final = 10 * 365 * 86_400 * 1_000_000
WINDOW_US_MAX: Final = PERIOD_US_MAX

# Tokens one request may ask for. A larger number is an input error; one above the capacity never fits.
COST_MAX: Final = CAPACITY_MAX

# The longest a leaky bucket may tell a caller to hold a request: an hour. A longer wait is the work of a job queue.
DELAY_US_MAX: Final = 3_600 * 1_000_000

# Sub-windows of a strict sliding window: one integer each per counter. At 60 the sustained rate is 98.4 % of the limit.
SUB_WINDOWS_MAX: Final = 60

# Tokens in a sliding log, which keeps one entry per accepted hit: 10,000 take about 0.5 MB per counter, and a hit copies
# the log in about 0.1 ms.
SLIDING_LOG_LIMIT_MAX: Final = 10_000

# Calendar windows whose ends are remembered. All counters of one calendar rule share the current window.
CALENDAR_MEMO_MAX: Final = 1_024

# Characters of the key of a quota limiter. Whoever needs more has not chosen a key; above 128 a digest is stored.
KEY_CHARS_MAX: Final = 65_536

# Keys whose counter is remembered by a quota limiter: about 4 MB. A full memo is emptied; a key costs 2 µs to learn.
COUNTER_MEMO_MAX: Final = 16_384

# Receipts a limiter keeps for refunds, and how long. An hour is longer than any request is in flight; a receipt takes
# about 600 bytes, so a full table takes 60 MB. The oldest is forgotten first, and counted.
RECEIPTS_MAX: Final = 100_000
RECEIPT_TTL_US: Final = 3_600 * 1_000_000

# Pairs of rule and outcome a limiter counts refusals of: four outcomes of more rules than a file may hold. Further
# names, which only inline policies can bring, are counted together.
REFUSAL_COUNTS_MAX: Final = 20_000

# Clients whose refusals a limiter counts apart: each is told at most a thousandth of all refusals too many. They take below 1 MB.
OFFENDERS_MAX: Final = 1_000

# What a request refused because of the store is told to wait: long enough for a failover to begin, short enough that
# clients are back soon after it.
STORE_RETRY_US: Final = 1_000_000

# Local counters that a limiter keeps for times without its store, and counters of which it remembers that they were charged here.
# About 100 MB when full; clients beyond that are the least recent ones, who begin anew.
FALLBACK_COUNTERS_MAX: Final = 1 << 18

# A store that answers again is taken for well if it has not failed for a minute: what fails again before is the same outage, so that
# a store that comes and goes gives nobody a new beginning each time.
FALLBACK_GAP_US: Final = 60_000_000

# After an outage requests pass their local counter too, for one drain of it and at most a minute. The other nodes of a fleet find
# the store back within seconds; a longer hand-over of slow limits (a month) would only keep clients that stay with one node to a
# fraction of their limit.
FALLBACK_HANDOVER_US_MAX: Final = 60_000_000

# How long a limiter remembers what it owes the store for a client that does not come back. An hour is longer than most outages
# last, and one that does come back later finds what the store gained meanwhile all the same.
FALLBACK_OWED_US_MAX: Final = 3_600_000_000
