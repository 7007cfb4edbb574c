"""After 101 (Switching Protocols): bytes both ways until either side ends, unread and uncounted."""

from __future__ import annotations

import asyncio

from sluicegate.bounds import GATEWAY_LINGER_S
from sluicegate.doors.gateway.context import Context
from sluicegate.doors.gateway.flow import Client, pause, resume
from sluicegate.doors.gateway.upstream import UpstreamConnection

__all__ = ["Tunnel"]


class Tunnel:
    """Joins a client and an upstream connection for a WebSocket. Either's end is the other's, after what is queued.

    A drain does not end it (a frame cannot be injected into a stream that is not read); the end of the drain does.
    """

    __slots__ = ("_client", "_connection", "_context", "accepts")

    def __init__(self, context: Context, client: Client, connection: UpstreamConnection) -> None:
        self._context = context
        self._client = client
        self._connection = connection
        self.accepts = not connection.full
        context.stats.tunnels += 1
        context.stats.tunnels_total += 1
        self._touch()

    def client_data(self, data: bytes) -> None:
        self._touch()
        self._connection.transport.write(data)

    def upstream_data(self, data: bytes) -> None:
        self._touch()
        self._client.transport.write(data)

    def client_lost(self) -> None:
        """Send the upstream what is queued, then close it."""
        self._end()
        connection = self._connection
        transport = connection.transport
        connection.flow = None
        if transport.get_write_buffer_size() and not transport.is_closing():
            connection.upstream.outstanding -= 1
            transport.close()
            asyncio.get_running_loop().call_later(GATEWAY_LINGER_S, transport.abort)
        else:
            self._context.pool.release(connection, keep=False)

    def upstream_closed(self, *, clean: bool) -> None:  # noqa: ARG002 - how it ended makes no difference to bytes
        self._end()
        self._context.pool.release(self._connection, keep=False)
        self._client.flow = None
        self._client.transport.close()

    def client_full(self) -> None:
        pause(self._connection.transport)

    def client_ready(self) -> None:
        resume(self._connection.transport)

    def upstream_full(self) -> None:
        self.accepts = False
        self._client.update_reading()

    def upstream_ready(self) -> None:
        self.accepts = True
        self._client.update_reading()

    def expire(self) -> None:
        stats = self._context.stats
        stats.count(stats.timeouts, "tunnel")
        self._client.reset()

    def _touch(self) -> None:
        context = self._context
        self._client.deadline_s = context.clients.now_s + context.settings.tunnel_idle_timeout_s

    def _end(self) -> None:
        self._context.stats.tunnels -= 1
