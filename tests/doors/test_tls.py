"""Handshakes in front of a door: who is slow keeps nobody out."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.doors.tls import TlsLayer


class Echo(asyncio.Protocol):
    """Answers what it gets."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@pytest.fixture
def context(authority: Any) -> ssl.SSLContext:
    """Of a server for 127.0.0.1."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(*authority.issue("server"))
    return made


async def listening(layer: TlsLayer) -> tuple[asyncio.Server, int]:
    server = await asyncio.get_running_loop().create_server(layer.over(Echo), "127.0.0.1", 0)
    return server, int(server.sockets[0].getsockname()[1])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0)


async def echoed(port: int, trusting: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="127.0.0.1")
    writer.write(b"hello")
    answer = await reader.readexactly(5)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return answer


async def test_the_oldest_handshake_is_given_up(context: ssl.SSLContext, authority: Any) -> None:
    """Beyond the maximum the oldest silent client is cut off, and who speaks is served."""
    layer = TlsLayer(lambda: context, handshakes_max=3)
    server, port = await listening(layer)
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
    await until(lambda: layer.under_way == 3)
    assert await echoed(port, authority.trusting()) == b"hello"
    assert (layer.given_up, layer.made, layer.under_way) == (1, 1, 2)
    assert await silent[0][0].read() == b""
    assert not silent[1][0].at_eof()
    for _, writer in silent:
        writer.close()
    await until(lambda: layer.under_way == 0)
    assert (layer.made, layer.failed) == (1, 2)
    server.close()


async def test_what_is_no_handshake_fails(context: ssl.SSLContext) -> None:
    """A client that speaks something else is cut off and counted, and nothing reaches the door."""
    layer = TlsLayer(lambda: context)
    server, port = await listening(layer)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert b"HTTP" not in await reader.read()
    await until(lambda: layer.failed == 1)
    assert (layer.made, layer.under_way) == (0, 0)
    writer.close()
    server.close()


async def test_each_connection_gets_the_context_of_its_moment(authority: Any, other_authority: Any) -> None:
    """A connection is shown the certificate that is in service when it arrives."""
    contexts = []
    for maker in (authority, other_authority):
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(*maker.issue("server"))
        contexts.append(made)
    layer = TlsLayer(lambda: contexts[0])
    server, port = await listening(layer)
    assert await echoed(port, authority.trusting()) == b"hello"
    contexts.reverse()
    with pytest.raises(ssl.SSLCertVerificationError):
        await echoed(port, authority.trusting())
    assert await echoed(port, other_authority.trusting()) == b"hello"
    server.close()
