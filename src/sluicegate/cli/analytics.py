"""``sluicegate analytics``: the way over Kafka, and the tables of ClickHouse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sluicegate.analytics.kafka.settings import KafkaSettings
from sluicegate.analytics.model import Span
from sluicegate.app.analytics.homes import open_home
from sluicegate.app.consuming.settings import ConsumingSettings
from sluicegate.bounds import KAFKA_BLOCK_LINGER_S, KAFKA_TOPIC_RETENTION_S
from sluicegate.cli.analytics_accuracy import accuracy_report, show_accuracy
from sluicegate.cli.analytics_status import home_report, kafka_report, show
from sluicegate.cli.clickhouse import migrate, rollup
from sluicegate.cli.kafka import group_option, kafka_of, kafka_options
from sluicegate.cli.options import AddressType, DurationType, Group, all_of, config_option, flag, option
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.errors import ConfigurationError

__all__ = ["analytics"]

Function = TypeVar("Function", bound=Callable[..., Any])

_PATH: Final = click.Path(path_type=Path)
_DURATION: Final = DurationType()


def _home_options() -> Callable[[Function], Function]:
    return all_of(
        option("clickhouse", metavar="URL", help="Home in ClickHouse: clickhouse://USER@HOST:PORT/DATABASE."),
        option(
            "data", type=_PATH, default=".sluicegate", metavar="DIR", help="Directory of the home without --clickhouse."
        ),
    )


@click.group(cls=Group)
def analytics() -> None:
    """Bring what nodes tell through Kafka into a home, and look after the way there."""


analytics.add_command(migrate)
analytics.add_command(rollup)


@analytics.command("consume")
@kafka_options()
@group_option()
@_home_options()
@option(
    "linger",
    type=_DURATION,
    default=f"{KAFKA_BLOCK_LINGER_S:g}s",
    help="Batches wait so long for others, to be put into the home together.",
)
@option(
    "health",
    type=AddressType(),
    metavar="ADDRESS",
    help="Listener of /livez, /readyz, /healthz and /metrics; without it there is none.",
)
@option(
    "log-format",
    type=click.Choice(["auto", "json", "plain"]),
    default="auto",
    help="Lines on standard error; auto is plain on a terminal, else json.",
)
@config_option()
def _consume(**values: Any) -> int:
    """Read batches from Kafka into a home, until told to stop. Several may run: they share the partitions."""
    from sluicegate.app.consuming.run import run_consuming

    return run_consuming(
        ConsumingSettings(
            kafka=_kafka(values),
            clickhouse=values["clickhouse"],
            data=values["data"],
            linger_s=values["linger"],
            health=values["health"],
            log_format=values["log_format"],
        )
    )


@analytics.command("topic")
@kafka_options()
@option(
    "partitions", type=click.IntRange(1, 10_000), default=12, help="Partitions; as many consumers can share the work."
)
@option(
    "replicas",
    type=click.IntRange(1, 32),
    default=1,
    help="Brokers that have each batch; from 3 on, two acknowledge it.",
)
@option(
    "topic-retention",
    type=click.IntRange(60),
    default=KAFKA_TOPIC_RETENTION_S,
    metavar="SECONDS",
    help="How long Kafka keeps batches, read or not.",
)
@config_option()
def _topic(**values: Any) -> int:
    """Make the topic of batches and that of its dead letters, where they are not there. What is there stays as it is."""
    from sluicegate.analytics.kafka import TopicSettings, make_topics

    made = TopicSettings(values["partitions"], values["replicas"], values["topic_retention"])
    print("\n".join(make_topics(_kafka(values), made)))
    return 0


@analytics.command("status")
@kafka_options()
@group_option()
@_home_options()
@flag("json", help="One JSON object instead of text.")
@config_option()
def _status(**values: Any) -> int:
    """Say how far consumers are behind (with --kafka), what the home has, and what nodes could not tell within a day."""
    kafka = kafka_of(values)
    home = open_home(values["data"], values["clickhouse"])
    try:
        show(home_report(home, SystemClock()), None if kafka is None else kafka_report(kafka), as_json=values["json"])
    finally:
        home.close()
    return 0


@analytics.command("accuracy")
@_home_options()
@option("window", type=_DURATION, default="15m", metavar="SPAN", help="How long a time, up to now.")
@flag("json", help="One JSON object instead of text.")
@config_option()
def _accuracy(**values: Any) -> int:
    """Hold what watched counters admitted against their limits: by rule, and the counters that admitted too much. Exits 1 where one did."""
    home = open_home(values["data"], values["clickhouse"])
    until_us = SystemClock().now_us()
    try:
        report = accuracy_report(home, Span(max(0, until_us - int(values["window"] * US_PER_S)), until_us))
    finally:
        home.close()
    show_accuracy(report, as_json=values["json"])
    return int(bool(report["worst"]))


def _kafka(values: dict[str, Any]) -> KafkaSettings:
    found = kafka_of(values)
    if found is None:
        raise ConfigurationError("--kafka: needed, as in 127.0.0.1:9092")
    return found
