"""Long bodies pass in constant memory, in both directions, at the pace of the slower side."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

MIB = 1 << 20
PIECE = bytes(range(256)) * 256  # 64 KiB
MEMORY_BYTES = 6 * MIB
"""What client, gateway and upstream together may take at most while a body passes; each holds a few reads of 256 KiB."""


async def send_body(line, size, *, chunked=False):
    """Write ``size`` bytes at the pace of the reader."""
    for _ in range(size // len(PIECE)):
        line.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE) if chunked else PIECE)
        await line.flush()
    if chunked:
        line.send(b"0\r\n\r\n")


async def count_body(line, size):
    """Read and forget ``size`` bytes, checking that they are the right ones at the right place."""
    seen = 0
    while seen < size:
        piece = await asyncio.wait_for(line.reader.read(65536), 20)
        assert piece, f"the body ended after {seen} bytes"
        assert piece[0] == seen % 256
        seen += len(piece)


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_long_answer_passes_in_constant_memory(world, chunked):
    """64 MiB, with a length or chunked."""
    size = 64 * MIB

    async def serve(line):
        await line.head()
        line.send(b"HTTP/1.1 200 OK\r\n")
        line.send(b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: %d\r\n\r\n" % size)
        await send_body(line, size, chunked=chunked)
        await line.head()

    w = await world(serve)
    client = await w.client()
    client.send(b"GET / HTTP/1.%d\r\nHost: x\r\n\r\n" % (not chunked))  # HTTP/1.0 gets the chunks as plain bytes
    await client.head()
    tracemalloc.start()
    await count_body(client, size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MEMORY_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_long_request_passes_in_constant_memory(world, chunked):
    """64 MiB the other way."""
    size = 64 * MIB
    done = asyncio.Event()

    async def serve(line):
        await line.head()
        if chunked:
            seen = 0
            while length := int(await line.line(), 16):
                seen += len(await line.exactly(length + 2)) - 2
            assert seen == size
            await line.line()
        else:
            await count_body(line, size)
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        done.set()
        await line.head()

    w = await world(serve)
    client = await w.client()
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\n")
    client.send(b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"Content-Length: %d\r\n\r\n" % size)
    tracemalloc.start()
    await send_body(client, size, chunked=chunked)
    assert (await client.reply()).status == 200
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.is_set()
    assert peak < MEMORY_BYTES


@pytest.mark.slow
async def test_a_client_that_stops_reading_stops_the_upstream(world):
    """What is under way is a few buffers of the kernel and 64 KiB here, not the whole body."""
    sent = 0

    async def serve(line):
        nonlocal sent
        await line.head()
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
        while True:
            line.send(PIECE)
            await line.flush()
            sent += len(PIECE)

    w = await world(serve)
    client = await w.client()
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.head()
    client.reader._transport.pause_reading()
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.1)
    assert sent < 40 * MIB
    client.reader._transport.resume_reading()
    await count_body(client, 100 * MIB)
    assert sent > before


@pytest.mark.slow
async def test_an_upstream_that_stops_reading_stops_the_client(world):
    """The same the other way."""
    go = asyncio.Event()

    async def serve(line):
        await line.head()
        await go.wait()
        while True:
            assert await line.reader.read(65536)

    w = await world(serve)
    client = await w.client()
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
    sent = 0

    async def pump():
        nonlocal sent
        while True:
            client.send(PIECE)
            await client.writer.drain()
            sent += len(PIECE)

    pumping = asyncio.create_task(pump())
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.1)
    assert sent < 40 * MIB
    go.set()
    await w.until(lambda: sent > before + 100 * MIB)
    pumping.cancel()


GATEWAY = """
import asyncio, sys, uvloop
from sluicegate.doors.gateway import Gateway
from sluicegate.doors.listen import Address, open_listener
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules

async def main():
    rules = load_rules("version: 1\\nrules:\\n  - {name: all, quota: 1000/second}\\n", "test")
    gateway = Gateway(Limiter.from_rules(rules), [sys.argv[1]])
    listener = await open_listener(Address("127.0.0.1", 0), gateway.protocol_factory)
    print(listener.address.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    listener.close()
    await gateway.close()

uvloop.run(main())
"""


@pytest.mark.slow
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_gigabyte_each_way_does_not_grow_the_process(world):
    """The peak memory of a gateway process grows by less than 16 MiB over 1 GiB up and 1 GiB down."""
    size = 1024 * MIB
    piece = PIECE * 16

    async def serve(line):
        await line.head()
        seen = 0
        while seen < size:
            seen += len(await line.reader.read(MIB))
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            line.send(piece)
            await line.flush()
        await line.head()

    w = await world(serve)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GATEWAY, w.backend.url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        port = int(await process.stdout.readline())
        before = peak_kib(process.pid)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=MIB)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // len(piece)):
            writer.write(piece)
            await writer.drain()
        await reader.readuntil(b"\r\n\r\n")
        seen = 0
        while seen < size:
            seen += len(await reader.read(MIB))
        assert peak_kib(process.pid) - before < 16 * 1024
        writer.close()
    finally:
        process.stdin.close()
        await process.wait()


def peak_kib(pid):
    """The most memory the process has ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not say")
