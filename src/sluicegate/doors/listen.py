"""Addresses a server listens on, and opening them with errors an operator can act on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluicegate.bounds import LISTEN_BACKLOG, PORT_MAX, UNIX_PATH_BYTES_MAX
from sluicegate.errors import ConfigurationError

__all__ = ["Address", "Listener", "adopt_listener", "bind", "is_in_use", "named", "open_listener"]

_FORMS = "use HOST:PORT, [IPV6]:PORT or unix:PATH"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens: a TCP host and port, or the path of a Unix socket.

    ``path`` is None for TCP; ``host`` is "" and ``port`` 0 for a Unix socket. Port 0 lets the system choose a free
    port; the chosen one is in ``Listener.address``.
    """

    host: str = ""
    port: int = 0
    path: str | None = None

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT``, ``[::1]:8080`` or ``unix:PATH``; raises ConfigurationError naming the text."""
        if text.startswith("unix:"):
            return cls(path=_unix_path(text))
        host, colon, port_text = text.rpartition(":")
        if not colon:
            raise ConfigurationError(f"address {text!r} has no port: {_FORMS}")
        if not (port_text.isascii() and port_text.isdigit()) or int(port_text[:6]) > PORT_MAX:
            raise ConfigurationError(f"address {text!r} has port {port_text!r}, which is not 0 to {PORT_MAX}")
        if host.startswith("[") and host.endswith("]"):
            return cls(_ipv6(host[1:-1], text), int(port_text))
        if ":" in host:
            raise ConfigurationError(f"address {text!r}: an IPv6 address goes in brackets, as in [::1]:8080")
        if not host or any(c.isspace() or c in "/[]" for c in host):
            raise ConfigurationError(f"address {text!r} has no valid host: {_FORMS}; 0.0.0.0 is every IPv4 interface")
        return cls(host, int(port_text))

    @property
    def is_loopback(self) -> bool:
        """True where only this machine can connect: a loopback address, ``localhost`` or a Unix socket."""
        if self.path is not None or self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """What a client is told: ``http://127.0.0.1:8080``, or ``unix:PATH`` as it is."""
        return self.url_of("http")

    def url_of(self, scheme: str) -> str:
        """``url`` where clients speak another scheme: ``https://127.0.0.1:8080``; ``unix:PATH`` stays as it is."""
        return str(self) if self.path is not None else f"{scheme}://{self}"

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Listener:
    """An open listening socket. ``address`` is what was really bound."""

    def __init__(self, address: Address, server: asyncio.AbstractServer, inode: int | None) -> None:
        self.address = address
        self._server = server
        self._inode = inode

    def close(self) -> None:
        """Stop accepting; connections already accepted live on. A Unix socket's file is removed. Idempotent."""
        self._server.close()
        if self.address.path is None or self._inode is None:
            return
        # Only our own file: a successor may have put its socket there already.
        with contextlib.suppress(OSError):
            path = Path(self.address.path)
            if path.stat().st_ino == self._inode:
                path.unlink()
        self._inode = None


async def open_listener(
    address: Address,
    protocol_factory: Callable[[], asyncio.Protocol],
    *,
    reuse_port: bool = False,
    backlog: int = LISTEN_BACKLOG,
) -> Listener:
    """Listen on ``address`` and make a protocol for each connection.

    A host name is bound at the first address it resolves to. ``reuse_port`` lets several processes share a TCP port.
    A socket file left behind by a dead process is replaced; one that still answers is not. Raises ConfigurationError
    that names the address and the reason.
    """
    sock = await bind(address, reuse_port=reuse_port)
    inode = None if address.path is None else Path(address.path).stat().st_ino  # noqa: ASYNC240 - one stat of a local file, at start-up
    return await _listen(sock, address, protocol_factory, inode, backlog)


async def adopt_listener(
    sock: socket.socket,
    address: Address,
    protocol_factory: Callable[[], asyncio.Protocol],
    *,
    backlog: int = LISTEN_BACKLOG,
) -> Listener:
    """``open_listener`` for a socket that somebody else has bound to ``address``, whose file is theirs to remove."""
    sock.setblocking(False)
    return await _listen(sock, address, protocol_factory, None, backlog)


async def bind(address: Address, *, reuse_port: bool = False) -> socket.socket:
    """A socket bound to ``address``, not listening, as for ``open_listener``; raises the same errors."""
    loop = asyncio.get_running_loop()
    try:
        if address.path is not None:
            return _bind_unix(address.path)
        found = await loop.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
        family, _, _, _, where = found[0]
        return _bind_tcp(family, where, reuse_port=reuse_port)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {address}: {_reason(error)}") from error
    except UnicodeError as error:  # raised by the resolver for a name that DNS cannot hold
        raise ConfigurationError(f"cannot listen on {address}: the host is no name that DNS can hold") from error


def is_in_use(error: ConfigurationError) -> bool:
    """Whether a listener could not be opened because somebody else listens there."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE


@contextlib.contextmanager
def named(flag: str) -> Iterator[None]:
    """Put ``--flag:`` before what a ConfigurationError says, whose cause stays."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"--{flag}: {error}") from error.__cause__


async def _listen(
    sock: socket.socket,
    address: Address,
    protocol_factory: Callable[[], asyncio.Protocol],
    inode: int | None,
    backlog: int,
) -> Listener:
    loop = asyncio.get_running_loop()
    if address.path is not None:
        # From Python 3.13 on the loop would remove the file itself, which is the Listener's to do, or another process's.
        keep: dict[str, Any] = {"cleanup_socket": False} if _loop_removes_sockets(loop) else {}
        unix_server = await loop.create_unix_server(protocol_factory, sock=sock, backlog=backlog, **keep)
        return Listener(address, unix_server, inode)
    bound = Address(address.host, sock.getsockname()[1])
    server = await loop.create_server(protocol_factory, sock=sock, backlog=backlog)
    return Listener(bound, server, None)


def _loop_removes_sockets(loop: asyncio.AbstractEventLoop) -> bool:
    return isinstance(loop, asyncio.BaseEventLoop) and sys.version_info >= (3, 13)


def _bind_tcp(family: int, where: tuple[str | int | bytes, ...], *, reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        # Restarting must not wait for connections of the previous process in TIME_WAIT.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # "[::]" means IPv6 here whatever the system default is; listen on both with two addresses.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(where)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_unix(path: str) -> socket.socket:
    file = Path(path)
    if file.exists() or file.is_symlink():
        if not file.is_socket():
            raise FileExistsError(errno.EEXIST, "the file exists and is not a socket")
        if _answers(path):
            raise OSError(errno.EADDRINUSE, "another process listens there")
        file.unlink()
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True  # its backlog is full: somebody listens
        except OSError:
            return False
        return True


def _unix_path(text: str) -> str:
    path = text.removeprefix("unix:")
    if not path or "\0" in path:
        raise ConfigurationError(f"address {text!r} has no path: {_FORMS}")
    if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
        raise ConfigurationError(f"address {text!r}: the path is longer than {UNIX_PATH_BYTES_MAX} bytes")
    return path


def _ipv6(host: str, text: str) -> str:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise ConfigurationError(f"address {text!r}: {host!r} is not an IPv6 address") from None
    return host


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the address is in use"
    if error.errno == errno.EACCES:
        return "permission denied"
    return error.strerror or str(error)
