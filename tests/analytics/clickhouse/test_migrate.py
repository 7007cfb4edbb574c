"""The tables: made once, by any number of runners, and never taken for those of another release."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import pytest
from real_clickhouse import ClickHouse

from sluicegate.analytics.clickhouse import SCHEMA, ClickHouseHome, ClickHouseSettings, KafkaEngine, migrate
from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.clickhouse.kafka_engine import create_kafka_tables, kafka_statements, refresh_statements
from sluicegate.analytics.clickhouse.migrate import MIGRATIONS, on_cluster, statements_of
from sluicegate.analytics.embedded import Retention
from sluicegate.analytics.model import Span
from sluicegate.errors import AnalyticsError, ConfigurationError

ALL = [statement for step in MIGRATIONS for statement in statements_of(step.text)]


def test_files_are_numbered_without_gaps() -> None:
    """Versions run from 1 to SCHEMA, and each file holds statements."""
    assert [step.version for step in MIGRATIONS] == list(range(1, SCHEMA + 1))
    assert all(statements_of(step.text) for step in MIGRATIONS)


def test_every_statement_may_be_carried_out_twice() -> None:
    """A step that was stopped half-way begins again, so each statement says IF NOT EXISTS."""
    assert len(ALL) >= 27
    assert [statement for statement in ALL if "IF NOT EXISTS" not in statement.split("\n")[0]] == []


def test_no_view_counts_in_the_insert() -> None:
    """No table adds up rows in its merges: a row that was inserted twice would count twice."""
    assert not any("SummingMergeTree" in statement or "SimpleAggregateFunction(sum" in statement for statement in ALL)


@pytest.mark.slow
def test_migrate_twice_and_from_half_way(new_settings: ClickHouseSettings) -> None:
    """The first makes everything, a second nothing, and one after a runner that died half-way the rest; until then the home says what to do."""
    connection = Connection(new_settings)
    with pytest.raises(AnalyticsError, match="run `sluicegate analytics migrate`"):
        ClickHouseHome(new_settings).status()
    names = [step.name for step in MIGRATIONS]
    assert migrate(new_settings) == names
    assert migrate(new_settings) == []
    assert ClickHouseHome(new_settings).requests(Span(0, 1)) == []
    connection.run("TRUNCATE TABLE migrations")
    connection.run("DROP TABLE decisions_of_batches")
    with pytest.raises(AnalyticsError, match=f"schema 0, this release needs {SCHEMA}"):
        ClickHouseHome(new_settings).status()
    assert migrate(new_settings) == names
    assert connection.rows("EXISTS TABLE decisions_of_batches") == [(1,)]
    connection.close()


@pytest.mark.slow
def test_two_runners_at_once(new_settings: ClickHouseSettings) -> None:
    """Runners that begin together all succeed, and end with tables that work."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            migrate(new_settings)
        except (AnalyticsError, ConfigurationError) as error:
            failed.append(error)

    runners = [threading.Thread(target=run) for _ in range(3)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(110)
    assert failed == []
    assert ClickHouseHome(new_settings).status().schema == SCHEMA


@pytest.mark.slow
def test_other_releases(new_settings: ClickHouseSettings) -> None:
    """Tables of a later release are refused by home and runner; a step with another text than was carried out is, too."""
    connection = Connection(new_settings)
    connection_of_default = Connection(replace(new_settings, database="default"))
    connection_of_default.run(f"CREATE DATABASE {new_settings.database}")
    connection_of_default.close()
    connection.run(
        "CREATE TABLE migrations (version UInt32, name String, checksum String) ENGINE = MergeTree ORDER BY version"
    )
    connection.insert("migrations", ("version", "name", "checksum"), [(1, "0001_counts", "other")])
    with pytest.raises(ConfigurationError, match="0001_counts was carried out with another text"):
        migrate(new_settings)
    connection.insert("migrations", ("version", "name", "checksum"), [(SCHEMA + 1, "later", "x")])
    for call in (lambda: migrate(new_settings), lambda: ClickHouseHome(new_settings).status()):
        with pytest.raises(AnalyticsError, match="use a later release") as caught:
            call()
        assert not caught.value.transient
    connection.close()


@pytest.mark.slow
def test_retention(migrated_clickhouse: ClickHouseSettings) -> None:
    """Times to live are set in every table, and set again; seconds are kept as long as late batches need them."""
    connection = Connection(migrated_clickhouse)

    def lives() -> dict[str, int]:
        rows = connection.rows(
            "SELECT name, create_table_query FROM system.tables WHERE database = currentDatabase() AND create_table_query LIKE '%TTL%'"
        )
        found = {}
        for name, text in rows:
            match = re.search(r"TTL landed \+ (?:toIntervalSecond\((\d+)\)|INTERVAL (\d+) SECOND)", text)
            assert match is not None, text
            found[name] = int(match[1] or match[2])
        return found

    before = lives()
    migrate(migrated_clickhouse, Retention(seconds_s=3_600, minutes_s=90_000, hours_s=900_000, decisions_s=777))
    assert {name: kept for name, kept in lives().items() if name.startswith("rules")} == {
        "rules_seconds": 21_600,
        "rules_minutes": 90_000,
        "rules_hours": 900_000,
    }
    assert lives()["decisions"] == 777
    migrate(migrated_clickhouse, Retention())
    assert lives() == before
    connection.close()


@pytest.mark.slow
def test_rows_past_their_time_go(migrated_clickhouse: ClickHouseSettings) -> None:
    """The server drops whole parts whose rows are all past their time to live, and keeps the others."""
    connection = Connection(migrated_clickhouse)
    connection.run("TRUNCATE TABLE dead_letters")
    insert = "INSERT INTO dead_letters (landed, topic, partition, offset) SELECT now('UTC') - {age:Int64}, 't', 1, {age:Int64}"
    for age in (8 * 86_400, 5):
        connection.run(insert, {"age": age})
    connection.run("OPTIMIZE TABLE dead_letters FINAL")
    assert connection.rows("SELECT offset FROM dead_letters") == [(5,)]
    connection.run("TRUNCATE TABLE dead_letters")
    connection.close()


def test_statements_of_a_cluster() -> None:
    """With a cluster every table and view is made on all of its servers, and every MergeTree table is replicated."""
    made = [on_cluster(statement, "east") for statement in ALL]
    assert all(" ON CLUSTER `east`" in statement.split("\n")[0] for statement in made)
    engines = {engine for statement in made for engine in re.findall(r"ENGINE = (\w+)", statement)}
    assert engines == {"Null", "ReplicatedReplacingMergeTree", "ReplicatedAggregatingMergeTree"}
    assert on_cluster("ALTER TABLE x MODIFY TTL y", "east") == "ALTER TABLE x ON CLUSTER `east` MODIFY TTL y"
    assert [on_cluster(statement, "") for statement in ALL] == ALL


@pytest.mark.slow
def test_statements_that_only_other_servers_carry_out(migrated_clickhouse: ClickHouseSettings) -> None:
    """The engine's parser takes the statements of a cluster and those of the Kafka engine."""
    connection = Connection(migrated_clickhouse)
    engine = KafkaEngine(brokers="a:9092,b:9092", topic="sluicegate.decisions.v1", consumers=4)
    written = [*ALL, *kafka_statements(engine), *refresh_statements()]
    for statement in (*written, *(on_cluster(statement, "east") for statement in written)):
        assert connection.rows(f"EXPLAIN AST {statement}")
    connection.close()


@pytest.mark.slow
def test_kafka_engine_of_a_server_without_threads_for_it(
    new_settings: ClickHouseSettings, shared_clickhouse: ClickHouse
) -> None:
    """A server that cannot run the Kafka engine, as the one of these tests, says so; what it kept still answers, also after a restart."""
    migrate(new_settings)
    with pytest.raises(AnalyticsError):
        create_kafka_tables(new_settings, KafkaEngine(brokers="127.0.0.1:9", topic="t"))
    assert ClickHouseHome(new_settings).status().batches == 0
    shared_clickhouse.kill()
    shared_clickhouse.start()
    assert ClickHouseHome(new_settings).status().batches == 0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"brokers": "a'b"}, "brokers"),
        ({"topic": ""}, "topic"),
        ({"group": "x\\"}, "group"),
        ({"consumers": 0}, "consumers"),
    ],
)
def test_kafka_engine_settings(wrong: dict[str, object], named: str) -> None:
    """What would not stand in a statement as it is, is refused with its name."""
    with pytest.raises(ConfigurationError, match=named):
        KafkaEngine(**{"brokers": "a:1", "topic": "t", **wrong})
