from __future__ import annotations

import json
import sqlite3

import pytest
from sqlalchemy import text

from sluicegate.control.chain import hash_of
from sluicegate.control.errors import Invalid, NotAllowed, NotFound
from sluicegate.control.model import ABSENT

API = {"name": "api", "per": ["ip"], "quota": "100/minute"}
SET = {"version": 1, "rules": [API]}


async def some_rows(service, editor, count=6):
    for number in range(count):
        await service.lists.put(editor, "block", "user", f"u{number}", reason=f"reason {number}")


async def tamper(service, *statements):
    """Change rows as somebody does who can write to the database, and knows how to get round its triggers."""
    async with service.ledger.database.write() as connection:
        if connection.dialect.name == "postgresql":
            await connection.execute(text("ALTER TABLE audit DISABLE TRIGGER audit_append_only"))
        else:
            for name in ("audit_UPDATE", "audit_DELETE"):
                await connection.execute(text(f"DROP TRIGGER IF EXISTS {name}"))
        for statement in statements:
            await connection.execute(text(statement))


async def test_a_change_is_audited(service, editor, viewer, clock):
    """The line of a change says who made it, how that is known, from where, when, why, and what was before and after."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT, reason="begin")
    clock.advance(5)
    await service.rulesets.patch_rule(editor, "api", {"quota": "200/minute"}, expect=1, reason="ticket 7")
    row = (await service.audit.page(viewer, page_size=1)).items[0]
    assert (row.id, row.at_us, row.actor, row.auth) == (2, clock.now_us(), "eve", "token:1")
    assert (row.source_ip, row.request_id, row.action, row.resource) == ("192.0.2.7", "req-1", "rule.patch", "rule:api")
    assert (row.outcome, row.reason, row.before_version, row.after_version) == ("accepted", "ticket 7", 1, 2)
    assert row.diff == {"api": [API, {**API, "quota": "200/minute"}]}


async def test_a_refused_attempt_is_audited(service, editor, viewer):
    """What was refused is there as well, with why; it has changed nothing else."""
    with pytest.raises(NotFound):
        await service.rulesets.delete_rule(editor, "api", expect=None, reason="gone")
    row = (await service.audit.page(viewer, page_size=1)).items[0]
    assert (row.outcome, row.action, row.reason, row.after_version) == ("refused", "rule.delete", "gone", None)
    assert row.diff == {"refused": "there is no rule 'api'"}


async def test_one_line_and_lines_since_a_time(service, editor, viewer, clock):
    """A line is read by its number; lines of a time and later leave out older ones."""
    await some_rows(service, editor, 2)
    clock.advance(7)
    await some_rows(service, editor, 3)
    rows = (await service.audit.page(viewer, page_size=9)).items
    assert await service.audit.get(viewer, rows[1].id) == rows[1]
    with pytest.raises(NotFound):
        await service.audit.get(viewer, rows[0].id + 1)
    late = (await service.audit.page(viewer, page_size=9, since_us=clock.now_us())).items
    assert {row.at_us for row in late} == {clock.now_us()}
    assert len(late) < len(rows)


async def test_pages_and_filters(service, editor, admin, viewer):
    """Rows come the newest first, in pages, and can be asked for by action, actor, resource and outcome."""
    await some_rows(service, editor, 5)
    await service.lists.remove(admin, ("block", "user", "u1"))
    first = await service.audit.page(viewer, page_size=4)
    await some_rows(service, admin, 7)
    second = await service.audit.page(viewer, page_size=4, page_token=first.next_token)
    assert [row.id for row in first.items + second.items] == [6, 5, 4, 3, 2, 1]
    found = await service.audit.page(viewer, page_size=9, by="ann", action="list.block.remove")
    assert [row.id for row in found.items] == [6]
    assert len((await service.audit.page(viewer, page_size=9, resource="block:user:u0")).items) == 1
    assert (await service.audit.page(viewer, page_size=9, outcome="refused")).items == []
    with pytest.raises(Invalid):
        await service.audit.page(viewer, page_size=9, by="a\x00")


async def test_the_chain_holds(service, editor, viewer):
    """A trail that nobody touched is whole, and its head is the newest row; an empty one is whole too."""
    assert (await service.audit.verify(viewer)).faults == ()
    await some_rows(service, editor)
    verdict = await service.audit.verify(viewer)
    newest = (await service.audit.page(viewer, page_size=1)).items[0]
    assert (verdict.rows, verdict.head, verdict.faults) == (6, f"6:{newest.hash}", ())
    await some_rows(service, editor, 9)
    assert (await service.audit.verify(viewer, verdict.head)).faults == ()


TAMPERED = [
    ("UPDATE audit SET reason = 'x' WHERE id = 3", "row 3 was changed"),
    ("UPDATE audit SET actor = 'x' WHERE id = 6", "row 6 was changed"),
    ("DELETE FROM audit WHERE id = 3", "row 3 is missing"),
    ("DELETE FROM audit WHERE id = 1", "row 1 is missing"),
    ("DELETE FROM audit WHERE id > 4", "rows are missing at the end"),
    ("DELETE FROM audit", "rows are missing at the end"),
    ("UPDATE audit SET id = -id WHERE id IN (3, 4); UPDATE audit SET id = 7 + id WHERE id < 0", "row 3 was changed"),
    ("UPDATE audit SET previous_hash = 'x' WHERE id = 2", "row 2 does not follow"),
]


@pytest.mark.parametrize("statements, fault", TAMPERED)
async def test_tampering_is_seen(service, editor, viewer, statements, fault):
    """Rows that were changed, taken out, cut off at the end or put in another order are found."""
    await some_rows(service, editor)
    await tamper(service, *statements.split("; "))
    assert any(fault in found for found in (await service.audit.verify(viewer)).faults)


async def test_a_whole_new_chain_is_seen_by_the_noted_head(service, editor, viewer):
    """Who rewrites rows and all hashes after them deceives the walk, but not one with a head that was noted before."""
    await some_rows(service, editor)
    noted = (await service.audit.verify(viewer)).head
    rows = (await service.audit.page(viewer, page_size=9)).items[::-1]
    previous, statements = "", []
    for row in rows:
        values = {name: getattr(row, name) for name in row.__slots__} | {"previous_hash": previous, "reason": "forged"}
        values["diff"] = json.dumps(row.diff, separators=(",", ":"), sort_keys=True)
        previous = hash_of(values)
        statements.append(
            f"UPDATE audit SET reason='forged', previous_hash='{values['previous_hash']}', hash='{previous}' WHERE id={row.id}"
        )
    await tamper(service, *statements, f"UPDATE meta SET value = '6:{previous}' WHERE key = 'audit_head'")
    assert (await service.audit.verify(viewer)).faults == ()
    assert (await service.audit.verify(viewer, noted)).faults == ("row 6 is not the one that was noted",)
    assert (await service.audit.verify(viewer, "99:abc")).faults == ("the noted row 99 is not there",)
    for head in ("x", "1", ":a", "-1:a"):
        with pytest.raises(Invalid):
            await service.audit.verify(viewer, head)


@pytest.mark.parametrize("table", ["audit", "versions"])
@pytest.mark.parametrize("change", ["UPDATE {} SET reason = 'x'", "DELETE FROM {}"])
async def test_rows_are_not_changed_by_statements(service, editor, table, change):
    """The database itself refuses to change or remove rows of the audit trail and versions."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    with pytest.raises(Exception, match="never changed or removed"):
        async with service.ledger.database.write() as connection:
            await connection.execute(text(change.format(table)))
    assert (await service.rulesets.version(1)).info.reason == ""


async def test_rows_are_not_replaced_or_cut(service, editor, tmp_path):
    """Nor does it let rows be replaced (SQLite), also for who comes from outside, or the table be emptied (PostgreSQL)."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    if service.ledger.database.is_postgresql:
        with pytest.raises(Exception, match="never changed or removed"):
            async with service.ledger.database.write() as connection:
                await connection.execute(text("TRUNCATE audit"))
    else:
        other = sqlite3.connect(tmp_path / "control.db")
        with pytest.raises(sqlite3.IntegrityError, match="never changed or removed"):
            other.execute("INSERT OR REPLACE INTO audit SELECT * FROM audit")
        other.close()


async def test_export(service, editor, admin):
    """All rows come out, the oldest first, the export last; only an admin may."""
    await some_rows(service, editor, 3)
    assert [row.id async for row in service.audit.export(admin, after=1)] == [2, 3, 4]
    with pytest.raises(NotAllowed):
        async for _ in service.audit.export(editor):
            pass
    rows = [row async for row in service.audit.export(admin)]
    assert [(row.action, row.outcome) for row in rows[3:]] == [
        ("audit.export", "accepted"), ("audit.export", "refused"), ("audit.export", "accepted"),
    ]  # fmt: skip


async def test_a_large_difference_is_told_by_its_size(service, editor, viewer):
    """A difference above the bound is not copied into the audit trail; the versions hold it."""
    rules = [{"name": f"r{number}", "match": {"path": f"/{number}"}, "quota": "1/second"} for number in range(2_000)]
    await service.rulesets.put_ruleset(editor, {"version": 1, "rules": rules}, expect=ABSENT)
    row = (await service.audit.page(viewer, page_size=1)).items[0]
    assert row.diff["too_large_bytes"] > 65_536 and row.after_version == 1
