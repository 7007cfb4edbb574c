"""An upstream's answer as the gateway understands it, and its head as the client gets it."""

from __future__ import annotations

import re
from http import HTTPStatus

from sluicegate.doors.gateway.body import ChunkedBody, CloseBody, Decoder, FixedBody
from sluicegate.doors.gateway.names import Kind, Names, connection_options
from sluicegate.doors.gateway.request import Request
from sluicegate.doors.gateway.wire import Fault, Fields, StatusLine

__all__ = ["Response", "read_response"]

_LENGTH = re.compile(rb"[0-9]{1,18}")
_KEEP_ALIVE_TIMEOUT = re.compile(rb"(?:^|[,\s])timeout=([0-9]{1,6})", re.IGNORECASE)
_BODILESS = frozenset({HTTPStatus.NO_CONTENT.value, HTTPStatus.NOT_MODIFIED.value})


class Response:
    """One final answer's head. ``fields`` are passed on; framing and rate headers are written anew."""

    __slots__ = (
        "body", "chunked", "exposed", "fields", "keep_alive", "keep_alive_s", "length", "minor", "rate", "reason",
        "status", "websocket",
    )  # fmt: skip

    def __init__(self, line: StatusLine) -> None:
        self.minor, self.status, self.reason, _ = line
        self.fields: Fields = []
        self.rate: Fields = []
        """The upstream's own rate headers: dropped where the gateway has some."""
        self.exposed: list[bytes] = []
        """Values of ``Access-Control-Expose-Headers``."""
        self.length: int | None = None
        self.chunked = False
        self.keep_alive = self.minor == 1
        self.keep_alive_s: int | None = None
        """How long the upstream says it keeps the connection."""
        self.websocket = False
        self.body: Decoder | None = None
        """None: the answer has no body, whatever its fields say."""

    def head(self, rate_block: bytes, exposed: bytes | None, framing: bytes) -> bytes:
        """Bytes for the client. ``exposed``: header names a browser's script may read, None where none asked."""
        parts = [b"HTTP/1.1 %d " % self.status, self.reason, b"\r\n"]
        for name, value in self.fields:
            parts += (name, b": ", value, b"\r\n")
        if rate_block:
            parts.append(rate_block)
        else:
            for name, value in self.rate:
                parts += (name, b": ", value, b"\r\n")
        values = self.exposed
        if exposed is not None and rate_block and b"*" not in values:
            values = [*values, exposed]
        if values:
            parts += (b"Access-Control-Expose-Headers: ", b", ".join(values), b"\r\n")
        parts += (framing, b"\r\n")
        return b"".join(parts)


def read_response(line: StatusLine, names: Names, request: Request) -> Response | Fault:
    """Give every field its meaning and find out how the body is framed (RFC 9112, 6.3)."""
    response = Response(line)
    special = names.divide(line.fields, response.fields)
    return _fault_of_special(response, special, names) or _fault_of_framing(response, request) or response


def _fault_of_special(response: Response, special: list[tuple[Kind, bytes, bytes]], names: Names) -> Fault | None:
    connection: bytes | None = None
    upgrade = False
    for kind, name, value in special:
        if kind is Kind.LENGTH:
            if response.length is not None or not _LENGTH.fullmatch(value):
                return Fault(502, "bad_response", "the upstream's Content-Length is not one number")
            response.length = int(value)
        elif kind is Kind.CODING:
            if response.chunked or value.lower() != b"chunked":
                return Fault(502, "bad_response", "the upstream's Transfer-Encoding is not chunked")
            response.chunked = True
        elif kind is Kind.CONNECTION:
            connection = value if connection is None else connection + b"," + value
        elif kind is Kind.RATE:
            response.rate.append((name, value))
        elif kind is Kind.EXPOSE:
            response.exposed.append(value)
        elif kind is Kind.KEEP_ALIVE:
            match = _KEEP_ALIVE_TIMEOUT.search(value)
            response.keep_alive_s = int(match[1]) if match is not None else None
        elif kind is Kind.UPGRADE:
            upgrade = value.lower() == b"websocket"
    if connection is None:
        return None
    options = connection_options(connection)
    response.keep_alive = not options.close and (response.minor == 1 or options.keep_alive)
    response.websocket = upgrade and options.upgrade
    drop = {name for name in options.listed if names.may_be_dropped(name)}
    if drop:
        response.fields = [pair for pair in response.fields if pair[0].lower() not in drop]
    return None


def _fault_of_framing(response: Response, request: Request) -> Fault | None:
    if response.chunked and (response.length is not None or response.minor == 0):
        return Fault(502, "bad_response", "the upstream framed its answer in two ways")
    if response.status < 200 or response.status in _BODILESS or request.method == b"HEAD":
        return None
    if response.chunked:
        response.body = ChunkedBody()
    elif response.length is not None:
        response.body = FixedBody(response.length)
    else:
        response.body = CloseBody()
        response.keep_alive = False
    return None
