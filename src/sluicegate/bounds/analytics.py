"""Of what is kept and asked about traffic."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ADMISSIONS_KEPT_MAX",
    "ADMISSIONS_KEPT_S",
    "CELL_OFFENDERS",
    "CELL_OFFENDERS_MAX",
    "DECISIONS_KEPT_MAX",
    "DECISIONS_KEPT_S",
    "DEMAND_KEPT_MAX",
    "DEMAND_KEPT_S",
    "DEMAND_ROWS_MAX",
    "EMBEDDED_HOME_BATCHES",
    "EMBEDDED_HOME_BUSY_MS",
    "EMBEDDED_HOME_BYTES",
    "EMBEDDED_HOME_BYTES_MIN",
    "EMBEDDED_HOME_PRUNE_STEPS",
    "HOURS_KEPT_S",
    "MINUTES_KEPT_S",
    "SECONDS_KEPT_S",
    "TRAFFIC_BATCHES_MAX",
    "TRAFFIC_ROWS_MAX",
    "TRAFFIC_STEPS_MAX",
]

# Steps of one question about traffic. A graph is a thousand points wide; a week by minutes fits.
TRAFFIC_STEPS_MAX: Final = 11_000

# Steps of a second, seconds: an hour of them answers what happens now. Minutes for two days, hours for a quarter of a year. Settings may ask for more.
SECONDS_KEPT_S: Final = 3_600
MINUTES_KEPT_S: Final = 172_800
HOURS_KEPT_S: Final = 7_776_000

# Seconds that sampled decisions, demand of clients and asks of watched counters are kept, and how many rows of each at most. A refusal is looked
# into within a day; a proposal looks at a week; asks are judged within minutes.
DECISIONS_KEPT_S: Final = 86_400
DEMAND_KEPT_S: Final = 604_800
ADMISSIONS_KEPT_S: Final = 3_600
DECISIONS_KEPT_MAX: Final = 200_000
DEMAND_KEPT_MAX: Final = 500_000
ADMISSIONS_KEPT_MAX: Final = 200_000

# Clients kept of one rule in one cell after it was cut, and how many it may have before. The counts of those cut off are told as an error.
CELL_OFFENDERS: Final = 200
CELL_OFFENDERS_MAX: Final = 400

# Bytes of the embedded home's file, its log left out: a machine that only limits has that to spare. The oldest detail goes first.
EMBEDDED_HOME_BYTES: Final = 536_870_912
EMBEDDED_HOME_BYTES_MIN: Final = 4_194_304

# Milliseconds to wait for another process that writes to the embedded home; each holds it for a few.
EMBEDDED_HOME_BUSY_MS: Final = 2_000

# Batches in one transaction of the embedded home, and steps of one pruning: others write in between.
EMBEDDED_HOME_BATCHES: Final = 200
EMBEDDED_HOME_PRUNE_STEPS: Final = 20

# Rows of one answer about decisions, clients, demand and asks.
TRAFFIC_ROWS_MAX: Final = 10_000
DEMAND_ROWS_MAX: Final = 500_000

# Batches in one call of a node to the rules service: it sends each second, and catches up after a minute away.
TRAFFIC_BATCHES_MAX: Final = 100
