"""Feeds and entries that are slips rather than what was meant, and the turns of imports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from sluicegate.bounds import IMPORTS_AT_ONCE_MAX
from sluicegate.control.errors import Invalid

FEED = b"192.0.2.1\n198.51.100.0/24\n2001:db8::1\n"


async def chunks(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def entries(service):
    return [row.value for row in (await service.lists.page("block", page_size=500)).items]


@pytest.mark.parametrize("network", ["0.0.0.0/7", "0.0.0.0/0", "::/0", "2000::/15", "::ffff:0.0.0.0/97"])
async def test_a_network_as_wide_as_a_slip(service, editor, network):
    """A network wider than /8 or /16 is put, or imported, with force only; one as wide is taken; any is removed without."""
    line = network.encode()
    with pytest.raises(Invalid, match="force"):
        await service.lists.put(editor, "block", "ip", network)
    with pytest.raises(Invalid, match="force") as caught:
        await service.lists.import_entries(editor, "block", chunks(b"192.0.2.1\n" + line), source="waf")
    assert caught.value.faults[0].pointer == "/2"
    await service.lists.put(editor, "block", "ip", network, force=True)
    result = await service.lists.import_entries(editor, "allow", chunks(line), source="waf", force=True)
    assert result.added == 1
    await service.lists.remove(editor, ("block", "ip", network))
    for wide in ("10.0.0.0/8", "2001::/16"):
        await service.lists.put(editor, "block", "ip", wide)


@pytest.mark.parametrize(
    "content", [b"", b"# nothing today\n; nor here\n\n", b"\xef\xbb\xbf"], ids=["empty", "comments", "mark"]
)
async def test_a_feed_without_entries_replaces_nothing(service, editor, content):
    """What holds no entry does not remove a feed; without ``replace`` it changes nothing."""
    await service.lists.import_entries(editor, "block", chunks(FEED), source="waf")
    with pytest.raises(Invalid, match="no entry"):
        await service.lists.import_entries(editor, "block", chunks(content), source="waf", replace=True)
    assert (await service.lists.import_entries(editor, "block", chunks(content), source="waf")).lines == 0
    assert len(await entries(service)) == 3


@pytest.mark.parametrize("form", ["text", "ndjson"])
async def test_a_mark_of_the_byte_order(service, editor, form):
    """A feed may begin with the mark that some tools put before UTF-8, however it is cut; elsewhere it is a fault."""
    line = b"192.0.2.1" if form == "text" else b'{"value":"192.0.2.1"}'

    async def bytewise(content: bytes) -> AsyncIterator[bytes]:
        for byte in content:
            yield bytes([byte])

    result = await service.lists.import_entries(
        editor, "block", bytewise(b"\xef\xbb\xbf" + line), form=form, source="waf"
    )
    assert result.added == 1
    with pytest.raises(Invalid) as caught:
        content = line + b"\n\xef\xbb\xbf" + line
        await service.lists.import_entries(editor, "block", bytewise(content), form=form, source="waf")
    assert caught.value.faults[0].pointer == "/2"


@pytest.mark.parametrize(
    "line",
    [
        b'{"value":"192.0.2.1","value":"192.0.2.2"}',
        b'{"value":"192.0.2.1","\\u0076alue":"192.0.2.2"}',
        b'{"value":"192.0.2.1","expires_us":null,"kind":"ip","expires_us":null}',
    ],
)
async def test_a_key_twice_in_a_line(service, editor, line):
    """A line of NDJSON that says a thing twice is refused by its number; a value that looks like a key is none."""
    plain = b'{"value":"\\"value\\"","kind":"user"}\n'
    with pytest.raises(Invalid, match="2 times") as caught:
        await service.lists.import_entries(editor, "block", chunks(plain + line), form="ndjson", source="waf")
    assert caught.value.faults[0].pointer == "/2"
    result = await service.lists.import_entries(editor, "block", chunks(plain), form="ndjson", source="waf")
    assert result.added == 1


async def test_one_import_at_work_per_token(service, editor, node):
    """Imports by one token follow one another, in order, and leave room for those of others; the last one says what a feed is."""
    begun: list[str] = []
    go_on = asyncio.Event()

    async def slow(name: str, value: bytes) -> AsyncIterator[bytes]:
        begun.append(name)
        yield value
        await go_on.wait()

    def importing(actor, name: str, value: bytes) -> asyncio.Task:
        feed = slow(name, value)
        return asyncio.create_task(
            service.lists.import_entries(actor, "block", feed, source="of " + actor.auth, replace=True)
        )

    tasks = [importing(editor, f"eve-{number}", b"192.0.2.%d" % number) for number in range(IMPORTS_AT_ONCE_MAX + 1)]
    other = importing(replace(editor, auth="token:77"), "other", b"198.51.100.1")
    async with asyncio.timeout(60):
        while "other" not in begun:
            await asyncio.sleep(0)
    assert sorted(begun) == ["eve-0", "other"]
    tasks[1].cancel()
    go_on.set()
    await asyncio.gather(*tasks, other, return_exceptions=True)
    assert begun[2:] == [f"eve-{number}" for number in range(2, IMPORTS_AT_ONCE_MAX + 1)]
    assert await entries(service) == [f"192.0.2.{IMPORTS_AT_ONCE_MAX}", "198.51.100.1"]
