"""What a server is told about analytics: the values of its flags, checked as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sluicegate.analytics.embedded import Retention
from sluicegate.errors import ConfigurationError

__all__ = ["MODES", "SUBJECTS", "AnalyticsSettings"]

MODES: Final = ("auto", "embedded", "kafka", "off")
SUBJECTS: Final = ("digest", "plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalyticsSettings:
    """What is told of decisions, and to whom. Raises ConfigurationError where the values contradict each other.

    ``mode``: where batches go: "embedded" into the file in the data directory, "kafka" to ``kafka``, "off" nowhere; "auto": to Kafka where brokers are
    named, else into the file. ``subjects``: clients are told of by digests, or "plain". ``secret_file``: secrets of the digests; None: those
    in the data directory. ``retention``: of the file. ``kafka``: brokers (HOST:PORT,
    several with commas); ``kafka_config``: a file of client properties. ``clickhouse``: where the rules service of ``up`` asks; None: in the file.
    """

    mode: str = "auto"
    subjects: str = "digest"
    secret_file: Path | None = None
    retention: Retention = field(default_factory=Retention)
    kafka: str | None = None
    kafka_topic: str | None = None
    kafka_config: Path | None = None
    clickhouse: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigurationError(f"--analytics must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.subjects not in SUBJECTS:
            raise ConfigurationError(
                f"--analytics-subjects must be one of {', '.join(SUBJECTS)}, got {self.subjects!r}"
            )
        if self.mode == "kafka" and self.kafka is None:
            raise ConfigurationError("--analytics kafka needs --kafka HOST:PORT")
        if self.mode in ("embedded", "off") and self.kafka is not None:
            raise ConfigurationError(f"--kafka and --analytics {self.mode} exclude each other")
        if self.kafka is None and (self.kafka_topic or self.kafka_config):
            raise ConfigurationError("--kafka-topic and --kafka-config need --kafka HOST:PORT")

    @property
    def goes_to(self) -> str:
        """One of MODES, but auto."""
        if self.mode != "auto":
            return self.mode
        return "embedded" if self.kafka is None else "kafka"
