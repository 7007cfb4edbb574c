"""Rules that do not apply for a while: the kill switch."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Row, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import PAUSES_MAX
from sluicegate.control import schema
from sluicegate.control.errors import Conflict, Fault, Invalid, NotFound
from sluicegate.control.ledger import Change, Ledger
from sluicegate.control.model import Actor, Page, PauseRow, Role
from sluicegate.control.paging import check_text, page_of, read_token, rows_of_page
from sluicegate.control.rulesets import Rulesets
from sluicegate.rules.feed import Pause

__all__ = ["Pauses", "held_pauses", "pauses_in"]

_TABLE = schema.pauses
_HOLDS = _TABLE.c.ended_us.is_(None)
_CLOCK: Final = Actor("system:clock", "local", role=Role.EDITOR)


class Pauses:
    """Pauses of one rule, or of all. Writes need the role editor.

    A pause ends by itself on every node, by the node's clock; here that is noted, and audited, when ``sweep`` comes by.
    """

    def __init__(self, ledger: Ledger, rulesets: Rulesets) -> None:
        self._ledger = ledger
        self._rulesets = rulesets

    async def pause(
        self,
        actor: Actor,
        rule: str | None,
        *,
        until_us: int | None = None,
        reason: str = "",
        validate_only: bool = False,
    ) -> PauseRow:
        """In place of a pause of the same rule that holds. Raises NotFound for a rule that does not exist. ``rule`` None: every rule."""
        resource = "rules" if rule is None else f"rule:{rule}"
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        async with self._ledger.change(actor, Role.EDITOR, "pause", resource, **options) as change:
            connection = change.connection
            if until_us is not None and not change.now_us < until_us < 2**63:
                raise Invalid([Fault(f"until_us: {until_us} is not ahead", "/until_us")])
            await self._check_rule(connection, rule)
            same = _TABLE.c.rule.is_(None) if rule is None else _TABLE.c.rule == rule
            ended = update(_TABLE).where(_HOLDS, same).values(ended_us=change.now_us)
            replaced = (await connection.execute(ended)).rowcount
            number = ((await connection.execute(select(func.max(_TABLE.c.id)))).scalar_one() or 0) + 1
            row = PauseRow(number, rule, until_us, reason, actor.name, change.now_us, None)
            await connection.execute(
                _TABLE.insert(), {column.name: getattr(row, column.name) for column in _TABLE.columns}
            )
            held = (await connection.execute(select(func.count()).select_from(_TABLE).where(_HOLDS))).scalar_one()
            if held > PAUSES_MAX:
                raise Conflict(f"{held} pauses would hold; at most {PAUSES_MAX} are allowed")
            await change.touch("overlay")
            change.record({"pause": number, "until_us": until_us, "replaced": replaced})
        return row

    async def resume(self, actor: Actor, pause: int, *, reason: str = "", validate_only: bool = False) -> PauseRow:
        """Raises NotFound; Conflict where it has ended."""
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        begun = self._ledger.change(actor, Role.EDITOR, "resume", f"pause:{pause}", **options)
        async with begun as change:
            row = _made(await _row(change.connection, pause))
            if row.ended_us is not None or (row.until_us is not None and row.until_us <= change.now_us):
                raise Conflict(f"pause {pause} has ended")
            return await self._end(change, row, change.now_us)

    async def get(self, pause: int) -> PauseRow:
        """Raises NotFound."""
        async with self._ledger.database.read() as connection:
            return _made(await _row(connection, pause))

    async def page(self, *, page_size: int, page_token: str = "", ended: bool = False) -> Page[PauseRow]:
        """Those that hold, or with ``ended`` all; the newest first."""
        query = select(_TABLE).order_by(_TABLE.c.id.desc()).limit(rows_of_page(page_size))
        before = read_token(page_token, "pauses", int)
        if before is not None:
            query = query.where(_TABLE.c.id < before[0])
        if not ended:
            query = query.where(_holds_at(self._ledger.clock.now_us()))
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, page_size, "pauses", _made, lambda row: (row.id,))

    async def sweep(self) -> None:
        """Note the end of pauses whose time is over, each with its row of the audit trail."""
        over = and_(_HOLDS, _TABLE.c.until_us <= self._ledger.clock.now_us())
        query = select(_TABLE).where(over).order_by(_TABLE.c.until_us, _TABLE.c.id).limit(PAUSES_MAX)
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query)).all()
        for row in rows:
            async with self._ledger.change(_CLOCK, Role.EDITOR, "pause.end", f"pause:{row.id}") as change:
                # Another service may have been faster.
                pause = _made(await _row(change.connection, row.id))
                if pause.ended_us is None and pause.until_us is not None:
                    await self._end(change, pause, pause.until_us)

    async def _end(self, change: Change, row: PauseRow, ended_us: int) -> PauseRow:
        await change.touch("overlay")
        await change.connection.execute(update(_TABLE).where(_TABLE.c.id == row.id).values(ended_us=ended_us))
        change.record(
            {"rule": row.rule, "ended_us": ended_us}, resource="rules" if row.rule is None else f"rule:{row.rule}"
        )
        return PauseRow(row.id, row.rule, row.until_us, row.reason, row.actor, row.created_us, ended_us)

    async def _check_rule(self, connection: AsyncConnection, rule: str | None) -> None:
        if rule is None:
            return
        current = await self._rulesets.current_in(connection)
        if current is None:
            raise NotFound("rule", check_text("rule", rule))
        current.rule(rule)


async def pauses_in(connection: AsyncConnection) -> tuple[Pause, ...]:
    """The pauses nodes are told of. Those whose time is over are among them until that is noted; nodes know their end."""
    rows = (await connection.execute(select(_TABLE).where(_HOLDS).order_by(_TABLE.c.id))).all()
    return tuple(Pause(row.rule, row.until_us, row.reason) for row in rows)


async def held_pauses(connection: AsyncConnection, now_us: int) -> list[PauseRow]:
    """The pauses that hold at this time; those of one rule come before those of all."""
    query = select(_TABLE).where(_holds_at(now_us)).order_by(_TABLE.c.rule.is_(None), _TABLE.c.id)
    return [_made(row) for row in await connection.execute(query)]


def _holds_at(now_us: int) -> Any:
    return and_(_HOLDS, or_(_TABLE.c.until_us.is_(None), _TABLE.c.until_us > now_us))


async def _row(connection: AsyncConnection, pause: int) -> Row[Any]:
    row = None
    if 0 < pause < 2**63:
        row = (await connection.execute(select(_TABLE).where(_TABLE.c.id == pause))).one_or_none()
    if row is None:
        raise NotFound("pause", str(pause))
    return row


def _made(row: Row[Any]) -> PauseRow:
    return PauseRow(**row._asdict())
