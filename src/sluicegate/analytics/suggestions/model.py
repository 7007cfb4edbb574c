"""What goes into a proposal and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass

from sluicegate.algorithms.spec import Spec
from sluicegate.errors import ConfigurationError
from sluicegate.rules.proposals import Bucket

__all__ = ["Exact", "Judged", "Limits", "Policy"]


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


@dataclass(frozen=True, slots=True)
class Judged:
    """Numbers that were chosen. ``needed``: per part of the quota; ``capped``: more is needed than one step allows."""

    specs: tuple[Spec, ...]
    needed: tuple[int, ...]
    capped: bool = False
    held: bool = False
    buckets: tuple[Bucket, ...] = ()
