"""The addresses of all workers, taken once."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Collection, Mapping
from pathlib import Path

from sluicegate.doors.listen import Address, bind, is_in_use, named
from sluicegate.errors import ConfigurationError

__all__ = ["Ports", "remove_socket"]


class Ports:
    """Holds the addresses of listeners for as long as any worker may need them.

    ``addresses``: by role, with the port that was found where 0 was asked for. ``sockets``: the listening Unix sockets, which workers
    inherit. A TCP port is held by a socket that is bound and never listens, so that it gets no connection and nobody else gets the
    port while all workers are down. It is bound alone first: an address that somebody listens on is refused, even one of
    another server that would share it.
    """

    def __init__(self) -> None:
        self.addresses: dict[str, Address] = {}
        self.sockets: dict[str, socket.socket] = {}
        self._closing = contextlib.ExitStack()

    async def take(self, wanted: Mapping[str, Address | None], backlog: int, spared: Collection[str] = ()) -> None:
        """Take these; raises ConfigurationError that names the flag, the address and the reason.

        ``spared``: roles that are left out where somebody else listens on their address.
        """
        for name, address in wanted.items():
            if address is None:
                continue
            try:
                with named(name):
                    bound = await bind(address)
            except ConfigurationError as error:
                if name in spared and is_in_use(error):
                    continue
                raise
            held = self._closing.enter_context(bound)
            if address.path is not None:
                self.sockets[name] = held
                held.listen(backlog)
                self._closing.callback(remove_socket, Path(address.path), Path(address.path).stat().st_ino)  # noqa: ASYNC240
                self.addresses[name] = address
            else:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                self.addresses[name] = Address(address.host, held.getsockname()[1])

    def close(self) -> None:
        """Let go of them; the files of Unix sockets are removed, if they are still ours."""
        self._closing.close()


def remove_socket(path: Path, inode: int) -> None:
    """Remove the file of a Unix socket, unless another has taken its place."""
    with contextlib.suppress(OSError):
        if path.stat().st_ino == inode:
            path.unlink()
