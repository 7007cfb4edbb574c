"""The home in ClickHouse, for many nodes and long times. Needs the extra ``clickhouse``."""

from __future__ import annotations

from sluicegate.analytics.clickhouse.home import ClickHouseHome
from sluicegate.analytics.clickhouse.kafka_engine import KafkaEngine, create_kafka_tables, drop_kafka_tables
from sluicegate.analytics.clickhouse.migrate import SCHEMA, migrate
from sluicegate.analytics.clickhouse.settings import ClickHouseSettings

__all__ = [
    "SCHEMA",
    "ClickHouseHome",
    "ClickHouseSettings",
    "KafkaEngine",
    "create_kafka_tables",
    "drop_kafka_tables",
    "migrate",
]
