"""What a process may answer itself, and how much it keeps for that."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Final

from sluicegate.algorithms.leasing import LeaseTerms
from sluicegate.bounds import (
    DENIALS_MAX,
    EXACT_BELOW_MAX,
    HOT_PER_S_MAX,
    LEASE_HORIZON_US_MAX,
    LEASE_HORIZON_US_MIN,
    LEASES_IN_PROCESS_MAX,
    STRETCH_US_MAX,
    TRUST_US_MAX,
    TRUST_US_MIN,
)

__all__ = ["NearSettings"]

_RANGES: Final = {
    "horizon_us": (LEASE_HORIZON_US_MIN, LEASE_HORIZON_US_MAX),
    "exact_below": (1, EXACT_BELOW_MAX),
    "leases_max": (0, LEASES_IN_PROCESS_MAX),
    "denials_max": (0, DENIALS_MAX),
    "trust_us": (TRUST_US_MIN, TRUST_US_MAX),
    "stretch_max_us": (0, STRETCH_US_MAX),
    "hot_per_s": (1, HOT_PER_S_MAX),
    "cold_per_s": (0, HOT_PER_S_MAX),
    "cold_us": (1_000_000, 3_600_000_000),
}


@dataclass(frozen=True, slots=True)
class NearSettings:
    """The numbers of a near store. ValueError names the first that is out of range.

    ``terms``: how long a lease lasts and how far clocks are trusted; the same in the whole fleet. ``horizon_us``: for so long ahead tokens are
    taken, at most half of a lease; a quarter of it is the pace at which the store is asked. ``exact_below``: a counter of fewer tokens per
    process is decided by the store. ``leases_max``: counters that a process leases at one time, 0 for none.
    ``denials_max``: refusals that are remembered, 0 for none; ``trust_us``: for how long at most without asking again.
    ``stretch_max_us``: for how long at most where several processes are hammered for one counter, 0: no longer than the store said; see ``Rechecks``.
    ``hot_per_s``: at so many calls a second a counter is hot; ``cold_per_s``: below so many, for ``cold_us``, it is cold again, less than ``hot_per_s``.
    """

    terms: LeaseTerms = field(default_factory=LeaseTerms)
    horizon_us: int = 200_000
    exact_below: int = 50
    leases_max: int = 10_000
    denials_max: int = 100_000
    trust_us: int = 1_000_000
    stretch_max_us: int = 5_000_000
    hot_per_s: int = 50
    cold_per_s: int = 10
    cold_us: int = 10_000_000

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.name in _RANGES:
                value, (low, high) = getattr(self, one.name), _RANGES[one.name]
                if type(value) is not int or not low <= value <= high:
                    raise ValueError(f"{one.name}: must be an integer within {low}..{high}, got {value!r}")
        if 2 * self.horizon_us > self.terms.ttl_us:
            raise ValueError(f"horizon_us: must be at most half of ttl_us {self.terms.ttl_us}, got {self.horizon_us}")
        if self.cold_per_s >= self.hot_per_s:
            raise ValueError(f"cold_per_s: must be below hot_per_s {self.hot_per_s}, got {self.cold_per_s}")
