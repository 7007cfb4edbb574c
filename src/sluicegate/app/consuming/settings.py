"""What a consuming process is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sluicegate.analytics.kafka.settings import KafkaSettings
from sluicegate.bounds import KAFKA_BLOCK_LINGER_S
from sluicegate.doors.listen import Address
from sluicegate.errors import ConfigurationError

__all__ = ["ConsumingSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumingSettings:
    """``clickhouse``: URL of the home; None: the embedded one in ``data``. ``health``: where /livez, /readyz, /healthz and /metrics are; None: nowhere.

    ``linger_s``: how long batches wait at most for others, so that they are put into the home together. Raises ConfigurationError.
    """

    kafka: KafkaSettings
    clickhouse: str | None = None
    data: Path = Path(".sluicegate")
    linger_s: float = KAFKA_BLOCK_LINGER_S
    health: Address | None = None
    log_format: str = "auto"

    def __post_init__(self) -> None:
        if not 0 <= self.linger_s <= 300:
            raise ConfigurationError(f"--linger: must be 0 to 300 s, got {self.linger_s:g} s")
