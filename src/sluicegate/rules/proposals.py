"""Proposals of other numbers for rules, as data: what is proposed, and what it rests on."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

__all__ = ["Bucket", "Confidence", "Evidence", "Quantiles", "Refusals", "Suggestion", "Verdict"]

Verdict = Literal["raise", "lower", "keep", "not enough data"]
Confidence = Literal["none", "low", "medium", "high"]


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
