"""One upstream: its kept connections, who waits for one, and whether it is well."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Protocol, cast

from sluicegate.bounds import GATEWAY_WRITE_BYTES_MAX
from sluicegate.doors.gateway.flow import Flow
from sluicegate.doors.gateway.target import Target

__all__ = ["Owner", "Seeker", "Upstream", "UpstreamConnection"]


class Seeker(Flow, Protocol):
    """Somebody who wants a connection."""

    tried: tuple[Upstream, ...]
    """Upstreams that could not be connected for this one."""

    def seek(self) -> None:
        """Look for a connection (again)."""
        ...

    def attach(self, connection: UpstreamConnection) -> None:
        """Here it is."""
        ...

    def unserved(self, kind: str) -> None:
        """There is none: ``busy``, ``connect`` or ``connect_timeout``."""
        ...


class Owner(Protocol):
    """Keeps the books on connections: the pool."""

    def lost(self, connection: UpstreamConnection) -> None:
        """It is closed."""
        ...

    def crashed(self, error: Exception) -> None:
        """A fault of ours, to be counted and reported."""
        ...


class Upstream:
    """State of one upstream; the pool acts on it."""

    __slots__ = ("connecting", "ejected_until_s", "failures", "idle", "open", "outstanding", "target", "tls", "waiting")

    def __init__(self, target: Target, tls: ssl.SSLContext | None) -> None:
        self.target = target
        self.tls = tls
        self.idle: list[UpstreamConnection] = []
        """Kept connections, the most recently used last."""
        self.waiting: deque[Seeker] = deque()
        self.open = 0
        self.connecting = 0
        self.outstanding = 0
        """Requests that hold a connection."""
        self.failures = 0
        """In a row."""
        self.ejected_until_s = 0.0

    @property
    def load(self) -> int:
        """Requests it has not answered yet."""
        return self.outstanding + len(self.waiting)


class UpstreamConnection(asyncio.Protocol):
    """One connection. It belongs to a flow, or to nobody while it is kept; then it must stay silent."""

    __slots__ = ("_given_up", "_owner", "alive", "expires_s", "flow", "full", "reused", "transport", "upstream")

    transport: asyncio.Transport

    def __init__(self, upstream: Upstream, owner: Owner) -> None:
        self.upstream = upstream
        self._owner = owner
        self.flow: Flow | None = None
        self.reused = False
        """It has served a request before, so it may have been closed by the upstream without our knowing."""
        self.expires_s = 0.0
        self.full = False
        self.alive = False
        self._given_up = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports are no subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        if self._given_up:
            self.transport.abort()
            return
        self.alive = True
        # Counted here and not when the attempt returns: one that is given up in between would be taken off uncounted.
        self.upstream.open += 1
        self.transport.set_write_buffer_limits(high=GATEWAY_WRITE_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        flow = self.flow
        if flow is None:
            # Bytes nobody asked for would be taken for the answer to the next request.
            self.close()
            return
        try:
            flow.upstream_data(data)
        except Exception as error:  # noqa: BLE001 - nothing an upstream sends may end more than its own exchange
            self._owner.crashed(error)
            self.flow = None
            flow.upstream_closed(clean=False)

    def eof_received(self) -> None:
        flow = self.flow
        self.flow = None
        if flow is not None:
            flow.upstream_closed(clean=True)
        self.close()

    def connection_lost(self, _error: Exception | None) -> None:
        if self.alive:
            self.alive = False
            self._owner.lost(self)
        flow = self.flow
        self.flow = None
        if flow is not None:
            flow.upstream_closed(clean=False)

    def pause_writing(self) -> None:
        self.full = True
        if self.flow is not None:
            self.flow.upstream_full()

    def resume_writing(self) -> None:
        self.full = False
        if self.flow is not None:
            self.flow.upstream_ready()

    def close(self) -> None:
        """Close at once; what is not sent yet is lost. One that is not open yet will not be."""
        self._given_up = True
        if self.alive:
            self.alive = False
            self._owner.lost(self)
            self.transport.abort()
