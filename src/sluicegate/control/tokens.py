"""Bearer tokens: who may ask the rules service for what.

A token is 256 random bits. What is kept is its SHA-256: of a secret that nobody can guess a fast hash is as good as a slow one, and
whoever reads the database cannot use what he finds. A token is looked up by that hash, whose digits tell nothing of the token, and
compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import Any, Final

from sqlalchemy import Row, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from sluicegate.bounds import (
    CONTROL_NAME_CHARS_MAX,
    LOGIN_NOTE_ADDRESSES_MAX,
    LOGIN_NOTE_S,
    NODE_NAME_CHARS_MAX,
    TOKEN_BYTES_MAX,
    TOKEN_CHARS_MIN,
    TOKENS_MAX,
)
from sluicegate.clock import US_PER_S
from sluicegate.control import schema
from sluicegate.control.errors import Conflict, Fault, Invalid, NotAuthenticated, NotFound, Unavailable
from sluicegate.control.ledger import Ledger
from sluicegate.control.model import Actor, Page, Role, TokenRow
from sluicegate.control.paging import check_text, page_of, read_token, rows_of_page
from sluicegate.errors import ConfigurationError

__all__ = ["Tokens", "is_valid"]

_TABLE = schema.tokens
_PREFIX: Final = "sgt_"
_AUTH: Final = "token:"
_SECRET_BYTES: Final = 32
_NO_HASH: Final = "0" * 64
_SETUP: Final = Actor("system:setup", "local", role=Role.ADMIN)
_LOGIN: Final = Actor("", "none")


class Tokens:
    """Tokens and what they may do. All but ``verify`` and ``bootstrap`` need the role admin."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._used: dict[int, int] = {}
        self._refused = 0
        self._refused_from: dict[str, int] = {}
        self._noted_us: int | None = None

    async def create(
        self,
        actor: Actor,
        name: str,
        role: Role,
        *,
        namespaces: list[str] | None = None,
        expires_us: int | None = None,
        node: str | None = None,
        reason: str = "",
        validate_only: bool = False,
    ) -> tuple[TokenRow, str]:
        """The token and its text, which is not kept. ``namespaces`` None: all.

        ``node``: the only node, with its workers ``NODE-NUMBER``, that may report with it, for the role node only; None: any.
        """
        text = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        async with self._ledger.change(actor, Role.ADMIN, "token.create", f"token:{name}", **options) as change:
            check_text("name", name, CONTROL_NAME_CHARS_MAX, least=1)
            if namespaces is not None and not namespaces:
                raise Invalid([Fault("namespaces: is empty; leave it out for all", "/namespaces")])
            for one in namespaces or ():
                check_text("namespaces", one, CONTROL_NAME_CHARS_MAX, least=1)
            if expires_us is not None and not change.now_us < expires_us < 2**63:
                raise Invalid([Fault(f"expires_us: {expires_us} is not ahead", "/expires_us")])
            if node is not None:
                check_text("node", node, NODE_NAME_CHARS_MAX, least=1)
                if role is not Role.NODE:
                    raise Invalid([Fault(f"node: a token of the role {role} reports as no node", "/node")])
            row = await _insert(change.connection, name, Role(role), text, change.now_us, namespaces, expires_us, node)
            told = {"role": row.role, "namespaces": namespaces, "expires_us": expires_us}
            change.record(told if node is None else {**told, "node": node}, resource=f"token:{row.id}")
        return row, text

    async def get(self, actor: Actor, token: int) -> TokenRow:
        """Raises NotFound."""
        self._ledger.allow(actor, Role.ADMIN)
        async with self._ledger.database.read() as connection:
            return _made(await _row(connection, token))

    async def page(self, actor: Actor, *, page_size: int, page_token: str = "") -> Page[TokenRow]:
        """All, the newest first."""
        self._ledger.allow(actor, Role.ADMIN)
        query = select(_TABLE).order_by(_TABLE.c.id.desc()).limit(rows_of_page(page_size))
        before = read_token(page_token, "tokens", int)
        if before is not None:
            query = query.where(_TABLE.c.id < before[0])
        async with self._ledger.database.read() as connection:
            rows = (await connection.execute(query)).all()
        return page_of(rows, page_size, "tokens", _made, lambda row: (row.id,))

    async def revoke(self, actor: Actor, token: int, *, reason: str = "", validate_only: bool = False) -> TokenRow:
        """At once. Raises NotFound; Conflict for one that is revoked, and for the last one of an admin."""
        options: dict[str, Any] = {"reason": reason, "validate_only": validate_only}
        async with self._ledger.change(actor, Role.ADMIN, "token.revoke", f"token:{token}", **options) as change:
            row = await _row(change.connection, token)
            if row.revoked_us is not None:
                raise Conflict(f"token {token} is revoked already")
            others = select(func.count()).where(
                _lives(change.now_us), _TABLE.c.role == Role.ADMIN.value, _TABLE.c.id != token
            )
            if row.role == Role.ADMIN.value and (await change.connection.execute(others)).scalar_one() == 0:
                raise Conflict(f"token {token} is the last one of an admin; make another one first")
            revoked = update(_TABLE).where(_TABLE.c.id == token).values(revoked_us=change.now_us).returning(_TABLE)
            made = _made((await change.connection.execute(revoked)).one())
            change.record({"name": made.name, "role": made.role})
        return made

    async def verify(self, text: str, *, source_ip: str = "", request_id: str = "") -> Actor:
        """Who a token stands for; raises NotAuthenticated, and notes the attempt.

        A wrong token takes as long as a right one. Attempts are noted in the audit trail by their number, at most once in
        ``LOGIN_NOTE_S``, with the addresses that most came from.
        """
        now_us = self._ledger.clock.now_us()
        # What is longer than any token is cut, and then is none.
        given = hashlib.sha256(text[: TOKEN_BYTES_MAX + 1].encode(errors="replace")).hexdigest()
        async with self._ledger.database.read() as connection:
            row = (await connection.execute(select(_TABLE).where(_TABLE.c.hash == given))).one_or_none()
        matches = hmac.compare_digest(_NO_HASH if row is None else row.hash, given)
        if row is None or not matches or row.revoked_us is not None or not _lasts(row.expires_us, now_us):
            await self._note_refused(source_ip)
            raise NotAuthenticated
        self._used[row.id] = now_us
        made = _made(row)
        namespaces = None if made.namespaces is None else frozenset(made.namespaces)
        return Actor(made.name, _auth(made.id), source_ip, request_id, made.role, namespaces, made.node or "")

    async def bootstrap(self, text: str | None = None) -> str | None:
        """The first token of an admin, where there is none that is valid; its text, to be shown once, where it was made here.

        ``text``: the operator's choice; it becomes a token of an admin where it is none yet. Raises ConfigurationError for one that is too
        short or too long, or that no header can hold.
        """
        if text is not None and not TOKEN_CHARS_MIN <= len(text.encode()) <= TOKEN_BYTES_MAX:
            size = len(text.encode())
            bounds = f"it needs at least {TOKEN_CHARS_MIN}, and at most {TOKEN_BYTES_MAX} are taken"
            raise ConfigurationError(f"the admin token has {size} bytes; {bounds}")
        if text is not None and not (text.isascii() and text.isprintable() and text == text.strip()):
            raise ConfigurationError(
                "the admin token begins or ends with a space, or holds a character that is not ASCII; it could never be sent"
            )
        chosen = text or _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
        async with self._ledger.change(_SETUP, Role.ADMIN, "token.create", "token:admin") as change:
            if text is None:
                found = select(func.count()).where(_lives(change.now_us), _TABLE.c.role == Role.ADMIN.value)
            else:
                # One that was revoked stays so.
                found = select(func.count()).where(_TABLE.c.hash == hashlib.sha256(chosen.encode()).hexdigest())
            if (await change.connection.execute(found)).scalar_one():
                return None
            row = await _insert(change.connection, "admin", Role.ADMIN, chosen, change.now_us, None, None)
            change.record({"role": row.role, "chosen": text is not None}, resource=f"token:{row.id}")
        return None if text is not None else chosen

    async def sweep(self) -> None:
        """Write down when tokens were last used, and how many wrong ones came."""
        used, self._used = self._used, {}
        if used:
            try:
                async with self._ledger.database.write() as connection:
                    for token, at_us in used.items():
                        await connection.execute(update(_TABLE).where(_TABLE.c.id == token).values(last_used_us=at_us))
            except BaseException:
                self._used = used | self._used
                raise
        await self._write_note()

    async def _note_refused(self, source_ip: str) -> None:
        self._refused += 1
        if source_ip in self._refused_from or len(self._refused_from) < LOGIN_NOTE_ADDRESSES_MAX:
            self._refused_from[source_ip] = self._refused_from.get(source_ip, 0) + 1
        await self._write_note()

    async def _write_note(self) -> None:
        now_us = self._ledger.clock.monotonic_us()
        due = self._noted_us is None or now_us - self._noted_us >= LOGIN_NOTE_S * US_PER_S
        if not self._refused or not due:
            return
        self._noted_us = now_us
        attempts, addresses = self._refused, self._refused_from
        self._refused, self._refused_from = 0, {}
        try:
            await self._ledger.note(_LOGIN, "login", "token", "refused", {"attempts": attempts, "from": addresses})
        except Unavailable:
            # It is noted with the next ones; who has no token is told so all the same.
            self._refused += attempts


async def is_valid(connection: AsyncConnection, auth: str, now_us: int) -> bool:
    """Whether the token of an actor (``Actor.auth``) is neither revoked nor over; False for what is the word of no token."""
    number = auth.removeprefix(_AUTH)
    if not auth.startswith(_AUTH) or not number.isdecimal():
        return False
    found = select(_TABLE.c.id).where(_TABLE.c.id == int(number), _lives(now_us))
    return (await connection.execute(found)).first() is not None


def _auth(token: int) -> str:
    return f"{_AUTH}{token}"


def _lives(now_us: int) -> Any:
    return and_(_TABLE.c.revoked_us.is_(None), or_(_TABLE.c.expires_us.is_(None), _TABLE.c.expires_us > now_us))


def _lasts(expires_us: int | None, now_us: int) -> bool:
    return expires_us is None or now_us < expires_us


async def _insert(
    connection: AsyncConnection,
    name: str,
    role: Role,
    text: str,
    now_us: int,
    namespaces: list[str] | None,
    expires_us: int | None,
    node: str | None = None,
) -> TokenRow:
    held = (await connection.execute(select(func.count()).where(_lives(now_us)))).scalar_one()
    if held >= TOKENS_MAX:
        raise Conflict(f"there are {held} valid tokens; at most {TOKENS_MAX} are allowed")
    number = ((await connection.execute(select(func.max(_TABLE.c.id)))).scalar_one() or 0) + 1
    values = {
        "id": number,
        "name": name,
        "hash": hashlib.sha256(text.encode()).hexdigest(),
        "role": role.value,
        "namespaces": None if namespaces is None else json.dumps(namespaces),
        "created_us": now_us,
        "expires_us": expires_us,
        "node": node,
    }
    return _made((await connection.execute(_TABLE.insert().returning(_TABLE), values)).one())


async def _row(connection: AsyncConnection, token: int) -> Row[Any]:
    row = None
    if 0 < token < 2**63:
        row = (await connection.execute(select(_TABLE).where(_TABLE.c.id == token))).one_or_none()
    if row is None:
        raise NotFound("token", str(token))
    return row


def _made(row: Row[Any]) -> TokenRow:
    namespaces = None if row.namespaces is None else tuple(json.loads(row.namespaces))
    return TokenRow(
        row.id,
        row.name,
        Role(row.role),
        namespaces,
        row.created_us,
        row.expires_us,
        row.revoked_us,
        row.last_used_us,
        row.node,
    )
