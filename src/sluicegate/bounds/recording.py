"""Of what a limiter remembers of its decisions until somebody takes it."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ADMISSIONS_TOLD_MAX",
    "ASKED_MAX",
    "DEMAND_CLIENTS_MAX",
    "DEMAND_SPAN_S",
    "ENDPOINT_SEGMENT_CHARS_MAX",
    "ENDPOINT_TOLD_CHARS_MAX",
    "FOLLOWED_ASKS_MAX",
    "FOLLOW_MEMO_MAX",
    "HITS_MAX",
    "LOOKS_BEYOND_PER_S",
    "LOOKS_KEPT_MAX",
    "LOOKS_PER_S_MAX",
    "RECORDED_CELLS_MAX",
    "RECORDED_ROWS_MAX",
    "REFUSALS_TOLD_MAX",
    "SAMPLES_TOLD_MAX",
    "SUBJECTS_TOLD_MAX",
    "WATCHED_BITS",
]

# Decisions with another mix of rules, tier and outcome that are counted apart until they are added up: about 400 bytes each. A rule set has
# a few hundred mixes; beyond the bound the counts are added up sooner, which takes time and loses nothing.
RECORDED_CELLS_MAX: Final = 10_000

# Rows of counts in one batch: rules, outcomes and tiers in which something happened within a second. At 100 bytes a row half a megabyte,
# below what brokers take in one message. Decisions of further rules are counted under "other".
RECORDED_ROWS_MAX: Final = 5_000

# Up to so many decisions a second every one is looked at, for samples and for who asks most. Each costs about 5 us when it is taken, so 1 % of a core. Beyond
# that, about so many: a node that decides much has no time to spare, and a minute of them still tells who asks a thousandth of it all.
LOOKS_PER_S_MAX: Final = 2_000
LOOKS_BEYOND_PER_S: Final = 500

# Decisions looked at that wait to be taken, of each sort (allowed, refused). At about 1 KB each 4 MB together; when nobody takes them the rest is counted.
LOOKS_KEPT_MAX: Final = 4_000

# Sampled decisions in one batch; at 320 bytes each 220 KB. Refusals are what operators ask for first.
SAMPLES_TOLD_MAX: Final = 200
REFUSALS_TOLD_MAX: Final = 500

# Clients whose requests are counted apart, as for refusals (OFFENDERS_MAX).
ASKED_MAX: Final = 1_000

# Of a path that is told with a sample; route templates are shorter.
ENDPOINT_TOLD_CHARS_MAX: Final = 200

# A segment of such a path: what is longer is a token or an identifier, and is told as "*".
ENDPOINT_SEGMENT_CHARS_MAX: Final = 24

# Heavy hitters of one kind in one batch; at 90 bytes each 23 KB. Whoever came often enough to matter in a minute is among them.
SUBJECTS_TOLD_MAX: Final = 256

# Clients whose demand is told, and for how long together: 2 000 clients give quantiles to a percent, and a minute holds the peaks of 10 s.
# Each takes about 700 bytes.
DEMAND_CLIENTS_MAX: Final = 2_000
DEMAND_SPAN_S: Final = 60

# Asks of chosen clients in a second; beyond it half of them are given up. Each costs about a microsecond.
FOLLOWED_ASKS_MAX: Final = 2_000

# Subjects that are known not to be followed, so that their digest is not made again: about 100 bytes each beside what rules keep of them.
FOLLOW_MEMO_MAX: Final = 50_000

# Counters whose digest has this many leading zero bits are watched at level 0: one in 1,024. At 1 M clients these are a thousand.
WATCHED_BITS: Final = 10

# Asks of watched counters in one batch; at 260 bytes each 520 KB. Beyond it half of the counters are watched no more.
ADMISSIONS_TOLD_MAX: Final = 2_000

# Requests that a fast path lets pass before it goes the long way once, where nobody looks at them: small enough for a quick number.
HITS_MAX: Final = 2**29
