"""What the interface answers, besides what the service itself tells: pages, and what a change came to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.control.http.preconditions import etag, has_it
from sluicegate.control.http.problems import FieldError
from sluicegate.control.model import (
    AuditRow,
    ListRow,
    NodeRow,
    PauseRow,
    SubjectRow,
    TokenRow,
    VersionInfo,
)
from sluicegate.control.rollout_model import RolloutRow
from sluicegate.rules.diff import Change

__all__ = [
    "AuditPage",
    "EntriesPage",
    "Health",
    "ListSummary",
    "ListsAnswer",
    "NewTokenAnswer",
    "NodesPage",
    "Outcome",
    "PausesPage",
    "Removed",
    "RolloutsPage",
    "RulesPage",
    "SubjectsPage",
    "TokensPage",
    "VersionsPage",
    "encoded",
    "ok",
    "ok_unless_known",
]

_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


class RulesPage(msgspec.Struct, frozen=True):
    """Rules in their order. ``version``: the one they are of; all pages are of one. ``etags``: of each rule, by its name."""

    rules: list[dict[str, Any]]
    etags: dict[str, str]
    version: int
    next_page_token: str


class Outcome(msgspec.Struct, frozen=True):
    """What a change of the rules came to, or would come to.

    ``version``: the set in service afterwards. ``changed`` False: it was so already, and no version was made. ``changes``: in meaning;
    ``warnings``: what may not be meant. ``etag``: of what was changed; empty where it is gone.
    """

    version: int
    changed: bool
    validated_only: bool
    digest: str
    etag: str
    changes: list[Change]
    warnings: list[FieldError]


class VersionsPage(msgspec.Struct, frozen=True):
    """Versions, the newest first."""

    versions: list[VersionInfo]
    next_page_token: str


class SubjectsPage(msgspec.Struct, frozen=True):
    """Subjects by their names."""

    subjects: list[SubjectRow]
    next_page_token: str


class ListSummary(msgspec.Struct, frozen=True):
    """How many entries a list has, and from where; "" is for those put there one by one without a source."""

    entries: int
    sources: dict[str, int]


class ListsAnswer(msgspec.Struct, frozen=True):
    """Both lists."""

    allow: ListSummary
    block: ListSummary


class EntriesPage(msgspec.Struct, frozen=True):
    """Entries by kind and value."""

    entries: list[ListRow]
    next_page_token: str


class Removed(msgspec.Struct, frozen=True):
    """How many entries were removed."""

    removed: int


class PausesPage(msgspec.Struct, frozen=True):
    """Pauses, the newest first."""

    pauses: list[PauseRow]
    next_page_token: str


class RolloutsPage(msgspec.Struct, frozen=True):
    """Rollouts, the newest first."""

    rollouts: list[RolloutRow]
    next_page_token: str


class AuditPage(msgspec.Struct, frozen=True):
    """Lines of the audit trail, the newest first."""

    rows: list[AuditRow]
    next_page_token: str


class TokensPage(msgspec.Struct, frozen=True):
    """Tokens without their texts, the newest first."""

    tokens: list[TokenRow]
    next_page_token: str


class NewTokenAnswer(msgspec.Struct, frozen=True):
    """A token that was made. ``text`` is shown this once; "" where it was only tried."""

    token: TokenRow
    text: str


class NodesPage(msgspec.Struct, frozen=True):
    """Nodes by their names."""

    nodes: list[NodeRow]
    next_page_token: str


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    """``failing``: what keeps it from being ready. ``version``: that of the rules in service. ``watch``: what the background failed at last."""

    status: str
    failing: list[str] = []
    version: int | None = None
    watch: str | None = None


def encoded(value: object) -> bytes:
    """An answer as JSON."""
    return _ENCODER.encode(value)


def ok(
    value: object, status: int = 200, *, revision: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer; ``revision``: that of what it shows, for the entity tag."""
    told = dict(headers or {})
    if revision is not None:
        told["ETag"] = etag(revision)
    return Response(encoded(value), status, told, "application/json")


def ok_unless_known(request: Request, value: object, tag: str) -> Response:
    """An answer with its entity tag, or 304 where the reader says that it has it."""
    headers = {"ETag": tag}
    return Response(status_code=304, headers=headers) if has_it(request, tag) else ok(value, headers=headers)
