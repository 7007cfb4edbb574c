"""Of what is kept and asked about traffic."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ADMISSIONS_KEPT_MAX",
    "ADMISSIONS_KEPT_S",
    "CLIENT_SECONDS_KEPT_S",
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
    "FLUSH_IDLE_S",
    "FLUSH_QUEUE_BYTES_MAX",
    "FLUSH_QUEUE_MAX",
    "FLUSH_STOP_S",
    "HOURS_KEPT_S",
    "HOUR_OFFENDERS",
    "MINUTES_KEPT_S",
    "MINUTE_OFFENDERS",
    "SECONDS_KEPT_S",
    "SECOND_OFFENDERS",
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

# Clients kept of one rule and kind in a cell of a second, a minute and an hour when it is cut, which is when it has twice as many. The counts of those cut off are
# told as an error. Ten rules fill 100 MB in two days of minutes and as much in a month of hours, at most; seconds are kept for as
# long as somebody looks at what happens now, 20 MB.
SECOND_OFFENDERS: Final = 50
MINUTE_OFFENDERS: Final = 50
HOUR_OFFENDERS: Final = 100
CLIENT_SECONDS_KEPT_S: Final = 180

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

# Batches, and their bytes, that wait in a process for who keeps them: ten minutes of seconds. The oldest are dropped and counted.
FLUSH_QUEUE_MAX: Final = 600
FLUSH_QUEUE_BYTES_MAX: Final = 33_554_432

# Seconds between two batches of a process that decides nothing: that it lives is known so, and an idle machine writes little.
FLUSH_IDLE_S: Final = 10

# Seconds at the end for what is not kept yet. A supervisor ends a worker that takes much longer.
FLUSH_STOP_S: Final = 5
