"""The tables, by versions. ``PRAGMA user_version`` says which one a file has; a step is never changed once it was released.

Counts stand in cells of 1, 60 and 3600 seconds (``cell_s``) that begin at ``at_s``, all three written in the transaction of their batch. The
clients of a cell are kept by what they have beyond ``untold``: see ``offenders``.
"""

from __future__ import annotations

from typing import Final

__all__ = ["APPLICATION_ID", "DROPPED_FIELDS", "MIGRATIONS"]

APPLICATION_ID: Final = 0x534C5347
"""Tells this file from other SQLite files ("SLSG")."""

DROPPED_FIELDS: Final = ("batches", "decisions", "tokens", "samples", "subjects", "demand", "admissions")

_FIRST: Final = (
    # Batches that were kept, as ranges of their numbers in one life of one process: a row or a few for each, so they are known for ever.
    """CREATE TABLE told (stream TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (stream, first)) WITHOUT ROWID""",
    """CREATE TABLE kept (cell_s INTEGER PRIMARY KEY, since_s INTEGER NOT NULL)""",
    """INSERT INTO kept VALUES (1, 0), (60, 0), (3600, 0)""",
    """CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID""",
    """INSERT INTO numbers VALUES ('batches', 0)""",
    """CREATE TABLE requests (cell_s INTEGER NOT NULL, at_s INTEGER NOT NULL, rule TEXT NOT NULL, outcome TEXT NOT NULL, tier TEXT NOT NULL,
       version INTEGER NOT NULL, node TEXT NOT NULL, degraded INTEGER NOT NULL, decisions INTEGER NOT NULL, tokens INTEGER NOT NULL,
       PRIMARY KEY (cell_s, at_s, rule, outcome, tier, version, node, degraded)) WITHOUT ROWID""",
    """CREATE TABLE rules (cell_s INTEGER NOT NULL, at_s INTEGER NOT NULL, rule TEXT NOT NULL, outcome TEXT NOT NULL, tier TEXT NOT NULL,
       version INTEGER NOT NULL, node TEXT NOT NULL, decisions INTEGER NOT NULL, tokens INTEGER NOT NULL,
       PRIMARY KEY (cell_s, at_s, rule, outcome, tier, version, node)) WITHOUT ROWID""",
    f"""CREATE TABLE dropped (cell_s INTEGER NOT NULL, at_s INTEGER NOT NULL, node TEXT NOT NULL,
       {"".join(f"{name} INTEGER NOT NULL, " for name in DROPPED_FIELDS)} PRIMARY KEY (cell_s, at_s, node)) WITHOUT ROWID""",
    """CREATE TABLE offenders (cell_s INTEGER NOT NULL, at_s INTEGER NOT NULL, kind TEXT NOT NULL, rule TEXT NOT NULL, subject TEXT NOT NULL,
       times INTEGER NOT NULL, error INTEGER NOT NULL, PRIMARY KEY (cell_s, at_s, kind, rule, subject)) WITHOUT ROWID""",
    """CREATE TABLE offender_totals (cell_s INTEGER NOT NULL, at_s INTEGER NOT NULL, kind TEXT NOT NULL, rule TEXT NOT NULL, total INTEGER NOT NULL,
       untold INTEGER NOT NULL, evicted INTEGER NOT NULL, sample_rate REAL NOT NULL, PRIMARY KEY (cell_s, at_s, kind, rule)) WITHOUT ROWID""",
    """CREATE TABLE decisions (id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, node TEXT NOT NULL, rule TEXT NOT NULL, outcome TEXT NOT NULL,
       subjects TEXT NOT NULL, told BLOB NOT NULL)""",
    """CREATE INDEX decisions_at ON decisions (at_us)""",
    """CREATE TABLE demand (id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, rule TEXT NOT NULL, tier TEXT NOT NULL, told BLOB NOT NULL)""",
    """CREATE INDEX demand_at ON demand (at_us)""",
    """CREATE TABLE admissions (id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, told BLOB NOT NULL)""",
    """CREATE INDEX admissions_at ON admissions (at_us)""",
    """CREATE TABLE watched (id INTEGER PRIMARY KEY, at_us INTEGER NOT NULL, until_us INTEGER NOT NULL, node TEXT NOT NULL, level INTEGER)""",
    """CREATE INDEX watched_at ON watched (at_us)""",
)

_CLIENTS_BY_SECOND: Final = (
    # Clients are written by seconds too from now on; what was told before is complete by minutes only.
    """INSERT INTO numbers SELECT 'clients_since_s', coalesce(max(at_s) + 1, 0) FROM dropped WHERE cell_s = 1""",
)

MIGRATIONS: Final = (_FIRST, _CLIENTS_BY_SECOND)
"""Step n makes version n + 1 of version n."""
