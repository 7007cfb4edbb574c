"""Reading the audit trail. It is written by the ledger, with each change; nothing here or elsewhere changes it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from sqlalchemy import Row, select

from sluicegate.bounds import AUDIT_EXPORT_BATCH
from sluicegate.control import schema
from sluicegate.control.chain import Walk
from sluicegate.control.errors import Fault, Invalid, NotFound
from sluicegate.control.ledger import Ledger
from sluicegate.control.model import Actor, AuditRow, AuditVerdict, Page, Role
from sluicegate.control.paging import page_of, read_token, rows_of_page
from sluicegate.rules.document import read_json

__all__ = ["Audit"]

_TABLE = schema.audit


class Audit:
    """The audit trail. ``get``, ``page`` and ``verify`` need the role viewer, ``export`` admin."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def get(self, actor: Actor, line: int) -> AuditRow:
        """The line with a number. Raises NotFound."""
        self._ledger.allow(actor, Role.VIEWER)
        async with self._ledger.database.read() as connection:
            row = (await connection.execute(select(_TABLE).where(_TABLE.c.id == line))).one_or_none()
        if row is None:
            raise NotFound("line", str(line))
        return _made(row)

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
        since_us: int = 0,
    ) -> Page[AuditRow]:
        """The newest first. ``action``, ``by`` (the actor's name), ``resource``, ``outcome``: only rows with exactly this; "": with any.

        ``since_us``: only rows of this time and later.
        """
        self._ledger.allow(actor, Role.VIEWER)
        query = select(_TABLE).order_by(_TABLE.c.id.desc()).limit(rows_of_page(page_size))
        before = read_token(page_token, "audit", int)
        if before is not None:
            query = query.where(_TABLE.c.id < before[0])
        if since_us:
            query = query.where(_TABLE.c.at_us >= since_us)
        for column, value in (("action", action), ("actor", by), ("resource", resource), ("outcome", outcome)):
            if value:
                query = query.where(_TABLE.c[column] == _sought(column, value))
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, page_size, "audit", _made, lambda row: (row.id,))

    async def export(self, actor: Actor, *, after: int = 0) -> AsyncIterator[AuditRow]:
        """All rows above number ``after``, the oldest first, in bounded memory. The export itself is a row, the last one."""
        async with self._ledger.change(actor, Role.ADMIN, "audit.export", "audit") as change:
            change.record({"after": after})
        async for row in self._rows(after):
            yield _made(row)

    async def verify(self, actor: Actor, head: str = "") -> AuditVerdict:
        """Walk the whole chain. ``head``: ``ID:HASH`` noted elsewhere, which must be in it; raises Invalid where it is none."""
        self._ledger.allow(actor, Role.VIEWER)
        number, colon, digest = head.partition(":")
        if head and not (colon and digest and number.isascii() and number.isdigit()):
            raise Invalid([Fault("head: expected ID:HASH", "/head")])
        walk = Walk(head)
        async with self._ledger.database.read() as connection:
            kept = schema.meta.c.key == "audit_head"
            newest = (await connection.execute(select(schema.meta.c.value).where(kept))).scalar_one()
        last = int(newest.partition(":")[0])
        async for row in self._rows(0):
            # Rows above it were written since; whether they follow is the matter of the next walk.
            if row.id <= last or walk.rows < last:
                walk.step(row._asdict())
        walk.end(newest)
        return AuditVerdict(walk.rows, walk.head, tuple(walk.faults))

    async def _rows(self, after: int) -> AsyncIterator[Row[Any]]:
        while True:
            query = select(_TABLE).where(_TABLE.c.id > after).order_by(_TABLE.c.id).limit(AUDIT_EXPORT_BATCH)
            async with self._ledger.database.read() as connection:
                rows = (await connection.execute(query)).all()
            for row in rows:
                yield row
            if len(rows) < AUDIT_EXPORT_BATCH:
                return
            after = rows[-1].id


def _sought(column: str, value: str) -> str:
    if not value.isprintable():
        raise Invalid([Fault(f"{column}: holds a character that cannot be printed", f"/{column}")])
    return value


def _made(row: Row[Any]) -> AuditRow:
    return AuditRow(**{**row._asdict(), "diff": read_json(row.diff.encode())})
