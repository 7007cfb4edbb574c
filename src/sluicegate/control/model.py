"""What goes into the rules service and what comes out of it, besides the messages to the nodes (``rules.feed``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from sluicegate.control.errors import NotFound
from sluicegate.rules.diff import Change
from sluicegate.rules.feed import ListKind, ListName, NodeReport, Revisions
from sluicegate.rules.problems import Problem

__all__ = [
    "ABSENT",
    "ANY",
    "DEFAULT_NAMESPACE",
    "IDENTITY",
    "TIERS",
    "UP_AUTH",
    "Actor",
    "Applied",
    "AuditRow",
    "AuditVerdict",
    "Expect",
    "ImportResult",
    "ListRow",
    "NodeRow",
    "Page",
    "PauseRow",
    "Publisher",
    "Role",
    "SubjectRow",
    "TokenRow",
    "Version",
    "VersionDiff",
    "VersionInfo",
]

T = TypeVar("T")

DEFAULT_NAMESPACE: Final = "default"

UP_AUTH: Final = "node-token"
"""``Actor.auth`` of the nodes that were started with the service, whose token stands in no database."""

Expect: TypeAlias = int | None
"""The revision a caller has seen: a number; ``ANY``: whatever it is, if it exists; ``ABSENT``: it must not exist; None: it did not say."""

ANY: Final = -1
ABSENT: Final = 0

TIERS: Final = "[tiers]"
IDENTITY: Final = "[identity]"
"""Names under which ``Version.revisions`` holds the revision of tiers and identity settings. No rule can be called so."""


class Role(StrEnum):
    """What a token may do. Each of viewer, editor, admin may do all that the one before may; ``node`` may ask the feed and report."""

    NODE = "node"
    VIEWER = "viewer"
    EDITOR = "editor"
    ADMIN = "admin"

    def covers(self, needed: Role) -> bool:
        """Whether who has this role may do what needs that one."""
        if needed is Role.NODE or self is Role.NODE:
            return self is needed
        return _RANKS[self] >= _RANKS[needed]


_RANKS: Final = {Role.VIEWER: 1, Role.EDITOR: 2, Role.ADMIN: 3}


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks. ``name``: that of the token, or ``file:NAME``, ``system:NAME``; ``auth``: how that is known (``token:ID``, ``local``).

    ``source_ip`` and ``request_id`` are "" where there are none. ``namespaces`` None: all. ``node``: the only node that it may report as,
    "": any.
    """

    name: str
    auth: str
    source_ip: str = ""
    request_id: str = ""
    role: Role = Role.VIEWER
    namespaces: frozenset[str] | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a longer list. ``next_token`` is "" at the end; it is opaque, and good only for the same question."""

    items: list[T]
    next_token: str = ""


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """An accepted change of the rules, without them. ``managed_by`` "": by nobody. ``summary``: one line for people."""

    version: int
    created_us: int
    actor: str
    auth: str
    source_ip: str
    request_id: str
    action: str
    reason: str
    digest: str
    managed_by: str
    summary: str


@dataclass(frozen=True, slots=True)
class Version:
    """A version with its rules. ``document`` is a rules file as JSON and must not be changed.

    ``revisions``: the version at which each rule (and ``TIERS``, ``IDENTITY`` where the document has them) last changed.
    """

    info: VersionInfo
    document: Mapping[str, Any]
    revisions: Mapping[str, int]

    def rule(self, name: str) -> tuple[dict[str, Any], int]:
        """A rule and its revision; raises NotFound."""
        for rule in self.document["rules"]:
            if rule["name"] == name:
                return rule, self.revisions[name]
        raise NotFound("rule", name, self.revisions)


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """What lies between two versions: in meaning (``changes``), and as a JSON merge patch (RFC 7396) per rule and part of the file.

    ``patches``: ``{NAME: [before, after]}``, None where it is not there.
    """

    old: int
    new: int
    changes: list[Change]
    patches: dict[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Applied:
    """What a change of the rules came to. ``changed`` False: they were so already, and no version was made.

    ``version`` is the set in service afterwards; with ``validate_only`` the one that would be. ``problems`` are warnings.
    """

    version: Version
    changed: bool
    problems: tuple[Problem, ...] = ()
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ListRow:
    """An entry of a list, with what people want to know of it. ``revision``: that of the lists at which it last changed."""

    list: ListName
    kind: ListKind
    value: str
    expires_us: int | None
    source: str
    reason: str
    created_us: int
    actor: str
    revision: int


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What a bulk import did. ``lines`` counts entries read, repeated ones once; comments and empty lines are none."""

    lines: int
    added: int
    changed: int
    removed: int
    unchanged: int
    revision: int


@dataclass(frozen=True, slots=True)
class SubjectRow:
    """A subject as it was set. Fields as in ``rules.feed.SubjectEntry``."""

    subject: str
    tier: str | None
    factor_numerator: int
    factor_denominator: int
    until_us: int | None
    rules: tuple[str, ...]
    note: str
    revision: int


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A pause. ``rule`` None: every rule. ``until_us`` None: until resumed. ``ended_us`` None: it holds."""

    id: int
    rule: str | None
    until_us: int | None
    reason: str
    actor: str
    created_us: int
    ended_us: int | None


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token without its secret, which is nowhere. ``namespaces`` None: all. Times None: never. ``node`` None: of no certain node."""

    id: int
    name: str
    role: Role
    namespaces: tuple[str, ...] | None
    created_us: int
    expires_us: int | None
    revoked_us: int | None
    last_used_us: int | None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One line of the audit trail. Versions are None where the rules were not the matter; ``diff`` is JSON data, None where there is none.

    ``hash`` is the SHA-256 of all the rest of the row, ``previous_hash`` included, in hex.
    """

    id: int
    at_us: int
    actor: str
    auth: str
    source_ip: str
    request_id: str
    action: str
    resource: str
    outcome: str
    reason: str
    before_version: int | None
    after_version: int | None
    diff: Any
    previous_hash: str
    hash: str


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """Whether the audit trail is whole. ``head``: ``ID:HASH`` of its newest row. ``faults``: what is wrong, the first ones; empty: nothing."""

    rows: int
    head: str
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node's last report and when it came. ``lag_us``: how long it has not decided by the newest revisions; 0: it does.

    ``source_ip``: the address that the report came from, "" for a Unix socket; ``auth``: by which token, as in ``Actor``. Both are what
    the service saw, whatever the report says.
    """

    report: NodeReport
    last_seen_us: int
    lag_us: int
    source_ip: str = ""
    auth: str = ""


class Publisher(Protocol):
    """Tells nodes that there is something new, after the change is kept. A hint: it may fail, be lost or come twice."""

    async def publish(self, revisions: Revisions) -> None: ...
