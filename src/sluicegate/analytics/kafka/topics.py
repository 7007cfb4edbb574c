"""The topic of batches and the one of its dead letters: made, and checked where they are there already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluicegate.analytics.kafka.client import admin_library, admin_properties, library, made, names, wrong
from sluicegate.analytics.kafka.settings import KafkaSettings
from sluicegate.bounds import KAFKA_MESSAGE_BYTES_MAX, KAFKA_REQUEST_TIMEOUT_S, KAFKA_TOPIC_RETENTION_S
from sluicegate.errors import AnalyticsError, ConfigurationError

__all__ = ["TopicSettings", "make_topics"]


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How the topic is made. ``replicas`` above the number of brokers is refused by them.

    With three replicas or more, two must have a batch before it is acknowledged.
    """

    partitions: int = 12
    replicas: int = 1
    retention_s: int = KAFKA_TOPIC_RETENTION_S

    def __post_init__(self) -> None:
        for name, value, most in (("partitions", self.partitions, 10_000), ("replicas", self.replicas, 32)):
            if not 1 <= value <= most:
                raise ConfigurationError(f"--{name}: must be 1 to {most}, got {value}")
        if self.retention_s < 60:
            raise ConfigurationError(f"--topic-retention: must be a minute or longer, got {self.retention_s} s")

    def properties(self) -> dict[str, str]:
        """Of the topic, by the broker's names."""
        return {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "max.message.bytes": str(KAFKA_MESSAGE_BYTES_MAX),
            "min.insync.replicas": "2" if self.replicas > 2 else "1",
            "retention.ms": str(self.retention_s * 1_000),
        }


def make_topics(settings: KafkaSettings, topic: TopicSettings) -> list[str]:
    """Make both topics where they are not there, and say in a line of each what was found or done.

    A topic that is there stays as it is. Raises AnalyticsError where the cluster cannot be asked or says no.
    """
    admin = made(admin_library.AdminClient, admin_properties(settings))
    wanted = [(settings.topic, topic.partitions), (settings.dead_topic, 1)]
    specs = [names.NewTopic(name, count, topic.replicas, config=topic.properties()) for name, count in wanted]
    try:
        there = admin.list_topics(timeout=KAFKA_REQUEST_TIMEOUT_S).topics
        # Of one that is there the answer is an error, which is looked at below; and two of us at once both succeed.
        answers = admin.create_topics(specs, request_timeout=KAFKA_REQUEST_TIMEOUT_S)
    except library.KafkaException as error:
        raise wrong(f"Kafka at {settings.brokers} cannot be asked", error) from error
    return [_told(answers[name], name, count, there) for name, count in wanted]


def _told(answer: Any, name: str, partitions: int, there: Any) -> str:
    try:
        answer.result(KAFKA_REQUEST_TIMEOUT_S * 2)
    except library.KafkaException as error:
        if error.args[0].code() != library.KafkaError.TOPIC_ALREADY_EXISTS:
            raise wrong(f"topic {name} cannot be made", error) from error
        found = len(there[name].partitions) if name in there else None
        differs = "" if found in (None, partitions) else f", not {partitions}"
        return f"topic {name} is there" + ("" if found is None else f", partitions: {found}{differs}")
    except TimeoutError:
        raise AnalyticsError(f"topic {name} cannot be made: no answer") from None
    return f"topic {name} made, partitions: {partitions}"
