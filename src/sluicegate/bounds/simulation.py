"""Of the fleet model."""

from __future__ import annotations

from typing import Final

__all__ = [
    "SIM_CALIBRATION_BYTES_MAX",
    "SIM_CHECKS_PER_S_MAX",
    "SIM_COST_US_MAX",
    "SIM_GATEWAYS_MAX",
    "SIM_HEAD_CLIENTS",
    "SIM_KEYS_MAX",
    "SIM_LATENCY_US_MAX",
    "SIM_MASTERS_MAX",
    "SIM_SECONDS_MAX",
    "SIM_STRATUM_CLIENTS",
]

# Fleet model: gateways. Each asks for leases by itself; a thousand of them take minutes, and a counter has room for as many leases (LEASES_PER_COUNTER_MAX).
SIM_GATEWAYS_MAX: Final = 500

# Fleet model: checks per second of all gateways together. A second of ten million takes minutes to play.
SIM_CHECKS_PER_S_MAX: Final = 10_000_000

# Fleet model: live clients. They are not held one by one, so this bounds only what the arithmetic of ranks is tested for.
SIM_KEYS_MAX: Final = 1_000_000_000

# Fleet model: masters; each is one queue.
SIM_MASTERS_MAX: Final = 256

# Fleet model: seconds that are played; one of the default fleet takes about five seconds of one core.
SIM_SECONDS_MAX: Final = 600

# Fleet model: clients of the highest ranks that are played one by one, and how many of each stratum of ranks below are: a stratum's clients differ by a
# fifth in rate, so a few dozen stand for all.
SIM_HEAD_CLIENTS: Final = 200
SIM_STRATUM_CLIENTS: Final = 32

# Fleet model: latencies are counted in steps of a microsecond up to here; what is longer is counted as this long, and the longest is kept.
SIM_LATENCY_US_MAX: Final = 100_000

# Fleet model: a file of costs has ten short lines, and no cost of one call reaches a second.
SIM_CALIBRATION_BYTES_MAX: Final = 65_536
SIM_COST_US_MAX: Final = 1_000_000
