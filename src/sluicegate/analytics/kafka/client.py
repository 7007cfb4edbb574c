"""The client library, and its settings for each use. Everything here that needs it imports it from this module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from sluicegate.analytics.kafka.settings import KafkaSettings
from sluicegate.bounds import (
    KAFKA_MESSAGE_BYTES_MAX,
    KAFKA_MESSAGE_TIMEOUT_MS,
    KAFKA_POLL_INTERVAL_MS,
    KAFKA_PREFETCH_KB,
    KAFKA_UNACKNOWLEDGED_BYTES_MAX,
    KAFKA_UNACKNOWLEDGED_MAX,
)
from sluicegate.errors import AnalyticsError, ConfigurationError, MissingExtra

try:
    import confluent_kafka as library
    import confluent_kafka.admin as admin_library
    import confluent_kafka.cimpl as names
except ImportError:
    raise MissingExtra("kafka", "Kafka") from None

__all__ = [
    "Complaints",
    "admin_library",
    "admin_properties",
    "consumer_properties",
    "describe",
    "library",
    "made",
    "names",
    "producer_properties",
    "wrong",
]

_LOG: Final = logging.getLogger("sluicegate.kafka")

Made = TypeVar("Made")


def _common(settings: KafkaSettings) -> dict[str, Any]:
    """What all clients share. The library's own log is off: each failure is told once by its callback, in our words."""
    return {
        "client.id": "sluicegate",
        "log_level": 0,
        "reconnect.backoff.max.ms": 2_000,
        # A topic that was just made is found sooner than after half a minute.
        "topic.metadata.propagation.max.ms": 5_000,
        **settings.properties,
        "bootstrap.servers": settings.brokers,
    }


def producer_properties(settings: KafkaSettings) -> dict[str, Any]:
    """Of a producer that loses nothing it can keep: all replicas acknowledge, a retry is not written twice, and every batch has its report."""
    return {
        "compression.type": "zstd",
        "linger.ms": 50,
        "message.timeout.ms": KAFKA_MESSAGE_TIMEOUT_MS,
        "partitioner": "murmur2_random",
        "queue.buffering.max.kbytes": KAFKA_UNACKNOWLEDGED_BYTES_MAX // 1_024 * 2,
        "queue.buffering.max.messages": KAFKA_UNACKNOWLEDGED_MAX * 2,
        **_common(settings),
        "acks": "all",
        "enable.idempotence": True,
        "message.max.bytes": KAFKA_MESSAGE_BYTES_MAX,
    }


def consumer_properties(settings: KafkaSettings) -> dict[str, Any]:
    """Of a consumer that says itself what it has done, and hands over partitions one by one."""
    return {
        "fetch.max.bytes": KAFKA_MESSAGE_BYTES_MAX,
        "max.poll.interval.ms": KAFKA_POLL_INTERVAL_MS,
        "queued.max.messages.kbytes": KAFKA_PREFETCH_KB,
        "session.timeout.ms": settings.session_timeout_ms,
        **_common(settings),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "group.id": settings.group,
        "message.max.bytes": KAFKA_MESSAGE_BYTES_MAX,
        "partition.assignment.strategy": "cooperative-sticky",
    }


def admin_properties(settings: KafkaSettings) -> dict[str, Any]:
    """Of a client that asks about topics and makes them."""
    return _common(settings)


def made(make: Callable[[dict[str, Any]], Made], properties: Mapping[str, Any]) -> Made:
    """A client. Raises ConfigurationError where the library does not take its properties."""
    try:
        return make(dict(properties))
    except (library.KafkaException, TypeError, ValueError) as error:
        # The library's words name the property and, for a value out of range, what was given: never a secret, which may be any text.
        raise ConfigurationError(f"--kafka-config: {describe(error)}") from error


def describe(error: Any) -> str:
    """What the library says of a failure: its name and its words."""
    if isinstance(error, library.KafkaException):
        error = error.args[0]
    if isinstance(error, library.KafkaError):
        return f"{error.name()}: {error.str()}"
    return str(error)


def wrong(what: str, error: Any) -> AnalyticsError:
    """``error`` of the library as ours; transient unless the cluster said no."""
    inner = error.args[0] if isinstance(error, library.KafkaException) else error
    refused = isinstance(inner, library.KafkaError) and inner.code() in _REFUSED
    return AnalyticsError(f"{what}: {describe(error)}", transient=not refused)


_REFUSED: Final = frozenset(
    {
        library.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        library.KafkaError.GROUP_AUTHORIZATION_FAILED,
        library.KafkaError.SASL_AUTHENTICATION_FAILED,
        library.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        library.KafkaError._AUTHENTICATION,
        library.KafkaError._SSL,
    }
)


class Complaints:
    """What the library tells of its own accord, logged when it changes: a broker that is away says so many times a second.

    ``count``: all of them. ``fatal``: the client cannot go on, in the library's words; "" while it can.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = ""
        self.count = 0
        self.fatal = ""

    def __call__(self, error: Any) -> None:
        self.count += 1
        if error.fatal():
            self.fatal = describe(error)
        name = error.name()
        if name != self._last:
            self._last = name
            _LOG.warning("kafka_trouble", extra={"fields": {"of": self._what, "error": describe(error)}})

    def over(self) -> None:
        """Something went well: the next complaint is news."""
        if self._last:
            self._last = ""
            _LOG.info("kafka_well_again", extra={"fields": {"of": self._what}})
