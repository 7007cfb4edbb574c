"""The tables, by numbered files of statements, each carried out once.

Every statement may be carried out twice (``IF NOT EXISTS``), so two that migrate at once, or one that was stopped half-way and begins again, end
with the same tables. What was carried out is in the table ``migrations`` with a checksum: a file is never changed once it was released.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from importlib import resources
from typing import Final, NamedTuple

from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.clickhouse.retention import keep_for
from sluicegate.analytics.clickhouse.settings import ClickHouseSettings
from sluicegate.analytics.embedded.retention import Retention
from sluicegate.errors import AnalyticsError, ConfigurationError

__all__ = ["SCHEMA", "Migration", "applied", "check_newer", "check_schema", "migrate", "on_cluster", "statements_of"]


class Migration(NamedTuple):
    """A numbered file of statements."""

    version: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Of its text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def _read() -> tuple[Migration, ...]:
    folder = resources.files("sluicegate.analytics.clickhouse") / "migrations"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple(Migration(int(file.name[:4]), file.name[:-4], file.read_text(encoding="utf-8")) for file in files)


MIGRATIONS: Final = _read()
SCHEMA: Final = MIGRATIONS[-1].version
"""The version of the tables that this release reads and writes."""

_TABLE: Final = """CREATE TABLE IF NOT EXISTS migrations
(version UInt32, name String, checksum String, applied DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC'))
ENGINE = MergeTree ORDER BY version"""


def statements_of(text: str) -> list[str]:
    """The statements of a file: each ends with a semicolon at the end of a line."""
    without = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    return [statement.strip() for statement in re.split(r";\s*(?:\n|$)", without) if statement.strip()]


def on_cluster(statement: str, cluster: str) -> str:
    """The same for all servers of a cluster: tables and views are made on each, MergeTree tables replicated. "": unchanged."""
    if not cluster:
        return statement
    made = re.sub(
        r"^(CREATE (?:TABLE|MATERIALIZED VIEW) IF NOT EXISTS|ALTER TABLE|DROP (?:TABLE|VIEW) IF EXISTS) (\w+)",
        rf"\1 \2 ON CLUSTER `{cluster}`",
        statement,
    )
    return re.sub(r"\bENGINE = (\w*)MergeTree\b", r"ENGINE = Replicated\1MergeTree", made)


def migrate(settings: ClickHouseSettings, retention: Retention | None = None) -> list[str]:
    """Make the database and bring its tables to SCHEMA; set how long rows are kept. The names of the steps that were carried out.

    Several at once do no harm. ``retention``: None leaves what was set, or the defaults. Raises AnalyticsError where the tables are of a later
    release or the server cannot be used, ConfigurationError where a step that was carried out was another than this release knows.
    """
    _make_database(settings)
    connection = Connection(settings)
    try:
        connection.run(on_cluster(_TABLE, settings.cluster))
        done = applied(connection)
        check_newer(connection, done)
        for step in MIGRATIONS:
            if step.version in done and step.checksum not in done[step.version]:
                raise ConfigurationError(
                    f"{settings}: step {step.name} was carried out with another text than this release has"
                )
        carried_out = []
        for step in MIGRATIONS:
            if step.version in done:
                continue
            for statement in statements_of(step.text):
                connection.run(on_cluster(statement, settings.cluster))
            connection.insert("migrations", ("version", "name", "checksum"), [(step.version, step.name, step.checksum)])
            carried_out.append(step.name)
        if retention is not None:
            for statement in keep_for(connection, retention):
                connection.run(on_cluster(statement, settings.cluster))
        return carried_out
    finally:
        connection.close()


def _make_database(settings: ClickHouseSettings) -> None:
    """Where the database is there already, no right to make one is needed."""
    server = Connection(replace(settings, database="default"))
    try:
        if server.rows("SELECT 1 FROM system.databases WHERE name = {name:String}", {"name": settings.database}):
            return
        cluster = f" ON CLUSTER `{settings.cluster}`" if settings.cluster else ""
        server.run(f"CREATE DATABASE IF NOT EXISTS `{settings.database}`{cluster}")
    finally:
        server.close()


def applied(connection: Connection) -> dict[int, set[str]]:
    """The checksums of the steps that were carried out, by version."""
    rows = connection.rows("SELECT version, groupUniqArray(checksum) FROM migrations GROUP BY version")
    return {int(version): set(checksums) for version, checksums in rows}


def check_newer(connection: Connection, done: dict[int, set[str]]) -> None:
    """Raise AnalyticsError for tables of a later release."""
    if done and max(done) > SCHEMA:
        raise AnalyticsError(
            f"{connection.settings}: tables are of schema {max(done)}, this release knows {SCHEMA}: use a later release",
            transient=False,
        )


def check_schema(connection: Connection) -> None:
    """Raise AnalyticsError where the tables are not of SCHEMA."""
    done = applied(connection)
    check_newer(connection, done)
    if SCHEMA not in done:
        raise AnalyticsError(
            f"{connection.settings}: tables are of schema {max(done, default=0)}, this release needs {SCHEMA}: "
            "run `sluicegate analytics migrate`",
            transient=False,
        )
