"""Whether a large table has room for one more row, without counting it for each."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["Room"]

_COUNTED_EACH: Final = 1_000


class Room:
    """Rows of a table that are not deleted, against a bound.

    They are counted when half of the room that was left may be used up, at the latest after some rows more. Where several services
    add rows the bound is exceeded by that many for each at most; near it every row is counted. ``counted_each``: after how many rows.
    """

    def __init__(self, table: Table, counted_each: int = _COUNTED_EACH) -> None:
        self._table = table
        self._counted_each = counted_each
        self._uncounted = 0

    async def left(self, connection: AsyncConnection, most: int) -> int:
        """How many rows there is room for below ``most``; counted."""
        counted = select(func.count()).select_from(self._table).where(self._table.c.deleted == 0)
        left: int = most - (await connection.execute(counted)).scalar_one()
        self._uncounted = max(0, min(left // 2, self._counted_each))
        return left

    async def has(self, connection: AsyncConnection, most: int) -> bool:
        """Whether there is room for one more row below ``most``."""
        if self._uncounted > 0:
            self._uncounted -= 1
            return True
        return await self.left(connection, most) > 0

    async def fits(self, connection: AsyncConnection, most: int, added: int) -> bool:
        """Whether all rows are within ``most``, when ``added`` of them were just put there."""
        if self._uncounted >= added:
            self._uncounted -= added
            return True
        return await self.left(connection, most) >= 0
