"""Addresses and listeners."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from sluicegate.doors.listen import Address, adopt_listener, bind, open_listener
from sluicegate.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "address", "shown", "loopback"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080), "127.0.0.1:8080", True),
        ("0.0.0.0:0", Address("0.0.0.0", 0), "0.0.0.0:0", False),
        ("localhost:65535", Address("localhost", 65535), "localhost:65535", True),
        ("api.example:80", Address("api.example", 80), "api.example:80", False),
        ("[::1]:8080", Address("::1", 8080), "[::1]:8080", True),
        ("[::]:1", Address("::", 1), "[::]:1", False),
        ("unix:/run/x.sock", Address(path="/run/x.sock"), "unix:/run/x.sock", True),
        ("unix:rel.sock", Address(path="rel.sock"), "unix:rel.sock", True),
    ],
)
def test_address_reads_every_documented_form(text: str, address: Address, shown: str, loopback: bool) -> None:
    """An address is read as documented, printed as it was written, and knows whether it is loopback."""
    assert Address.parse(text) == address
    assert str(address) == shown
    assert address.is_loopback is loopback


@pytest.mark.parametrize(
    "text",
    ["", "8080", ":8080", "host:", "host:65536", "host:-1", "host:+1", "host: 80", "host:٣", "::1:8080", "[::1]", "[::1]:",
     "[zz]:80", "[::1:80", "a b:80", "http://x:80", "unix:", "unix:" + "x" * 200, "unix:a\0b", "host:" + "9" * 5000],
)  # fmt: skip
def test_bad_address_is_refused_with_its_text(text: str) -> None:
    """A malformed address is a configuration error that quotes it."""
    with pytest.raises(ConfigurationError) as caught:
        Address.parse(text)
    assert repr(text) in str(caught.value)


async def _dial(address: Address) -> bytes:
    if address.path is not None:
        reader, writer = await asyncio.open_unix_connection(address.path)
    else:
        reader, writer = await asyncio.open_connection(address.host, address.port)
    got = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return got


class _Hello(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(b"hello")
        transport.close()


async def test_port_zero_is_replaced_by_the_bound_port() -> None:
    """A listener on port 0 reports the port the system chose, and serves there."""
    listener = await open_listener(Address("127.0.0.1", 0), _Hello)
    try:
        assert listener.address.port > 0
        assert listener.address.url == f"http://127.0.0.1:{listener.address.port}"
        assert await _dial(listener.address) == b"hello"
    finally:
        listener.close()
    with pytest.raises(OSError):
        await _dial(listener.address)


async def test_port_in_use_names_address_and_reason() -> None:
    """A port somebody holds is a configuration error with address and reason; reuse_port shares it."""
    first = await open_listener(Address("127.0.0.1", 0), _Hello, reuse_port=True)
    try:
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{first.address.port}: the address is in use"):
            await open_listener(first.address, _Hello)
        second = await open_listener(first.address, _Hello, reuse_port=True)
        second.close()
    finally:
        first.close()


async def test_unresolvable_host_is_a_configuration_error() -> None:
    """A host that does not resolve is reported with the address."""
    with pytest.raises(ConfigurationError, match=r"cannot listen on no-such-host\.invalid:1"):
        await open_listener(Address("no-such-host.invalid", 1), _Hello)


async def test_host_that_dns_cannot_hold_is_a_configuration_error() -> None:
    """A label of more than 63 characters never reaches the resolver; it is a mistake of the configuration all the same."""
    with pytest.raises(ConfigurationError, match=r"cannot listen on a{64}:0: the host is no name that DNS can hold"):
        await open_listener(Address("a" * 64, 0), asyncio.Protocol)


async def test_unix_socket_serves_and_removes_its_file(tmp_path: Path) -> None:
    """A Unix listener replaces a dead socket file, refuses a live one and any other file, and cleans up."""
    path = tmp_path / "door.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    address = Address.parse(f"unix:{path}")
    listener = await open_listener(address, _Hello)
    assert await _dial(address) == b"hello"
    with pytest.raises(ConfigurationError, match="the address is in use"):
        await open_listener(address, _Hello)
    assert await _dial(address) == b"hello"
    listener.close()
    assert not path.exists()
    path.write_text("data")
    with pytest.raises(ConfigurationError, match="not a socket"):
        await open_listener(address, _Hello)
    assert path.read_text() == "data"


async def test_closing_leaves_a_successors_socket_alone(tmp_path: Path) -> None:
    """A listener whose file was replaced by another process does not remove the new one."""
    path = tmp_path / "door.sock"
    listener = await open_listener(Address(path=str(path)), _Hello)
    os.rename(path, tmp_path / "moved")  # the inode stays in use, as it does while the old process lives
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(path))
        listener.close()
        assert path.exists()


async def test_socket_of_somebody_else_is_shared(tmp_path: Path) -> None:
    """Listeners that adopt one bound socket accept from one queue; closing one leaves the others, and never the file, to its owner."""
    address = Address(path=str(tmp_path / "shared.sock"))
    with await bind(address) as owned:
        first, second = [await adopt_listener(owned.dup(), address, _Hello) for _ in range(2)]
        assert await _dial(address) == b"hello"
        first.close()
        assert await _dial(address) == b"hello"
        second.close()
        await asyncio.sleep(0)
        assert Path(address.path).is_socket()


async def test_bound_socket_gets_no_connection() -> None:
    """A port can be held by a socket that does not listen; what listens there beside it gets every connection."""
    held = await bind(Address("127.0.0.1", 0))
    with held:
        address = Address("127.0.0.1", held.getsockname()[1])
        with pytest.raises(OSError):
            await _dial(address)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener = await open_listener(address, _Hello, reuse_port=True)
        assert [await _dial(address) for _ in range(8)] == [b"hello"] * 8
        listener.close()
