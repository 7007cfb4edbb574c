"""Made traffic of clients of several sorts, as nodes would tell of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sluicegate.algorithms.spec import Spec
from sluicegate.analytics.suggestions import Limits, Policy
from sluicegate.clock import US_PER_S
from sluicegate.events import Demand
from sluicegate.rules.quota_format import format_quota

Row = Callable[..., Demand]
BASE_S = 1_700_000_040


@pytest.fixture(scope="session")
def row() -> Row:
    """One row of demand: what a client asked in a minute, ``refused`` of it, evenly unless peaks are given."""

    def make(
        subject: str, minute: int, tokens: int, refused: int = 0, *, peak: int = 0, tier: str = "", share: float = 1.0
    ) -> Demand:
        short, long = max(peak, -(-tokens // 60)), max(peak, -(-tokens // 6))
        at_us = (BASE_S + 60 * minute) * US_PER_S
        return Demand("api", tier, subject, at_us, 60, tokens, tokens, refused, short, long, share)

    return make


@pytest.fixture(scope="session")
def limits() -> Callable[..., Limits]:
    """The limits of the rule ``api``."""

    def make(*specs: Spec, **other: object) -> Limits:
        return Limits("api", "", tuple(specs), format_quota(specs), **other)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def world(row: Row) -> Callable[..., list[Demand]]:
    """Days of traffic: of each (clients, tokens a minute) one sort, each client twice a day; above ``limit`` all is refused."""

    def make(*sorts: tuple[int, int], limit: int, days: int = 2, every: int = 720) -> list[Demand]:
        made = []
        for sort, (clients, tokens) in enumerate(sorts):
            for number in range(clients):
                for minute in range(number % every, days * 1_440, every):
                    made.append(row(f"{sort}-{number:05}", minute, tokens, max(0, tokens - limit)))
        return made

    return make


@pytest.fixture(scope="session")
def policy() -> Policy:
    """The defaults, with little traffic being enough."""
    return Policy(clients_min=20, requests_min=20)


@pytest.fixture(scope="session")
def minutes() -> Callable[[Sequence[Demand], int], list[Demand]]:
    """The same traffic, ``times`` as much of everything."""

    def make(rows: Sequence[Demand], times: int) -> list[Demand]:
        return [
            Demand(
                one.rule, one.tier, one.subject, one.at_us, one.span_s, one.asked * times, one.tokens * times,
                one.refused * times, one.peak_1s * times, one.peak_10s * times, one.sample_rate,
            )
            for one in rows
        ]  # fmt: skip

    return make
