"""What a client connection and an upstream connection tell whatever joins them: an exchange, or a tunnel.

While a request is being decided there is no upstream connection, and only the client's side is there.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from sluicegate.doors.gateway.body import Decoder
from sluicegate.doors.gateway.forward import Peer
from sluicegate.doors.gateway.request import Request

__all__ = ["Client", "ClientSide", "Flow", "has_left", "pause", "resume"]

_ESTABLISHED = 1  # of enum tcp_state


class Client(Protocol):
    """A client connection as a flow sees it."""

    transport: asyncio.Transport
    peer: Peer
    flow: ClientSide | None
    full: bool
    """More is queued towards the client than it should be."""
    deadline_s: float

    @property
    def last(self) -> bool:
        """No further request is wanted on this connection."""
        ...

    def stash(self, data: bytes) -> None:
        """Keep bytes of the next request until this one is answered."""
        ...

    def unstash(self) -> bytes:
        """Take the kept bytes for another use."""
        ...

    def update_reading(self) -> None:
        """Read or do not read, by what the flow accepts now."""
        ...

    def reset(self) -> None:
        """Break the connection so that the client can see that its answer is incomplete."""
        ...

    def done(self, body: Decoder, *, keep: bool) -> None:
        """The answer is written; ``body`` is the request's, ``keep`` whether another request may follow."""
        ...

    def reply(
        self, status: int, document: bytes, request: Request, body: Decoder, fields: bytes = b"", *, rate: bytes = b""
    ) -> None:
        """Answer with a problem document; calls ``done``."""
        ...


class ClientSide(Protocol):
    """What a client connection tells whatever has its request. No method raises."""

    accepts: bool
    """The client's bytes are wanted now; False while the upstream has to catch up."""

    def client_data(self, data: bytes) -> None: ...

    def client_lost(self) -> None:
        """The client is gone; nobody waits for an answer."""
        ...

    def client_full(self) -> None:
        """The client takes its bytes slower than they come."""
        ...

    def client_ready(self) -> None: ...

    def expire(self) -> None:
        """The deadline of the client connection has passed."""
        ...


class Flow(ClientSide, Protocol):
    """Joins one client connection with at most one upstream connection. No method raises."""

    def upstream_data(self, data: bytes) -> None: ...

    def upstream_closed(self, *, clean: bool) -> None:
        """No more bytes come. ``clean``: the upstream ended its stream; False: the connection broke."""
        ...

    def upstream_full(self) -> None:
        """The upstream takes its bytes slower than they come."""
        ...

    def upstream_ready(self) -> None: ...


def pause(transport: asyncio.Transport) -> None:
    """Stop reading from a transport that may be closing already."""
    if not transport.is_closing() and transport.is_reading():
        transport.pause_reading()


def resume(transport: asyncio.Transport) -> None:
    """Read on from a transport that may be closing already."""
    if not transport.is_closing() and not transport.is_reading():
        transport.resume_reading()


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the client has closed its side, asked of the kernel because reading is paused; False where it cannot be told."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
        return False
    state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return state[0] != _ESTABLISHED
