"""Of regions."""

from __future__ import annotations

from typing import Final

__all__ = [
    "REGIONS_MAX",
    "REGION_BEAT_US",
    "REGION_CALM_US",
    "REGION_CALM_US_MAX",
    "REGION_COUNTERS_MAX",
    "REGION_LOOKS_MAX",
    "REGION_NAME_CHARS_MAX",
    "REGION_QUIET_US",
    "REGION_RECORD_BYTES_MAX",
    "REGION_RECORD_KEEP_MS",
    "REGION_SETTLE_US",
    "REGION_TIMEOUT_MS",
    "REGION_UNITS",
    "REGION_USE_KEEP_MS",
    "REGION_VERSION_MAX",
    "REGION_WEIGHT_MAX",
]

# Regions that may share a quota. Each step looks at all of them, and a counter of small numbers has not much to share.
REGIONS_MAX: Final = 32

# Units into which the whole of a counter is cut. It divides by 2 to 6, 8, 10 and 12, so that a few equal regions have equal parts; one
# unit is a sixtieth of a percent, finer than any use is known. A region's units are ranges, of which a record holds few.
REGION_UNITS: Final = 6_000

# The largest weight of a region, beyond which a part of the smallest would be below a unit anyway.
REGION_WEIGHT_MAX: Final = 1_000_000

# Characters of a region's name: as long as those of cloud providers are, with room.
REGION_NAME_CHARS_MAX: Final = 40

# Versions of the table of regions that can be told apart.
REGION_VERSION_MAX: Final = 1_000_000_000

# How often parts are looked at, in microseconds. Four times a second, a region in need has asked within a quarter of one, and a
# counter costs a region's server twenty small commands a second however many nodes there are.
REGION_BEAT_US: Final = 250_000

# How long units that were given away belong to nobody before they are handed over, in microseconds: longer than a server that writes its
# log every second may lose writes, so that a giver that comes back without the last of them has not forgotten what it gave.
REGION_SETTLE_US: Final = 2_000_000

# How long another region's store is waited for, in milliseconds, unless its URL says otherwise: several times around the earth. No decision waits for it.
REGION_TIMEOUT_MS: Final = 1_000

# How long a region that has asked for its own units back lends nothing, in microseconds: first, and at most, as each further time doubles it.
REGION_CALM_US: Final = 10_000_000
REGION_CALM_US_MAX: Final = 320_000_000

# A counter that nobody has charged here for so long, in microseconds, is no longer looked at by this process.
REGION_QUIET_US: Final = 60_000_000

# Counters whose parts one process moves at most. They are those that all clients share: one or two per rule. Counters beyond keep the part
# that is never lent.
REGION_COUNTERS_MAX: Final = 256

# Counters looked at in one command: about a millisecond of the server.
REGION_LOOKS_MAX: Final = 32

# Bytes of a record: a few hundred, and with 32 regions and units in many ranges some thousands. A longer one is not ours.
REGION_RECORD_BYTES_MAX: Final = 60_000

# How long a record that nobody looks at is kept, in milliseconds: a month. After that the region begins as one that has lost its record.
REGION_RECORD_KEEP_MS: Final = 30 * 86_400_000

# How long sums of use are kept, in milliseconds. They only say what was used since the last look.
REGION_USE_KEEP_MS: Final = 86_400_000
