"""Writing batches: everything of a batch in the transaction that notes its id."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from sluicegate.analytics.embedded import offenders, streams
from sluicegate.analytics.embedded.cells import LARGEST
from sluicegate.analytics.embedded.schema import DROPPED_FIELDS
from sluicegate.analytics.model import RESOLUTIONS_S
from sluicegate.clock import US_PER_S
from sluicegate.events import Batch

__all__ = ["keep"]


def _adding(*columns: str) -> str:
    return ", ".join(f"{name} = min({name}, {LARGEST} - excluded.{name}) + excluded.{name}" for name in columns)


_COUNTS: Final = _adding("decisions", "tokens")
_REQUESTS: Final = f"INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET {_COUNTS}"  # noqa: S608
_RULES: Final = f"INSERT INTO rules VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET {_COUNTS}"  # noqa: S608
_DROPPED: Final = f"INSERT INTO dropped VALUES (?, ?, ?{', ?' * len(DROPPED_FIELDS)}) ON CONFLICT DO UPDATE SET {_adding(*DROPPED_FIELDS)}"  # noqa: S608
_encode = msgspec.json.Encoder().encode


def keep(connection: sqlite3.Connection, batch: Batch) -> bool:
    """Write one batch inside a transaction; False where it was written before."""
    if not streams.note(connection, batch.id):
        return False
    for cell_s in RESOLUTIONS_S:
        _keep_counts(connection, batch, cell_s)
    offenders.keep(connection, batch)
    _keep_detail(connection, batch)
    connection.execute("UPDATE numbers SET value = value + 1 WHERE name = 'batches'")
    return True


def _keep_counts(connection: sqlite3.Connection, batch: Batch, cell_s: int) -> None:
    at_s = batch.at_us // US_PER_S // cell_s * cell_s
    node = batch.node
    connection.executemany(
        _REQUESTS,
        [
            (cell_s, at_s, r.rule, r.outcome, r.tier, r.version, node, r.degraded, r.decisions, r.tokens)
            for r in batch.requests
        ],
    )
    connection.executemany(
        _RULES,
        [(cell_s, at_s, r.rule, r.outcome, r.tier, r.version, node, r.decisions, r.tokens) for r in batch.rules],
    )
    # Also where nothing was dropped: this row says that the node told of the time.
    connection.execute(_DROPPED, (cell_s, at_s, node, *(getattr(batch.dropped, name) for name in DROPPED_FIELDS)))


def _keep_detail(connection: sqlite3.Connection, batch: Batch) -> None:
    connection.executemany(
        "INSERT INTO decisions (at_us, node, rule, outcome, subjects, told) VALUES (?, ?, ?, ?, ?, ?)",
        [
            (one.at_us, batch.node, one.rule, one.outcome, _encode(one.subjects).decode(), _encode(one))
            for one in batch.decisions
        ],
    )
    connection.executemany(
        "INSERT INTO demand (at_us, rule, tier, told) VALUES (?, ?, ?, ?)",
        [(one.at_us, one.rule, one.tier, _encode(one)) for one in batch.demand],
    )
    connection.executemany(
        "INSERT INTO admissions (at_us, told) VALUES (?, ?)", [(one.at_us, _encode(one)) for one in batch.admissions]
    )
    if batch.watch is not None:
        connection.execute(
            "INSERT INTO watched (at_us, until_us, node, level) VALUES (?, ?, ?, ?)",
            (batch.at_us, batch.until_us, batch.node, batch.watch.level),
        )
