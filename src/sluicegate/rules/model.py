"""Rules as data: immutable, validated elsewhere, with no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from sluicegate.algorithms.precision import Precision
from sluicegate.algorithms.spec import OnChange, Spec

__all__ = [
    "SUBJECT_KINDS",
    "Arm",
    "CostFrom",
    "Entry",
    "FailurePolicy",
    "Match",
    "Mode",
    "OnMissing",
    "Penalty",
    "Per",
    "Quota",
    "Rule",
    "RuleSet",
    "Scope",
    "Tiers",
    "Trial",
]


class Scope(StrEnum):
    """Order of evaluation: global, then endpoint, then identity."""

    GLOBAL = "global"
    ENDPOINT = "endpoint"
    IDENTITY = "identity"


class Mode(StrEnum):
    ENFORCE = "enforce"
    SHADOW = "shadow"
    OFF = "off"


class FailurePolicy(StrEnum):
    """What a rule does when its counter cannot be reached."""

    LOCAL = "local"
    OPEN = "open"
    CLOSED = "closed"


class OnMissing(StrEnum):
    """What a rule does when a dimension of ``per`` is unknown; never one shared key."""

    SKIP = "skip"
    DENY = "deny"
    IP = "ip"


@dataclass(frozen=True, slots=True)
class Entry:
    """What one entry of a descriptor must be. ``value``: the text, in which ``*`` stands for any; None: any value.

    ``excluded``: texts of the same kind that the value must not be.
    """

    key: str
    value: str | None = None
    excluded: tuple[str, ...] = ()

    def __str__(self) -> str:
        value = "" if self.value is None else f"={self.value}"
        return f"{self.key}{value}" + "".join(f" not {text}" for text in self.excluded)


@dataclass(frozen=True, slots=True)
class Match:
    """All given conditions must hold; an empty field does not restrict. ``negate`` is the ``not:`` block.

    ``path`` is a pattern list (templates, ``*``, ``**``); ``ip`` a list of CIDR texts; ``headers`` and ``descriptors``
    map a name to a required value, or to None for mere presence. ``entries``: the entries of the descriptor, all of them and in
    this order; empty: any.
    """

    methods: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    headers: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    tier: tuple[str, ...] = ()
    tenant: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    ip: tuple[str, ...] = ()
    authenticated: bool | None = None
    domain: tuple[str, ...] = ()
    descriptors: Mapping[str, str | None] = field(default_factory=lambda: MappingProxyType({}))
    negate: Match | None = None
    entries: tuple[Entry, ...] = field(default=(), metadata={"told": "given"})


@dataclass(frozen=True, slots=True)
class Per:
    """The dimensions of a key: all of them (composite), or the first that is known.

    A dimension is ``ip user api_key tenant tier host method endpoint path domain``, ``header.NAME``,
    ``descriptor.KEY`` or ``attrs.NAME``. Empty: one counter for everybody.
    """

    dimensions: tuple[str, ...] = ()
    first_of: bool = False
    on_missing: OnMissing = OnMissing.SKIP


@dataclass(frozen=True, slots=True)
class Quota:
    """The numbers of a rule for one tier. No specs means ``unlimited``; ``text`` is what the user wrote."""

    specs: tuple[Spec, ...]
    text: str

    @property
    def unlimited(self) -> bool:
        return not self.specs


@dataclass(frozen=True, slots=True)
class CostFrom:
    """Cost read from a header; a malformed value takes ``max``, an absent one ``default``, all >= 1."""

    header: str
    min: int = 1
    max: int = 1
    default: int = 1


@dataclass(frozen=True, slots=True)
class Penalty:
    """After ``refusals`` within ``within_us`` a client is blocked for ``block_us``."""

    refusals: int
    within_us: int
    block_us: int


@dataclass(frozen=True, slots=True)
class Arm:
    """A share of all clients, as a rollout divides them.

    A client's bucket, of 10,000, follows from ``salt`` and from what the first of ``pers`` that is known makes of it. ``inside``: the
    share is the clients whose bucket is below ``basis_points``; else it is all others, and requests of which no client is known.
    """

    salt: str
    basis_points: int
    inside: bool
    pers: tuple[Per, ...]


@dataclass(frozen=True, slots=True)
class Trial:
    """The part of a rule in the rollout of this number. Rules files cannot express it; ``rules.effective`` makes it.

    ``rule``: the name in the file, by which its counters are kept; ``generation`` above 0 gives it counters of its own. ``arm``: the
    clients it applies to (None: everybody).
    """

    rollout: int
    rule: str
    generation: int = 0
    arm: Arm | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Its identity is its name: raising a limit keeps every counter.

    ``quotas`` maps a tier to its quota; the key None holds the quota of every tier not named.
    ``cost``: fixed multiplier of 1, or where to read it. ``line`` is where it stands in its file (0: not from a file).
    ``precision``: as given, or what follows from ``per``: LEASED where all clients share a counter, else AUTO; EXACT where nothing else can be.
    ``trial``: its part in a rollout, None for the rules of a file.
    """

    name: str
    scope: Scope
    match: Match
    per: Per
    quotas: Mapping[str | None, Quota]
    algorithm: str = "token_bucket"
    cost: int | CostFrom = 1
    mode: Mode = Mode.ENFORCE
    on_store_failure: FailurePolicy = FailurePolicy.LOCAL
    precision: Precision = Precision.AUTO
    denied_counts: bool = False
    on_change: OnChange = OnChange.KEEP
    respond: str | Mapping[str, object] = "429"
    penalty: Penalty | None = None
    fallback_start: str = "full"
    fallback_share: str = "even"
    line: int = 0
    trial: Trial | None = field(default=None, metadata={"told": "given"})

    @property
    def name_in_file(self) -> str:
        """The name by which people know the rule: that of its file, also while it is on trial."""
        return self.name if self.trial is None else self.trial.rule


@dataclass(frozen=True, slots=True)
class Tiers:
    """Known tiers; an unknown or absent one counts as ``default`` (None: there are no tiers)."""

    names: tuple[str, ...] = ()
    default: str | None = None


SUBJECT_KINDS: Final = ("api_key", "user", "tenant")
"""What a subject that has a tier or an override of its own can be (``user:8123``), in the order in which those of a request are asked."""


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules of one version, in file order. ``identity`` is the parsed ``identity:`` block, opaque here."""

    rules: tuple[Rule, ...]
    tiers: Tiers = Tiers()
    subjects: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    identity: object = None
    version: int = 1
    digest: str = ""
    source: str = ""
