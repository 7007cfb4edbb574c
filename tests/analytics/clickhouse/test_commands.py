"""``sluicegate analytics migrate`` and ``rollup`` on the real engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from real_clickhouse import ClickHouse

from sluicegate.analytics import clickhouse
from sluicegate.analytics.clickhouse import ClickHouseHome, ClickHouseSettings, KafkaEngine
from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.model import Span
from sluicegate.cli.root import run
from sluicegate.clock import US_PER_S
from sluicegate.events import encode

REFRESHED = "SELECT count() FROM system.tables WHERE database = currentDatabase() AND name LIKE '%_refresh'"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """No flag is set by a variable."""
    for name in [name for name in os.environ if name.startswith("SLUICEGATE_")]:
        monkeypatch.delenv(name)


@pytest.mark.slow
def test_migrate_with_retention_and_engine(
    shared_clickhouse: ClickHouse, new_settings: ClickHouseSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables are made and kept as the flags say; without them what was set stays. What reads the topic is made, and goes again."""
    url = shared_clickhouse.url(new_settings.database)
    connection = Connection(new_settings)

    def kept(table: str) -> str:
        return str(
            connection.rows(
                f"SELECT create_table_query FROM system.tables WHERE name = '{table}' AND database = currentDatabase()"
            )[0][0]
        )

    assert (
        run(
            [
                "analytics",
                "migrate",
                "--clickhouse",
                url,
                "--analytics-keep-decisions",
                "777s",
                "--analytics-keep-days",
                "9",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines()[0] == "done 0001_counts"
    assert "777" in kept("decisions")
    assert str(9 * 86_400) in kept("rules_hours")
    assert run(["analytics", "migrate", "--clickhouse", url]) == 0
    assert "777" in kept("decisions")
    # The engine of the tests has no threads for brokers: it makes the views, and says why not the table.
    assert run(["analytics", "migrate", "--clickhouse", url, "--kafka-engine", "--kafka", "kafka-1:9092"]) != 0
    assert url.split("@")[1].split("/")[0] in capsys.readouterr().err
    assert connection.rows(REFRESHED)[0][0] == 8
    assert run(["analytics", "migrate", "--clickhouse", url, "--no-kafka-engine"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "the server reads no topic"
    assert connection.rows(REFRESHED)[0][0] == 0
    connection.close()


@pytest.mark.slow
def test_rollup(shared_clickhouse: ClickHouse, new_clickhouse_home: Callable[[], ClickHouseHome], told: Any) -> None:
    """Minutes and hours that nobody made are made of the seconds of the span, and of nothing else."""
    home = new_clickhouse_home()
    home.status()
    batches = told.batches(120)
    connection = Connection(home.settings)
    connection.insert("landing", ("body",), [(encode(batch),) for batch in batches])
    minutes = "SELECT count() FROM requests_minutes"
    assert connection.rows(minutes)[0][0] == 0
    url = shared_clickhouse.url(home.settings.database)
    since_s = told.base_us // US_PER_S
    assert run(["analytics", "rollup", "--clickhouse", url, "--since", "3 hours"]) == 0
    told.check(home, 120)
    minute = Span(since_s * US_PER_S, (since_s + 60) * US_PER_S)
    assert [row.decisions for row in home.requests(minute)] == [7 * 60]
    connection.close()


def test_engine_of_the_flags(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Brokers, topic, group and consumers come to the table as they were given."""
    made: list[KafkaEngine] = []
    monkeypatch.setattr(clickhouse, "migrate", lambda settings, retention: [])
    monkeypatch.setattr(clickhouse, "create_kafka_tables", lambda settings, engine: made.append(engine))
    words = ["analytics", "migrate", "--clickhouse", "clickhouse://db", "--kafka-engine", "--kafka", "a:1,b:2"]
    assert run(words) == 0
    assert run([*words, "--kafka-topic", "t", "--kafka-engine-group", "g", "--kafka-engine-consumers", "4"]) == 0
    assert made == [
        KafkaEngine(brokers="a:1,b:2", topic="sluicegate.decisions.v1"),
        KafkaEngine(brokers="a:1,b:2", topic="t", group="g", consumers=4),
    ]
    assert "the server reads t as g" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["migrate"], "--clickhouse: needed"),
        (["migrate", "--clickhouse", "clickhouse://db", "--kafka-engine"], "--kafka-engine: needs --kafka"),
        (["migrate", "--clickhouse", "clickhouse://db", "--kafka", "a:1"], "--kafka: needs --kafka-engine"),
        (["migrate", "--clickhouse", "clickhouse://db", "--kafka-engine-group", "g"], "--kafka-engine-group: needs"),
        (
            ["migrate", "--clickhouse", "clickhouse://db", "--kafka-engine", "--kafka", "a:1", "--kafka-config", "f"],
            "--kafka-config: the server does not read it",
        ),
        (["migrate", "--clickhouse", "clickhouse://db", "--analytics-keep-demand", "1s"], "--analytics-keep-demand:"),
        (["rollup", "--clickhouse", "clickhouse://db"], "--since: needed"),
        (["rollup", "--clickhouse", "http://db", "--since", "1h"], "must begin with clickhouse://"),
    ],
)
def test_wrong_flags(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing or does nothing is named, and nothing is connected to."""
    assert run(["analytics", *words]) == 2
    assert said in capsys.readouterr().err
