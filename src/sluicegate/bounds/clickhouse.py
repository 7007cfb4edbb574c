"""Of the home in ClickHouse."""

from __future__ import annotations

from typing import Final

__all__ = [
    "CLICKHOUSE_CONNECT_S",
    "CLICKHOUSE_INSERT_BATCHES",
    "CLICKHOUSE_INSERT_BYTES",
    "CLICKHOUSE_KEPT_SECONDS_MIN_S",
    "CLICKHOUSE_TIMEOUT_S",
    "CLICKHOUSE_UNIQUE_EXACT",
]

# Batches and bytes of one insert. A part of a table is made for each insert, so few large ones; one that is sent again should not take long.
CLICKHOUSE_INSERT_BATCHES: Final = 1_000
CLICKHOUSE_INSERT_BYTES: Final = 16_777_216

# Seconds to wait for a connection, and for an answer. A question about a quarter of a year may take long; none belongs on a request's path.
CLICKHOUSE_CONNECT_S: Final = 5
CLICKHOUSE_TIMEOUT_S: Final = 60

# Counts of single batches are kept at least so long after they came, whatever is asked for: minutes and hours are made of them, so a batch that
# comes later than the others of its minute by more than this is not added to them.
CLICKHOUSE_KEPT_SECONDS_MIN_S: Final = 21_600

# Rows up to which batches are counted exactly; beyond, by an estimate within one per cent, as the exact count holds every id in memory.
CLICKHOUSE_UNIQUE_EXACT: Final = 10_000_000
