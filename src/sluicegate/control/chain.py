"""The audit trail as a chain: each row holds the hash of the row before it, so that none can be changed, taken out or put in unseen.

The hash of a row is the SHA-256 of all its fields but ``hash``, as canonical JSON, the hash of the row before it among them. Who can write to the
database can compute a new chain; what holds him is a head (``ID:HASH``) that was noted elsewhere, against which the chain is checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import AUDIT_DIFF_BYTES_MAX, AUDIT_FAULTS_SHOWN
from sluicegate.control import schema
from sluicegate.control.model import Actor
from sluicegate.rules.document import canonical

__all__ = ["Walk", "append", "hash_of"]


def hash_of(row: Mapping[str, Any]) -> str:
    """The hash of a row, in hex."""
    return hashlib.sha256(canonical({name: row[name] for name in _HASHED}).encode()).hexdigest()


_HASHED = [column.name for column in schema.audit.columns if column.name != "hash"]


async def append(
    connection: AsyncConnection,
    actor: Actor,
    now_us: int,
    action: str,
    resource: str,
    outcome: str,
    reason: str = "",
    before_version: int | None = None,
    after_version: int | None = None,
    diff: Any = None,
) -> None:
    """Write the next row, within a writing transaction."""
    head = schema.meta.c.key == "audit_head"
    number, _, previous = (
        (await connection.execute(select(schema.meta.c.value).where(head))).scalar_one().partition(":")
    )
    told = canonical(diff)
    if len(told.encode()) > AUDIT_DIFF_BYTES_MAX:
        told = canonical({"too_large_bytes": len(told.encode())})
    row = {
        "id": int(number) + 1,
        "at_us": now_us,
        "actor": actor.name,
        "auth": actor.auth,
        "source_ip": actor.source_ip,
        "request_id": actor.request_id,
        "action": action,
        "resource": resource,
        "outcome": outcome,
        "reason": reason,
        "before_version": before_version,
        "after_version": after_version,
        "diff": told,
        "previous_hash": previous,
    }
    row["hash"] = hash_of(row)
    await connection.execute(schema.audit.insert(), row)
    await connection.execute(update(schema.meta).where(head).values(value=f"{row['id']}:{row['hash']}"))


class Walk:
    """Checks the rows of a chain, the oldest first. ``anchor``: a head noted elsewhere, "" for none."""

    def __init__(self, anchor: str = "") -> None:
        self.rows = 0
        self.faults: list[str] = []
        self._hash = ""
        self._anchor_id, _, self._anchor_hash = anchor.partition(":")
        self._met = not anchor

    @property
    def head(self) -> str:
        """``ID:HASH`` of the last row that was seen."""
        return f"{self.rows}:{self._hash}"

    def step(self, row: Mapping[str, Any]) -> None:
        """Check the next row."""
        expected = self.rows + 1
        if row["id"] != expected:
            self._fault(f"row {expected} is missing; row {row['id']} follows row {self.rows}")
        if row["previous_hash"] != self._hash:
            self._fault(f"row {row['id']} does not follow the row before it")
        if row["hash"] != hash_of(row):
            self._fault(f"row {row['id']} was changed: its hash is not that of its fields")
        if str(row["id"]) == self._anchor_id:
            self._met = True
            if row["hash"] != self._anchor_hash:
                self._fault(f"row {row['id']} is not the one that was noted")
        self.rows, self._hash = row["id"], row["hash"]

    def end(self, head: str) -> None:
        """Check that the last row seen is the head that the database holds, and that the noted one was met."""
        if head != self.head:
            self._fault(
                f"the newest row is {self.head.partition(':')[0]}, but {head.partition(':')[0]} were written: rows are missing at the end"
            )
        if not self._met:
            self._fault(f"the noted row {self._anchor_id} is not there")

    def _fault(self, message: str) -> None:
        if len(self.faults) < AUDIT_FAULTS_SHOWN:
            self.faults.append(message)
