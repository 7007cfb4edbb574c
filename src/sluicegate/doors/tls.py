"""TLS in front of a door: a connection becomes the door's when its handshake is done.

The loop's own way (``create_server(ssl=...)``) takes one context for as long as it listens, and holds any number of connections that never finish
their handshake, unseen by the door and its limits. Here each connection gets the context that is in service when it arrives, so that a renewed
certificate needs no restart, and handshakes are counted: beyond the maximum the oldest one is given up. It is the one of somebody who is slow
on purpose, or whose line is dead; an honest one takes two round trips.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

from sluicegate.bounds import TLS_HANDSHAKE_S_MAX, TLS_HANDSHAKES_MAX, TLS_SHUTDOWN_S_MAX

__all__ = ["TlsLayer"]

ProtocolFactory = Callable[[], asyncio.Protocol]


class TlsLayer:
    """The handshakes of one listener. ``context`` gives the context for a new connection.

    ``under_way``: handshakes now. ``made``, ``failed`` (for any reason, time included) and ``given_up`` (for newer ones) only grow.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        *,
        handshakes_max: int = TLS_HANDSHAKES_MAX,
        handshake_s: float = TLS_HANDSHAKE_S_MAX,
    ) -> None:
        self.context = context
        self.made = 0
        self.failed = 0
        self.given_up = 0
        self._handshakes_max = handshakes_max
        self._handshake_s = handshake_s
        self._under_way: OrderedDict[asyncio.Task[None], None] = OrderedDict()

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    def over(self, protocol_factory: ProtocolFactory) -> ProtocolFactory:
        """What a listener makes for each connection, so that the protocols of ``protocol_factory`` speak over TLS."""
        return lambda: _Accepted(self, protocol_factory)

    def begin(self, accepted: socket.socket, protocol_factory: ProtocolFactory) -> None:
        """A connection has arrived, of which nothing was read."""
        if len(self._under_way) >= self._handshakes_max:
            self.given_up += 1
            self._under_way.popitem(last=False)[0].cancel()
        task = asyncio.ensure_future(self._shake(accepted, protocol_factory))
        self._under_way[task] = None
        task.add_done_callback(self._ended)

    async def _shake(self, accepted: socket.socket, protocol_factory: ProtocolFactory) -> None:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(
            protocol_factory,
            accepted,
            ssl=self.context(),
            ssl_handshake_timeout=self._handshake_s,
            ssl_shutdown_timeout=TLS_SHUTDOWN_S_MAX,
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self.made += 1
        elif isinstance(error, OSError):
            # What strangers do is counted and not logged; what is wrong with the files was said when they were read.
            self.failed += 1
        else:
            self.failed += 1
            context = {"message": "a TLS handshake failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)


class _Accepted(asyncio.Protocol):
    """A connection that has just been accepted. The loop can begin TLS on a socket only, and not on its transport without a byte being lost; so the socket
    is taken out of the transport before that has read anything."""

    def __init__(self, layer: TlsLayer, protocol_factory: ProtocolFactory) -> None:
        self._layer = layer
        self._protocol_factory = protocol_factory

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        descriptor = transport.get_extra_info("socket").fileno()
        try:
            accepted = socket.socket(fileno=os.dup(descriptor))
        except OSError:
            # No descriptor is left; the client sees a closed connection, as it would without TLS.
            self._layer.failed += 1
        else:
            accepted.setblocking(False)
            self._layer.begin(accepted, self._protocol_factory)
        cast("asyncio.Transport", transport).abort()
