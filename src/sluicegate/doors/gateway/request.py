"""A request as the gateway understands it: what it is called, how it is framed, what is passed on."""

from __future__ import annotations

import re

from sluicegate.doors.gateway.body import ChunkedBody, Decoder, FixedBody
from sluicegate.doors.gateway.names import ConnectionOptions, Kind, Names, connection_options
from sluicegate.doors.gateway.wire import Fault, Fields, RequestLine
from sluicegate.doors.tracing import Passage

__all__ = ["Request", "read_request"]

_LENGTH = re.compile(rb"[0-9]{1,18}")
# A registered name or an address literal, with a port: no comma, no user information, nothing to be split on, and nothing
# encoded, which a server may decode into the name that a rule looks for. A name of dots only would be no name to a rule
# that counts by host, so none begins with one.
_HOST = re.compile(rb"(?:(?!\.)[0-9A-Za-z._~!$&'()*+;=\-]++|\[[0-9A-Fa-f:.]++\])(?::[0-9]{0,5})?")
_ABSOLUTE = re.compile(rb"[Hh][Tt][Tt][Pp][Ss]?://([^/?]++)(.*)")
_NO_OPTIONS = ConnectionOptions()
_NO_BODY = FixedBody(0)  # done from the start, so it is never fed and can be shared
_SAFE_TO_REPEAT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE"})


class Request:
    """One request head. ``fields`` are passed on as they are; everything else is put there anew by ``forward``."""

    __slots__ = (
        "chunked", "expects", "fields", "forwarding", "has_origin", "host", "keep_alive", "length", "method", "minor",
        "seen", "span", "target", "trailers", "websocket",
    )  # fmt: skip

    def __init__(self, line: RequestLine) -> None:
        self.method, self.target, self.minor, self.seen = line
        """``seen``: the fields that rules may look at: all but those of this hop."""
        self.fields: Fields = []
        self.host: bytes | None = None
        self.length: int | None = None
        self.chunked = False
        self.keep_alive = self.minor == 1
        self.expects = False
        """The client waits for 100 (Continue) before it sends the body."""
        self.websocket = False
        self.trailers = False
        """The client takes trailers (``TE: trailers``)."""
        self.has_origin = False
        self.span: Passage | None = None
        """Set where its trace is sampled and spans are wanted."""
        self.forwarding: list[tuple[Kind, bytes, bytes]] = []
        """Fields whose fate depends on who the peer is."""

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.length)

    @property
    def repeatable(self) -> bool:
        """May be sent again when a kept connection turns out dead: idempotent (RFC 9110, 9.2.2), without a body."""
        return self.method in _SAFE_TO_REPEAT and not self.has_body and not self.websocket

    def ended(self, status: int) -> None:
        """Its span, if there is one, ends; see ``Passage``."""
        if self.span is not None:
            self.span.ended(status)

    def begin_attempt(self) -> None:
        """It goes to an upstream, whose spans are below that of this attempt."""
        if self.span is not None:
            self.fields = [field for field in self.fields if field[0].lower() != b"traceparent"]
            self.fields.append((b"traceparent", self.span.upstream()))

    def body(self) -> Decoder:
        """A decoder for the body; done at once where there is none."""
        if self.chunked:
            return ChunkedBody()
        return FixedBody(self.length) if self.length else _NO_BODY


def read_request(line: RequestLine, names: Names) -> Request | Fault:
    """Give every field its meaning; refuse what two readers could understand differently."""
    request = Request(line)
    special = names.divide(line.fields, request.fields)
    return _fault_of_special(request, special, names) or _fault_of_target(request) or request


def _fault_of_special(request: Request, special: list[tuple[Kind, bytes, bytes]], names: Names) -> Fault | None:
    options = _NO_OPTIONS
    connection: bytes | None = None
    upgrade = False
    codings: list[bytes] = []
    lengths: list[bytes] = []
    hop = False
    for kind, name, value in special:
        if kind is Kind.HOST:
            if request.host is not None:
                return Fault(400, "bad_host", "the request has more than one Host")
            request.host = value
        elif kind is Kind.CONNECTION:
            connection = value if connection is None else connection + b"," + value
        elif kind is Kind.LENGTH:
            lengths.append(value)
        elif kind is Kind.CODING:
            codings.append(value)
        elif kind is Kind.ORIGIN:
            request.has_origin = True
            request.fields.append((name, value))
        elif kind is Kind.EXPECT:
            if value.lower() != b"100-continue":
                return Fault(417, "bad_expect", "Expect is not 100-continue")
            request.expects = request.minor == 1
        elif kind is Kind.UPGRADE:
            upgrade = value.lower() == b"websocket"
        elif kind is Kind.TE:
            tokens = [token.strip(b" \t") for token in value.lower().split(b",")]
            request.trailers = request.trailers or b"trailers" in tokens
        elif kind is Kind.HOP or kind is Kind.KEEP_ALIVE or kind is Kind.LOOKALIKE:
            hop = True
        else:
            request.forwarding.append((kind, name, value))
    if connection is not None:
        options = connection_options(connection)
        request.keep_alive = not options.close and (request.minor == 1 or options.keep_alive)
    if options.listed or hop:
        _drop_hop(request, options.listed, names)
    if lengths or codings:
        fault = _fault_of_framing(request, lengths, codings)
        if fault is not None:
            return fault
    request.expects = request.expects and request.has_body
    # Other protocols to upgrade to (h2c above all) would be a tunnel around every rule: they are not offered on.
    if upgrade and options.upgrade and request.method == b"GET" and request.minor == 1 and not request.has_body:
        request.websocket = True
    return None


def _drop_hop(request: Request, listed: frozenset[bytes], names: Names) -> None:
    """Take out what ends at this hop, for the rules as for the upstream: both see the same request."""
    drop = {name for name in listed if names.may_be_dropped(name)}
    request.fields = [pair for pair in request.fields if pair[0].lower() not in drop]
    request.seen = [
        pair
        for pair in request.seen
        if pair[0].lower() not in drop and names.kinds.get(pair[0]) not in {Kind.HOP, Kind.KEEP_ALIVE, Kind.LOOKALIKE}
    ]


def _fault_of_framing(request: Request, lengths: list[bytes], codings: list[bytes]) -> Fault | None:
    if codings:
        if lengths:
            return Fault(400, "length_and_coding", "the request has both Content-Length and Transfer-Encoding")
        if request.minor == 0:
            return Fault(400, "bad_coding", "an HTTP/1.0 request has no Transfer-Encoding")
        if len(codings) > 1 or codings[0].lower() != b"chunked":
            return Fault(501, "bad_coding", "Transfer-Encoding other than chunked is not supported")
        request.chunked = True
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        return Fault(400, "bad_length", "Content-Length is not one number")
    request.length = int(lengths[0])
    return None


def _fault_of_target(request: Request) -> Fault | None:
    target, host = request.target, request.host
    if request.method in {b"CONNECT", b"TRACE"}:
        # CONNECT would make this a forward proxy; TRACE would show the client what was added on the way.
        return Fault(501, "bad_method", f"{request.method.decode()} is not supported")
    if host is None:
        if request.minor == 1:
            return Fault(400, "bad_host", "an HTTP/1.1 request needs a Host")
    elif not _HOST.fullmatch(host):
        return Fault(400, "bad_host", "Host is not valid")
    if b"#" in target:
        return Fault(400, "bad_target", "the request target has a fragment")
    if target[:1] == b"/":
        return None
    if target == b"*":
        return None if request.method == b"OPTIONS" else Fault(400, "bad_target", "only OPTIONS may ask for *")
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        return Fault(400, "bad_target", "the request target is neither a path nor an http URL")
    authority, path = match.groups()
    if host is None or authority.lower() != host.lower():
        return Fault(400, "bad_host", "the request target and Host name different hosts")
    # In origin form from here on: one form for the rules, and the one every upstream understands.
    request.target = path if path[:1] == b"/" else b"/" + path
    return None
