from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace

import asyncpg
import msgspec
import pytest
from sqlalchemy import text

from sluicegate.bounds import NODE_REPORT_BYTES_MAX
from sluicegate.clock import US_PER_S
from sluicegate.control import database
from sluicegate.control.errors import Conflict, Invalid, NotAllowed, NotFound, PreconditionFailed, Unavailable
from sluicegate.control.model import ABSENT, UP_AUTH, Role
from sluicegate.control.service import RulesService
from sluicegate.errors import ConfigurationError
from sluicegate.rules.document import load_document
from sluicegate.rules.feed import POSTGRES_CHANNEL, ListEntry, NodeReport, Revisions

SET = {"version": 1, "rules": [{"name": "api", "per": ["ip"], "quota": "100/minute"}]}
WAIT_S = 60
KEYS_OF_SQLITE = [
    ("modify_nullable", None, table, column)
    for table, column in (
        ("versions", "version"),
        ("pauses", "id"),
        ("rollouts", "id"),
        ("tokens", "id"),
        ("audit", "id"),
    )
]


def numbers(revisions: Revisions) -> tuple[int, ...]:
    return (revisions.ruleset, revisions.overlay, revisions.lists, revisions.subjects, revisions.epoch)


async def test_a_snapshot_is_of_one_moment(service, editor):
    """What nodes are told are the rules of the revisions it names, and means what was put there."""
    empty = await service.snapshot()
    assert empty.rules is None and numbers(empty.revisions) == (0, 0, 0, 0, 0) and empty.revisions.incarnation
    applied = await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    snapshot = await service.snapshot()
    assert (snapshot.rules.version, snapshot.rules.digest) == (1, applied.version.info.digest)
    assert load_document(snapshot.rules.document, "f", 1).digest == snapshot.rules.digest
    assert snapshot.revisions == await service.revisions()
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=type(snapshot)) == snapshot


async def test_each_part_has_its_number(service, editor, node):
    """A change of one part raises its number, and no other."""
    await service.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    await service.pauses.pause(editor, "api")
    await service.lists.put(editor, "block", "user", "u")
    await service.lists.put(editor, "block", "user", "v")
    await service.subjects.put(editor, "user:1", {"factor": 2})
    assert numbers(await service.revisions()) == (1, 1, 2, 1, 0)
    await service.ping()
    assert numbers(await service.revisions()) == (1, 1, 2, 1, 0)


async def test_who_waits_is_woken_by_a_change(service, editor):
    """A waiting caller is answered by the next change, another one at once where it is behind, and a patient one when its time is over."""
    etag = (await service.revisions()).etag
    waiting = [asyncio.create_task(service.changed(etag, WAIT_S)) for _ in range(20)]
    await asyncio.sleep(0)
    await service.lists.put(editor, "block", "user", "u")
    assert {(await task).lists for task in waiting} == {1}
    assert (await service.changed(etag, WAIT_S)).lists == 1
    assert (await service.changed((await service.revisions()).etag, 0.0)).lists == 1


async def test_a_change_that_is_refused_wakes_nobody(service, editor, viewer):
    """Refused, tried and empty changes raise no number and wake nobody."""
    etag = (await service.revisions()).etag
    for attempt in (
        service.lists.put(viewer, "block", "user", "u"),
        service.lists.put(editor, "block", "ip", "u"),
        service.rulesets.delete_rule(editor, "api", expect=None),
    ):
        with pytest.raises((NotAllowed, Invalid, NotFound)):
            await attempt
    await service.lists.put(editor, "block", "user", "u", validate_only=True)
    await service.ping()
    assert (await service.changed(etag, 0.0)).etag == etag


async def test_two_services_on_one_database(open_service, editor):
    """What one service changes the other sees: in its reads at once, in its revisions when it looks."""
    one, two = await open_service(), await open_service()
    await one.rulesets.put_ruleset(editor, SET, expect=ABSENT)
    assert (await two.rulesets.current()).info.version == 1
    assert (await two.revisions()).ruleset == 0
    await two.watch.once()
    assert await two.revisions() == await one.revisions()
    with pytest.raises(PreconditionFailed):
        await two.rulesets.put_ruleset(
            editor, {**SET, "rules": [{**SET["rules"][0], "quota": "2/second"}]}, expect=ABSENT
        )
    await two.rulesets.patch_rule(editor, "api", {"quota": "3/second"}, expect=1)
    assert (await one.snapshot()).rules.version == 2


async def test_two_services_write_at_once(open_service, editor, viewer):
    """Of edits made from the same version at the same time exactly one is taken, and every other one is told that it came too late."""
    services = [await open_service() for _ in range(2)]
    await services[0].rulesets.put_ruleset(editor, SET, expect=ABSENT)
    for version in range(1, 6):
        edits = [
            one.rulesets.patch_rule(editor, "api", {"quota": f"{version}{number}/minute"}, expect=version)
            for number, one in enumerate(services * 3)
        ]
        outcomes = await asyncio.gather(*edits, return_exceptions=True)
        assert sum(isinstance(outcome, PreconditionFailed) for outcome in outcomes) == 5
        assert (await services[0].rulesets.current()).info.version == version + 1
    verdict = await services[1].audit.verify(viewer)
    assert (verdict.rows, verdict.faults) == (1 + 5 * 6, ())


async def test_a_watched_service_learns_by_itself(open_service, editor):
    """A service that watches learns of a change by another one without being asked: by its poll, and from PostgreSQL at once (T99)."""
    watching, other = await open_service(watched=True), await open_service()
    if watching.ledger.database.is_postgresql:
        async with asyncio.timeout(WAIT_S):
            while not watching.watch.listening:
                await asyncio.sleep(0.01)
    etag = (await watching.revisions()).etag
    waiting = asyncio.create_task(watching.changed(etag, WAIT_S))
    await asyncio.sleep(0)
    await other.lists.put(editor, "block", "user", "u")
    assert (await waiting).lists == 1


@pytest.mark.parametrize("turns", range(6))
async def test_a_watch_ends_though_it_is_woken_just_then(service, turns):
    """A service ends at once also when it is told of a change in the same moment."""
    service.watch.start()
    await asyncio.sleep(0.05)
    service.watch._woken.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.wait_for(service.watch.close(), WAIT_S)


async def test_postgresql_tells_when_it_is_kept(service, editor):
    """PostgreSQL tells who listens the revisions of each change, once it is kept, and nothing of one that is given up."""
    if not service.ledger.database.is_postgresql:
        async with service.ledger.database.read() as connection:
            assert (await connection.execute(text("SELECT sqlite_version()"))).scalar_one() == sqlite3.sqlite_version
        return
    heard: asyncio.Queue[str] = asyncio.Queue()
    address = service.ledger.database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(address)
    await connection.add_listener(POSTGRES_CHANNEL, lambda *told: heard.put_nowait(told[3]))
    await service.lists.put(editor, "block", "user", "tried", validate_only=True)
    await service.lists.put(editor, "block", "user", "u")
    told = msgspec.json.decode(await asyncio.wait_for(heard.get(), WAIT_S), type=Revisions)
    assert told == await service.revisions() and heard.empty()
    await connection.close()


async def test_a_publisher_is_told_after_the_change(open_service, editor):
    """What is given to publish is told of every change, and its faults change nothing."""

    class Publisher:
        def __init__(self) -> None:
            self.told: list[Revisions] = []

        async def publish(self, revisions: Revisions) -> None:
            self.told.append(revisions)
            if len(self.told) == 2:
                raise ConnectionError("gone")

    publisher = Publisher()
    service = await open_service(publisher=publisher)
    for name in ("a", "b", "c"):
        await service.lists.put(editor, "block", "user", name)
    assert [told.lists for told in publisher.told] == [1, 2, 3]
    assert service.ledger.publish_failures == 1


def report(node: str, applied: Revisions, **more) -> NodeReport:
    return NodeReport(node=node, started_us=1, release="0", applied=applied, **more)


async def test_nodes_and_their_lag(service, editor, node, clock, open_service):
    """Each node is listed with what it decides by, and for how long it has lacked the newest; other services see it too."""
    await service.lists.put(editor, "block", "user", "a")
    first = await service.revisions()
    answer = await service.nodes.report(node, report("n1", first))
    assert answer.revisions == first
    clock.advance(5 * US_PER_S)
    await service.lists.put(editor, "block", "user", "b")
    await service.nodes.report(node, report("n2", await service.revisions(), error="bad"))
    clock.advance(2 * US_PER_S)
    await service.lists.put(editor, "block", "user", "c")
    clock.advance(3 * US_PER_S)
    await service.nodes.report(node, report("n3", await service.revisions()))
    rows = (await service.nodes.page(page_size=9)).items
    assert [(row.report.node, row.lag_us) for row in rows] == [("n1", 5 * US_PER_S), ("n2", 3 * US_PER_S), ("n3", 0)]
    assert rows[1].report.error == "bad" and rows[2].last_seen_us == clock.now_us()
    other = await open_service()
    assert [row.report.node for row in (await other.nodes.page(page_size=2)).items] == ["n1", "n2"]
    await service.nodes.forget(editor, "n1")
    with pytest.raises(NotFound):
        await service.nodes.forget(editor, "n1")
    assert len((await service.nodes.page(page_size=9)).items) == 2


async def test_a_report_has_so_many_bytes(service, node):
    """What a node says of itself is bounded in bytes, however few characters they are."""
    few = NODE_REPORT_BYTES_MAX * 3 // 4
    await service.nodes.report(node, report("n1", await service.revisions(), error="e" * few))
    with pytest.raises(Invalid, match=f"at most {NODE_REPORT_BYTES_MAX}"):
        await service.nodes.report(node, report("n1", await service.revisions(), error="é" * few))


PENALISING = {
    "version": 1,
    "rules": [
        {"name": "api", "per": "ip", "quota": "1/minute", "penalty": {"after": "3 refusals/1m", "block": "15m"}},
        {"name": "plain", "per": "user", "quota": "1/minute"},
    ],
}


@pytest.mark.parametrize(
    ("source", "kind", "value", "ends_s", "counts"),
    [
        ("penalty:api", "ip", "192.0.2.9", 15 * 60 + 60, True),
        ("penalty:api", "ip", "192.0.2.9", 15 * 60 + 61, False),
        ("penalty:api", "user", "8123", 60, False),
        ("penalty:plain", "user", "8123", 60, False),
        ("penalty:none", "ip", "192.0.2.9", 60, False),
    ],
    ids=["as the rule says", "too long", "of a kind that is not counted", "of a rule without", "of no rule"],
)
async def test_only_what_a_rule_can_give_is_a_penalty(
    service, editor, node, clock, source, kind, value, ends_s, counts
):
    """A penalty counts for a rule in service that has one, for a minute more than it says at most, and for a kind of client that it counts."""
    await service.rulesets.put_ruleset(editor, PENALISING, expect=0)
    entry = ListEntry("block", kind, value, clock.now_us() + ends_s * US_PER_S, source)
    await service.nodes.report(node, report("n1", Revisions(), penalties=[entry]))
    assert len((await service.lists.page("block", page_size=9)).items) == counts


async def test_a_penalty_of_a_rule_on_trial_counts(service, editor, node, clock):
    """What only the candidate of a canary can give is taken while it runs."""
    await service.rulesets.put_ruleset(editor, {"version": 1, "rules": [PENALISING["rules"][1]]}, expect=0)
    await service.rollouts.create(editor, {"kind": "canary", "document": PENALISING, "basis_points": 100})
    entry = ListEntry("block", "ip", "192.0.2.9", clock.now_us() + US_PER_S, "penalty:api")
    await service.nodes.report(node, report("n1", Revisions(), penalties=[entry]))
    assert len((await service.lists.page("block", page_size=9)).items) == 1


async def test_the_name_of_a_node_is_that_of_its_token(service, admin, open_service, clock):
    """While a node lives nobody reports under its name with another token, in no process; a token that is revoked holds no name."""
    texts = [(await service.tokens.create(admin, name, Role.NODE))[1] for name in ("first", "second")]
    first, second = [await service.tokens.verify(text, source_ip="192.0.2.1") for text in texts]
    await service.nodes.report(first, report("n1", Revisions()))
    with pytest.raises(Conflict, match="another token"):
        await service.nodes.report(second, report("n1", Revisions()))
    await service.nodes.flush()
    other = await open_service()
    with pytest.raises(Conflict, match="another token"):
        await other.nodes.report(second, report("n1", Revisions()))
    await service.nodes.report(replace(second, auth=UP_AUTH), report("n2", Revisions()))
    with pytest.raises(Conflict):
        await service.nodes.report(second, report("n2", Revisions()))
    clock.advance(61 * US_PER_S)
    await other.nodes.report(second, report("n1", Revisions()))
    await other.nodes.flush()
    with pytest.raises(Conflict):
        await service.nodes.report(first, report("n1", Revisions()))
    await service.tokens.revoke(admin, int(second.auth.removeprefix("token:")))
    await service.nodes.report(first, report("n1", Revisions()))


async def test_a_token_of_one_node(service, admin):
    """A token that is made for a node reports as this one and its workers only; only a token of the role node can be."""
    row, text = await service.tokens.create(admin, "gw", Role.NODE, node="gw-7")
    assert row.node == "gw-7"
    bound = await service.tokens.verify(text)
    for name in ("gw-7", "gw-7-0", "gw-7-11"):
        await service.nodes.report(bound, report(name, Revisions()))
    for name in ("gw-8", "gw", "gw-7-", "gw-7-x", "gw-70"):
        with pytest.raises(NotAllowed, match="gw-7"):
            await service.nodes.report(bound, report(name, Revisions()))
    with pytest.raises(Invalid, match="node"):
        await service.tokens.create(admin, "ed", Role.EDITOR, node="gw-7")


async def test_where_a_report_came_from_is_what_the_service_saw(service, node):
    """Address and token stand beside a report, whatever it says of them itself, also when it was written down."""
    claims = msgspec.json.encode(report("n1", Revisions()))[:-1] + b',"source_ip":"203.0.113.1","auth":"node-token"}'
    brought = replace(node, source_ip="192.0.2.1")
    await service.nodes.report(brought, msgspec.json.decode(claims, type=NodeReport))
    (row,) = (await service.nodes.page(page_size=9)).items
    assert (row.source_ip, row.auth, row.report) == ("192.0.2.1", node.auth, report("n1", Revisions()))


async def test_what_a_node_may_report(service, editor, node, clock, viewer):
    """Only a node reports; observers get all of it, penalties come onto the block list in the node's name, a report has a bound."""
    seen: list[NodeReport] = []
    service.nodes.observers.append(seen.append)
    await service.rulesets.put_ruleset(editor, PENALISING, expect=0)
    ends_us = clock.now_us() + US_PER_S
    given = report("n1", Revisions(), penalties=[ListEntry("block", "ip", "192.0.2.1", ends_us, "penalty:api")])
    with pytest.raises(NotAllowed):
        await service.nodes.report(editor, given)
    answer = await service.nodes.report(node, given)
    assert seen == [given] and answer.revisions.lists == 1
    row = (await service.audit.page(viewer, page_size=1)).items[0]
    assert (row.actor, row.action) == ("node:n1", "list.penalty")
    with pytest.raises(Invalid):
        await service.nodes.report(node, report("n1", Revisions(), error="x" * 100_000))
    for name in ("", "a\x00", "x" * 300):
        with pytest.raises(Invalid):
            await service.nodes.report(node, report(name, Revisions()))


async def test_a_new_life(service, editor, admin):
    """A database that was set back is adopted: it has another incarnation, so nodes take what it says though its numbers are lower."""
    before = await service.revisions()
    with pytest.raises(NotAllowed):
        await service.adopt(editor)
    after = await service.adopt(admin, reason="restored")
    assert after.incarnation != before.incarnation and numbers(after) == numbers(before)
    assert (await service.audit.page(admin, page_size=1)).items[0].action == "adopt"
    assert service.hub.behind_us(before) > 0


async def test_tables_of_a_newer_release(service, database_url, clock):
    """Tables that a newer release has changed are left alone, and the error says so."""
    async with service.ledger.database.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="newer release"):
        await RulesService.open(database_url, clock, watched=False)


async def test_tables_are_what_the_code_expects(service):
    """The migrations make exactly the columns that the queries know, each with or without NULL as they say."""
    from alembic.autogenerate import compare_metadata
    from alembic.runtime.migration import MigrationContext

    from sluicegate.control.schema import metadata

    def compare(connection):
        context = MigrationContext.configure(connection, opts={"compare_type": False})
        return compare_metadata(context, metadata)

    async with service.ledger.database.read() as connection:
        found = await connection.run_sync(compare)
    # SQLite says of keys that they may be NULL; indexes and what is unique are the migrations' alone.
    told = [change[0] if isinstance(change, list) else change for change in found]
    beside = ("remove_index", "remove_constraint")
    assert [change for change in told if change[0] not in beside and change[:4] not in KEYS_OF_SQLITE] == []


@pytest.mark.parametrize(
    "url",
    ["", "x", "mysql://h/d", "sqlite://", "sqlite:///:memory:", "sqlite+pysqlite:///x", "postgresql+psycopg2://h/d"],
)
async def test_what_is_no_database(url, clock):
    """An address that is none of a database we know is an error of configuration."""
    with pytest.raises(ConfigurationError):
        await RulesService.open(url, clock)


async def test_a_database_that_is_away(clock, free_port, tmp_path):
    """A server that cannot be reached is unavailable, which may pass; a file that cannot be opened is a wrong setting."""
    with pytest.raises(Unavailable):
        await RulesService.open(f"postgresql://x@127.0.0.1:{free_port()}/x", clock)
    with pytest.raises(ConfigurationError, match=r"no/such/folder/x.db' cannot be opened: No such file"):
        await RulesService.open(f"sqlite:///{tmp_path}/no/such/folder/x.db", clock)


async def test_a_database_that_says_nothing(service, monkeypatch):
    """A reading transaction that gets no answer ends as unavailable, and the next one is served."""
    monkeypatch.setattr(database, "CONTROL_READ_S_MAX", 0.2)
    with pytest.raises(Unavailable, match="does not answer"):
        async with service.ledger.database.read():
            await asyncio.Event().wait()
    monkeypatch.undo()
    await service.ping()


async def test_a_database_that_says_nothing_at_the_end(service, monkeypatch):
    """A service ends within seconds although its database never answers."""

    async def silent() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(service.nodes, "flush", silent)
    monkeypatch.setattr("sluicegate.control.service.CONTROL_CLOSE_S", 0.05)
    async with asyncio.timeout(60):
        await service.close()


async def test_a_file_of_the_database_that_is_removed(clock, editor, tmp_path):
    """Nothing is acknowledged that only a file without a name would hold; nor in place of a file that was put there meanwhile."""
    file = tmp_path / "control.db"
    async with await RulesService.open(f"sqlite:///{file}", clock) as service:
        await service.lists.put(editor, "block", "user", "a")
        file.rename(tmp_path / "away.db")
        for _ in range(2):
            with pytest.raises(Unavailable, match="removed or replaced"):
                await service.lists.put(editor, "block", "user", "b")
            with pytest.raises(Unavailable, match="removed or replaced"):
                await service.ping()
            file.write_bytes(b"")
        file.unlink()
        (tmp_path / "away.db").rename(file)
        await service.lists.put(editor, "block", "user", "b")


async def test_a_file_that_is_no_database(clock, tmp_path):
    """A file of something else is told, and not written to."""
    file = tmp_path / "control.db"
    file.write_bytes(b"hello" * 1_000)
    with pytest.raises(Unavailable, match="not a database"):
        await RulesService.open(f"sqlite:///{file}", clock)
    assert file.read_bytes() == b"hello" * 1_000
