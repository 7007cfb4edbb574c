"""What a rules service tells the nodes, and what they tell it: the form of the messages, and nothing of how they travel.

A node holds five things that change apart from each other, each with a number that grows: the rule set, its overlay (a rollout
and pauses), the lists, the subjects, and the epoch of counters. ``Revisions`` are these five numbers. What travels by push is
only them, as a hint; a node that sees a number it does not have asks for what belongs to it.

Rules are told whole (``Snapshot``), lists and subjects as what changed since a revision (``ListChanges``, ``SubjectChanges``), so
that one edit never ships them all again. All times are microseconds since 1970, UTC, by the clock of the rules service.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

__all__ = [
    "POSTGRES_CHANNEL",
    "Candidate",
    "CandidateKind",
    "ListChanges",
    "ListEntry",
    "ListKey",
    "ListKind",
    "ListName",
    "NodeReport",
    "Pause",
    "ReportAnswer",
    "Revisions",
    "RuleCounts",
    "RulesDocument",
    "Sample",
    "Snapshot",
    "SubjectChanges",
    "SubjectEntry",
    "redis_channel",
]

POSTGRES_CHANNEL: Final = "sluicegate_revisions"
"""The channel of PostgreSQL on which ``Revisions`` are told, as JSON, when a change is kept."""


def redis_channel(namespace: str) -> str:
    """The channel of Redis on which they are told."""
    return f"sluicegate:{namespace}:revisions"


ListName: TypeAlias = Literal["allow", "block"]
ListKind: TypeAlias = Literal["ip", "user", "api_key", "tenant"]
CandidateKind: TypeAlias = Literal["canary", "shadow"]


class Revisions(msgspec.Struct, frozen=True):
    """Where a rules service stands, or a node. ``ruleset`` is the version of the rule set; all are 0 before the first change.

    ``incarnation`` names the life of the database the numbers belong to: numbers of two incarnations cannot be compared, and one of
    another incarnation is never older. It is "" where nothing is known yet.
    """

    incarnation: str = ""
    ruleset: int = 0
    overlay: int = 0
    lists: int = 0
    subjects: int = 0
    epoch: int = 0

    @property
    def etag(self) -> str:
        """A strong entity tag of all of it, quoted."""
        return f'"{self.incarnation}.{self.ruleset}.{self.overlay}.{self.lists}.{self.subjects}.{self.epoch}"'


class RulesDocument(msgspec.Struct, frozen=True):
    """A version of the rule set. ``document`` is a rules file as JSON; ``digest`` stands for its meaning (``rules.digest``)."""

    version: int
    digest: str
    document: dict[str, Any]


class Candidate(msgspec.Struct, frozen=True):
    """Rules on trial beside those in service.

    ``canary``: a subject is decided by the rule of the candidate where its bucket, of 10,000, is below ``basis_points``, and on a node
    named in ``nodes`` always; every other subject by the rule in service. ``shadow``: rules of the candidate that differ are evaluated
    beside those in service, count apart and never refuse. ``salt`` is drawn per rollout: the early subjects of one are not those
    of the next.

    Until ``from_us``, by the node's clock, the share is ``before_basis_points``; None: that time is over. So all nodes that are told in time
    take a step at one moment, and no subject is judged by two numbers in turns while the news spreads.
    """

    rollout: int
    kind: CandidateKind
    rules: RulesDocument
    salt: str
    basis_points: int = 0
    nodes: tuple[str, ...] = ()
    before_basis_points: int = 0
    from_us: int | None = None


class Pause(msgspec.Struct, frozen=True):
    """A rule that does not apply for a while. ``rule`` None: no rule applies. ``until_us`` None: until it is resumed."""

    rule: str | None
    until_us: int | None
    reason: str = ""


class Snapshot(msgspec.Struct, frozen=True):
    """The rules as a node decides by them. ``rules`` None: the service has none yet."""

    revisions: Revisions
    rules: RulesDocument | None
    candidate: Candidate | None = None
    pauses: tuple[Pause, ...] = ()


class ListEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the allow or the block list. ``value``: an address or a network (CIDR) for ``ip``, else the identity's name.

    ``expires_us`` None: never. ``source``: what put it there, such as the name of an imported feed or ``penalty:RULE``.
    """

    list: ListName
    kind: ListKind
    value: str
    expires_us: int | None = None
    source: str = ""

    @property
    def key(self) -> ListKey:
        """What tells it from every other entry."""
        return (self.list, self.kind, self.value)


ListKey: TypeAlias = tuple[ListName, ListKind, str]


class ListChanges(msgspec.Struct, frozen=True):
    """What the lists are at ``revision`` for who has them at ``since``. ``full``: forget what you have first; ``since`` is 0 then.

    ``more``: ask again, with ``revision`` as ``since`` and ``cursor`` as it is here.
    """

    incarnation: str
    since: int
    revision: int
    full: bool
    put: list[ListEntry]
    remove: list[ListKey]
    more: bool = False
    cursor: str = ""


class SubjectEntry(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one subject (``user:8123``, ``api_key:k1``, ``tenant:acme``). ``tier`` None: it has none of its own.

    Until ``until_us`` (None: without end) its limits are ``factor_numerator / factor_denominator`` times those of its tier, in the
    rules of ``rules`` (empty: in every rule that counts it). 1/1: as they are.
    """

    subject: str
    tier: str | None = None
    factor_numerator: int = 1
    factor_denominator: int = 1
    until_us: int | None = None
    rules: tuple[str, ...] = ()


class SubjectChanges(msgspec.Struct, frozen=True):
    """As ``ListChanges``, for subjects; ``remove`` holds their names."""

    incarnation: str
    since: int
    revision: int
    full: bool
    put: list[SubjectEntry]
    remove: list[str]
    more: bool = False
    cursor: str = ""


class RuleCounts(msgspec.Struct, frozen=True):
    """What a rule did on a node since the node's last report that was acknowledged."""

    matched: int = 0
    refused: int = 0
    shadow_refused: int = 0


class Sample(msgspec.Struct, frozen=True):
    """One request that was drawn at random: when, and its facts as ``/v1/check`` takes them, without headers."""

    at_us: int
    facts: dict[str, Any]
    cost: int = 1


class NodeReport(msgspec.Struct, frozen=True):
    """What a node says of itself, some seconds apart. Counts are since its last report that was answered.

    ``node`` is its name, ``applied`` what it decides by, ``error`` why it does not decide by what it was told last (None: it does).
    ``would_refuse``: (rule, subject, times), the clients that rules refused most, shadow rules included; times are never too small.
    """

    node: str
    started_us: int
    release: str
    applied: Revisions
    digest: str = ""
    applied_us: int = 0
    error: str | None = None
    requests: int = 0
    store_errors: int = 0
    rules: dict[str, RuleCounts] = {}
    would_refuse: list[tuple[str, str, int]] = []
    samples: list[Sample] = []
    penalties: list[ListEntry] = []
    interval_s: float = 0.0
    listeners: dict[str, str] = {}


class ReportAnswer(msgspec.Struct, frozen=True):
    """``sample_per_s``: how many requests the service would like to be told of, per second. ``file_error``: why the rules file that the service
    watches, as it is now, is not what is in service; "": it is, or there is none.
    """

    revisions: Revisions
    sample_per_s: float = 0.0
    file_error: str = ""
