"""How far a consumer group has read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sluicegate.analytics.kafka.blocks import intended
from sluicegate.analytics.kafka.client import consumer_properties, library, made, wrong
from sluicegate.analytics.kafka.settings import KafkaSettings
from sluicegate.bounds import KAFKA_REQUEST_TIMEOUT_S

__all__ = ["PartitionLag", "lag_of"]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition. ``committed``: the first offset that is not known to be in the home; None where nothing was committed.

    ``first``, ``end``: the first offset that Kafka still has, and the one after its last. ``begun``: a block was begun there and not finished.
    """

    partition: int
    first: int
    end: int
    committed: int | None
    begun: bool

    @property
    def lag(self) -> int:
        """Messages that are not known to be in the home and can still be read."""
        return self.end - max(self.first, self.committed or 0)

    @property
    def missing(self) -> int:
        """Messages that were deleted before they were read."""
        return max(0, self.first - (self.committed or 0)) if self.committed is not None else 0


def lag_of(settings: KafkaSettings) -> list[PartitionLag]:
    """Of each partition of the topic, in their order. Joins no group. Raises AnalyticsError where the cluster cannot be asked or has no such topic."""
    client = made(library.Consumer, consumer_properties(settings))
    try:
        topic = client.list_topics(settings.topic, timeout=KAFKA_REQUEST_TIMEOUT_S).topics[settings.topic]
        if topic.error is not None:
            raise wrong(f"topic {settings.topic}", topic.error)
        asked = [library.TopicPartition(settings.topic, number) for number in sorted(topic.partitions)]
        found = []
        for place in _committed(client, asked):
            if place.error is not None:
                raise wrong(f"group {settings.group}", place.error)
            first, end = client.get_watermark_offsets(place, timeout=KAFKA_REQUEST_TIMEOUT_S)
            committed = place.offset if place.offset >= 0 else None
            begun = committed is not None and intended(place.metadata) is not None
            found.append(PartitionLag(place.partition, first, end, committed, begun))
    except library.KafkaException as error:
        raise wrong(f"Kafka at {settings.brokers} cannot be asked", error) from error
    finally:
        client.close()
    return found


_ATTEMPTS: Final = 20
_PAUSE_S: Final = 0.5
_NOT_READY: Final = frozenset(
    {
        library.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        library.KafkaError.COORDINATOR_NOT_AVAILABLE,
        library.KafkaError.NOT_COORDINATOR,
        library.KafkaError._WAIT_COORD,
    }
)


def _committed(client: Any, asked: list[Any]) -> list[Any]:
    """What is committed. A cluster in which nobody has read yet makes the topic of offsets first, and says meanwhile that it is not ready."""
    for _ in range(_ATTEMPTS):
        try:
            return list(client.committed(asked, timeout=KAFKA_REQUEST_TIMEOUT_S))
        except library.KafkaException as error:
            if error.args[0].code() not in _NOT_READY:
                raise
            client.poll(_PAUSE_S)
    return list(client.committed(asked, timeout=KAFKA_REQUEST_TIMEOUT_S))
