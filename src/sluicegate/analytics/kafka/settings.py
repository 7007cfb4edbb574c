"""How Kafka is reached: addresses, topic, and a file of client properties, which is where secrets and certificates belong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from sluicegate.bounds import KAFKA_CONFIG_BYTES_MAX, KAFKA_SESSION_TIMEOUT_MS
from sluicegate.errors import ConfigurationError, without_login

__all__ = ["GROUP", "TOPIC", "KafkaSettings", "read_properties"]

TOPIC: Final = "sluicegate.decisions.v1"
"""The topic that nodes tell, unless said otherwise: the version is that of the schema."""
GROUP: Final = "sluicegate"
"""The consumer group, unless said otherwise."""
DEAD: Final = ".dead"
"""What the name of a topic's dead letters ends with."""

OWNED: Final = MappingProxyType(
    {
        "acks": "what is not acknowledged by all replicas is not delivered",
        "auto.offset.reset": "what was told before is read first",
        "bootstrap.servers": "it is told by --kafka",
        "delivery.report.only.error": "each batch is counted when it is acknowledged",
        "enable.auto.commit": "an offset is committed when the home has what is before it",
        "enable.auto.offset.store": "an offset is committed when the home has what is before it",
        "enable.idempotence": "a batch must not be written twice where that can be avoided",
        "group.id": "it is told by --kafka-group",
        "group.protocol": "only the classic protocol is supported",
        "message.max.bytes": "the topic's limit is set when it is made",
        "metadata.broker.list": "it is told by --kafka",
        "partition.assignment.strategy": "partitions must be handed over one by one",
        "request.required.acks": "what is not acknowledged by all replicas is not delivered",
    }
)
"""Properties on which what is promised depends, and why they cannot be set."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,240}")
_PROPERTY: Final = re.compile(r"[a-z0-9.]+")
_ADDRESS: Final = re.compile(r"(?:[^\s,:/\[\]]+|\[[0-9A-Fa-f:.%]+\]):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How Kafka is reached. Raises ConfigurationError for what cannot be.

    ``brokers``: ``HOST:PORT``, several with commas; any of the cluster, the rest are found through them. ``properties``: of the client library
    (librdkafka), by its names; they go before what is set here, except those of ``OWNED``. Their values may be secrets, so no error or log line shows one.
    """

    brokers: str
    topic: str = TOPIC
    group: str = GROUP
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    session_timeout_ms: int = KAFKA_SESSION_TIMEOUT_MS

    def __post_init__(self) -> None:
        for address in self.brokers.split(","):
            found = _ADDRESS.fullmatch(address.strip())
            if found is None or not 0 < int(found[1]) < 65_536:
                raise ConfigurationError(f"--kafka: {without_login(address.strip())!r} is not HOST:PORT")
        for flag, name in (("kafka-topic", self.topic), ("kafka-group", self.group)):
            if not _NAME.fullmatch(name) or name in (".", ".."):
                raise ConfigurationError(
                    f"--{flag}: {name!r} must be letters, digits, '.', '_' and '-', at most 240 of them"
                )
        for key in self.properties:
            if key in OWNED:
                raise ConfigurationError(f"--kafka-config: {key} cannot be set: {OWNED[key]}")

    @property
    def dead_topic(self) -> str:
        """Where messages go that no home can keep."""
        return self.topic + DEAD


def read_properties(path: Path) -> dict[str, str]:
    """The client properties in a file: ``name=value`` a line, comments begin with ``#``. Raises ConfigurationError.

    What names exist is known to the client library only, which is asked when a client is made.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(KAFKA_CONFIG_BYTES_MAX + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise ConfigurationError(f"--kafka-config: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigurationError(f"--kafka-config: {path} is not UTF-8") from None
    if len(raw) > KAFKA_CONFIG_BYTES_MAX:
        raise ConfigurationError(f"--kafka-config: {path} is larger than {KAFKA_CONFIG_BYTES_MAX} bytes")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, sign, value = line.partition("=")
        name = name.strip()
        if not sign or not _PROPERTY.fullmatch(name):
            # The line is not shown: it may hold a password.
            raise ConfigurationError(f"--kafka-config: {path}, line {number}: must be name=value")
        if name in found:
            raise ConfigurationError(f"--kafka-config: {path}, line {number}: {name} is there twice")
        found[name] = value.strip()
    return found
