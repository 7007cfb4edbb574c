"""What goes on when the database does not: nothing that was counted is lost, and no part of the work stops the others."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from sluicegate.clock import US_PER_S
from sluicegate.control import schema, watch
from sluicegate.control.errors import Invalid, NotAuthenticated, Unavailable
from sluicegate.control.model import ABSENT, ANY, Role
from sluicegate.control.service import RulesService
from sluicegate.rules.feed import NodeReport, Revisions, RuleCounts

RULES = {"version": 1, "rules": [{"name": "api", "per": ["ip"], "quota": "1/second"}]}


@pytest.fixture
def away(service: RulesService, monkeypatch: pytest.MonkeyPatch):
    """While entered, the service can write nothing."""

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        def write() -> None:
            raise Unavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(service.ledger.database, "write", write)
            yield

    return entered


def report(name: str, **counts: RuleCounts) -> NodeReport:
    rules = {key.replace("_at_", "@"): value for key, value in counts.items()}
    return NodeReport(name, 0, "1", Revisions(), requests=200, rules=rules)


async def test_reports_outlast_a_database_that_is_away(service, editor, node, away):
    """Reports of nodes, and the last uses of tokens, that cannot be written down are written when the database is back."""
    _, text = await service.tokens.create(editor_as_admin(editor), "t", Role.VIEWER)
    await service.tokens.verify(text)
    await service.nodes.report(node, report("n1"))
    with away():
        with pytest.raises(Unavailable):
            await service.nodes.flush()
        with pytest.raises(Unavailable):
            await service.tokens.sweep()
        await service.nodes.report(node, report("n2"))
    assert [row.report.node for row in (await service.nodes.page(page_size=9)).items] == ["n1", "n2"]
    await service.tokens.sweep()
    async with service.ledger.database.read() as connection:
        assert (await connection.execute(select(schema.tokens.c.last_used_us))).scalars().all() != [None]


def editor_as_admin(editor):
    return type(editor)(editor.name, editor.auth, role=Role.ADMIN)


async def test_a_guard_counts_what_came_while_the_database_was_away(service, editor, node, away):
    """Refusals that were reported while the database was away undo a rollout when it is back."""
    await service.rulesets.put_ruleset(editor, RULES, expect=ABSENT)
    document = {"version": 1, "rules": [{"name": "api", "per": ["ip"], "quota": "2/second"}]}
    guard = {"refusal_ratio_max": 0.1, "min_requests": 100}
    wanted = {"kind": "canary", "document": document, "basis_points": 100, "guard": guard}
    rollout = await service.rollouts.create(editor, wanted)
    name = "api@canary"
    await service.nodes.report(node, report("n1", **{name: RuleCounts(matched=200, refused=150)}))
    with away(), pytest.raises(Unavailable):
        await service.rollouts.tick()
    await service.rollouts.tick()
    assert (await service.rollouts.get(rollout.id)).state == "rolled_back"


async def test_one_chore_does_not_keep_the_others(service):
    """A chore of the watch that fails, however often, keeps no other one from being done; the failure is told."""
    done: list[str] = []

    async def fails() -> None:
        raise RuntimeError("always")

    async def works() -> None:
        done.append("worked")

    service.watch._chores[:] = [fails, works]
    with pytest.raises(RuntimeError, match="always"):
        await service.watch.once()
    assert done == ["worked"]


async def test_a_clock_that_steps_back(service, node, clock, viewer):
    """After the wall clock stepped back by hours wrong tokens are noted, and reports written down, no later than before."""
    with pytest.raises(NotAuthenticated):
        await service.tokens.verify("x")
    await service.nodes.report(node, report("n1"))
    await service.nodes.sweep()
    clock.set(clock.now_us() - 3_600 * US_PER_S)
    clock.advance(61 * US_PER_S)
    with pytest.raises(NotAuthenticated):
        await service.tokens.verify("x")
    assert len((await service.audit.page(viewer, page_size=9, action="login")).items) == 2
    await service.nodes.report(node, report("n2"))
    await service.nodes.sweep()
    async with service.ledger.database.read() as connection:
        assert (await connection.execute(select(schema.nodes.c.node))).scalars().all() == ["n1", "n2"]


async def test_nodes_that_are_gone_are_forgotten(service, node, clock):
    """A node that was not heard of for a week is off the list when the next report is written down."""
    await service.nodes.report(node, report("host-1"))
    await service.nodes.flush()
    clock.advance(6 * 86_400 * US_PER_S)
    await service.nodes.report(node, report("host-2"))
    assert len((await service.nodes.page(page_size=9)).items) == 2
    clock.advance(2 * 86_400 * US_PER_S)
    await service.nodes.report(node, report("host-3"))
    assert [row.report.node for row in (await service.nodes.page(page_size=9)).items] == ["host-2", "host-3"]


@pytest.mark.parametrize("setting", ["SET default_transaction_read_only = on", "ALLOW_CONNECTIONS false"])
async def test_a_server_that_takes_nothing(postgres, new_database, clock, editor, setting):
    """A PostgreSQL that only reads, as after a failover, or lets nobody in, is a database that is away and no fault of the service."""
    url = new_database()
    service = await RulesService.open(url, clock, watched=False)
    try:
        await service.ledger.database.close()
        await postgres.run(f"ALTER DATABASE {url.rpartition('/')[2]} {setting}")
        with pytest.raises(Unavailable):
            await service.lists.put(editor, "block", "user", "u")
    finally:
        await service.ledger.database.close()


async def test_a_connection_that_is_silent(service, monkeypatch):
    """A connection for listening on which nothing comes back any more is given up, and another one made, though nothing ended it."""
    made: list[object] = []

    class Silent:
        def __init__(self) -> None:
            self.terminated = False
            made.append(self)

        def add_termination_listener(self, told: object) -> None:
            pass

        async def add_listener(self, channel: str, told: object) -> None:
            pass

        async def execute(self, statement: str, timeout: float) -> None:
            async with asyncio.timeout(timeout):
                await asyncio.Event().wait()

        def terminate(self) -> None:
            self.terminated = True

    async def connect(url: object) -> Silent:
        return Silent()

    monkeypatch.setattr(watch, "_connect", connect)
    monkeypatch.setattr(watch, "PUSH_PING_S", 0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30) as patience:
            await service.watch._listen_once()
    assert not patience.expired()
    assert [silent.terminated for silent in made] == [True]


@pytest.mark.slow
async def test_callers_that_go_away(service, editor, viewer):
    """Callers that go away in the middle of a change, at any point of it, leave it whole or undone, and keep nobody else waiting."""
    await service.rulesets.put_ruleset(editor, RULES, expect=ABSENT)
    chance = random.Random(11)
    for number in range(60):
        rule = {"quota": f"{number + 2}/second"}
        change = asyncio.create_task(service.rulesets.patch_rule(editor, "api", rule, expect=ANY))
        entry = asyncio.create_task(service.lists.put(editor, "block", "user", f"u{number}"))
        await asyncio.sleep(chance.random() * 0.02)
        change.cancel()
        entry.cancel()
        await asyncio.gather(change, entry, return_exceptions=True)
    async with asyncio.timeout(60):
        last = await service.rulesets.patch_rule(editor, "api", {"quota": "1/minute"}, expect=ANY)
    versions = [info.version for info in (await service.rulesets.versions(page_size=500)).items]
    assert versions == list(range(last.version.info.version, 0, -1))
    await service.watch.once()
    revisions = await service.revisions()
    assert revisions.ruleset == versions[0] and revisions.lists == len((await service.lists.changes(0)).put)
    verdict = await service.audit.verify(viewer)
    assert verdict.faults == () and verdict.rows == versions[0] + revisions.lists


@pytest.mark.parametrize("count", [-1, 2**53 + 1])
async def test_counts_that_are_none(service, node, count):
    """A report with a count below zero, or above what any node can count to, is refused: it would hide others from the guard, or stop it."""
    with pytest.raises(Invalid, match="requests"):
        await service.nodes.report(node, NodeReport("n", 0, "1", Revisions(), requests=count))
    with pytest.raises(Invalid, match="refused"):
        await service.nodes.report(node, report("n", api=RuleCounts(refused=count)))
    with pytest.raises(Invalid, match="would_refuse"):
        await service.nodes.report(node, NodeReport("n", 0, "1", Revisions(), would_refuse=[("api", "u", count)]))
