"""What a holder and a store say to each other about leases. Plain values, and the arithmetic both must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluicegate.algorithms._fields import check_integer
from sluicegate.bounds import (
    CAPACITY_MAX,
    COST_MAX,
    LEASE_DRIFT_PPM_MAX,
    LEASE_DRIFT_PPM_MIN,
    LEASE_REPORTS_MAX,
    LEASE_SERIAL_MAX,
    LEASE_TTL_US_MAX,
    LEASE_TTL_US_MIN,
)

__all__ = ["HOLDER_CHARS", "LeaseAsk", "LeaseGrant", "LeaseReport", "LeaseTerms", "check_ask", "lease_size"]

HOLDER_CHARS: Final = 8
"""A holder's name: so many ASCII characters, drawn anew by every process."""

LIFE_CHARS_MAX: Final = 16
"""An incarnation's name: what a server is told apart by."""

_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How long a lease lasts, and how far clocks are trusted; the same in the whole fleet. ValueError names a bad number.

    ``ttl_us``: the nominal length. ``drift_ppm``: the most by which any clock, the store's or a holder's, runs fast or slow.
    ``confirmed``: what is granted is used only when a replica of the store has it, for counters that must not be granted twice after a failover.
    """

    ttl_us: int = 1_000_000
    drift_ppm: int = 10_000
    confirmed: bool = False

    def __post_init__(self) -> None:
        check_integer("ttl_us", self.ttl_us, LEASE_TTL_US_MIN, LEASE_TTL_US_MAX)
        check_integer("drift_ppm", self.drift_ppm, LEASE_DRIFT_PPM_MIN, LEASE_DRIFT_PPM_MAX)

    @property
    def hold_us(self) -> int:
        """How long the store waits for a lease, by its clock: ttl * (1 + drift), rounded up."""
        return -(-self.ttl_us * (_MILLION + self.drift_ppm) // _MILLION)

    def usable_us(self, lasts_us: int) -> int:
        """How long a holder may spend of a lease that lasts ``lasts_us`` by the store's clock: by its own clock, from the *send*.

        Times (1 - drift) / (1 + drift), rounded down: a holder whose clock is as slow as can be still ends before a store whose
        clock is as fast as can be. Of a whole lease this is ttl * (1 - drift).
        """
        return lasts_us * (_MILLION - self.drift_ppm) // (_MILLION + self.drift_ppm)


class LeaseReport(NamedTuple):
    """What a holder has spent of one lease in all; by id and cumulative, so it may come twice, late or never.

    ``closed``: the holder spends nothing more of it, and the rest goes back.
    """

    serial: int
    spent: int
    closed: bool = False


class LeaseAsk(NamedTuple):
    """What a holder says about one counter: reports, and (``serial`` >= 1, ``want`` >= 1) a wish for a new lease.

    ``serial``: the id of the wished lease, never used before by this holder for this counter. ``want``: the tokens its callers will
    take while it lasts. ``share``: the part of what is left that one lease may take at most is 1 / ``share``; twice the number of
    nodes leaves something for everybody.
    ``settled``: the caller answers for it that no write of the store was lost for a whole ``hold_us``: a counter that is missing is
    new, and one without leases has none. Where ``life`` is given, it says so of this incarnation only. Else both are taken for lost, or
    with ``cautious`` left alone: nothing is changed, and the answer says ``lost``.
    ``retire``: the counter becomes an exact one again once nothing of it is out.
    """

    reports: Sequence[LeaseReport] = ()
    serial: int = 0
    want: int = 0
    share: int = 1
    settled: bool = False
    retire: bool = False
    cautious: bool = False
    life: str = ""

    def answers_for(self, incarnation: str) -> bool:
        """Whether ``settled`` is said of this life of the server."""
        return self.settled and self.life in {"", incarnation}


class LeaseGrant(NamedTuple):
    """The store's answer about one counter.

    ``granted``: tokens of the wished lease, 0 where there is none. ``lasts_us``: how long it lasts from ``now_us`` on, by the store's
    clock. ``level``: tokens left to grant or charge, and ``out``: tokens granted and not known to be spent, both after the step.
    ``wanted``: somebody was refused lately while tokens are out: idle leases are asked for. ``lost``: the counter was found lost
    in this step, or with ``cautious`` would be. ``incarnation``: the life of the server that answered. ``leases``: how many there are of the
    counter, which is about the number of processes that use it. ``confirmed``: False where a replica should have the grant and does not.
    """

    granted: int
    lasts_us: int
    level: int
    out: int
    wanted: bool
    lost: bool
    now_us: int
    incarnation: str
    leases: int = 0
    confirmed: bool = True


def check_ask(ask: LeaseAsk) -> None:
    """ValueError for an ask with a number out of range, naming it."""
    if len(ask.reports) > LEASE_REPORTS_MAX:
        raise ValueError(f"reports: at most {LEASE_REPORTS_MAX}, got {len(ask.reports)}")
    check_integer("serial", ask.serial, 0, LEASE_SERIAL_MAX)
    check_integer("want", ask.want, 0, COST_MAX)
    check_integer("share", ask.share, 1, CAPACITY_MAX)
    if len(ask.life) > LIFE_CHARS_MAX:
        raise ValueError(f"life: at most {LIFE_CHARS_MAX} characters, got {len(ask.life)}")
    for report in ask.reports:
        check_integer("serial", report.serial, 1, LEASE_SERIAL_MAX)
        check_integer("spent", report.spent, 0, CAPACITY_MAX)


def lease_size(level: int, want: int, share: int) -> int:
    """Tokens of a new lease: what is wanted, at most ``1 / share`` of the level, at least one where there is one."""
    return min(level, max(1, min(want, level // share))) if want > 0 else 0
