"""The surface of the rules service, as those build on it that bring it to people: no HTTP, no command line, no framework in it.

Every change is one transaction that holds its check, its rows and its line of the audit trail. What an actor may not do raises
``NotAllowed``; that attempt, and every other refused one, has its line in the audit trail as well. Every method may raise
``Unavailable``.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any, Literal, Protocol

from sluicegate.control.model import (
    Actor,
    Applied,
    AuditRow,
    AuditVerdict,
    Expect,
    ImportResult,
    ListRow,
    NodeRow,
    Page,
    PauseRow,
    Role,
    SubjectRow,
    TokenRow,
    Version,
    VersionDiff,
    VersionInfo,
)
from sluicegate.rules.feed import (
    ListChanges,
    ListKey,
    ListKind,
    ListName,
    NodeReport,
    ReportAnswer,
    Revisions,
    Snapshot,
    SubjectChanges,
)

__all__ = ["Audit", "Lists", "Nodes", "Pauses", "RulesService", "Rulesets", "Subjects", "Tokens"]


class Rulesets(Protocol):
    """Rules and their versions. ``reason`` "" where none was given. ``validate_only``: all checks, no change, no line in the audit trail.

    Writes raise Invalid, PreconditionRequired, PreconditionFailed, FileOwned, ManagedBy (unless ``managed_by`` is the same or ``force``).
    ``managed_by`` None: leave as it is; "": nobody any more. ``expect`` is the revision of what is written: for ``put_ruleset`` and
    ``rollback`` the version in service, for a rule, the tiers and the identity settings the version at which they last changed.
    """

    async def current(self) -> Version | None:
        """The rules in service; None before the first version."""
        ...

    async def version(self, number: int) -> Version:
        """Raises NotFound."""
        ...

    async def versions(self, *, page_size: int, page_token: str = "") -> Page[VersionInfo]:
        """The newest first."""
        ...

    async def diff(self, old: int, new: int) -> VersionDiff:
        """Raises NotFound."""
        ...

    async def put_ruleset(
        self, actor: Actor, document: Any, *, expect: Expect, reason: str = "", validate_only: bool = False,
        managed_by: str | None = None, force: bool = False,
    ) -> Applied: ...  # fmt: skip

    async def create_rule(
        self, actor: Actor, rule: Any, *, reason: str = "", validate_only: bool = False, force: bool = False
    ) -> Applied:
        """A new rule, after all others. Raises AlreadyExists. Its name is ``rule["name"]``."""
        ...

    async def put_rule(
        self,
        actor: Actor,
        name: str,
        rule: Any,
        *,
        expect: Expect,
        reason: str = "",
        validate_only: bool = False,
        force: bool = False,
    ) -> Applied:
        """The whole rule, in its place; with ``expect`` ABSENT a new one. ``rule`` may leave out ``name``, and may give another: a rename."""
        ...  # fmt: skip

    async def patch_rule(
        self,
        actor: Actor,
        name: str,
        patch: Any,
        *,
        expect: Expect,
        reason: str = "",
        validate_only: bool = False,
        force: bool = False,
    ) -> Applied:
        """A JSON merge patch (RFC 7396) of the rule."""
        ...  # fmt: skip

    async def delete_rule(
        self,
        actor: Actor,
        name: str,
        *,
        expect: Expect,
        reason: str = "",
        validate_only: bool = False,
        force: bool = False,
    ) -> Applied: ...

    async def put_tiers(
        self,
        actor: Actor,
        tiers: Any,
        *,
        expect: Expect,
        reason: str = "",
        validate_only: bool = False,
        force: bool = False,
    ) -> Applied:
        """``{"default": ..., "names": [...]}``; None: no tiers. ``expect`` ABSENT where the rules have none yet."""
        ...

    async def put_identity(
        self,
        actor: Actor,
        identity: Any,
        *,
        expect: Expect,
        reason: str = "",
        validate_only: bool = False,
        force: bool = False,
    ) -> Applied:
        """The ``identity`` block of a rules file; None: the defaults. ``expect`` ABSENT where the rules have none yet."""
        ...  # fmt: skip

    async def rollback(
        self,
        actor: Actor,
        to: int,
        *,
        expect: Expect,
        reason: str = "",
        validate_only: bool = False,
        force: bool = False,
    ) -> Applied:
        """A new version with the rules of version ``to``."""
        ...


class Subjects(Protocol):
    """What is known of single subjects (``user:8123``)."""

    async def get(self, subject: str) -> SubjectRow:
        """Raises NotFound."""
        ...

    async def page(self, *, page_size: int, page_token: str = "", prefix: str = "") -> Page[SubjectRow]: ...

    async def put(
        self,
        actor: Actor,
        subject: str,
        value: Any,
        *,
        expect: Expect = None,
        reason: str = "",
        validate_only: bool = False,
    ) -> SubjectRow:
        """``value``: ``{tier?, factor?: "10x" | number | {numerator, denominator}, until_us?, rules?, note?}``. ``expect`` None: whatever is there."""
        ...

    async def remove(self, actor: Actor, subject: str, *, expect: Expect = None, reason: str = "") -> None:
        """Raises NotFound."""
        ...

    async def changes(self, since: int, cursor: str = "") -> SubjectChanges:
        """For nodes; raises Invalid for a cursor that is none."""
        ...


class Lists(Protocol):
    """The allow and the block list."""

    async def get(self, key: ListKey) -> ListRow:
        """Raises NotFound."""
        ...

    async def page(
        self,
        name: ListName,
        *,
        page_size: int,
        page_token: str = "",
        kind: ListKind | None = None,
        source: str | None = None,
    ) -> Page[ListRow]: ...

    async def count(self, name: ListName) -> dict[str, int]:
        """Live entries per source."""
        ...

    async def put(
        self, actor: Actor, name: ListName, kind: str, value: str, *, expires_us: int | None = None, source: str = "",
        reason: str = "", validate_only: bool = False,
    ) -> ListRow: ...  # fmt: skip

    async def remove(self, actor: Actor, key: ListKey, *, reason: str = "") -> None:
        """Raises NotFound."""
        ...

    async def import_entries(
        self,
        actor: Actor,
        name: ListName,
        chunks: AsyncIterable[bytes],
        *,
        form: Literal["text", "ndjson"] = "text",
        kind: str = "ip",
        source: str,
        replace: bool = False,
        expires_us: int | None = None,
        reason: str = "",
        validate_only: bool = False,
    ) -> ImportResult:
        """All entries or none, in bounded memory, whatever the size of the chunks. Raises Invalid with pointers ``/LINE`` from 1.

        ``text``: one value a line; empty lines and what follows ``#`` or ``;`` are left out. ``ndjson``: ``{"value", "kind"?, "expires_us"?}``.
        ``replace``: entries of the same source that are not among them are removed.
        """
        ...  # fmt: skip

    async def remove_source(self, actor: Actor, name: ListName, source: str, *, reason: str = "") -> int:
        """All entries of a source; how many there were."""
        ...

    async def changes(self, since: int, cursor: str = "") -> ListChanges:
        """For nodes; raises Invalid for a cursor that is none."""
        ...


class Pauses(Protocol):
    """Rules that do not apply for a while."""

    async def pause(
        self,
        actor: Actor,
        rule: str | None,
        *,
        until_us: int | None = None,
        reason: str = "",
        validate_only: bool = False,
    ) -> PauseRow:
        """In place of a pause of the same rule that holds. Raises NotFound for a rule that does not exist."""
        ...

    async def resume(self, actor: Actor, pause: int, *, reason: str = "") -> PauseRow:
        """Raises NotFound; Conflict where it has ended."""
        ...

    async def get(self, pause: int) -> PauseRow: ...

    async def page(self, *, page_size: int, page_token: str = "", ended: bool = False) -> Page[PauseRow]:
        """Those that hold, or with ``ended`` all; the newest first."""
        ...


class Tokens(Protocol):
    """Who may ask. Needs the role admin, except ``verify``."""

    async def create(
        self,
        actor: Actor,
        name: str,
        role: Role,
        *,
        namespaces: list[str] | None = None,
        expires_us: int | None = None,
        reason: str = "",
    ) -> tuple[TokenRow, str]:
        """The token and its text, which is not kept."""
        ...  # fmt: skip

    async def get(self, actor: Actor, token: int) -> TokenRow: ...

    async def page(self, actor: Actor, *, page_size: int, page_token: str = "") -> Page[TokenRow]: ...

    async def revoke(self, actor: Actor, token: int, *, reason: str = "") -> TokenRow:
        """At once. Raises NotFound; Conflict for the last token of an admin."""
        ...

    async def verify(self, text: str, *, source_ip: str = "", request_id: str = "") -> Actor:
        """Who a token stands for; raises NotAuthenticated, and notes the attempt. Takes as long for a wrong token as for a right one."""
        ...


class Audit(Protocol):
    """The audit trail. Reading needs the role viewer, ``export`` admin."""

    async def page(
        self,
        actor: Actor,
        *,
        page_size: int,
        page_token: str = "",
        action: str = "",
        by: str = "",
        resource: str = "",
        outcome: str = "",
    ) -> Page[AuditRow]:
        """The newest first."""
        ...  # fmt: skip

    def export(self, actor: Actor, *, after: int = 0) -> AsyncIterable[AuditRow]:
        """All rows above ``after``, the oldest first, in bounded memory. The export itself is a row."""
        ...

    async def verify(self, actor: Actor, head: str = "") -> AuditVerdict:
        """Walks the whole chain. ``head``: ``ID:HASH`` noted elsewhere, which must be in it."""
        ...


class Nodes(Protocol):
    """What nodes say of themselves."""

    async def report(self, actor: Actor, report: NodeReport) -> ReportAnswer: ...

    async def page(self, *, page_size: int, page_token: str = "") -> Page[NodeRow]: ...


class RulesService(Protocol):
    """All of it, on one database. ``namespace`` is the one it serves."""

    namespace: str
    rulesets: Rulesets
    subjects: Subjects
    lists: Lists
    pauses: Pauses
    tokens: Tokens
    audit: Audit
    nodes: Nodes

    def allow(self, actor: Actor, needed: Role) -> None:
        """Raises NotAllowed where the actor's role or namespaces do not reach. Writes ask by themselves; whoever reads for people asks first."""
        ...

    def own_by_file(self, path: str) -> None:
        """From now on writes of rules, tiers and identity raise FileOwned."""
        ...

    async def take_file(self, content: bytes, name: str) -> Applied:
        """The content of a rules file as a version by ``file:NAME``. Raises Invalid; its ``problems`` have lines."""
        ...

    async def revisions(self) -> Revisions:
        """Where the service stands, from memory: not older than the last change made through it, and a second old in what others made."""
        ...

    async def changed(self, etag: str, timeout_s: float) -> Revisions:
        """``revisions`` as soon as their etag is not this one, at the latest after ``timeout_s``."""
        ...

    async def snapshot(self) -> Snapshot:
        """What nodes decide by."""
        ...

    async def close(self) -> None: ...
