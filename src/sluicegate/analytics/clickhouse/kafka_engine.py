"""ClickHouse reads the topic by itself: a table of its Kafka engine, and views that bring each message to where our consumer inserts.

It reads at least once; what it reads twice changes nothing (see ``rollup``). Minutes and hours are made by views that the server refreshes,
of what came within RECENT_S, so they are behind by up to REFRESH_S.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.clickhouse.migrate import check_schema, on_cluster
from sluicegate.analytics.clickhouse.rollup import TABLES, roll_up_select
from sluicegate.analytics.clickhouse.settings import ClickHouseSettings
from sluicegate.analytics.model import HOUR_S, MINUTE_S
from sluicegate.errors import AnalyticsError, ConfigurationError

__all__ = [
    "READS_S",
    "KafkaEngine",
    "create_kafka_tables",
    "drop_kafka_tables",
    "kafka_statements",
    "refresh_statements",
]

REFRESH_S: Final = 15
RECENT_S: Final = 900
"""Minutes and hours of what came so long ago are made anew each time: an outage of the refresh up to that is made good by itself."""

READS_S: Final = {"kafka_flush_interval_ms": 1_000, "kafka_max_block_size": 1_000, "kafka_poll_max_batch_size": 1_000}

_VALID: Final = "isValidJSON(body) AND JSONExtractUInt(body, 'v') = 1 AND JSONExtractString(body, 'id') != '' AND JSONExtractString(body, 'node') != ''"


_DROP_TABLE: Final = "DROP TABLE IF EXISTS kafka_batches"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaEngine:
    """What the server reads. ``consumers``: at most the topic's partitions. TLS and SASL are set in the server's own configuration."""

    brokers: str
    topic: str
    group: str = "sluicegate-clickhouse"
    consumers: int = 1

    def __post_init__(self) -> None:
        for name in ("brokers", "topic", "group"):
            value = getattr(self, name)
            if not value or not value.isprintable() or any(letter in value for letter in "'\\"):
                raise ConfigurationError(f"kafka engine: {name} must be printable and without quotes, got {value!r}")
        if self.consumers < 1:
            raise ConfigurationError(f"kafka engine: consumers must be 1 or more, got {self.consumers}")


def kafka_statements(engine: KafkaEngine, table_engine: str | None = None) -> list[str]:
    """What makes the table that reads, and the views behind it. ``table_engine``: another engine in its place, which is inserted into by hand."""
    settings = {
        "kafka_broker_list": f"'{engine.brokers}'",
        "kafka_topic_list": f"'{engine.topic}'",
        "kafka_group_name": f"'{engine.group}'",
        "kafka_format": "'RawBLOB'",
        "kafka_num_consumers": engine.consumers,
        "kafka_handle_error_mode": "'stream'",
        **READS_S,
    }
    kafka = "Kafka SETTINGS " + ", ".join(f"{name} = {value}" for name, value in settings.items())
    # Columns of these names are there by themselves in a table of the Kafka engine.
    columns = (
        "body String"
        if table_engine is None
        else "body String, _topic String, _partition Int64, _offset Int64, _error String"
    )
    to_landing = f"SELECT body FROM kafka_batches WHERE _error = '' AND {_VALID}"  # noqa: S608
    to_dead_letters = (
        "SELECT _topic AS topic, toInt64(_partition) AS partition, toInt64(_offset) AS offset, "  # noqa: S608
        "if(_error = '', 'is no batch of schema version 1', _error) AS error, body AS raw "
        f"FROM kafka_batches WHERE _error != '' OR NOT ({_VALID})"
    )
    return [
        f"CREATE TABLE IF NOT EXISTS kafka_batches ({columns}) ENGINE = {table_engine or kafka}",
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS kafka_to_landing TO landing AS {to_landing}",
        f"CREATE MATERIALIZED VIEW IF NOT EXISTS kafka_to_dead_letters TO dead_letters AS {to_dead_letters}",
    ]


def refresh_statements(every: str = f"{REFRESH_S} SECOND") -> list[str]:
    """Views that the server refreshes so often: minutes and hours of what came lately."""
    made = []
    for cell_s, suffix, shorter in ((MINUTE_S, "minutes", "seconds"), (HOUR_S, "hours", "minutes")):
        for table in TABLES.values():
            cell = f"intDiv(at_s, {cell_s}) * {cell_s}"
            recent = f"SELECT {cell} FROM {table.name}_{shorter} WHERE landed > now('UTC') - INTERVAL {RECENT_S} SECOND"  # noqa: S608
            select = roll_up_select(table, cell_s, f"{cell} IN ({recent})")
            made.append(
                f"CREATE MATERIALIZED VIEW IF NOT EXISTS {table.name}_{suffix}_refresh REFRESH EVERY {every} APPEND "
                f"TO {table.name}_{suffix} AS {select}"
            )
    return made


def create_kafka_tables(settings: ClickHouseSettings, engine: KafkaEngine) -> None:
    """Let the server read the topic. Called again it changes nothing; other settings need ``drop_kafka_tables`` first. Raises AnalyticsError."""
    connection = Connection(settings)
    try:
        check_schema(connection)
        # The views first, so that nothing is read before they are there.
        table, *views = kafka_statements(engine)
        for statement in refresh_statements():
            connection.run(on_cluster(statement, settings.cluster))
        try:
            connection.run(on_cluster(table, settings.cluster))
        except AnalyticsError:
            # A server that cannot run the table may keep it all the same, and then not start again.
            with suppress(AnalyticsError):
                connection.run(on_cluster(_DROP_TABLE, settings.cluster))
            raise
        for statement in views:
            connection.run(on_cluster(statement, settings.cluster))
    finally:
        connection.close()


def drop_kafka_tables(settings: ClickHouseSettings) -> None:
    """Let the server read no more; what it has read stays, and its place in the topic is kept by the broker. Raises AnalyticsError."""
    connection = Connection(settings)
    try:
        refreshed = [f"{table}_{suffix}_refresh" for table in TABLES for suffix in ("minutes", "hours")]
        for name in ("kafka_to_landing", "kafka_to_dead_letters", *refreshed):
            connection.run(on_cluster(f"DROP VIEW IF EXISTS {name}", settings.cluster))
        connection.run(on_cluster(_DROP_TABLE, settings.cluster))
    finally:
        connection.close()
