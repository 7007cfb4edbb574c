"""How long what is kept: times to live of the tables, counted from when a row came."""

from __future__ import annotations

from typing import Final

from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.embedded.retention import Retention
from sluicegate.analytics.model import HOUR_S, MINUTE_S, SECOND_S
from sluicegate.bounds import CLICKHOUSE_KEPT_SECONDS_MIN_S, HOURS_KEPT_S, MINUTES_KEPT_S
from sluicegate.clock import US_PER_S

__all__ = ["keep_for", "kept_since_us"]

_CELLS: Final = ("requests", "rules", "offenders", "offender_totals")
_DEFAULTS: Final = {"seconds": CLICKHOUSE_KEPT_SECONDS_MIN_S, "minutes": MINUTES_KEPT_S, "hours": HOURS_KEPT_S}


def keep_for(connection: Connection, retention: Retention) -> list[str]:
    """Note what is to be kept how long, and the statements that make the tables keep it so. ``size_max_bytes`` is of no use here."""
    cells = {
        "seconds": max(retention.seconds_s, CLICKHOUSE_KEPT_SECONDS_MIN_S),
        "minutes": max(retention.minutes_s, CLICKHOUSE_KEPT_SECONDS_MIN_S),
        "hours": max(retention.hours_s, CLICKHOUSE_KEPT_SECONDS_MIN_S),
    }
    kept = {f"{table}_{cell}": length_s for table in _CELLS for cell, length_s in cells.items()}
    kept |= {
        "batches": cells["hours"],
        "decisions": retention.decisions_s,
        "demand": retention.demand_s,
        "admissions": retention.admissions_s,
    }
    connection.insert("retention", ("name", "kept_s"), [*cells.items()])
    return [f"ALTER TABLE {table} MODIFY TTL landed + INTERVAL {length_s} SECOND" for table, length_s in kept.items()]


def kept_since_us(connection: Connection) -> dict[int, int]:
    """Since when cells are complete, by their length. 0 where nothing has been let go of yet."""
    set_to = {
        name: int(kept_s)
        for name, kept_s in connection.rows("SELECT name, argMax(kept_s, changed) FROM retention GROUP BY name")
    }
    now_s, first_s = connection.rows(
        "SELECT toInt64(toUnixTimestamp(now())), toInt64(toUnixTimestamp(min(landed))) FROM batches"
    )[0]
    since = {}
    for length, name in ((SECOND_S, "seconds"), (MINUTE_S, "minutes"), (HOUR_S, "hours")):
        began_s = now_s - set_to.get(name, _DEFAULTS[name])
        since[length] = 0 if first_s > began_s else began_s * US_PER_S
    return since
