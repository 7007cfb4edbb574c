from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sluicegate.bounds import IMPORTS_AT_ONCE_MAX
from sluicegate.clock import US_PER_S
from sluicegate.control import deltas, list_import
from sluicegate.control.errors import Conflict, Invalid, NotAllowed, NotFound
from sluicegate.control.penalties import Givable
from sluicegate.rules.feed import ListEntry


async def chunks(data: bytes, size: int = 7) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def entries(service, name="block"):
    return [(row.kind, row.value, row.source) for row in (await service.lists.page(name, page_size=500)).items]


class Holder:
    """Has the lists as a node has them, from what it is told."""

    def __init__(self, service) -> None:
        self.service = service
        self.revision = 0
        self.held: dict = {}
        self.fulls = 0
        self.pages = 0

    async def catch_up(self) -> dict:
        cursor = ""
        while True:
            told = await self.service.lists.changes(self.revision, cursor)
            self.pages += 1
            assert told.since == (0 if told.full else self.revision if not cursor else told.since)
            if told.full:
                self.held.clear()
                self.fulls += 1
                self.revision = 0
            for entry in told.put:
                self.held[entry.key] = entry
            for key in told.remove:
                self.held.pop(tuple(key), None)
            self.revision = told.revision
            cursor = told.cursor
            if not told.more:
                return self.held


async def test_one_entry(service, editor, clock, viewer):
    """An entry is put, read, replaced, removed; each is a revision of the lists and a line of the audit trail."""
    lists, ends_us = service.lists, clock.now_us() + 60 * US_PER_S
    row = await lists.put(editor, "block", "ip", "2001:DB8::1", expires_us=ends_us, source="hand", reason="abuse")
    assert (row.value, row.revision, row.actor, row.reason) == ("2001:db8::1", 1, "eve", "abuse")
    assert await lists.get(("block", "ip", "2001:db8:0::1")) == row
    assert (
        await lists.put(editor, "block", "ip", "2001:db8::1", expires_us=ends_us, source="hand", reason="abuse")
    ).revision == 1
    assert (await lists.put(editor, "block", "ip", "2001:db8::1")).revision == 2
    await lists.remove(editor, ("block", "ip", "2001:db8::1"))
    with pytest.raises(NotFound):
        await lists.get(("block", "ip", "2001:db8::1"))
    with pytest.raises(NotFound):
        await lists.remove(editor, ("block", "ip", "2001:db8::1"))
    rows = (await service.audit.page(viewer, page_size=9)).items
    assert [(row.action, row.outcome) for row in rows][::-1] == [
        ("list.block.put", "accepted"),
        ("list.block.put", "accepted"),
        ("list.block.remove", "accepted"),
        ("list.block.remove", "refused"),
    ]
    assert (await service.revisions()).lists == 3


@pytest.mark.parametrize(
    "given, kept",
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1/32", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("192.0.2.0/24", "192.0.2.0/24"),
        ("2001:DB8:0:0::/32", "2001:db8::/32"),
    ],
)
async def test_one_spelling_of_an_address(service, editor, given, kept):
    """However an address or a network is written, it is one entry."""
    assert (await service.lists.put(editor, "allow", "ip", given)).value == kept
    assert (await service.lists.get(("allow", "ip", given))).value == kept


@pytest.mark.parametrize(
    "name, kind, value, pointer",
    [
        ("grey", "ip", "192.0.2.1", "/list"),
        ("block", "host", "x", "/kind"),
        ("block", "ip", "192.0.2.1/24", "/value"),
        ("block", "ip", "example.org", "/value"),
        ("block", "user", "", "/value"),
        ("block", "user", "a\x00b", "/value"),
        ("block", "user", "x" * 5_000, "/value"),
        ("block", "user", None, "/value"),
    ],
)
async def test_what_is_no_entry(service, editor, name, kind, value, pointer):
    """A list, kind or value that there is not is refused with a pointer to it."""
    with pytest.raises(Invalid) as caught:
        await service.lists.put(editor, name, kind, value)
    assert caught.value.faults[0].pointer == pointer
    with pytest.raises(Invalid):
        await service.lists.get((name, kind, value))


@pytest.mark.parametrize(
    "value, covered_by",
    [
        ("203.0.113.9", ("203.0.113.0/24", "203.0.0.0/8")),
        ("203.0.112.0/20", ("203.0.0.0/8",)),
        ("2001:db8::1", ("2001:db8::/32",)),
        ("2001:db9::1", ()),
        ("::ffff:203.0.113.9", ("203.0.113.0/24", "203.0.0.0/8")),
    ],
)
async def test_networks_that_cover_an_address(service, editor, clock, value, covered_by):
    """What has no entry of its own is answered with the live networks of that list which hold it, the narrowest first."""
    for network in ("203.0.113.0/24", "203.0.0.0/8", "2001:db8::/32"):
        await service.lists.put(editor, "block", "ip", network, force=True)
    await service.lists.put(editor, "block", "ip", "203.0.0.0/9", expires_us=clock.now_us() + 1)
    await service.lists.put(editor, "allow", "ip", "203.0.113.8/29")
    clock.advance(1)
    with pytest.raises(NotFound) as caught:
        await service.lists.get(("block", "ip", value))
    assert caught.value.covered_by == covered_by


async def test_an_entry_ends_by_itself(service, editor, clock):
    """An entry that ended is not there any more, though nobody has removed it; a node that never had it is not told of it."""
    await service.lists.put(editor, "block", "user", "u1", expires_us=clock.now_us() + US_PER_S)
    with pytest.raises(Invalid):
        await service.lists.put(editor, "block", "user", "u2", expires_us=clock.now_us())
    holder = Holder(service)
    assert len(await holder.catch_up()) == 1
    clock.advance(US_PER_S)
    assert await entries(service) == []
    await service.watch.once()
    assert (await service.revisions()).lists == 1
    assert await Holder(service).catch_up() == {}
    await service.lists.put(editor, "block", "user", "u1")
    assert await entries(service) == [("user", "u1", "")]


async def test_a_node_that_slept_while_an_entry_was_given_an_end(service, editor, clock):
    """Who has an entry without end is told that it went, also when it was given an end and that has passed meanwhile."""
    await service.lists.put(editor, "block", "user", "u1")
    holder = Holder(service)
    assert len(await holder.catch_up()) == 1
    await service.lists.put(editor, "block", "user", "u1", expires_us=clock.now_us() + US_PER_S)
    clock.advance(2 * US_PER_S)
    await service.watch.once()
    assert await holder.catch_up() == {}


async def test_nodes_are_told_the_difference(service, editor, monkeypatch):
    """A node that asks with its revision is told what changed since, in pages, and never everything again."""
    monkeypatch.setattr(deltas, "CHANGES_PAGE_MAX", 3)
    for number in range(8):
        await service.lists.put(editor, "block", "user", f"u{number}")
    holder = Holder(service)
    assert len(await holder.catch_up()) == 8 and (holder.fulls, holder.pages) == (1, 3)
    await service.lists.remove(editor, ("block", "user", "u3"))
    await service.lists.put(editor, "allow", "user", "u9")
    for number in range(4, 7):
        await service.lists.put(editor, "block", "user", f"u{number}", source="hand")
    held = await holder.catch_up()
    assert (holder.fulls, holder.pages) == (1, 5)
    assert held == await Holder(service).catch_up() and len(held) == 8
    assert await holder.catch_up() == held and holder.revision == (await service.revisions()).lists


async def test_pages_while_the_lists_change(service, editor, monkeypatch):
    """What changes between two pages, in either kind of answer, is there after the next question at the latest."""
    monkeypatch.setattr(deltas, "CHANGES_PAGE_MAX", 2)
    for number in range(6):
        await service.lists.put(editor, "block", "user", f"u{number}")
    first = await service.lists.changes(0)
    assert first.full and first.more and first.revision == 0
    await service.lists.remove(editor, ("block", "user", "u0"))
    await service.lists.remove(editor, ("block", "user", "u5"))
    second = await service.lists.changes(0, first.cursor)
    third = await service.lists.changes(0, second.cursor)
    assert not second.full and [entry.value for entry in second.put + third.put] == ["u2", "u3", "u4"]
    assert (third.more, third.revision) == (False, 6)
    last = await service.lists.changes(6)
    assert [key[2] for key in last.remove] == ["u0", "u5"] and last.revision == 8


async def test_who_was_away_too_long_gets_everything(service, editor, monkeypatch):
    """Tombstones are kept up to a bound; below the newest one that is gone a node gets everything, above it the difference."""
    monkeypatch.setattr(deltas, "TOMBSTONES_KEPT", 2)
    for number in range(6):
        await service.lists.put(editor, "block", "user", f"u{number}")
    early, late = Holder(service), Holder(service)
    await early.catch_up()
    for number in range(2):
        await service.lists.remove(editor, ("block", "user", f"u{number}"))
    await late.catch_up()
    for number in range(2, 4):
        await service.lists.remove(editor, ("block", "user", f"u{number}"))
    assert await early.catch_up() == await late.catch_up() == await Holder(service).catch_up()
    assert (early.fulls, late.fulls) == (2, 1)
    ahead = await service.lists.changes(10_000)
    assert ahead.full and len(ahead.put) == 2


@pytest.mark.parametrize("cursor", ["x", "WzFd", "WyJmdWxsIiwxXQ"])
async def test_a_cursor_that_is_none(service, cursor):
    """A cursor that was not given out here is refused."""
    with pytest.raises(Invalid):
        await service.lists.changes(0, cursor)


FEED = b"# a feed\n192.0.2.1\r\n\n198.51.100.0/24 ; a network\n2001:db8::1\n192.0.2.1\n;end"


@pytest.mark.parametrize("size", [1, 7, 1_000])
async def test_a_feed_is_imported(service, editor, size, viewer):
    """Lines of a feed become entries, whatever the chunks they come in; comments, repetitions and line ends do not matter."""
    result = await service.lists.import_entries(editor, "block", chunks(FEED, size), source="waf")
    assert (result.lines, result.added, result.changed, result.removed, result.unchanged) == (3, 3, 0, 0, 0)
    assert await entries(service) == [("ip", value, "waf") for value in ("192.0.2.1", "198.51.100.0/24", "2001:db8::1")]
    assert await service.lists.count("block") == {"waf": 3}
    row = (await service.audit.page(viewer, page_size=1)).items[0]
    assert (row.action, row.resource, row.diff["added"]) == ("list.block.import", "block:waf", 3)


async def test_the_same_feed_again(service, editor, viewer):
    """A feed that did not change makes no revision and no line of the audit trail."""
    await service.lists.import_entries(editor, "block", chunks(FEED), source="waf", replace=True)
    again = await service.lists.import_entries(editor, "block", chunks(FEED), source="waf", replace=True)
    assert (again.added, again.changed, again.removed, again.unchanged) == (0, 0, 0, 3)
    assert (await service.revisions()).lists == 1
    assert len((await service.audit.page(viewer, page_size=9)).items) == 1


async def test_a_feed_replaces_its_own_entries_only(service, editor, clock):
    """With ``replace`` entries of the source that are gone are removed; those of others stay, and stay theirs."""
    lists = service.lists
    await lists.put(editor, "block", "ip", "192.0.2.9", source="hand", expires_us=clock.now_us() + US_PER_S)
    await lists.put(editor, "block", "ip", "192.0.2.8")
    await lists.put(editor, "allow", "ip", "192.0.2.1", source="waf")
    await lists.import_entries(editor, "block", chunks(b"192.0.2.1\n192.0.2.2\n192.0.2.9\n"), source="waf")
    holder = Holder(service)
    await holder.catch_up()
    result = await lists.import_entries(
        editor, "block", chunks(b"192.0.2.2\n192.0.2.3\n192.0.2.9\n"), source="waf", replace=True
    )
    assert (result.added, result.changed, result.removed, result.unchanged) == (1, 0, 1, 2)
    assert await entries(service) == [
        ("ip", "192.0.2.2", "waf"), ("ip", "192.0.2.3", "waf"), ("ip", "192.0.2.8", ""), ("ip", "192.0.2.9", "hand"),
    ]  # fmt: skip
    assert await entries(service, "allow") == [("ip", "192.0.2.1", "waf")]
    assert await holder.catch_up() == await Holder(service).catch_up() and holder.fulls == 1
    clock.advance(2 * US_PER_S)
    result = await lists.import_entries(editor, "block", chunks(b"192.0.2.2\n192.0.2.9\n"), source="waf", replace=True)
    assert (result.added, result.removed) == (1, 1)
    assert ("ip", "192.0.2.9", "waf") in await entries(service)


async def test_the_end_of_imported_entries(service, editor, clock):
    """Entries of an import end when it says, or when their own line says; another end is a change."""
    ends_us = clock.now_us() + 10 * US_PER_S
    lines = [{"value": "u1"}, {"value": "u2", "expires_us": ends_us + 5}, {"kind": "ip", "value": "192.0.2.1"}]
    data = "\n".join(map(json.dumps, lines)).encode()
    options = {"form": "ndjson", "kind": "user", "source": "crm"}
    await service.lists.import_entries(editor, "block", chunks(data), expires_us=ends_us, **options)
    rows = (await service.lists.page("block", page_size=9)).items
    assert [(row.kind, row.value, row.expires_us) for row in rows] == [
        ("ip", "192.0.2.1", ends_us), ("user", "u1", ends_us), ("user", "u2", ends_us + 5),
    ]  # fmt: skip
    later = await service.lists.import_entries(editor, "block", chunks(data), expires_us=ends_us + 1, **options)
    assert (later.changed, later.unchanged) == (2, 1)


@pytest.mark.parametrize(
    "form, data, pointers",
    [
        ("text", b"192.0.2.1\nexample.org\n192.0.2.0/8\n", ["/2", "/3"]),
        ("text", b"\xff\xfe\n", ["/1"]),
        ("text", b"192.0.2.1 " * 1_000 + b"\n192.0.2.1", ["/1"]),
        ("text", b"x\n" * 1_000, [f"/{number}" for number in range(1, 21)]),
        (
            "ndjson",
            b'{"value": "192.0.2.1"}\n{"value": 5}\n{"v": 1}\nnull\n{"value":"a","kind":"host"}\n',
            ["/2", "/3", "/4", "/5"],
        ),
        ("ndjson", b'{"value": "192.0.2.1", "expires_us": 5}\n', ["/1"]),
    ],
)
async def test_a_bad_line_keeps_the_whole_feed_out(service, editor, form, data, pointers, admin):
    """Bad lines are told by their numbers, the first twenty; nothing of the feed is taken; the attempt is audited."""
    with pytest.raises(Invalid) as caught:
        await service.lists.import_entries(editor, "block", chunks(data, 4_000), form=form, source="waf")
    assert [fault.pointer for fault in caught.value.faults] == pointers
    assert await entries(service) == []
    assert (await service.audit.page(admin, page_size=1)).items[0].outcome == "refused"
    # The connection is fit for the next one.
    assert (await service.lists.import_entries(editor, "block", chunks(FEED), source="waf")).added == 3


async def test_imports_beside_changes(service, editor):
    """While a feed comes in others change the lists, and several feeds at once end as if they had come one after another."""

    async def slow(first: bytes):
        yield first + b"\n"
        await service.lists.put(editor, "block", "user", first.decode())
        yield b"192.0.2.200"

    values = [f"192.0.2.{number}" for number in range(5)]
    imports = [service.lists.import_entries(editor, "block", slow(value.encode()), source=value) for value in values]
    results = await asyncio.wait_for(asyncio.gather(*imports), 60)
    assert sorted((result.added, result.unchanged) for result in results) == [(1, 1)] * 4 + [(2, 0)]
    assert len(await entries(service)) == 5 + 5 + 1


async def test_who_may_import(service, viewer, editor):
    """A viewer imports nothing; a feed needs a name, and a list that there is."""
    with pytest.raises(NotAllowed):
        await service.lists.import_entries(viewer, "block", chunks(FEED), source="waf")
    with pytest.raises(Invalid):
        await service.lists.import_entries(editor, "block", chunks(FEED), source="")
    with pytest.raises(Invalid):
        await service.lists.import_entries(editor, "grey", chunks(FEED), source="waf")
    with pytest.raises(NotFound):
        await service.lists.page("grey", page_size=1)


async def test_import_validate_only(service, editor, viewer):
    """With ``validate_only`` an import tells what it would do, and does not."""
    result = await service.lists.import_entries(editor, "block", chunks(FEED), source="waf", validate_only=True)
    assert result.added == 3
    assert await entries(service) == [] and (await service.audit.page(viewer, page_size=1)).items == []


async def test_the_lists_are_bounded(service, editor, monkeypatch):
    """Above their bound the lists take neither an entry nor a feed."""
    from sluicegate.control import lists

    monkeypatch.setattr(lists, "LIST_ENTRIES_MAX", 3)
    await service.lists.import_entries(editor, "block", chunks(FEED), source="waf")
    with pytest.raises(Conflict):
        await service.lists.put(editor, "block", "user", "u")
    with pytest.raises(Conflict):
        await service.lists.import_entries(editor, "block", chunks(b"192.0.2.77"), source="other")
    assert len(await entries(service)) == 3
    monkeypatch.setattr(list_import, "LIST_ENTRIES_MAX", 2)
    with pytest.raises(Invalid):
        await service.lists.import_entries(editor, "block", chunks(FEED), source="waf")


async def test_all_of_a_source_is_removed(service, editor):
    """A source is taken off as a whole, in one revision; the entries of others stay."""
    await service.lists.import_entries(editor, "block", chunks(FEED), source="waf")
    await service.lists.put(editor, "block", "user", "u1")
    holder = Holder(service)
    await holder.catch_up()
    assert await service.lists.remove_source(editor, "block", "waf") == 3
    assert await service.lists.remove_source(editor, "block", "waf") == 0
    assert [key[2] for key in await holder.catch_up()] == ["u1"] and holder.fulls == 1
    assert (await service.revisions()).lists == 3


async def test_pages_of_a_list(service, editor):
    """A list comes in pages in order of kind and value, of one kind or source if asked."""
    await service.lists.import_entries(editor, "block", chunks(FEED), source="waf")
    await service.lists.put(editor, "block", "user", "ä", source="hand")
    await service.lists.put(editor, "block", "user", "Z", source="hand")
    found, token = [], ""
    while True:
        page = await service.lists.page("block", page_size=2, page_token=token)
        found += [row.value for row in page.items]
        token = page.next_token
        if not token:
            break
    assert found == ["192.0.2.1", "198.51.100.0/24", "2001:db8::1", "Z", "ä"]
    assert len((await service.lists.page("block", page_size=9, kind="user")).items) == 2
    assert len((await service.lists.page("block", page_size=9, source="waf")).items) == 3


async def test_penalties_come_onto_the_block_list(service, editor, node, viewer, clock):
    """What a node penalised is blocked until its end, audited with its name; what no rule can give is left out, and longer blocks stay."""
    now_us = clock.now_us()
    await service.lists.put(editor, "block", "ip", "192.0.2.1", source="hand")
    given = [
        ListEntry("block", "ip", "192.0.2.1", now_us + 9, "penalty:login"),
        ListEntry("block", "ip", "192.0.2.2", now_us + 9, "penalty:login"),
        ListEntry("block", "ip", "192.0.2.3", now_us, "penalty:login"),
        ListEntry("block", "ip", "192.0.2.4", None, "penalty:login"),
        ListEntry("block", "ip", "192.0.2.5", now_us + 9, "mine"),
        ListEntry("allow", "ip", "192.0.2.6", now_us + 9, "penalty:login"),
        ListEntry("block", "ip", "192.0.2.7", now_us + 366 * 86_400 * US_PER_S, "penalty:login"),
        ListEntry("block", "ip", "0.0.0.0/0", now_us + 9, "penalty:login"),
        ListEntry("block", "ip", "::/1", now_us + 9, "penalty:login"),
        ListEntry("block", "ip", "::ffff:0.0.0.0/97", now_us + 9, "penalty:login"),
    ]
    login = {"login": Givable(frozenset({"ip"}), 60 * US_PER_S)}
    assert await service.lists.penalise(node, given, login) == 1
    assert await service.lists.penalise(node, given, login) == 0
    assert await entries(service) == [("ip", "192.0.2.1", "hand"), ("ip", "192.0.2.2", "penalty:login")]
    rows = (await service.audit.page(viewer, page_size=1)).items
    assert (rows[0].action, rows[0].actor, rows[0].diff[0]["value"]) == ("list.penalty", "gateway", "192.0.2.2")
    with pytest.raises(NotAllowed):
        await service.lists.penalise(editor, given, login)


async def test_who_may_not_import_does_not_wait(service, editor, viewer):
    """While imports are at work as many as may be, who may not import is told so at once, and the trail has it."""
    go_on = asyncio.Event()
    begun = 0

    async def unfinished() -> AsyncIterator[bytes]:
        nonlocal begun
        begun += 1
        yield b"192.0.2.1\n"
        await go_on.wait()

    tasks = [
        asyncio.create_task(
            service.lists.import_entries(
                replace(editor, auth=f"token:9{number}"), "block", unfinished(), source=f"feed{number}"
            )
        )
        for number in range(IMPORTS_AT_ONCE_MAX)
    ]
    async with asyncio.timeout(60):
        while begun < IMPORTS_AT_ONCE_MAX:
            await asyncio.sleep(0.01)
        with pytest.raises(NotAllowed):
            await service.lists.import_entries(viewer, "block", unfinished(), source="mine")
        go_on.set()
        await asyncio.gather(*tasks)
    assert begun == IMPORTS_AT_ONCE_MAX
    refused = (await service.audit.page(viewer, page_size=10, outcome="refused")).items
    assert [row.resource for row in refused] == ["block:mine"]
