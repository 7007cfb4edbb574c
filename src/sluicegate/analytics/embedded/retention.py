"""How long what is kept."""

from __future__ import annotations

from dataclasses import dataclass

from sluicegate.analytics.model import HOUR_S, MINUTE_S, SECOND_S
from sluicegate.bounds import (
    ADMISSIONS_KEPT_S,
    DECISIONS_KEPT_S,
    DEMAND_KEPT_S,
    EMBEDDED_HOME_BYTES,
    EMBEDDED_HOME_BYTES_MIN,
    HOURS_KEPT_S,
    MINUTES_KEPT_S,
    SECONDS_KEPT_S,
)
from sluicegate.errors import ConfigurationError

__all__ = ["Retention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Seconds before the newest batch, whole ones, for which each sort of row is kept; raises ConfigurationError for one below its least.

    ``seconds_s``, ``minutes_s``, ``hours_s``: counts by cells of that length, each at least as long as the one before. ``size_max_bytes``: of the file;
    where it is reached the oldest detail goes before its time.
    """

    seconds_s: int = SECONDS_KEPT_S
    minutes_s: int = MINUTES_KEPT_S
    hours_s: int = HOURS_KEPT_S
    decisions_s: int = DECISIONS_KEPT_S
    demand_s: int = DEMAND_KEPT_S
    admissions_s: int = ADMISSIONS_KEPT_S
    size_max_bytes: int = EMBEDDED_HOME_BYTES

    def __post_init__(self) -> None:
        least = 2 * MINUTE_S
        for name in ("seconds_s", "minutes_s", "hours_s", "decisions_s", "demand_s", "admissions_s"):
            if getattr(self, name) < least:
                raise ConfigurationError(f"{name} must be {least} s or more, got {getattr(self, name)}")
        if not self.seconds_s <= self.minutes_s <= self.hours_s:
            raise ConfigurationError(
                f"seconds_s, minutes_s, hours_s: coarser counts must be kept as long as finer ones, got {self.seconds_s}, "
                f"{self.minutes_s}, {self.hours_s}"
            )
        if self.size_max_bytes < EMBEDDED_HOME_BYTES_MIN:
            raise ConfigurationError(
                f"size_max_bytes must be {EMBEDDED_HOME_BYTES_MIN} or more, got {self.size_max_bytes}"
            )

    @property
    def of_cells(self) -> dict[int, int]:
        """By the length of the cells."""
        return {SECOND_S: self.seconds_s, MINUTE_S: self.minutes_s, HOUR_S: self.hours_s}
