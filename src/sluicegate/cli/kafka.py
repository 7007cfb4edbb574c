"""The flags that say how Kafka is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from sluicegate.analytics.kafka.settings import GROUP, TOPIC, KafkaSettings, read_properties
from sluicegate.cli.options import all_of, option
from sluicegate.errors import ConfigurationError

__all__ = ["group_option", "kafka_of", "kafka_options"]

Function = TypeVar("Function", bound=Callable[..., Any])

_PATH: Final = click.Path(path_type=Path)


def kafka_options() -> Callable[[Function], Function]:
    """``--kafka`` and what belongs to it."""
    return all_of(
        option("kafka", metavar="BROKERS", help="Kafka: HOST:PORT of any of its brokers, several with commas."),
        option("kafka-topic", metavar="NAME", default=TOPIC, help="Topic of the batches that nodes tell."),
        option(
            "kafka-config",
            type=_PATH,
            metavar="FILE",
            help="Client properties (librdkafka), name=value a line: TLS, SASL and the like.",
        ),
    )


def group_option() -> Callable[[Function], Function]:
    """``--kafka-group``, of those who read."""
    return option(
        "kafka-group", metavar="NAME", default=GROUP, help="Consumer group; its members share the partitions."
    )


def kafka_of(values: Mapping[str, Any]) -> KafkaSettings | None:
    """The settings; None without ``--kafka``. Raises ConfigurationError."""
    if not values["kafka"]:
        if values["kafka_config"] is not None:
            raise ConfigurationError("--kafka-config: needs --kafka")
        return None
    path = values["kafka_config"]
    return KafkaSettings(
        values["kafka"],
        values["kafka_topic"],
        values.get("kafka_group", GROUP),
        properties={} if path is None else read_properties(path),
    )
