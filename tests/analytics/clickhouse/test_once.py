"""Every batch counts once, whatever goes wrong between us and the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from real_clickhouse import ClickHouse, running_clickhouse

from sluicegate.analytics.clickhouse import ClickHouseHome, ClickHouseSettings, migrate
from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.errors import AnalyticsError

pytestmark = pytest.mark.slow

LANDING = "`landing` ("
"""In the insert of batches, and not in what the client asks of the table before."""


@pytest.fixture(scope="module")
def own_server() -> Iterator[ClickHouse]:
    """A server that tests may kill."""
    with running_clickhouse() as server:
        yield server


@pytest.fixture
def own_home(own_server: ClickHouse, clickhouse_database: str) -> Iterator[ClickHouseHome]:
    """An empty home in that server."""
    settings = ClickHouseSettings.from_url(own_server.url(clickhouse_database))
    migrate(settings)
    home = ClickHouseHome(settings)
    yield home
    home.close()


def test_twice_in_any_company(home: ClickHouseHome, told: Any) -> None:
    """Batches that come again, in one call, in other blocks, in another order or twice in one block, change nothing."""
    batches = told.batches(90)
    home.ingest(batches)
    home.ingest(batches)
    home.ingest([*batches[40:70], *batches[60:80], batches[0], batches[0]])
    Random(3).shuffle(batches)
    home.ingest(batches[:50])
    told.check(home, 90)


def test_merged_parts_say_the_same(home: ClickHouseHome, told: Any) -> None:
    """What the server merges in the background changes no answer."""
    batches = told.batches(30)
    home.ingest(batches)
    home.ingest(batches)
    connection = Connection(home.settings)
    for (table,) in connection.rows(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine IN ('ReplacingMergeTree', 'AggregatingMergeTree')"
    ):
        connection.run(f"OPTIMIZE TABLE {table} FINAL")
    assert connection.rows("SELECT count() FROM batches") == [(30,)]
    connection.close()
    told.check(home, 30)


def test_lost_reply(shared_clickhouse: ClickHouse, home: ClickHouseHome, told: Any) -> None:
    """Where the reply to an insert, or to a step of the rollup, was lost, bringing the batches again counts them once."""
    batches = told.batches(40)
    for match in (LANDING, "requests_minutes", "offenders_hours"):
        shared_clickhouse.fault("cut", match, times=9)
        with pytest.raises(AnalyticsError) as caught:
            home.ingest(batches)
        shared_clickhouse.fault("none")
        assert caught.value.transient
    home.ingest(batches)
    told.check(home, 40)


def test_refused_and_late(shared_clickhouse: ClickHouse, home: ClickHouseHome, told: Any) -> None:
    """A server that is too busy is an error that may pass; a slow one is waited for."""
    batches = told.batches(10)
    shared_clickhouse.fault("refuse", LANDING, times=9)
    with pytest.raises(AnalyticsError) as caught:
        home.ingest(batches)
    assert caught.value.transient
    assert "TOO_MANY_SIMULTANEOUS_QUERIES" in str(caught.value)
    shared_clickhouse.fault("none")
    shared_clickhouse.fault("slow", LANDING, seconds=0.2)
    home.ingest(batches)
    told.check(home, 10)


@pytest.mark.parametrize("table", ["requests_seconds", "demand", "offender_totals_seconds"])
def test_insert_that_fails_half_way(shared_clickhouse: ClickHouse, home: ClickHouseHome, told: Any, table: str) -> None:
    """Where one of the tables could not be written, some others were; bringing the batches again completes them, and counts none twice."""
    batches = told.batches(20)
    database = home.settings.database
    shared_clickhouse.sql(f"RENAME TABLE {database}.{table} TO {database}.away")
    try:
        with pytest.raises(AnalyticsError):
            home.ingest(batches)
    finally:
        shared_clickhouse.sql(f"RENAME TABLE {database}.away TO {database}.{table}")
    home.ingest(batches)
    told.check(home, 20)


@pytest.mark.parametrize("match", [LANDING, "rules_minutes"])
def test_killed_between_insert_and_reply(
    own_server: ClickHouse, own_home: ClickHouseHome, told: Any, match: str
) -> None:
    """A server that is killed after it carried out a step, and started again on its folder, ends with every batch once."""
    first, second = told.batches(30), told.batches(30)
    own_home.ingest(first)
    own_server.fault("die", match)
    with pytest.raises(AnalyticsError) as caught:
        own_home.ingest(second)
    assert caught.value.transient
    own_server.wait()
    with pytest.raises(AnalyticsError) as caught:
        own_home.ingest(second)
    assert caught.value.transient
    own_server.start()
    own_home.ingest([*second, *first[:5]])
    told.check(own_home, 60)


def test_two_writers_of_one_minute(home: ClickHouseHome, told: Any) -> None:
    """Writers that bring batches of the same minutes at once, some of them the same, lose and double nothing."""
    batches = told.batches(60)
    failed: list[BaseException] = []

    def write(part: list[Any]) -> None:
        own = ClickHouseHome(home.settings)
        try:
            for start in range(0, len(part), 10):
                own.ingest(part[start : start + 10])
        except AnalyticsError as error:
            failed.append(error)
        finally:
            own.close()

    writers = [
        threading.Thread(target=write, args=(part,)) for part in (batches[:40], batches[20:], batches[::-1][:30])
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(100)
    assert failed == []
    told.check(home, 60)


def test_batches_gone_minutes_stay(home: ClickHouseHome, told: Any) -> None:
    """A batch that comes again after the rows of its seconds are gone changes neither its minute nor its hour."""
    batches = told.batches(60)
    home.ingest(batches)
    connection = Connection(home.settings)
    for table in ("requests", "rules", "offenders", "offender_totals"):
        connection.run(f"TRUNCATE TABLE {table}_seconds")
    connection.close()
    home.ingest(batches[:7])
    assert [row.decisions for row in home.requests(told.span)] == [420]
    assert [row.times for row in home.offenders(told.span).rows] == [180]


def test_messages_from_the_engine(
    shared_clickhouse: ClickHouse, new_kafka_engine_home: Callable[[], ClickHouseHome], told: Any
) -> None:
    """Behind the Kafka engine a message that is no batch becomes a dead letter and the others count; read twice they count once."""
    home = new_kafka_engine_home()
    batches = told.batches(20)
    home.ingest(batches)
    connection = Connection(home.settings)
    bad = ["", "no JSON", "[]", '{"v":2,"id":"x","node":"n"}', '{"v":1,"node":"n"}', '{"v":1,"id":"x"}', "\x00\xff"]
    rows = [(body, "t", 3, number, "") for number, body in enumerate(bad)]
    columns = ("body", "_topic", "_partition", "_offset", "_error")
    connection.insert("kafka_batches", columns, rows)
    connection.insert("kafka_batches", columns, rows)
    home.ingest(batches[:10])
    told.check(home, 20)
    letters = connection.rows(
        "SELECT offset, any(raw), any(error) FROM dead_letters WHERE partition = 3 GROUP BY offset ORDER BY offset"
    )
    assert [(offset, raw) for offset, raw, _ in letters] == list(enumerate(bad))
    assert all("schema version 1" in error for _, _, error in letters)
    connection.close()
