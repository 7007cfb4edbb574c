"""The upstream's bytes turned into the client's bytes: heads read and written anew, bodies framed for this client.

No I/O: the exchange feeds what arrives and writes what comes back, one write for a head and what came with it.
"""

from __future__ import annotations

from sluicegate.bounds import GATEWAY_INTERIM_MAX
from sluicegate.doors.gateway.answers import connection_line, framing_of_length
from sluicegate.doors.gateway.body import ChunkedBody, CloseBody, FixedBody, chunk, last_chunk
from sluicegate.doors.gateway.context import Context
from sluicegate.doors.gateway.names import Kind, Names
from sluicegate.doors.gateway.request import Request
from sluicegate.doors.gateway.response import Response, read_response
from sluicegate.doors.gateway.wire import Fault, Fields, StatusLine, parse_response
from sluicegate.limiter.decision import Decision

__all__ = ["AnswerStream", "end_of_body"]

_CHUNKED = b"Transfer-Encoding: chunked\r\n"
_TOO_LARGE = Fault(502, "bad_response", "the head of the upstream's answer is too large")
_BAD_BODY = Fault(502, "bad_response", "the upstream's answer is not framed correctly")


class AnswerStream:
    """One answer, from the first byte of its (interim) heads to the end of its body."""

    __slots__ = (
        "_block", "_chunked_out", "_context", "_decision", "_interim", "_partial", "_request", "continued", "done", "fault",
        "heard", "keep", "leftover", "response", "switched",
    )  # fmt: skip

    def __init__(self, context: Context, request: Request, decision: Decision) -> None:
        self._context = context
        self._request = request
        self._decision = decision
        self._block: bytes | None = None
        self._partial = b""
        self._interim = 0
        self._chunked_out = False
        self.response: Response | None = None
        """The final head, once it is there: from then on the client has part of an answer."""
        self.keep = request.keep_alive
        """The client connection serves on after this answer."""
        self.heard = False
        """The upstream has sent at least one byte."""
        self.done = False
        self.continued = False
        """The client was told to go on with its body."""
        self.switched = False
        """The upstream switched to the WebSocket protocol; ``leftover`` are its first bytes."""
        self.fault: Fault | None = None
        self.leftover = b""
        """Bytes after the end of the answer."""

    @property
    def rate_block(self) -> bytes:
        """The rate headers of the decision, for whichever answer the client gets."""
        block = self._block
        if block is None:
            context = self._context
            block = self._block = context.headers.block(self._decision, context.clock.now_us())
        return block

    def feed(self, data: bytes, *, last: bool) -> bytes:
        """What the client is to be sent now. ``last``: the client connection is to end with this answer."""
        if self.response is not None:
            return self._body(data, 0, [])
        self.heard = True
        out: list[bytes] = []
        if self._partial:
            data = self._partial + data
            self._partial = b""
        pos = 0
        while pos < len(data):
            end = data.find(b"\r\n\r\n", pos) + 4
            bytes_max = self._context.settings.head_bytes_max
            if (len(data) if end < 4 else end) - pos > bytes_max:
                self.fault = _TOO_LARGE
                break
            if end < 4:
                self._partial = data[pos:]
                break
            line = parse_response(data[pos:end], fields_max=self._context.settings.fields_max)
            if isinstance(line, Fault):
                self.fault = line
                break
            pos = end
            if line.status >= 200 or line.status == 101:
                return self._final(line, data, pos, out, last=last)
            if not self._interim_head(line, out):
                break
        return b"".join(out)

    def end(self) -> bytes:
        """The upstream has ended its stream: the end of a body without length, a fault in any other place."""
        if self.response is not None and isinstance(self.response.body, CloseBody):
            self.done = True
            return last_chunk([]) if self._chunked_out else b""
        self.fault = _BAD_BODY
        return b""

    def _interim_head(self, line: StatusLine, out: list[bytes]) -> bool:
        """Pass on 1xx: 100 only to who asked for it, none to HTTP/1.0, which does not know them."""
        self._interim += 1
        if self._interim > GATEWAY_INTERIM_MAX:
            self.fault = Fault(502, "bad_response", "the upstream sent too many interim answers")
            return False
        request = self._request
        if request.minor == 1 and (line.status != 100 or request.expects):
            response = read_response(line, self._context.response_names, request)
            if isinstance(response, Fault):
                self.fault = response
                return False
            out.append(response.head(b"", None, b""))
            self.continued = self.continued or line.status == 100
        return True

    def _final(self, line: StatusLine, data: bytes, pos: int, out: list[bytes], *, last: bool) -> bytes:
        request = self._request
        response = read_response(line, self._context.response_names, request)
        if isinstance(response, Fault):
            self.fault = response
            return b"".join(out)
        if response.status == 101 and not (request.websocket and response.websocket):
            self.fault = Fault(502, "bad_response", "the upstream switched protocols without being asked to")
            return b"".join(out)
        self.response = response
        exposed = self._context.exposed if request.has_origin else None
        out.append(response.head(self.rate_block, exposed, self._framing(response, last=last)))
        if response.status == 101:
            self.switched = True
            self.leftover = data[pos:]
        elif response.body is None:
            self.done = True
            self.leftover = data[pos:]
        else:
            return self._body(data, pos, out)
        return b"".join(out)

    def _framing(self, response: Response, *, last: bool) -> bytes:
        """The lines that tell the client where the answer ends and whether the connection goes on."""
        request = self._request
        self.keep = request.keep_alive and not last
        if response.status == 101:
            return b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        body = response.body
        framing = b""
        if body is None:
            # The answer to HEAD and 304 may say how long the body would be.
            if response.status != 204:
                framing = _CHUNKED if response.chunked and request.minor == 1 else framing_of_length(response.length)
        elif isinstance(body, FixedBody):
            framing = framing_of_length(response.length)
        elif request.minor == 1:
            self._chunked_out = True
            framing = _CHUNKED
        else:
            self.keep = False
        return framing + connection_line(request.minor, keep=self.keep)

    def _body(self, data: bytes, pos: int, out: list[bytes]) -> bytes:
        response = self.response
        assert response is not None
        body = response.body
        assert body is not None
        payload, pos = body.feed(data, pos)
        if payload:
            out.append(chunk(payload) if self._chunked_out else payload)
        if body.fault is not None:
            self.fault = _BAD_BODY
        elif body.done:
            self.done = True
            self.leftover = data[pos:]
            if self._chunked_out:
                out.append(end_of_body(body, self._context.response_names))
        return out[0] if len(out) == 1 else b"".join(out)


def end_of_body(body: object, names: Names) -> bytes:
    """The last chunk of a body, with the trailers that may pass: none that frame, route or identify."""
    fields: Fields = []
    if isinstance(body, ChunkedBody):
        for field in body.trailers:
            if names.classify(field[0]) is Kind.PLAIN and field[0].lower() not in _NEVER_TRAILERS:
                fields.append(field)
    return last_chunk(fields)


# RFC 9110, 6.5.1: what is needed before the body, or changes what the message means, is not believed after it.
_NEVER_TRAILERS = frozenset(
    {
        b"authorization", b"cache-control", b"content-encoding", b"content-range", b"content-type", b"cookie", b"date",
        b"location", b"max-forwards", b"range", b"set-cookie", b"trailer", b"vary", b"www-authenticate",
    }
)  # fmt: skip
