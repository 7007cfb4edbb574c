"""What goes into a proposal and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from msgspec import Struct

from sluicegate.algorithms.spec import Spec
from sluicegate.errors import ConfigurationError

__all__ = [
    "Bucket", "Confidence", "Evidence", "Exact", "Judged", "Limits", "Policy", "Quantiles", "Refusals", "Suggestion", "Verdict",
]  # fmt: skip

Verdict = Literal["raise", "lower", "keep", "not enough data"]
Confidence = Literal["none", "low", "medium", "high"]


@dataclass(frozen=True, slots=True)
class Limits:
    """A rule's numbers for one tier. ``tier``: "" for everybody.

    ``specs``: all must pass; none means unlimited. ``others``: where these are the numbers of the default tier, the tiers that have their own; all
    that are not among them count as the default. None where it is not the default. ``shared``: all clients count
    on one counter. ``minimum``: what must not be gone below, None where nothing was promised.
    """

    rule: str
    tier: str
    specs: tuple[Spec, ...]
    text: str
    others: frozenset[str] | None = frozenset()
    shared: bool = False
    mode: str = "enforce"
    denied_counts: bool = False
    penalty: bool = False
    minimum: Spec | None = None
    minimum_text: str = ""

    def covers(self, tier: str) -> bool:
        """Whether these are the numbers of a client of this tier."""
        return tier == self.tier if self.others is None else tier not in self.others


@dataclass(frozen=True, slots=True)
class Policy:
    """How proposals are made; docs/analytics/suggestions.md says why these are the defaults.

    ``target_share``: of the clients that shall never be refused. ``headroom``: times what they need. ``step_max``: at most so many times the
    limit of now, or one so-manieth. ``keep_above``: a limit of which more than this share is needed, headroom included, is not lowered.
    ``clients_min`` and ``requests_min``: sampled. ``raise_span_s`` and ``lower_span_s``: how long traffic must have been seen.
    ``outlier_factor``: who asks more than so many times what 95 % of the clients stay below is left out, at most ``outlier_share_max`` of the clients.
    Raises ConfigurationError for a number out of range.
    """

    target_share: float = 0.995
    headroom: float = 1.25
    step_max: float = 2.0
    keep_above: float = 0.75
    clients_min: int = 200
    requests_min: int = 2_000
    raise_span_s: int = 3_600
    lower_span_s: int = 86_400
    outlier_factor: float = 5.0
    outlier_share_max: float = 0.02

    def __post_init__(self) -> None:
        for name, least, most in (
            ("target_share", 0.5, 0.9999), ("headroom", 1.0, 10.0), ("step_max", 1.01, 10.0), ("keep_above", 0.0, 1.0),
            ("clients_min", 1, 10**9), ("requests_min", 1, 10**12), ("raise_span_s", 1, 10**9), ("lower_span_s", 1, 10**9),
            ("outlier_factor", 1.0, 1_000.0), ("outlier_share_max", 0.0, 0.1),
        ):  # fmt: skip
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigurationError(f"{name}: must be in {least:g}..{most:g}, got {value:g}")


@dataclass(frozen=True, slots=True)
class Exact:
    """What was counted of a rule without sampling: requests it applied to, refused ones, and the versions of the rules that decided them."""

    matched: int = 0
    refused: int = 0
    versions: tuple[int, ...] = ()


class Quantiles(Struct, frozen=True):
    """Tokens that clients asked in their busiest ``window_s`` seconds: half of the clients at most ``p50``, and so on."""

    window_s: float
    p50: int
    p90: int
    p99: int
    p999: int
    max: int


class Refusals(Struct, frozen=True):
    """Shares, of 1, under some numbers: of the clients that are refused at least once, and of the requests that are refused.

    ``low`` and ``high``: between which the share of clients lies with 95 % confidence, as far as chance decides who was sampled.
    """

    clients: float
    requests: float
    low: float
    high: float


class Bucket(Struct, frozen=True):
    """A bucket that serves the wanted share of the clients: ``capacity`` is the smallest for the rate of ``tokens`` per ``period_us``."""

    tokens: int
    period_us: int
    capacity: int


class Evidence(Struct, frozen=True):
    """What a proposal rests on.

    ``clients``, ``requests``: sampled, and estimated of all. ``span_s``: from the first row to the end of the last. ``needed``: what would do for the
    wanted share of the clients, without headroom, per part of the quota; 0 where it was not looked for. ``now`` and ``proposed``: replayed by the
    rule's own algorithm, without ``excluded`` clients. ``seen``: what was really refused, of all. ``half_of_refusals``: the fewest clients that
    half of all refusals were of, ``top_client``: the share of refusals of the one with the most. ``excluded_requests``: their share of all.
    ``buckets``: other numbers that serve the same clients.
    """

    clients: int
    clients_estimated: int
    requests: int
    requests_estimated: int
    span_s: int
    sample_rate_min: float
    sample_rate_max: float
    demand: Quantiles | None
    needed: tuple[int, ...]
    seen: Refusals | None
    now: Refusals | None
    proposed: Refusals | None
    refused_clients: int = 0
    half_of_refusals: int = 0
    top_client: float = 0.0
    excluded: int = 0
    excluded_requests: float = 0.0
    buckets: tuple[Bucket, ...] = ()
    matched: int = 0
    refused: int = 0


class Suggestion(Struct, frozen=True):
    """A proposal for one rule and tier. Nothing follows from it by itself.

    ``id``: the same for the same proposal from the same traffic. ``current`` and ``proposed``: quotas as they are written in a rules file; the same
    unless ``verdict`` is "raise" or "lower". ``why``: in one or two sentences. ``missing``: what there is too little of.
    """

    id: str
    rule: str
    tier: str
    verdict: Verdict
    current: str
    proposed: str
    why: str
    confidence: Confidence
    evidence: Evidence
    cautions: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """Numbers that were chosen. ``needed``: per part of the quota; ``capped``: more is needed than one step allows."""

    specs: tuple[Spec, ...]
    needed: tuple[int, ...]
    capped: bool = False
    held: bool = False
    buckets: tuple[Bucket, ...] = ()
