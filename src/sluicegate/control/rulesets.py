"""The rules and their versions: an accepted change is a new version, which nobody changes any more."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple, TypedDict, Unpack

import msgspec
from sqlalchemy import Row, Select, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import CONTROL_NAME_CHARS_MAX
from sluicegate.control import edits, schema
from sluicegate.control.edits import Document, Edit, Edited
from sluicegate.control.errors import ControlError, Fault, FileOwned, Invalid, ManagedBy, NotFound
from sluicegate.control.ledger import Change, Ledger
from sluicegate.control.model import Actor, Applied, Expect, Page, Role, Version, VersionDiff, VersionInfo
from sluicegate.control.paging import check_text, page_of, read_token, rows_of_page
from sluicegate.control.running import running_one, settle
from sluicegate.rules.diff import Change as RuleChange
from sluicegate.rules.diff import diff_rules, render_diff
from sluicegate.rules.document import canonical, check_document, document_of_yaml, load_document, pointer_of, read_json
from sluicegate.rules.feed import RulesDocument
from sluicegate.rules.identity import IdentityConfig
from sluicegate.rules.load import check_rules
from sluicegate.rules.model import RuleSet
from sluicegate.rules.problems import Problem

__all__ = ["How", "Rulesets", "told"]

_TABLE = schema.versions
_INFO = [column for column in _TABLE.columns if column.name not in ("document", "rule_versions")]
_SUMMARY_CHARS_MAX: Final = 500
_DIGITS_MAX: Final = 18
_NOTHING: Final = RuleSet(rules=(), identity=IdentityConfig())


class How(TypedDict, total=False):
    """How a change is to be made; what is left out is "" or False."""

    reason: str
    validate_only: bool
    force: bool


class _Promoted(NamedTuple):
    """Stands for the candidate of a rollout."""

    rollout: int


class _Judged(NamedTuple):
    """Rules that are to come into service: as they are kept, what they mean, warnings, and what changes."""

    document: Document
    ruleset: RuleSet
    problems: tuple[Problem, ...]
    changes: list[RuleChange]


class _Prepared(NamedTuple):
    """An edit of version ``base``, judged."""

    base: int
    judged: _Judged | Invalid


class Rulesets:
    """Rules and their versions. ``reason`` "" where none was given. ``validate_only``: all checks, no change, no line in the audit trail.

    Writes need the role editor and raise Invalid, PreconditionRequired, PreconditionFailed, FileOwned, and ManagedBy (unless ``force``,
    or ``managed_by`` is the same). ``managed_by`` None: leave as it is; "": nobody any more. ``expect`` is the revision of what is
    written: for ``put_ruleset`` and ``rollback`` the version in service, for a rule, the tiers and the identity settings the version
    at which they last changed.

    ``file``: the file that owns the rules; "" where they are changed here.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.file = ""
        self._ledger = ledger
        self._newest: Version | None = None
        self._meaning: tuple[int, RuleSet] | None = None

    async def current(self) -> Version | None:
        """The rules in service; None before the first version."""
        async with self._ledger.database.read() as connection:
            return await self.current_in(connection)

    async def current_in(self, connection: AsyncConnection) -> Version | None:
        """As ``current``, in a transaction."""
        number = (await connection.execute(select(func.max(_TABLE.c.version)))).scalar_one()
        if number is None:
            return None
        newest = self._newest
        if newest is None or newest.info.version != number:
            newest = await self._load(connection, number)
            self._newest = newest
        return newest

    async def version(self, number: int) -> Version:
        """Raises NotFound."""
        async with self._ledger.database.read() as connection:
            return await self._load(connection, number)

    async def versions(self, *, page_size: int, page_token: str = "") -> Page[VersionInfo]:
        """The newest first."""
        query: Select[Any] = select(*_INFO).order_by(_TABLE.c.version.desc()).limit(rows_of_page(page_size))
        before = read_token(page_token, "versions", int)
        if before is not None:
            query = query.where(_TABLE.c.version < before[0])
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, page_size, "versions", _info, lambda row: (row.version,))

    async def diff(self, old: int, new: int) -> VersionDiff:
        """What lies between two versions, in either order. Raises NotFound."""
        before, after = await self.version(old), await self.version(new)
        meanings = [await asyncio.to_thread(_meaning, version) for version in (before, after)]
        return VersionDiff(old, new, diff_rules(*meanings), edits.differences(before.document, after.document))

    async def put_ruleset(
        self, actor: Actor, document: Any, *, expect: Expect, managed_by: str | None = None, **how: Unpack[How]
    ) -> Applied:
        """All rules, tiers and settings at once: all of it, or nothing."""
        edit = edits.put_all(document, expect)
        return await self._change(actor, "ruleset.put", "ruleset", edit, managed_by=managed_by, **how)

    async def create_rule(self, actor: Actor, rule: Any, **how: Unpack[How]) -> Applied:
        """A new rule, after all others. Raises AlreadyExists. Its name is ``rule["name"]``."""
        name = rule.get("name") if isinstance(rule, dict) else None
        resource = f"rule:{name}" if isinstance(name, str) else "rule:"
        return await self._change(actor, "rule.create", resource, edits.create_rule(rule), **how)

    async def put_rule(self, actor: Actor, name: str, rule: Any, *, expect: Expect, **how: Unpack[How]) -> Applied:
        """The whole rule, in its place; with ``expect`` ABSENT a new one. ``rule`` may leave out ``name``, and may give another: a rename."""
        return await self._change(actor, "rule.put", f"rule:{name}", edits.put_rule(name, rule, expect), **how)

    async def patch_rule(self, actor: Actor, name: str, patch: Any, *, expect: Expect, **how: Unpack[How]) -> Applied:
        """A JSON merge patch (RFC 7396) of the rule."""
        return await self._change(actor, "rule.patch", f"rule:{name}", edits.patch_rule(name, patch, expect), **how)

    async def delete_rule(self, actor: Actor, name: str, *, expect: Expect, **how: Unpack[How]) -> Applied:
        """The last rule cannot be deleted: a set without rules is not valid."""
        return await self._change(actor, "rule.delete", f"rule:{name}", edits.delete_rule(name, expect), **how)

    async def put_tiers(self, actor: Actor, tiers: Any, *, expect: Expect, **how: Unpack[How]) -> Applied:
        """``{"default": ..., "names": [...]}``; None: no tiers. ``expect`` ABSENT where the rules have none yet."""
        return await self._change(actor, "tiers.put", "tiers", edits.put_part("tiers", tiers, expect), **how)

    async def put_identity(self, actor: Actor, identity: Any, *, expect: Expect, **how: Unpack[How]) -> Applied:
        """The ``identity`` block of a rules file; None: the defaults. ``expect`` ABSENT where the rules have none yet."""
        edit = edits.put_part("identity", identity, expect)
        return await self._change(actor, "identity.put", "identity", edit, **how)

    async def rollback(self, actor: Actor, to: int, *, expect: Expect, **how: Unpack[How]) -> Applied:
        """A new version with the rules of version ``to``. Raises NotFound."""
        return await self._change(actor, "ruleset.rollback", f"version:{to}", to, expect=expect, **how)

    async def take_file(self, content: bytes, name: str) -> Applied:
        """The content of a rules file as a version by ``file:NAME``. Raises Invalid; its ``problems`` have lines."""
        ruleset, problems = await asyncio.to_thread(check_rules, content, name)
        if ruleset is None:
            raise Invalid([Fault(str(problem)) for problem in problems if problem.severity == "error"], problems)
        document = document_of_yaml(content, name)
        actor = Actor(f"file:{name}", "file", role=Role.EDITOR)
        edit = edits.put_all(document, None, always=True)
        return await self._change(actor, "file.take", f"file:{name}", edit, force=True, managed_by="", by_file=True)

    async def promote(self, actor: Actor, rollout: int, **how: Unpack[How]) -> Applied:
        """The candidate of a rollout that runs becomes the next version. Raises NotFound, Conflict."""
        return await self._change(actor, "rollout.promote", f"rollout:{rollout}", _Promoted(rollout), **how)

    async def candidate(self, document: Any) -> tuple[Document, str]:
        """Rules on trial, checked: the document as it is kept, and its digest. Raises Invalid."""
        checked, ruleset, _ = await self._check((document, ""))
        return checked, ruleset.digest

    async def _change(
        self,
        actor: Actor,
        action: str,
        resource: str,
        edit: Edit | int | _Promoted,
        *,
        managed_by: str | None = None,
        expect: Expect = None,
        by_file: bool = False,
        **how: Unpack[How],
    ) -> Applied:
        """``edit``: what becomes of the document; or whose document becomes that of the next version: another version's, a rollout's."""
        reason, validate_only = how.get("reason", ""), how.get("validate_only", False)
        prepared = await self._prepare(actor, edit)
        begun = self._ledger.change(actor, Role.EDITOR, action, resource, reason=reason, validate_only=validate_only)
        async with begun as change:
            current = await self.current_in(change.connection)
            manager = "" if current is None else current.info.managed_by
            if managed_by is not None:
                check_text("managed_by", managed_by, CONTROL_NAME_CHARS_MAX)
            if self.file and not by_file:
                raise FileOwned(self.file)
            if manager and not how.get("force") and managed_by != manager:
                raise ManagedBy(manager)
            if isinstance(edit, _Promoted):
                row = await running_one(change.connection, edit.rollout)
                edit = edits.put_all(read_json(row["candidate"].encode()), None, always=True)
            elif isinstance(edit, int):
                edit = edits.put_all((await self._load(change.connection, edit)).document, expect)
            if prepared is None or prepared.base != _number(current):
                prepared = await self._judge(current, edit(current))
            if isinstance(prepared.judged, Invalid):
                raise prepared.judged
            document, ruleset, problems, _ = prepared.judged
            kept_manager = manager if managed_by is None else managed_by
            if current is not None and kept_manager == manager and canonical(current.document) == canonical(document):
                return Applied(current, changed=False, problems=problems)
            applied = await self._next(change, actor, action, reason, current, prepared.judged, kept_manager)
        if not validate_only:
            self._newest, self._meaning = applied.version, (applied.version.info.version, ruleset)
        return applied

    async def _next(
        self,
        change: Change,
        actor: Actor,
        action: str,
        reason: str,
        current: Version | None,
        judged: _Judged,
        managed_by: str,
    ) -> Applied:
        """Write the next version."""
        document, ruleset, problems, changes = judged
        number = change.revisions.ruleset + 1
        info = VersionInfo(
            number, change.now_us, actor.name, actor.auth, actor.source_ip, actor.request_id, action, reason,
            ruleset.digest, managed_by, _summary(render_diff(changes)),
        )  # fmt: skip
        revisions = edits.revisions_of(document, current, number)
        texts = {"document": canonical(document), "rule_versions": canonical(revisions)}
        await change.connection.execute(_TABLE.insert(), {**{c.name: getattr(info, c.name) for c in _INFO}, **texts})
        change.touch_ruleset(number)
        patches = edits.differences(None if current is None else current.document, document)
        rollout = await settle(change, actor, "" if current is None else current.info.digest, ruleset.digest)
        if rollout is not None:
            patches["[rollout]"] = [None, rollout]
        if current is not None and current.info.managed_by != managed_by:
            patches["[managed_by]"] = [current.info.managed_by, managed_by]
        change.record(patches, before_version=number - 1, after_version=number)
        return Applied(Version(info, document, revisions), changed=True, problems=problems, changes=changes)

    async def _prepare(self, actor: Actor, edit: Edit | int | _Promoted) -> _Prepared | None:
        """What an edit comes to while nobody else changes the rules, before anybody has to wait for it; None where that cannot be said.

        An edit makes the same of the same version. What is wrong with it besides its content is found, and audited, in its transaction.
        """
        if isinstance(edit, int | _Promoted):
            return None
        try:
            self._ledger.allow(actor, Role.EDITOR)
            current = await self.current()
            edited = edit(current)
        except ControlError:
            return None
        return await self._judge(current, edited)

    async def _judge(self, current: Version | None, edited: Edited) -> _Prepared:
        try:
            document, ruleset, problems = await self._check(edited)
        except Invalid as error:
            return _Prepared(_number(current), error)
        old = _NOTHING if current is None else await self._meaning_of(current)
        changes = await asyncio.to_thread(diff_rules, old, ruleset)
        return _Prepared(_number(current), _Judged(document, ruleset, problems, changes))

    async def _check(self, edited: Edited) -> tuple[Document, RuleSet, tuple[Problem, ...]]:
        """The document in plain JSON data and its meaning; raises Invalid with pointers into what was sent."""
        document, sent = edited
        ruleset, problems = await asyncio.to_thread(check_document, document, "ruleset")
        if ruleset is None:
            errors = [problem for problem in problems if problem.severity == "error"]
            raise Invalid([_fault(problem, sent) for problem in errors], problems)
        return read_json(canonical(document).encode()), ruleset, problems

    async def _load(self, connection: AsyncConnection, number: int) -> Version:
        row = None
        if len(str(number)) <= _DIGITS_MAX:
            row = (await connection.execute(select(_TABLE).where(_TABLE.c.version == number))).one_or_none()
        if row is None:
            raise NotFound("version", str(number))
        return Version(_info(row), read_json(row.document.encode()), msgspec.json.decode(row.rule_versions))

    async def _meaning_of(self, version: Version) -> RuleSet:
        if self._meaning is None or self._meaning[0] != version.info.version:
            self._meaning = (version.info.version, await asyncio.to_thread(_meaning, version))
        return self._meaning[1]


def told(version: Version) -> RulesDocument:
    """A version as nodes are told of it."""
    return RulesDocument(version.info.version, version.info.digest, dict(version.document))


def _number(current: Version | None) -> int:
    return 0 if current is None else current.info.version


def _meaning(version: Version) -> RuleSet:
    return load_document(version.document, f"version {version.info.version}", version.info.version)


def _info(row: Row[Any]) -> VersionInfo:
    return VersionInfo(**{column.name: getattr(row, column.name) for column in _INFO})


def _summary(text: str) -> str:
    """The first lines of a difference as one."""
    line = "; ".join(part.strip() for part in text.splitlines())
    return line if len(line) <= _SUMMARY_CHARS_MAX else f"{line[:_SUMMARY_CHARS_MAX]}…"


def _fault(problem: Problem, sent: str) -> Fault:
    """A problem with a pointer into what was sent, which is the part of the document at ``sent``."""
    pointer = pointer_of(problem)
    within = pointer == sent or pointer.startswith(f"{sent}/")
    hint = "" if problem.suggestion is None else f" (did you mean {problem.suggestion!r}?)"
    if within:
        return Fault(
            f"{problem.field}: {problem.message}{hint}" if problem.field else f"{problem.message}{hint}",
            pointer[len(sent) :],
        )
    where = f"rule {problem.rule!r}" if problem.rule else "the rule set"
    return Fault(f"{where} would not be valid: {problem.field}: {problem.message}{hint}")
