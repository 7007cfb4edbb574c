"""Several processes on one database, and processes and databases that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_postgres import running_postgres

from sluicegate.control.errors import PreconditionFailed, Unavailable
from sluicegate.control.model import ABSENT
from sluicegate.control.service import RulesService

pytestmark = pytest.mark.slow

# Makes changes one after another and says after each what was acknowledged: its number, and what was written.
WRITER = """
import asyncio, sys
from sluicegate.clock import SystemClock
from sluicegate.control.errors import PreconditionFailed
from sluicegate.control.model import Actor, Role
from sluicegate.control.service import RulesService

async def main(url, name, count):
    actor, made = Actor(name, "local", role=Role.EDITOR), 0
    async with await RulesService.open(url, SystemClock()) as service:
        print("ready", flush=True)
        while made < count:
            current = await service.rulesets.current()
            version = 0 if current is None else current.info.version
            rules = [{"name": "api", "quota": f"{made + 1}/minute"}, {"name": name, "quota": "1/second"}]
            try:
                applied = await service.rulesets.put_ruleset(actor, {"version": 1, "rules": rules}, expect=version)
            except PreconditionFailed:
                print("late", flush=True)
                continue
            made += 1
            entry = await service.lists.put(actor, "block", "user", f"{name}{made}")
            print("made", applied.version.info.version, made, entry.value, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


@pytest.fixture
def writer() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts writers; those that run still are killed at the end."""
    with contextlib.ExitStack() as stack:

        def start(url: str, name: str, count: int) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-c", WRITER, url, name, str(count)], stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.wait, 30)
            stack.callback(process.stdout.close)
            stack.callback(process.kill)
            return process

        yield start


async def check(service: RulesService, viewer) -> int:
    """The number of versions, after a check that none is skipped, each is audited once, and the chain is whole."""
    verdict = await service.audit.verify(viewer)
    assert verdict.faults == ()
    versions = [info.version for info in (await service.rulesets.versions(page_size=500)).items]
    assert versions == list(range(len(versions), 0, -1))
    rows, token = [], ""
    while True:
        page = await service.audit.page(viewer, page_size=500, page_token=token)
        rows += page.items
        token = page.next_token
        if not token:
            break
    audited = [row.after_version for row in rows if row.after_version is not None and row.outcome == "accepted"]
    assert audited == versions
    return len(versions)


async def test_two_processes_write(open_service, database_url, writer, viewer):
    """Of two processes that write at the same time each edit is made from the version before it; who comes late is told so."""
    processes = [writer(database_url, name, 25) for name in ("one", "two")]
    told = [process.communicate(timeout=90)[0].splitlines() for process in processes]
    made = [[int(line.split()[1]) for line in lines if line.startswith("made")] for lines in told]
    assert [len(versions) for versions in made] == [25, 25]
    assert sorted(made[0] + made[1]) == list(range(1, 51))
    service = await open_service()
    assert await check(service, viewer) == 50
    assert await service.lists.count("block") == {"": 50}


async def test_a_killed_writer_loses_nothing(open_service, database_url, writer, viewer):
    """A process that is killed at any point has kept every change it acknowledged, and nothing is half made; the next one goes on."""
    chance = random.Random(7)
    known = 0
    for number in range(3):
        process = writer(database_url, f"w{number}", 10_000)
        acknowledged = []
        until = chance.randrange(1, 40)
        for line in process.stdout:
            if line.startswith("made"):
                acknowledged.append(line.split())
            if len(acknowledged) >= until:
                break
        # Sometimes in the middle of a change: the writer does not wait for anybody.
        process.kill()
        acknowledged += [line.split() for line in process.stdout if line.startswith("made") and line.endswith("\n")]
        process.wait(60)
        service = await open_service()
        for _, version, quota, value in acknowledged:
            rule, _ = (await service.rulesets.version(int(version))).rule("api")
            assert rule["quota"] == f"{quota}/minute"
            assert (await service.lists.get(("block", "user", value))).actor == f"w{number}"
        count = await check(service, viewer)
        assert count >= int(acknowledged[-1][1]) > known
        known = count


async def test_a_killed_database_loses_nothing(postgres, postgres_programs, clock, editor, viewer):
    """A PostgreSQL that ends without warning has kept what was acknowledged; meanwhile changes are unavailable, then go on, and the watch too."""
    rules = {"version": 1, "rules": [{"name": "api", "quota": "1/second"}]}
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        folder = Path(name)
        with running_postgres(postgres_programs, folder=folder) as server:
            service = await RulesService.open(server.url(), clock)
            await service.rulesets.put_ruleset(editor, rules, expect=ABSENT)
            for number in range(2, 20):
                await service.rulesets.patch_rule(editor, "api", {"quota": f"{number}/minute"}, expect=number - 1)
        with pytest.raises(Unavailable):
            await service.rulesets.patch_rule(editor, "api", {"quota": "99/minute"}, expect=19)
        with pytest.raises(Unavailable):
            await service.ping()
        with running_postgres(postgres_programs, folder=folder, port=server.port):
            assert (await service.rulesets.current()).rule("api")[0]["quota"] == "19/minute"
            with pytest.raises(PreconditionFailed):
                await service.rulesets.patch_rule(editor, "api", {"quota": "99/minute"}, expect=18)
            await service.rulesets.patch_rule(editor, "api", {"quota": "20/minute"}, expect=19)
            assert await check(service, viewer) == 20
            async with asyncio.timeout(60):
                while service.watch.error is not None or not service.watch.listening:
                    await asyncio.sleep(0.05)
            await service.close()


def test_a_writer_ends_when_asked(database_url, writer):
    """A writer that is asked to end by the usual signal while it changes rules leaves a database that opens again."""
    process = writer(database_url, "one", 10_000)
    for line in process.stdout:
        if line.startswith("made"):
            break
    process.send_signal(signal.SIGTERM)
    process.stdout.read()
    assert process.wait(60) == -signal.SIGTERM
    again = writer(database_url, "two", 1)
    assert again.communicate(timeout=60)[0].count("made") == 1
