from __future__ import annotations

import pytest
from sqlalchemy import text

from sluicegate.bounds import TOKEN_BYTES_MAX
from sluicegate.clock import US_PER_S
from sluicegate.control.errors import Conflict, Invalid, NotAllowed, NotAuthenticated, NotFound, Unavailable
from sluicegate.control.model import Role
from sluicegate.errors import ConfigurationError


async def test_a_token_stands_for_its_actor(service, admin, clock):
    """Who has the text of a token acts under its name, with its role and namespaces, until it ends."""
    row, secret = await service.tokens.create(
        admin, "ci", Role.EDITOR, namespaces=["default"], expires_us=clock.now_us() + US_PER_S, reason="pipeline"
    )
    actor = await service.tokens.verify(secret, source_ip="192.0.2.1", request_id="r")
    assert (actor.name, actor.auth, actor.role, actor.namespaces) == ("ci", f"token:{row.id}", Role.EDITOR, {"default"})
    assert (actor.source_ip, actor.request_id) == ("192.0.2.1", "r")
    clock.advance(US_PER_S)
    with pytest.raises(NotAuthenticated):
        await service.tokens.verify(secret)


async def test_no_secret_is_kept(service, admin):
    """Neither the tables nor the audit trail hold the text of a token."""
    _, secret = await service.tokens.create(admin, "ci", Role.VIEWER)
    first = await service.tokens.bootstrap()
    async with service.ledger.database.read() as connection:
        for table in ("tokens", "audit", "meta"):
            for row in (await connection.execute(text(f"SELECT * FROM {table}"))).all():
                assert secret not in str(row) and first not in str(row)
    assert len(secret) > 40 and secret != first


@pytest.mark.parametrize("given", ["", "x", "sgt_", "sgt_" + "A" * 43, "x" * 100_000, "\ud800", "é\x00"])
async def test_a_wrong_token(service, admin, given):
    """Whatever is given, what is no token of ours is nobody."""
    await service.tokens.create(admin, "ci", Role.EDITOR)
    with pytest.raises(NotAuthenticated):
        await service.tokens.verify(given)


async def test_revoked_at_once(service, admin, clock):
    """A revoked token is nobody from then on; the last one of an admin cannot be revoked, nor can one twice."""
    ours = await service.tokens.bootstrap()
    row, secret = await service.tokens.create(admin, "ops", Role.ADMIN)
    assert (await service.tokens.revoke(admin, row.id)).revoked_us == clock.now_us()
    with pytest.raises(NotAuthenticated):
        await service.tokens.verify(secret)
    with pytest.raises(Conflict):
        await service.tokens.revoke(admin, row.id)
    with pytest.raises(Conflict, match="last one"):
        await service.tokens.revoke(admin, 1)
    with pytest.raises(NotFound):
        await service.tokens.revoke(admin, 99)
    assert (await service.tokens.verify(ours)).role is Role.ADMIN


async def test_only_an_admin_sees_tokens(service, editor, admin):
    """Tokens are made, listed and revoked by an admin only, and listed without their secrets."""
    await service.tokens.create(admin, "a", Role.NODE)
    await service.tokens.create(admin, "b", Role.VIEWER)
    for attempt in (
        lambda: service.tokens.create(editor, "x", Role.ADMIN),
        lambda: service.tokens.page(editor, page_size=9),
        lambda: service.tokens.get(editor, 1),
        lambda: service.tokens.revoke(editor, 1),
    ):
        with pytest.raises(NotAllowed):
            await attempt()
    page = await service.tokens.page(admin, page_size=1)
    assert [(row.name, row.role) for row in page.items] == [("b", Role.VIEWER)]
    rest = await service.tokens.page(admin, page_size=1, page_token=page.next_token)
    assert rest.items == [await service.tokens.get(admin, 1)] and rest.next_token == ""
    for name in ("", "x" * 200, "a\x00"):
        with pytest.raises(Invalid):
            await service.tokens.create(admin, name, Role.VIEWER)
    with pytest.raises(Invalid):
        await service.tokens.create(admin, "x", Role.VIEWER, namespaces=[])


async def test_the_first_token(service, admin):
    """The first admin's token is made once; a chosen one is taken as it is, and is not brought back once it was revoked."""
    secret = await service.tokens.bootstrap()
    assert secret is not None and await service.tokens.bootstrap() is None
    assert await service.tokens.bootstrap("correct horse battery") is None
    actor = await service.tokens.verify("correct horse battery")
    assert (actor.name, actor.role) == ("admin", Role.ADMIN)
    await service.tokens.revoke(admin, 2)
    await service.tokens.bootstrap("correct horse battery")
    with pytest.raises(NotAuthenticated):
        await service.tokens.verify("correct horse battery")
    with pytest.raises(ConfigurationError, match="at least 16"):
        await service.tokens.bootstrap("short")
    with pytest.raises(ConfigurationError, match=f"{TOKEN_BYTES_MAX + 1} bytes; .* at most {TOKEN_BYTES_MAX}"):
        await service.tokens.bootstrap("x" * (TOKEN_BYTES_MAX + 1))
    for chosen in (" " * 20, "with-a-space-at-the-end ", "\u00e9" * 20, "a-tab-is\t-in-this-text"):
        with pytest.raises(ConfigurationError, match="never be sent"):
            await service.tokens.bootstrap(chosen)


async def test_wrong_tokens_do_not_fill_the_disk(service, viewer, clock):
    """However many wrong tokens come, the audit trail has one line a minute, with their number and where they came from."""
    for number in range(50):
        with pytest.raises(NotAuthenticated):
            await service.tokens.verify(f"guess{number}", source_ip=f"192.0.2.{number % 30}")
    rows = (await service.audit.page(viewer, page_size=9)).items
    assert [(row.action, row.outcome, row.diff["attempts"]) for row in rows] == [("login", "refused", 1)]
    clock.advance(60 * US_PER_S)
    await service.watch.once()
    row = (await service.audit.page(viewer, page_size=1)).items[0]
    assert row.diff["attempts"] == 49 and len(row.diff["from"]) == 20
    await service.watch.once()
    assert len((await service.audit.page(viewer, page_size=9)).items) == 2


async def test_a_wrong_token_while_nothing_can_be_written(service, viewer, clock, monkeypatch):
    """Who has no token is told so though the attempt cannot be noted now; it is noted with the next ones."""
    note = service.ledger.note

    async def busy(*given):
        raise Unavailable("busy")

    monkeypatch.setattr(service.ledger, "note", busy)
    with pytest.raises(NotAuthenticated):
        await service.tokens.verify("guess", source_ip="192.0.2.1")
    monkeypatch.setattr(service.ledger, "note", note)
    clock.advance(60 * US_PER_S)
    await service.watch.once()
    assert (await service.audit.page(viewer, page_size=1)).items[0].diff["attempts"] == 1


async def test_when_a_token_was_used(service, admin, clock):
    """When a token was last used is written down with the next look, not with each use."""
    row, secret = await service.tokens.create(admin, "ci", Role.VIEWER)
    await service.tokens.verify(secret)
    assert (await service.tokens.get(admin, row.id)).last_used_us is None
    await service.watch.once()
    assert (await service.tokens.get(admin, row.id)).last_used_us == clock.now_us()
