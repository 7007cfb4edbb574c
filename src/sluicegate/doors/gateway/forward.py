"""Writing a request for the upstream: the client's fields, and what this hop has to say.

What is said of the client's connection is appended where the peer is trusted (a proxy in front of this one) and replaced
otherwise, so an upstream may believe all of it. The rules' identity headers follow the same line.
"""

from __future__ import annotations

from sluicegate.doors.gateway.names import Kind
from sluicegate.doors.gateway.request import Request
from sluicegate.doors.gateway.settings import Settings

__all__ = ["Forwarder", "Peer"]

_IDENTITY_FROM_ANYONE = frozenset({Kind.IDENTITY})


class Peer:
    """Who opened a client connection. ``address``: canonical, None on a Unix socket. ``trusted``: by the rules' identity."""

    __slots__ = ("address", "for_lines", "forwarded_for", "trusted")

    def __init__(self, address: str | None, trusted: bool, proto: bytes) -> None:
        self.address = address
        self.trusted = trusted
        line = b"" if address is None else b"X-Forwarded-For: %b\r\n" % address.encode()
        self.for_lines = line + b"X-Forwarded-Proto: " + proto + b"\r\nX-Forwarded-Host: "
        """Ready for the usual request of an untrusted peer: only the host is missing."""
        self.forwarded_for = _forwarded_for(address)


class Forwarder:
    """The head of a forwarded request, by the gateway's settings."""

    __slots__ = ("_forwarded", "_kept", "_preserve_host", "_proto", "_via", "_via_line")

    def __init__(self, settings: Settings) -> None:
        self._proto = settings.proto.encode()
        self._forwarded = settings.forwarded
        self._preserve_host = settings.preserve_host
        self._kept = frozenset() if settings.strip_identity else _IDENTITY_FROM_ANYONE
        self._via = settings.via.encode()
        self._via_line = b"Via: 1.1 %b\r\n" % self._via if self._via else b""

    def peer(self, address: str | None, *, trusted: bool) -> Peer:
        """What is said of every request of one connection."""
        return Peer(address, trusted, self._proto)

    def head(self, request: Request, peer: Peer, authority: bytes) -> bytes:
        """The whole head, always HTTP/1.1. ``authority``: the upstream's own host and port."""
        client_host = request.host
        host = authority if client_host is None or not self._preserve_host else client_host
        parts = [request.method, b" ", request.target, b" HTTP/1.1\r\nHost: ", host, b"\r\n"]
        for name, value in request.fields:
            parts += (name, b": ", value, b"\r\n")
        if request.forwarding:
            self._say(parts, request, peer)
        else:
            parts += (peer.for_lines, client_host or authority, b"\r\n")
            if self._forwarded:
                parts.append(self._forwarded_line(b"", peer, client_host or authority))
            if request.minor == 1:
                parts.append(self._via_line)
            else:
                self._add_via(parts, [], 0)
        if request.chunked:
            parts.append(b"Transfer-Encoding: chunked\r\n")
        elif request.length is not None:
            parts.append(b"Content-Length: %d\r\n" % request.length)
        if request.expects:
            parts.append(b"Expect: 100-continue\r\n")
        if request.websocket:
            parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
        elif request.trailers:
            parts.append(b"Connection: TE\r\nTE: trailers\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)

    def _say(self, parts: list[bytes], request: Request, peer: Peer) -> None:
        """The lines about the client's connection where the client sent some of its own."""
        given: dict[Kind, list[bytes]] = {}
        for kind, name, value in request.forwarding:
            if kind is Kind.VIA or peer.trusted or kind in self._kept:
                if kind in _JOINED:
                    given.setdefault(kind, []).append(value)
                else:
                    parts += (name, b": ", value, b"\r\n")
        host = request.host or b""
        address = [] if peer.address is None else [peer.address.encode()]
        _add(parts, b"X-Forwarded-For", given.get(Kind.FORWARDED_FOR, []) + address)
        _add(parts, b"X-Forwarded-Proto", given.get(Kind.FORWARDED_PROTO, [self._proto]))
        _add(parts, b"X-Forwarded-Host", given.get(Kind.FORWARDED_HOST, [host]))
        before = b", ".join(given.get(Kind.FORWARDED, ()))
        if before or self._forwarded:
            parts.append(self._forwarded_line(before, peer, host))
        self._add_via(parts, given.get(Kind.VIA, []), request.minor)

    def _add_via(self, parts: list[bytes], before: list[bytes], minor: int) -> None:
        own = [b"1.%d %b" % (minor, self._via)] if self._via else []
        _add(parts, b"Via", before + own)

    def _forwarded_line(self, before: bytes, peer: Peer, host: bytes) -> bytes:
        comma = b", " if before else b""
        # A host holds neither quotes nor backslashes (request.py), so it can be quoted as it is.
        return b'Forwarded: %b%b%b;host="%b";proto=%b\r\n' % (before, comma, peer.forwarded_for, host, self._proto)


_JOINED = frozenset({Kind.FORWARDED_FOR, Kind.FORWARDED_PROTO, Kind.FORWARDED_HOST, Kind.FORWARDED, Kind.VIA})


def _add(parts: list[bytes], name: bytes, values: list[bytes]) -> None:
    filled = [value for value in values if value]
    if filled:
        parts += (name, b": ", b", ".join(filled), b"\r\n")


def _forwarded_for(address: str | None) -> bytes:
    if address is None:
        return b"for=unknown"
    return b'for="[%b]"' % address.encode() if ":" in address else b"for=%b" % address.encode()
