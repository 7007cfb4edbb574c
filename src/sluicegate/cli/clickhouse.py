"""``sluicegate analytics migrate`` and ``rollup``: the tables in ClickHouse."""

from __future__ import annotations

from typing import Any, Final

import click
from click.core import ParameterSource

from sluicegate.analytics.embedded import Retention
from sluicegate.analytics.model import Span
from sluicegate.app.analytics.homes import clickhouse_settings
from sluicegate.cli.kafka import kafka_of, kafka_options
from sluicegate.cli.options import config_option, option
from sluicegate.cli.remote.times import End, EndType
from sluicegate.cli.traffic_options import retention_names, retention_of, retention_options
from sluicegate.clock import SystemClock
from sluicegate.errors import ConfigurationError

__all__ = ["migrate", "rollup"]

_WHEN: Final = EndType()
_ENGINE: Final = ("kafka_engine_group", "kafka_engine_consumers")
_clickhouse = option("clickhouse", metavar="URL", help="Home in ClickHouse: clickhouse://USER@HOST:PORT/DATABASE.")


@click.command("migrate")
@_clickhouse
@retention_options("in ClickHouse; without any such flag what was set stays")
@option(
    "kafka-engine/--no-kafka-engine",
    default=None,
    help="Let the server read the topic by itself, instead of `analytics consume`; or no more.",
)
@kafka_options()
@option(
    "kafka-engine-group",
    default="sluicegate-clickhouse",
    metavar="NAME",
    help="With --kafka-engine: consumer group of the server.",
)
@option(
    "kafka-engine-consumers",
    type=click.IntRange(1, 1_000),
    default=1,
    help="With --kafka-engine: how many read in the server; at most the topic's partitions.",
)
@config_option()
def migrate(**values: Any) -> int:
    """Make the database and its tables in ClickHouse, or bring them to this release. Several at once do no harm."""
    context = click.get_current_context()
    given = {name for name in values if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    _check(context, values, given)
    settings = clickhouse_settings(values["clickhouse"])
    from sluicegate.analytics.clickhouse import KafkaEngine, create_kafka_tables, drop_kafka_tables
    from sluicegate.analytics.clickhouse import migrate as bring

    engine = None
    if values["kafka_engine"]:
        kafka = kafka_of({**values, "kafka_config": None})
        if kafka is None:
            raise ConfigurationError("--kafka-engine: needs --kafka, as in kafka-1:9092")
        engine = KafkaEngine(
            brokers=kafka.brokers,
            topic=kafka.topic,
            group=values["kafka_engine_group"],
            consumers=values["kafka_engine_consumers"],
        )
    done = bring(settings, _retention(context, values))
    print("\n".join(f"done {name}" for name in done) if done else "the tables are those of this release")
    if engine is not None:
        create_kafka_tables(settings, engine)
        print(f"the server reads {engine.topic} as {engine.group}")
    elif values["kafka_engine"] is False:
        drop_kafka_tables(settings)
        print("the server reads no topic")
    return 0


@click.command("rollup")
@_clickhouse
@option("since", type=_WHEN, metavar="WHEN", help="From then on: a time, or a span such as 2h ago.")
@option("until", type=_WHEN, metavar="WHEN", help="Up to then.  [default: now]")
@config_option()
def rollup(clickhouse: str | None, since: End | None, until: End | None) -> int:
    """Make minutes and hours in ClickHouse anew of the seconds that are kept: after the Kafka engine's refresh stood still."""
    if since is None:
        raise ConfigurationError("--since: needed, as in 2h")
    now_us = SystemClock().now_us()
    span = Span(_moment_us(since, now_us), now_us if until is None else _moment_us(until, now_us))
    settings = clickhouse_settings(clickhouse)
    from sluicegate.analytics.clickhouse import ClickHouseHome

    home = ClickHouseHome(settings)
    try:
        home.roll_up(span)
    finally:
        home.close()
    print("minutes and hours are made of the seconds that are kept")
    return 0


def _moment_us(end: End, now_us: int) -> int:
    return max(0, end.at_us if end.at_us is not None else now_us - (end.after_us or 0))


def _check(context: click.Context, values: dict[str, Any], given: set[str]) -> None:
    """Raises UsageError for flags that do nothing."""
    if values["kafka_engine"]:
        if "kafka_config" in given:
            raise click.UsageError(
                "--kafka-config: the server does not read it; TLS and SASL belong into its own <kafka> configuration",
                context,
            )
        return
    for name in ("kafka", "kafka_topic", "kafka_config", *_ENGINE):
        if name in given:
            raise click.UsageError(f"--{name.replace('_', '-')}: needs --kafka-engine", context)


def _retention(context: click.Context, values: dict[str, Any]) -> Retention | None:
    """What is said of it, the rest by default; None where nothing is."""
    sources = {context.get_parameter_source(name) for name in retention_names()}
    return None if sources == {ParameterSource.DEFAULT} else retention_of(values)
