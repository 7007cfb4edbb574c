"""Imports of so many entries that they are made in steps."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from sluicegate.control import list_steps
from sluicegate.control.errors import Conflict, Unavailable
from sluicegate.control.service import RulesService

STEP = 3


@pytest.fixture(autouse=True)
def _small_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of three entries, where a test is not marked as slow."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(list_steps, "IMPORT_STEP_ROWS_MIN", STEP)
        monkeypatch.setattr(list_steps, "IMPORT_STEP_ROWS_MAX", STEP)
        monkeypatch.setattr(list_steps, "IMPORT_REST_S", 0)


def feed(*numbers: int) -> AsyncIterator[bytes]:
    return lines("".join(f"192.0.2.{number}\n" for number in numbers).encode())


async def lines(data: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def numbers(service: RulesService, source: str = "waf") -> list[int]:
    rows = (await service.lists.page("block", page_size=500, source=source)).items
    return sorted(int(row.value.rpartition(".")[2]) for row in rows)


class Node:
    """Follows the lists by what it is told."""

    def __init__(self, service: RulesService) -> None:
        self._service = service
        self.revision = 0
        self.held: set[str] = set()
        self.fulls = 0

    async def catch_up(self) -> None:
        cursor, more = "", True
        while more:
            told = await self._service.lists.changes(self.revision, cursor)
            if told.full:
                self.held, self.revision, self.fulls = set(), 0, self.fulls + 1
            self.held |= {entry.value for entry in told.put}
            self.held -= {key[2] for key in told.remove}
            self.revision, cursor, more = told.revision, told.cursor, told.more


@contextlib.contextmanager
def between_steps(monkeypatch, service, do):
    """Calls ``do(number)`` after each step is kept."""
    made, number = service.ledger._tell, 0  # the one place through which every kept change goes

    async def told(change, after):
        nonlocal number
        await made(change, after)
        if "lists" in change.touched:
            number += 1
            await do(number)

    with monkeypatch.context() as patched:
        patched.setattr(service.ledger, "_tell", told)
        yield


async def test_steps_end_as_one(service, editor, viewer):
    """An import in steps comes to the same as one at once; each step is a revision; two lines of the audit trail tell what was to come, and came."""
    result = await service.lists.import_entries(editor, "block", feed(*range(8)), source="waf", reason="daily")
    assert (result.lines, result.added, result.changed, result.removed, result.unchanged) == (8, 8, 0, 0, 0)
    assert result.revision == (await service.revisions()).lists == 3
    result = await service.lists.import_entries(editor, "block", feed(*range(6, 20)), source="waf", replace=True)
    assert (result.lines, result.added, result.removed, result.unchanged) == (14, 12, 6, 2)
    assert await numbers(service) == list(range(6, 20))
    rows = (await service.audit.page(viewer, page_size=9)).items[::-1]
    assert [row.action for row in rows] == ["list.block.import.begin", "list.block.import"] * 2
    assert rows[2].diff == {"lines": 14, "to_add": 12, "to_change": 0, "to_remove": 6}
    assert rows[3].diff == {"lines": 14, "added": 12, "changed": 0, "removed": 6}
    assert rows[1].reason == "daily" and (await service.audit.verify(viewer)).faults == ()


async def test_what_leaves_goes_last(service, editor, monkeypatch):
    """With ``replace`` nothing is missing at any moment of what was blocked before and is to be blocked after."""
    await service.lists.import_entries(editor, "block", feed(*range(8)), source="waf")
    node, seen = Node(service), []
    await node.catch_up()

    async def look(_number):
        seen.append(await numbers(service))
        await node.catch_up()

    with between_steps(monkeypatch, service, look):
        await service.lists.import_entries(editor, "block", feed(*range(4, 12)), source="waf", replace=True)
    assert len(seen) == 3 and all(set(range(4, 8)) <= set(one) for one in seen)
    assert set(range(12)) >= set(seen[0]) >= set(range(8))
    assert node.held == {f"192.0.2.{number}" for number in range(4, 12)} and node.fulls == 1


async def test_others_change_things_between_steps(service, editor, monkeypatch):
    """Between two steps anything else is changed; what others put or removed meanwhile stays as they left it."""

    async def change(number):
        if number == 1:
            await service.pauses.pause(editor, None)
            await service.lists.put(editor, "block", "ip", "192.0.2.7", source="hand")
            await service.lists.remove(editor, ("block", "ip", "192.0.2.0"))

    with between_steps(monkeypatch, service, change):
        result = await service.lists.import_entries(editor, "block", feed(*range(9)), source="waf")
    assert len((await service.pauses.page(page_size=9)).items) == 1
    assert await numbers(service) == [1, 2, 3, 4, 5, 6, 8] and await numbers(service, "hand") == [7]
    assert (result.added, result.unchanged) == (8, 1)


@pytest.mark.parametrize("removal", [False, True])
async def test_the_last_one_to_begin_has_the_feed(open_service, editor, viewer, monkeypatch, removal):
    """An import, or a removal, of a feed ends the import of it that is under way, also one in another process; the end is that of the last one."""
    service, other = await open_service(), await open_service()

    async def again(number):
        if number != 2:
            return
        if removal:
            assert await other.lists.remove_source(editor, "block", "waf") == 2 * STEP
        else:
            await other.lists.import_entries(editor, "block", feed(1, 20, 21), source="waf", replace=True)

    with between_steps(monkeypatch, service, again), pytest.raises(Conflict, match=r"'waf' began.*6 of 12 entries"):
        await service.lists.import_entries(editor, "block", feed(*range(12)), source="waf", replace=True)
    assert await numbers(service) == ([] if removal else [1, 20, 21])
    rows = (await service.audit.page(viewer, page_size=1)).items
    assert (rows[0].action, rows[0].outcome) == ("list.block.import", "refused")
    result = await service.lists.import_entries(editor, "block", feed(1), source="waf", replace=True)
    assert await numbers(service) == [1] and result.lines == 1


async def test_room_that_others_use_up(service, editor, monkeypatch):
    """An import for which there is no room is not begun; one whose room is used up meanwhile ends before the bound is passed."""
    from sluicegate.control import lists

    monkeypatch.setattr(lists, "LIST_ENTRIES_MAX", 10)
    with pytest.raises(Conflict):
        await service.lists.import_entries(editor, "block", feed(*range(11)), source="waf")
    assert await numbers(service) == []

    async def fill(number):
        if number == 1:
            for at in range(6):
                await service.lists.put(editor, "allow", "user", f"u{at}")

    with between_steps(monkeypatch, service, fill), pytest.raises(Conflict, match="3 of 10 entries"):
        await service.lists.import_entries(editor, "block", feed(*range(10)), source="waf")
    assert len(await numbers(service)) == STEP


async def test_the_end_of_many_entries(service, editor, clock, monkeypatch):
    """Entries that end together become tombstones some at a time; to those who ask none of them is there any more."""
    from sluicegate.control import lists

    monkeypatch.setattr(lists, "IMPORT_STEP_ROWS_MIN", STEP)
    until_us = clock.now_us() + 1_000_000
    await service.lists.import_entries(editor, "block", feed(*range(7)), source="waf", expires_us=until_us)
    clock.advance(2_000_000)
    left = []
    for _ in range(3):
        await service.lists.sweep()
        left.append(len((await service.lists.changes(0)).put))
        assert await numbers(service) == []
    assert left == [4, 1, 0]


async def test_a_database_that_goes_away_between_steps(service, editor, monkeypatch, viewer):
    """An import whose database is away in the middle is answered as unavailable; the next one of the feed says that it follows it, and does the rest."""

    async def away(number):
        if number == 2:
            raise Unavailable("away")

    with between_steps(monkeypatch, service, away), pytest.raises(Unavailable):
        await service.lists.import_entries(editor, "block", feed(*range(12)), source="waf")
    assert len(await numbers(service)) == 2 * STEP
    result = await service.lists.import_entries(editor, "block", feed(*range(12)), source="waf")
    assert (result.added, result.unchanged) == (6, 6)
    row = (await service.audit.page(viewer, page_size=1)).items[0]
    assert row.diff == {"lines": 12, "added": 6, "changed": 0, "removed": 0, "follows_unfinished": True}


MANY = 300_000


def many(seed: int = 0) -> bytes:
    return b"".join(b"%d.%d.%d.%d\n" % (11 + seed, n >> 16, n >> 8 & 255, n & 255) for n in range(MANY))


@pytest.mark.measured
@pytest.mark.slow
async def test_a_kill_switch_during_a_large_import(open_service, editor):
    """While 300,000 entries are imported, a pause by another service on the database is acknowledged within two seconds, whenever it comes."""
    service, other = await open_service(), await open_service()
    node = Node(other)
    await service.lists.put(editor, "block", "ip", "192.0.2.1")
    await node.catch_up()
    loop, waits = asyncio.get_running_loop(), []
    importing = asyncio.create_task(service.lists.import_entries(editor, "block", lines(many()), source="waf"))
    while not importing.done():
        began = loop.time()
        await other.pauses.pause(editor, None)
        waits.append(loop.time() - began)
        await node.catch_up()
        await asyncio.sleep(0.2)
    assert (await importing).added == MANY
    await node.catch_up()
    assert len(node.held) == MANY + 1 and node.fulls == 1
    assert len(waits) > 3 and max(waits) < 2, waits


IMPORTER = """
import asyncio, sys
from sluicegate.clock import SystemClock
from sluicegate.control.model import Actor, Role
from sluicegate.control.service import RulesService

async def feed():
    for n in range(300_000):
        yield b"11.%d.%d.%d\\n" % (n >> 16, n >> 8 & 255, n & 255)

async def main(url):
    async with await RulesService.open(url, SystemClock()) as service:
        service.hub.observers.append(lambda told: print("lists", told.lists, flush=True))
        await service.lists.import_entries(Actor("one", "local", role=Role.EDITOR), "block", feed(), source="waf")

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
async def test_an_import_that_is_killed(open_service, database_url, editor, viewer):
    """What a killed import has taken stays, and the same feed again does the rest and no more."""
    process = subprocess.Popen([sys.executable, "-c", IMPORTER, database_url], stdout=subprocess.PIPE, text=True)
    with process:
        try:
            for line in process.stdout:
                if line.startswith("lists") and int(line.split()[1]) >= 3:
                    break
        finally:
            process.send_signal(signal.SIGKILL)
    service = await open_service()
    there = sum((await service.lists.count("block")).values())
    assert 0 < there < MANY
    result = await service.lists.import_entries(editor, "block", lines(many()), source="waf", replace=True)
    assert (result.added, result.changed, result.removed, result.unchanged) == (MANY - there, 0, 0, there)
    rows = (await service.audit.page(viewer, page_size=9)).items
    assert [row.action.rpartition(".")[2] for row in rows] == ["import", "begin", "begin"]
    assert rows[0].diff["follows_unfinished"] and (await service.audit.verify(viewer)).faults == ()
