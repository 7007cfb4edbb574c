"""What is modelled: how large the fleet is, by which rules it decides, what happens to it. Everything here is an assumption, and said in the output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluicegate.algorithms.token_bucket import TokenBucket
from sluicegate.bounds import (
    REDIS_TIMEOUT_MS,
    SIM_CHECKS_PER_S_MAX,
    SIM_GATEWAYS_MAX,
    SIM_KEYS_MAX,
    SIM_MASTERS_MAX,
    SIM_SECONDS_MAX,
)
from sluicegate.clock import US_PER_MS, US_PER_S
from sluicegate.errors import ConfigurationError

__all__ = ["FREE", "PAID", "FleetPlan", "Scenario"]

_MINUTE_US: Final = 60 * US_PER_S

FREE: Final = TokenBucket(100, 100, _MINUTE_US)
PAID: Final = TokenBucket(1_000, 1_000, _MINUTE_US)


class Scenario(Enum):
    """What happens while the fleet is watched.

    ``STEADY``: nothing. ``FAILOVER``: the master of the global counter is lost with what its replica had not yet; the replica serves after a pause.
    ``VIRAL``: one client more, with a limit of its own, asks for nine tenths of all checks. ``RULE``: the global limit is lowered to half of what passes.
    """

    STEADY = "steady"
    FAILOVER = "failover"
    VIRAL = "viral"
    RULE = "rule"


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The numbers of one run. ConfigurationError names the flag whose number is out of range.

    ``rate``: checks per second and gateway. ``keys``: live clients, whose checks follow Zipf's law with ``exponent``; a tenth of them is paid; with ``affinity`` a client always
    comes to the same gateway. ``learn_passes`` off: deny caches that are not the
    product's, to compare with; see ``Caches``. ``seconds`` are watched after
    ``warmup_s`` that are not counted. ``oneway_us`` is the network's time from a gateway to a master, the same back, and an exponential ``jitter_us`` more.
    """

    gateways: int = 100
    rate: int = 10_000
    keys: int = 10_000_000
    masters: int = 8
    seconds: float = 10.0
    seed: int = 1
    scenario: Scenario = Scenario.STEADY
    exponent: float = 1.1
    paid: float = 0.1
    affinity: bool = False
    learn_passes: bool = True
    endpoint_part: float = 0.2
    warmup_s: float = 2.0
    tick_us: int = 5_000
    oneway_us: float = 100.0
    jitter_us: float = 50.0
    deadline_us: float = float(REDIS_TIMEOUT_MS * US_PER_MS)
    away_us: int = 1_500_000
    lag_us: int = 100_000
    told_us: tuple[int, int] = (50_000, 870_000)
    viral_part: float = 0.9

    def __post_init__(self) -> None:
        _within("gateways", self.gateways, 1, SIM_GATEWAYS_MAX)
        _within("rate", self.rate, 1, SIM_CHECKS_PER_S_MAX)
        if self.gateways * self.rate > SIM_CHECKS_PER_S_MAX:
            raise ConfigurationError(
                f"--rate: {self.rate} on {self.gateways} gateways is more than {SIM_CHECKS_PER_S_MAX} checks per second"
            )
        _within("keys", self.keys, 1, SIM_KEYS_MAX)
        _within("masters", self.masters, 1, SIM_MASTERS_MAX)
        if not (math.isfinite(self.seconds) and 0.5 <= self.seconds <= SIM_SECONDS_MAX):
            raise ConfigurationError(f"--seconds: must be within 0.5..{SIM_SECONDS_MAX}, got {self.seconds}")

    @property
    def checks_per_us(self) -> float:
        """Of the whole fleet."""
        return self.gateways * self.rate / US_PER_S

    @property
    def usual_per_us(self) -> float:
        """Without the viral client, for whose part there is room from the beginning."""
        part = 1.0 - self.viral_part if self.scenario is Scenario.VIRAL else 1.0
        return self.checks_per_us * part

    @property
    def event_us(self) -> int:
        """When the scenario's event happens: after a fifth of the time that is watched."""
        return round((self.warmup_s + self.seconds * 0.2) * US_PER_S)

    @property
    def begin_us(self) -> int:
        """When counting begins."""
        return round(self.warmup_s * US_PER_S)

    @property
    def end_us(self) -> int:
        """The end of the run."""
        return round((self.warmup_s + self.seconds) * US_PER_S)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigurationError(f"--{name}: must be within {least}..{most}, got {value}")
