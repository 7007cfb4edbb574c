"""What is known of single subjects: their tier, and limits that differ for a while."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import msgspec
from sqlalchemy import Row, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import LIST_VALUE_CHARS_MAX, RULES_MAX, SUBJECT_FACTOR_PART_MAX, SUBJECTS_IN_NODE_MAX
from sluicegate.control import schema
from sluicegate.control.deltas import delta, prune
from sluicegate.control.edits import check_expected
from sluicegate.control.errors import Conflict, Fault, Invalid, NotFound, PreconditionFailed
from sluicegate.control.ledger import Ledger, read_revisions
from sluicegate.control.model import Actor, Expect, Page, Role, SubjectRow, Version
from sluicegate.control.paging import check_text, page_of, read_token, rows_of_page
from sluicegate.control.room import Room
from sluicegate.control.rulesets import Rulesets
from sluicegate.rules.feed import SubjectChanges, SubjectEntry
from sluicegate.rules.model import SUBJECT_KINDS
from sluicegate.rules.notation import shown, suggest

__all__ = ["Subjects"]

_TABLE = schema.subjects
_LIVE = _TABLE.c.deleted == 0
_FIELDS: Final = ("tier", "factor", "until_us", "rules", "note")
# No decimal number of more characters is within the bounds; a longer one is not worth the time to read it.
_FACTOR: Final = re.compile(r"([0-9]{1,8}(?:\.[0-9]{1,7})?)x?", re.ASCII)


class Subjects:
    """Subjects by name: ``user:8123``, ``api_key:k1``, ``tenant:acme``. Writes need the role editor."""

    def __init__(self, ledger: Ledger, rulesets: Rulesets) -> None:
        self._ledger = ledger
        self._rulesets = rulesets
        self._room = Room(_TABLE)

    async def get(self, subject: str) -> SubjectRow:
        """Raises NotFound."""
        async with self._ledger.database.read() as connection:
            row = await _row(connection, subject)
        if row is None:
            raise NotFound("subject", subject)
        return _made(row)

    async def page(self, *, page_size: int, page_token: str = "", prefix: str = "") -> Page[SubjectRow]:
        """In order of their names; with ``prefix`` those that begin with it."""
        query = select(_TABLE).where(_LIVE).order_by(_TABLE.c.subject).limit(rows_of_page(page_size))
        after = read_token(page_token, "subjects", str)
        if after is not None:
            query = query.where(_TABLE.c.subject > after[0])
        if prefix:
            check_text("prefix", prefix)
            # No text sorts above the last character there is.
            query = query.where(_TABLE.c.subject >= prefix, _TABLE.c.subject < f"{prefix}{chr(0x10FFFF)}")
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, page_size, "subjects", _made, lambda row: (row.subject,))

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
        """``value``: ``{tier?, factor?: "10x" | number | {numerator, denominator}, until_us?, rules?, note?}``, at least one of tier and factor.

        ``until_us`` is the end of the factor and refused without one: a tier stays until another is set.

        ``expect``: the revision of the subject; None: whatever is there. A tier and rules that are not in service are refused.
        """
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        async with self._ledger.change(actor, Role.EDITOR, "subject.put", f"subject:{subject}", **options) as change:
            connection = change.connection
            _check_name(subject)
            before = await _row(connection, subject)
            check_expected(expect, before)
            row = _read(subject, value, change.now_us, change.revisions.subjects + 1)
            _check_known(row, await self._rulesets.current_in(connection))
            if before is not None and _told(_made(before)) == _told(row):
                return _made(before)
            if before is None and not await self._room.has(connection, SUBJECTS_IN_NODE_MAX):
                raise Conflict(
                    f"there are {SUBJECTS_IN_NODE_MAX} subjects, as many as nodes hold; let the tier of others come with "
                    "the request, as a verified fact"
                )
            await change.touch("subjects")
            values = {
                **_told(row),
                "rules": msgspec.json.encode(row.rules).decode(),
                "deleted": 0,
                "revision": row.revision,
            }
            written = update(_TABLE).where(_TABLE.c.subject == subject).values(values)
            if (await connection.execute(written)).rowcount == 0:
                await connection.execute(_TABLE.insert(), values)
            change.record({"before": None if before is None else _told(_made(before)), "after": _told(row)})
        return row

    async def remove(
        self, actor: Actor, subject: str, *, expect: Expect = None, reason: str = "", validate_only: bool = False
    ) -> None:
        """Raises NotFound."""
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        begun = self._ledger.change(actor, Role.EDITOR, "subject.remove", f"subject:{subject}", **options)
        async with begun as change:
            before = await _row(change.connection, subject)
            if before is None and expect is None:
                raise NotFound("subject", subject)
            check_expected(expect, before)
            if before is None:
                raise PreconditionFailed(0)
            gone = {"deleted": 1, "revision": await change.touch("subjects")}
            await change.connection.execute(update(_TABLE).where(_TABLE.c.subject == subject).values(gone))
            await prune(change.connection, _TABLE, "subjects")
            change.record({"before": _told(_made(before)), "after": None})

    async def changes(self, since: int, cursor: str = "") -> SubjectChanges:
        """For nodes; raises Invalid for a cursor that is none. See ``deltas`` for how pages follow one another."""
        async with self._ledger.database.read() as connection:
            incarnation = (await read_revisions(connection)).incarnation
            page = await delta(connection, _TABLE, "subjects", since, cursor)
        put = [_entry(_made(row)) for row in page.rows if not row.deleted]
        gone = [row.subject for row in page.rows if row.deleted]
        return SubjectChanges(incarnation, page.since, page.revision, page.full, put, gone, page.more, page.cursor)


async def _row(connection: AsyncConnection, subject: str) -> Row[Any] | None:
    if not subject.isprintable():
        return None
    return (await connection.execute(select(_TABLE).where(_TABLE.c.subject == subject, _LIVE))).one_or_none()


def _check_name(subject: str) -> None:
    kind, _, name = subject.partition(":")
    if kind not in SUBJECT_KINDS or not name or len(subject) > LIST_VALUE_CHARS_MAX or not subject.isprintable():
        forms = ", ".join(f"{kind}:NAME" for kind in SUBJECT_KINDS)
        raise Invalid([Fault(f"subject: {shown(subject)} is not one of {forms}", "/subject")])


def _check_known(row: SubjectRow, current: Version | None) -> None:
    """Tier and rules must be in service: a slip would change nothing, and nobody would see why."""
    if current is None:
        return
    tiers = (current.document.get("tiers") or {}).get("names", [])
    tiers = [tiers] if isinstance(tiers, str) else tiers
    if row.tier is not None and row.tier not in tiers:
        known = f"known are {', '.join(tiers)}" if tiers else "the rules declare no tiers"
        raise Invalid([Fault(f"tier: unknown tier {shown(row.tier)}; {known}", "/tier")])
    names = [rule["name"] for rule in current.document["rules"]]
    for at, name in enumerate(row.rules):
        if name not in names:
            hint = suggest(name, names)
            meant = "" if hint is None else f" (did you mean {hint!r}?)"
            raise Invalid([Fault(f"rules: there is no rule {shown(name)}{meant}", f"/rules/{at}")])


def _read(subject: str, value: Any, now_us: int, revision: int) -> SubjectRow:
    if not isinstance(value, dict) or not value:
        raise Invalid([Fault(f"expected an object with {', '.join(_FIELDS)}")])
    for name in value:
        if name not in _FIELDS:
            raise Invalid([Fault(f"{shown(name)}: unknown field; known are {', '.join(_FIELDS)}", f"/{name}")])
    tier, until_us, rules = value.get("tier"), value.get("until_us"), value.get("rules") or []
    if tier is not None:
        check_text("tier", tier, 64, least=1)
    factor = Fraction(1) if value.get("factor") is None else _factor(value["factor"])
    if tier is None and factor == 1:
        raise Invalid([Fault("neither a tier nor a factor: nothing would differ")])
    if until_us is not None and (type(until_us) is not int or not now_us < until_us < 2**63):
        raise Invalid([Fault(f"until_us: {shown(until_us)} is not a time ahead", "/until_us")])
    if until_us is not None and factor == 1:
        raise Invalid([Fault("until_us: it is a factor that ends, and there is none; a tier stays", "/until_us")])
    if not isinstance(rules, list) or len(rules) > RULES_MAX or not all(isinstance(name, str) for name in rules):
        raise Invalid([Fault("rules: expected a list of names of rules", "/rules")])
    note = check_text("note", value.get("note") or "")
    return SubjectRow(
        subject, tier, factor.numerator, factor.denominator, until_us, tuple(dict.fromkeys(rules)), note, revision
    )


def _factor(value: Any) -> Fraction:
    wrong = Invalid(
        [
            Fault(
                f"factor: {shown(value)} is not such as 10x, 0.5 or a fraction of whole numbers up to {SUBJECT_FACTOR_PART_MAX}",
                "/factor",
            )
        ]
    )
    if isinstance(value, dict) and set(value) == {"numerator", "denominator"}:
        parts = (value["numerator"], value["denominator"])
        if not all(type(part) is int and 1 <= part <= SUBJECT_FACTOR_PART_MAX for part in parts):
            raise wrong
        return Fraction(*parts)
    found = None if isinstance(value, bool | dict | list) else _FACTOR.fullmatch(str(value))
    if found is None:
        raise wrong
    factor = Fraction(Decimal(found[1]))
    if not (0 < factor.numerator <= SUBJECT_FACTOR_PART_MAX and factor.denominator <= SUBJECT_FACTOR_PART_MAX):
        raise wrong
    return factor


def _entry(row: SubjectRow) -> SubjectEntry:
    return SubjectEntry(row.subject, row.tier, row.factor_numerator, row.factor_denominator, row.until_us, row.rules)


def _made(row: Row[Any]) -> SubjectRow:
    values = {name: value for name, value in row._asdict().items() if name != "deleted"}
    return SubjectRow(**{**values, "rules": tuple(msgspec.json.decode(row.rules))})


def _told(row: SubjectRow) -> dict[str, Any]:
    return {
        "subject": row.subject,
        "tier": row.tier,
        "factor_numerator": row.factor_numerator,
        "factor_denominator": row.factor_denominator,
        "until_us": row.until_us,
        "rules": list(row.rules),
        "note": row.note,
    }
