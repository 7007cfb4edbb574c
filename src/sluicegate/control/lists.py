"""The allow and the block list: single entries, whole feeds, and what nodes are told of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from typing import Any, Literal, NoReturn, get_args

from sqlalchemy import Row, and_, func, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import (
    CONTROL_NAME_CHARS_MAX,
    IMPORT_STEP_ROWS_MIN,
    IMPORTS_AT_ONCE_MAX,
    LIST_ENTRIES_MAX,
    PENALTIES_IN_REPORT_MAX,
    PENALTY_IPV4_PREFIX_MIN,
    PENALTY_IPV6_PREFIX_MIN,
)
from sluicegate.control import schema
from sluicegate.control.deltas import delta, prune
from sluicegate.control.edits import check_expected
from sluicegate.control.errors import (
    Conflict,
    ControlError,
    Fault,
    Invalid,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from sluicegate.control.ledger import Ledger, read_revisions
from sluicegate.control.list_import import Import, stage, unstage
from sluicegate.control.list_steps import Job, in_steps
from sluicegate.control.list_values import NotAnEntry, check_width, covering, key_of
from sluicegate.control.model import Actor, Expect, ImportResult, ListRow, Page, Role
from sluicegate.control.paging import check_text, page_of, read_token, rows_of_page
from sluicegate.control.penalties import Givable
from sluicegate.control.room import Room
from sluicegate.control.turns import Turns
from sluicegate.rules.feed import ListChanges, ListEntry, ListKey, ListKind, ListName

__all__ = ["Lists"]

_TABLE = schema.list_entries
_LIVE = _TABLE.c.deleted == 0
_PENALTY = "penalty:"


class Lists:
    """The allow and the block list. An entry that ended by its time is as if it were not there. Writes need the role editor."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._room = Room(_TABLE)
        self._turns = Turns()
        self._importing = asyncio.Semaphore(IMPORTS_AT_ONCE_MAX)
        self._removing = asyncio.Semaphore(IMPORTS_AT_ONCE_MAX)

    async def get(self, key: ListKey) -> ListRow:
        """Raises NotFound, which tells of networks on the list that cover an address, and Invalid for a key that no entry can have."""
        key = key_of(*key)
        async with self._ledger.database.read() as connection:
            row = await self._row(connection, key)
            covered_by = await self._covering(connection, key) if row is None else ()
        if row is None:
            raise NotFound("entry", ":".join(key), covered_by=covered_by)
        return _made(row)

    async def page(
        self,
        name: ListName,
        *,
        page_size: int,
        page_token: str = "",
        kind: ListKind | None = None,
        source: str | None = None,
    ) -> Page[ListRow]:
        """In order of kind and value. ``kind``, ``source`` None: any."""
        _check_name(name)
        collection = f"lists/{name}"
        query = select(_TABLE).where(_TABLE.c.list == name, self._lives())
        after = read_token(page_token, collection, str, str)
        if after is not None:
            query = query.where(
                or_(_TABLE.c.kind > after[0], and_(_TABLE.c.kind == after[0], _TABLE.c.value > after[1]))
            )
        if kind is not None:
            query = query.where(_TABLE.c.kind == check_text("kind", kind))
        if source is not None:
            query = query.where(_TABLE.c.source == check_text("source", source))
        query = query.order_by(_TABLE.c.list, _TABLE.c.kind, _TABLE.c.value).limit(rows_of_page(page_size))
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, page_size, collection, _made, lambda row: (row.kind, row.value))

    async def count(self, name: ListName) -> dict[str, int]:
        """Live entries per source, "" for those without one."""
        _check_name(name)
        query = select(_TABLE.c.source, func.count()).where(_TABLE.c.list == name, self._lives())
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query.group_by(_TABLE.c.source).order_by(_TABLE.c.source))).all()
        return {row[0]: row[1] for row in rows}

    async def put(
        self,
        actor: Actor,
        name: ListName,
        kind: str,
        value: str,
        *,
        expires_us: int | None = None,
        source: str = "",
        reason: str = "",
        expect: Expect = None,
        force: bool = False,
        validate_only: bool = False,
    ) -> ListRow:
        """An entry, in place of the one with its key; from then on it is one of ``source``.

        ``expect``: the revision of the entry; None: whatever is there. ``force``: take a network of any size.
        """
        action = f"list.{name}.put"
        begun = self._ledger.change(
            actor, Role.EDITOR, action, f"{name}:{kind}:{value}", reason=reason, validate_only=validate_only
        )
        async with begun as change:
            key = key_of(name, kind, value)
            if not force:
                _check_width(key)
            check_text("source", source, CONTROL_NAME_CHARS_MAX)
            if expires_us is not None and not change.now_us < expires_us < 2**63:
                raise Invalid([Fault(f"expires_us: {expires_us} is not ahead", "/expires_us")])
            before = await self._row(change.connection, key)
            check_expected(expect, before)
            row = ListRow(*key, expires_us, source, reason, change.now_us, actor.name, change.revisions.lists + 1)
            if before is None:
                if not await self._room.has(change.connection, LIST_ENTRIES_MAX):
                    raise Conflict(f"the lists hold {LIST_ENTRIES_MAX} entries, as many as are allowed")
            elif (before.expires_us, before.source, before.reason) == (expires_us, source, reason):
                return _made(before)
            await change.touch("lists")
            await self._write(change.connection, row)
            change.record({"before": None if before is None else _told(before), "after": _told(row)})
        return row

    async def penalise(self, actor: Actor, entries: list[ListEntry], givable: Mapping[str, Givable]) -> int:
        """Block clients that a node says have earned it, unless they are blocked for as long already; how many that were.

        Who reports needs the role node. Entries that ended, or are none that a rule of ``givable`` (by name) can give, are left out, and
        those for which the lists have no room: a node that is not itself any more blocks no half of the world, and nobody for good.
        """
        told = entries[:PENALTIES_IN_REPORT_MAX]
        given = [(entry, _right(entry, givable)) for entry in told]
        rows: list[ListRow] = []
        self._ledger.allow(actor, Role.NODE)
        if not any(right for _, right in given):
            return 0
        async with self._ledger.change(actor, Role.NODE, "list.penalty", "block") as change:
            for entry, right in given:
                if right is None:
                    continue
                key, ends_us = key_of(*entry.key), entry.expires_us
                if ends_us is None or not 0 < ends_us - change.now_us <= right.block_us or _is_wide(key):
                    continue
                before = await self._row(change.connection, key)
                if before is not None and (before.expires_us is None or before.expires_us >= ends_us):
                    continue
                if before is None and not await self._room.has(change.connection, LIST_ENTRIES_MAX):
                    break
                revision = await change.touch("lists")
                row = ListRow(*key, ends_us, entry.source, "penalty", change.now_us, actor.name, revision)
                await self._write(change.connection, row)
                rows.append(row)
            if rows:
                change.record([_told(row) for row in rows])
        return len(rows)

    async def remove(
        self, actor: Actor, key: ListKey, *, expect: Expect = None, reason: str = "", validate_only: bool = False
    ) -> None:
        """Raises NotFound. ``expect`` as for ``put``."""
        name, kind, value = key
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        begun = self._ledger.change(actor, Role.EDITOR, f"list.{name}.remove", f"{name}:{kind}:{value}", **options)
        async with begun as change:
            key = key_of(name, kind, value)
            before = await self._row(change.connection, key)
            if before is None and expect is None:
                raise NotFound("entry", ":".join(key))
            check_expected(expect, before)
            if before is None:
                raise PreconditionFailed(0)
            gone = {"deleted": 1, "revision": await change.touch("lists")}
            await change.connection.execute(update(_TABLE).where(_is(key)).values(gone))
            await prune(change.connection, _TABLE, "lists")
            change.record({"before": _told(before), "after": None})

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
        force: bool = False,
        validate_only: bool = False,
    ) -> ImportResult:
        """A feed, in bounded memory, whatever the size of the chunks. Raises Invalid with pointers ``/LINE`` from 1; then nothing is taken.

        ``text``: one value a line; empty lines and comments after ``#`` or ``;`` are left out. ``ndjson``: one ``ImportedEntry`` a line.
        ``replace``: entries of the same source that are not among them are removed, after all others were put. An entry that another
        source put there, and that has not ended, stays as it is and counts as unchanged; so a feed never takes away, or ends, what
        somebody blocked by hand.

        A large one is taken in steps, each a revision (``list_steps``): one that is cut off in the middle has been taken in part, and the
        same feed again does the rest. Raises Conflict where another import of the source begins meanwhile. Imports by one token follow one
        another. With ``replace`` a feed without any entry is refused: it is more likely a slip than the wish to remove all. ``force``: take networks of any size.
        """
        action, resource = f"list.{name}.import", f"{name}:{source}"
        # Who may not, or asks for nonsense, is told before there is room for one more.
        with self._as_refusal() as refusal:
            self._ledger.allow(actor, Role.EDITOR)
            # Any valid value: what is checked is list and kind.
            key_of(name, kind, "127.0.0.1")
            check_text("source", source, CONTROL_NAME_CHARS_MAX, least=1)
        if refusal:
            await self._refuse(refusal[0], actor, action, resource, reason, validate_only=validate_only)
        async with (
            self._turns.of(actor.auth),
            self._importing,
            self._ledger.database.scratch() as connection,
            unstage(connection),
        ):
            with self._as_refusal() as refusal:
                settings = Import(name, source, kind, form, replace, expires_us, self._ledger.clock.now_us(), force)
                lines = await stage(connection, chunks, settings)
                if replace and not lines:
                    raise Invalid([Fault("holds no entry; to remove a feed, delete its source")])
            if refusal:
                await self._refuse(refusal[0], actor, action, resource, reason, validate_only=validate_only)
            job = Job(settings, actor, action, resource, reason, LIST_ENTRIES_MAX)
            return await in_steps(self._ledger, connection, job, lines, validate_only=validate_only)

    async def remove_source(
        self, actor: Actor, name: ListName, source: str, *, reason: str = "", validate_only: bool = False
    ) -> int:
        """All entries of a source, in steps as an import; how many there were. An import of the source that is under way gives up."""
        action, resource = f"list.{name}.remove_source", f"{name}:{source}"
        with self._as_refusal() as refusal:
            self._ledger.allow(actor, Role.EDITOR)
            _check_name(name)
            check_text("source", source, CONTROL_NAME_CHARS_MAX)
        if refusal:
            await self._refuse(refusal[0], actor, action, resource, reason, validate_only=validate_only)
        settings = Import(name, source, "ip", "text", replace=True, expires_us=None, now_us=self._ledger.clock.now_us())
        job = Job(settings, actor, action, resource, reason, LIST_ENTRIES_MAX)
        # Not behind the imports, which it may be there to end.
        async with self._removing, self._ledger.database.scratch() as connection, unstage(connection):
            await stage(connection, _nothing(), settings)
            result = await in_steps(self._ledger, connection, job, 0, validate_only=validate_only)
        return result.removed

    async def changes(self, since: int, cursor: str = "") -> ListChanges:
        """For nodes; raises Invalid for a cursor that is none. See ``deltas`` for how pages follow one another."""
        async with self._ledger.database.read() as connection:
            incarnation = (await read_revisions(connection)).incarnation
            page = await delta(connection, _TABLE, "lists", since, cursor)
        put = [
            ListEntry(row.list, row.kind, row.value, row.expires_us, row.source) for row in page.rows if not row.deleted
        ]
        gone: list[ListKey] = [(row.list, row.kind, row.value) for row in page.rows if row.deleted]
        return ListChanges(incarnation, page.since, page.revision, page.full, put, gone, page.more, page.cursor)

    async def sweep(self) -> None:
        """Turn entries that have ended into tombstones, some at a time. Nodes know the end of each entry by themselves, so no revision comes of it."""
        keys = list(_TABLE.primary_key.columns)
        ended = and_(_LIVE, _TABLE.c.expires_us <= self._ledger.clock.now_us())
        oldest = select(*keys).where(ended).order_by(_TABLE.c.expires_us).limit(IMPORT_STEP_ROWS_MIN)
        async with self._ledger.database.read() as connection:
            if (await connection.execute(oldest.limit(1))).first() is None:
                return
        async with self._ledger.database.write() as connection:
            await connection.execute(update(_TABLE).where(tuple_(*keys).in_(oldest)).values(deleted=1))
            await prune(connection, _TABLE, "lists")

    def _lives(self) -> Any:
        return and_(_LIVE, or_(_TABLE.c.expires_us.is_(None), _TABLE.c.expires_us > self._ledger.clock.now_us()))

    async def _covering(self, connection: AsyncConnection, key: ListKey) -> tuple[str, ...]:
        name, kind, value = key
        wider = covering(value) if kind == "ip" else ()
        if not wider:
            return ()
        query = select(_TABLE.c.value).where(_TABLE.c.list == name, _TABLE.c.kind == kind, _TABLE.c.value.in_(wider))
        found = set((await connection.execute(query.where(self._lives()))).scalars())
        return tuple(network for network in wider if network in found)

    async def _row(self, connection: AsyncConnection, key: ListKey) -> Row[Any] | None:
        return (await connection.execute(select(_TABLE).where(_is(key), self._lives()))).one_or_none()

    async def _write(self, connection: AsyncConnection, row: ListRow) -> None:
        values = {**_told(row), "reason": row.reason, "created_us": row.created_us, "actor": row.actor}
        values |= {"revision": row.revision, "deleted": 0}
        found = _is((row.list, row.kind, row.value))
        if (await connection.execute(update(_TABLE).where(found).values(values))).rowcount == 0:
            await connection.execute(_TABLE.insert(), values)

    async def _refuse(
        self, error: ControlError, actor: Actor, action: str, resource: str, reason: str, *, validate_only: bool
    ) -> NoReturn:
        """Raise why something is refused that was found before there was a transaction, with its line in the audit trail."""
        async with self._ledger.change(
            actor, Role.EDITOR, action, resource, reason=reason, validate_only=validate_only
        ):
            raise error

    @contextlib.contextmanager
    def _as_refusal(self) -> Iterator[list[ControlError]]:
        """Keeps why an import is refused until there is a transaction to refuse it in."""
        kept: list[ControlError] = []
        try:
            yield kept
        except Unavailable:
            raise
        except ControlError as error:
            kept.append(error)


async def _nothing() -> AsyncIterator[bytes]:
    none: tuple[bytes, ...] = ()
    for chunk in none:
        yield chunk


def _right(entry: ListEntry, givable: Mapping[str, Givable]) -> Givable | None:
    """What the rule that an entry names can give; None where it cannot give this one."""
    if entry.list != "block" or not entry.source.startswith(_PENALTY):
        return None
    found = givable.get(entry.source.removeprefix(_PENALTY))
    return found if found is not None and entry.kind in found.kinds else None


def _is_wide(key: ListKey) -> bool:
    """Whether it is a network that holds more than one client, however clients are counted."""
    _, kind, value = key
    prefix = value.partition("/")[2] if kind == "ip" else ""
    return bool(prefix) and int(prefix) < (PENALTY_IPV6_PREFIX_MIN if ":" in value else PENALTY_IPV4_PREFIX_MIN)


def _check_width(key: ListKey) -> None:
    try:
        check_width(key[1], key[2])
    except NotAnEntry as error:
        raise Invalid([Fault(f"value: {error}", "/value")]) from error


def _check_name(name: str) -> None:
    if name not in get_args(ListName):
        raise NotFound("list", name)


def _is(key: ListKey) -> Any:
    return and_(_TABLE.c.list == key[0], _TABLE.c.kind == key[1], _TABLE.c.value == key[2])


def _made(row: Row[Any]) -> ListRow:
    return ListRow(
        row.list, row.kind, row.value, row.expires_us, row.source, row.reason, row.created_us, row.actor, row.revision
    )


def _told(row: Row[Any] | ListRow) -> dict[str, Any]:
    return {
        "list": row.list,
        "kind": row.kind,
        "value": row.value,
        "expires_us": row.expires_us,
        "source": row.source,
    }
