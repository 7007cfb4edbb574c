"""Batches through Kafka: what a node hands them to, and what reads them into a home. All but the settings needs the extra ``kafka``.

The way of a batch, and what holds at each step, is in docs/analytics/kafka.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sluicegate.analytics.kafka.consumer import Consumer
    from sluicegate.analytics.kafka.lag import PartitionLag, lag_of
    from sluicegate.analytics.kafka.settings import KafkaSettings
    from sluicegate.analytics.kafka.sink import KafkaSink
    from sluicegate.analytics.kafka.stats import ConsumerStats
    from sluicegate.analytics.kafka.topics import TopicSettings, make_topics

__all__ = [
    "Consumer",
    "ConsumerStats",
    "KafkaSettings",
    "KafkaSink",
    "PartitionLag",
    "TopicSettings",
    "lag_of",
    "make_topics",
]

_MODULES = {
    "Consumer": "consumer",
    "ConsumerStats": "stats",
    "KafkaSettings": "settings",
    "KafkaSink": "sink",
    "PartitionLag": "lag",
    "TopicSettings": "topics",
    "lag_of": "lag",
    "make_topics": "topics",
}


def __getattr__(name: str) -> Any:
    """Import a public name; raises MissingExtra where it needs what is not installed."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)
