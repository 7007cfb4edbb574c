"""One HTTP/2 connection of the gRPC door: an asyncio protocol around libnghttp2 (the package ngh2).

Theory of operation. nghttp2 does all of HTTP/2: frames, header compression, flow control, and the floods (resets, pings, settings,
continuations) by token buckets of its own. This shell feeds it what was read, handles the events of one read in order, and writes what it
has to send once. A decision in memory is answered before the read is over; one that needs the store is answered by a callback, and the
answers of one turn of the loop leave in one write.

What nghttp2 does not know is time. The registry of connections asks a few times a second (``expire``): for the peer's first settings, for
calls that do not end, for answers that are not taken, for silence, and for age.

The end of a connection, polite: the peer is told that it will end (GOAWAY with the largest stream), a moment later which call was the last,
and when that is answered the connection is closed. Impolite: nghttp2's GOAWAY, then our side is closed, and what still comes is thrown
away for a bounded time, because closing with unread bytes would make the kernel send a reset that can destroy the GOAWAY.

nghttp2 may fail: at what is no HTTP/2 at all it does, without a GOAWAY. It then refuses every call but those that look, so nothing is asked of it
any more (``_failed``), and the GOAWAY is written here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final, cast

from ngh2 import (
    Configuration,
    Connection,
    DataReceived,
    ErrorCode,
    GoAwayReceived,
    NGH2Error,
    RequestReceived,
    Role,
    Setting,
    SettingsReceived,
    StreamClosed,
    StreamReset,
    TrailersReceived,
)

from sluicegate.bounds import (
    GRPC_FIELDS_MAX,
    GRPC_HEAD_BYTES_MAX,
    GRPC_LINGER_BYTES_MAX,
    GRPC_NOTICE_S,
    GRPC_PENDING_BYTES_MAX,
)
from sluicegate.doors.connections import NEVER_S
from sluicegate.doors.grpc.calls import (
    DEADLINE_EXCEEDED,
    INTERNAL,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    grpc_message,
)
from sluicegate.doors.grpc.site import GrpcSite
from sluicegate.doors.grpc.stream_call import StreamCall
from sluicegate.errors import InvalidRequest

__all__ = ["GrpcProtocol"]

_CONFIGURATION: Final = Configuration(
    max_inbound_header_list_size=GRPC_HEAD_BYTES_MAX, max_inbound_header_count=GRPC_FIELDS_MAX
)
_OK_HEAD: Final = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_OK_TRAILERS: Final = ((b"grpc-status", b"0"),)
_PREFIX_BYTES: Final = 5
_GOAWAY: Final = b"\0\0\x08\x07\0\0\0\0\0"
"""The head of the frame: eight bytes, type 7, on stream 0."""
_ANY_STREAM: Final = (1 << 31) - 1

_LOG: Final = logging.getLogger("sluicegate.grpc")


class GrpcProtocol(asyncio.Protocol):
    """Reads calls, hands them to the site's routes, writes answers. See the module."""

    __slots__ = (
        "_age_at_s", "_busy", "_calls", "_closed_streams", "_closing", "_connection", "_discarded", "_draining", "_ending", "_failed", "_flushing",
        "_greeted", "_left", "_last_s", "_loop", "_opened_s", "_paused", "_pending", "_read_head", "_since_s", "_site", "_stuck_at", "_transport", "_until_s",
        "deadline_s",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, site: GrpcSite) -> None:
        self._site = site
        self._read_head = site.heads.read
        self._connection = Connection(Role.SERVER, _CONFIGURATION)
        self._calls: dict[int, StreamCall] = {}
        self._loop = asyncio.get_running_loop()
        self._busy = False
        """Events are being handled, so that whoever does that writes."""
        self._flushing = False
        self._greeted = False
        self._paused = False
        self._closing = False
        self._draining = False
        self._ending = False
        """The peer has been told which call was the last."""
        self._failed = False
        """nghttp2 takes and gives nothing any more."""
        self._left = False
        """The peer will begin no more calls."""
        self._pending = 0
        self._discarded = 0
        self._closed_streams = 0
        self._stuck_at = 0
        self._since_s = NEVER_S
        """Since when the peer takes no answers."""
        self._until_s = NEVER_S
        """When a connection that is ending is cut."""
        self.deadline_s = NEVER_S

    # ------------------------------------------------------------------ the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        site = self._site
        site.connections.add(self)
        # From here on ``expire`` is called at every sweep; there are few connections with many calls each.
        self.deadline_s = 0.0
        now_s = site.connections.now_s
        self._opened_s = self._last_s = now_s
        self._age_at_s = now_s + site.age_s() if site.settings.age_s else NEVER_S
        self._connection.initiate_connection(
            {
                Setting.MAX_CONCURRENT_STREAMS: site.settings.streams_max,
                Setting.MAX_HEADER_LIST_SIZE: GRPC_HEAD_BYTES_MAX,
            }
        )
        if len(site.connections) > site.settings.connections_max:
            site.stats.connections_refused += 1
            self._connection.terminate_connection(ErrorCode.ENHANCE_YOUR_CALM)
            self._finish()
            return
        self._flush()

    def data_received(self, data: bytes) -> None:
        site = self._site
        site.stats.bytes_in += len(data)
        if self._closing:
            self._discard(len(data))
            return
        self._last_s = site.connections.now_s
        connection = self._connection
        self._busy = True
        broken = False
        try:
            connection.receive_data(data)
        except NGH2Error:
            broken = True
        for event in connection.events():
            kind = type(event)
            if kind is DataReceived:
                self._data(event)  # type: ignore[arg-type]
            elif kind is RequestReceived:
                self._request(event)  # type: ignore[arg-type]
            elif kind is StreamClosed:
                self._stream_closed(event.stream_id)  # type: ignore[attr-defined]
            elif kind is StreamReset:
                # An answer that its client has thrown away has not left.
                self._closed_streams -= 1
            elif kind is TrailersReceived:
                self._trailers(event.stream_id)  # type: ignore[attr-defined]
            elif kind is SettingsReceived:
                self._greeted = True
            elif kind is GoAwayReceived:
                self._left = True
        self._busy = False
        if broken:
            site.stats.protocol_errors += 1
            self._finish()
        else:
            self._flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._site.connections.discard(self)
        self._site.stats.cancelled += len(self._calls)
        self._closing = True
        self._calls.clear()

    def pause_writing(self) -> None:
        self._paused = True
        if not self._closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if not self._closing:
            self._transport.resume_reading()
            self._flush()

    # ------------------------------------------------------------------ the registry calls

    def expire(self) -> None:
        """Look at what has run out of time. Called at every sweep."""
        site = self._site
        settings, now_s = site.settings, site.connections.now_s
        if self._closing or self._draining:
            if now_s >= self._until_s:
                site.stats.timeouts["linger" if self._closing else "drain"] += 1
                self.abort()
            return
        if not self._greeted and now_s - self._opened_s >= settings.preface_s:
            self._end_for("preface")
        elif self._is_stuck(now_s, settings.write_s):
            site.stats.timeouts["write"] += 1
            self.abort()
        elif not self._calls and now_s - self._last_s >= settings.idle_s:
            self._end_for("idle")
        elif now_s >= self._age_at_s:
            site.stats.aged += 1
            self._until_s = now_s + settings.age_grace_s
            self.drain()
        else:
            self._end_slow_calls(now_s - settings.request_s)

    def drain(self) -> None:
        """Tell the peer to send no more, answer what is under way, then close."""
        if self._closing or self._draining:
            return
        self._draining = True
        # Where the peer ends it too, or nghttp2 has, there is no more to say.
        with contextlib.suppress(NGH2Error):
            self._connection.send_shutdown_notice()
        self._flush()
        self._loop.call_later(GRPC_NOTICE_S, self._end_notice)

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    # ------------------------------------------------------------------ calls

    def _request(self, event: RequestReceived) -> None:
        head = self._read_head(dict(event.headers))
        call = StreamCall(self, event.stream_id, head, self._last_s)
        self._calls[event.stream_id] = call
        if head.timeout_s is not None:
            call.deadline_s = self._loop.time() + head.timeout_s
        if event.end_stream:
            self._begin(call)

    def _data(self, event: DataReceived) -> None:
        call = self._calls.get(event.stream_id)
        if call is None:
            return
        if not call.body:
            call.body = event.data
        else:
            if isinstance(call.body, bytes):
                # In place from here on: a message in thousands of tiny frames must not be copied for each of them.
                call.body = bytearray(call.body)
            call.body += event.data
        if len(call.body) > self._site.settings.message_bytes_max + _PREFIX_BYTES:
            self._stop(call, f"a message has at most {self._site.settings.message_bytes_max} bytes")
        elif event.end_stream:
            self._begin(call)
        else:
            size = len(event.data)
            call.pending += size
            self._pending += size
            if self._pending > GRPC_PENDING_BYTES_MAX:
                self._stop(call, "too much was begun on this connection and not completed")

    def _trailers(self, stream_id: int) -> None:
        """They end a request as well; what they say is nobody's business."""
        call = self._calls.get(stream_id)
        if call is not None and not call.ended:
            self._begin(call)

    def _stop(self, call: StreamCall, detail: str) -> None:
        """Refuse a call whose client is still sending what nobody will read."""
        self.fail(call, RESOURCE_EXHAUSTED, detail)
        self._reset(call.stream_id, ErrorCode.NO_ERROR)

    def _begin(self, call: StreamCall) -> None:
        """The request is complete."""
        call.ended = True
        head, body = call.head, call.body
        if head.failure is not None:
            call.fail(*head.failure)
            return
        if len(body) < _PREFIX_BYTES or int.from_bytes(body[1:_PREFIX_BYTES], "big") != len(body) - _PREFIX_BYTES:
            call.fail(INTERNAL, "want exactly one message")
            return
        if body[0]:
            call.fail(UNIMPLEMENTED, "compressed messages are not read")
            return
        if head.timeout_s is not None and self._loop.time() >= call.deadline_s:
            call.fail(DEADLINE_EXCEEDED, "nothing was charged")
            return
        try:
            head.route.handler(bytes(body[_PREFIX_BYTES:]), call)
        except InvalidRequest as error:
            call.fail(INVALID_ARGUMENT, str(error))
        except Exception:  # noqa: BLE001 - a fault of ours must not take other calls with it
            _LOG.exception("the handler of %s failed", head.route.name)
            self._site.stats.internal_errors += 1
            call.fail(INTERNAL, "a fault of the server; whether anything was charged is not known")

    def answer(self, call: StreamCall, message: bytes) -> None:
        """Answer a call; nothing happens where it is gone."""
        stream_id = call.stream_id
        if self._calls.get(stream_id) is not call:
            return
        if call.head.timeout_s is not None and self._loop.time() > call.deadline_s:
            self.fail(call, DEADLINE_EXCEEDED, "the decision came too late; what it charged stays charged")
            return
        del self._calls[stream_id]
        self._pending -= call.pending
        counts = call.head.route.counts
        counts[0] = counts.get(0, 0) + 1
        connection = self._connection
        try:
            connection.send_response(stream_id, _OK_HEAD)
            connection.send_data(stream_id, b"\0" + len(message).to_bytes(4, "big") + message)
            connection.send_trailers(stream_id, _OK_TRAILERS)
        except NGH2Error:
            # The peer has given this call up in the bytes that are being read.
            self._site.stats.cancelled += 1
        if not self._busy:
            self._flush_soon()

    def tell(self, call: StreamCall, message: bytes) -> None:
        """Answer a call with one of several messages; nothing happens where it is gone."""
        if self.has(call):
            # The peer may have given it up in the bytes that are being read, of which the next event tells.
            with contextlib.suppress(NGH2Error):
                if not call.is_answering:
                    call.is_answering = True
                    self._connection.send_response(call.stream_id, _OK_HEAD)
                self._connection.send_data(call.stream_id, b"\0" + len(message).to_bytes(4, "big") + message)
            if not self._busy:
                self._flush_soon()

    def has(self, call: StreamCall) -> bool:
        """Whether a call waits for an answer still."""
        return self._calls.get(call.stream_id) is call

    def fail(self, call: StreamCall, code: int, detail: str) -> None:
        """Answer a call with a status, or end it with one; nothing happens where it is gone."""
        if not self.has(call):
            return
        del self._calls[call.stream_id]
        self._pending -= call.pending
        counts = call.head.route.counts
        counts[code] = counts.get(code, 0) + 1
        ended = ((b"grpc-status", b"%d" % code), (b"grpc-message", grpc_message(detail).encode("ascii")))
        head = ((b":status", b"%d" % call.head.http_status), (b"content-type", b"application/grpc"))
        try:
            if call.is_answering:
                self._connection.send_trailers(call.stream_id, ended)
            else:
                self._connection.send_response(call.stream_id, head + ended, end_stream=True)
        except NGH2Error:
            self._site.stats.cancelled += 1
        if not self._busy:
            self._flush_soon()

    def _stream_closed(self, stream_id: int) -> None:
        self._closed_streams += 1
        call = self._calls.pop(stream_id, None)
        if call is not None:
            self._pending -= call.pending
            self._site.stats.cancelled += 1

    # ------------------------------------------------------------------ time

    def _is_stuck(self, now_s: float, patience_s: float) -> bool:
        """Whether answers have stood here for so long without any leaving."""
        standing = self._paused or self._connection.queued_body_size() > 0
        if not standing:
            self._since_s = NEVER_S
        elif self._since_s == NEVER_S or self._stuck_at != self._closed_streams:
            self._since_s, self._stuck_at = now_s, self._closed_streams
        return standing and now_s - self._since_s >= patience_s

    def _end_slow_calls(self, before_s: float) -> None:
        """End calls whose requests began so long ago and are not complete. They are in order of their beginning."""
        slow = []
        for call in self._calls.values():
            if call.began_s > before_s:
                break
            if not call.ended:
                slow.append(call)
        for call in slow:
            self._site.stats.timeouts["request"] += 1
            self.fail(call, DEADLINE_EXCEEDED, "the request did not arrive in time")
            self._reset(call.stream_id, ErrorCode.NO_ERROR)
        if slow:
            self._flush()

    def _reset(self, stream_id: int, code: ErrorCode) -> None:
        # A reset overtakes what is queued for its stream, so the answer leaves first.
        self._write()
        try:
            self._connection.reset_stream(stream_id, code)
        except NGH2Error:
            return

    # ------------------------------------------------------------------ the end

    def _end_for(self, phase: str) -> None:
        self._site.stats.timeouts[phase] += 1
        with contextlib.suppress(NGH2Error):
            self._connection.terminate_connection(ErrorCode.NO_ERROR)
        self._finish()

    def _end_notice(self) -> None:
        """The peer has had time to read that the end is near: no call from here on."""
        if self._closing:
            return
        self._ending = True
        site = self._site
        site.watches.end(self._calls.values(), leaving=site.connections.draining)
        with contextlib.suppress(NGH2Error):
            self._connection.send_goaway(ErrorCode.NO_ERROR)
        self._flush()

    def _finish(self) -> None:
        """Write what there is, close our side, and throw away what still comes, for a while."""
        self._write()
        if self._failed and not self._transport.is_closing():
            # Which calls were begun cannot be asked any more, so any may have been; before the first settings none was.
            last = _ANY_STREAM if self._greeted else 0
            self._send(_GOAWAY + last.to_bytes(4, "big") + ErrorCode.PROTOCOL_ERROR.to_bytes(4, "big"))
        self._closing = True
        self._site.stats.cancelled += len(self._calls)
        self._calls.clear()
        self._until_s = self._site.connections.now_s + self._site.settings.linger_s
        transport = self._transport
        if transport.is_closing() or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:
            transport.abort()
            return
        if self._paused:
            transport.resume_reading()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > GRPC_LINGER_BYTES_MAX:
            self.abort()

    # ------------------------------------------------------------------ writing

    def _flush_soon(self) -> None:
        """Write at the end of this turn of the loop, so that answers that come together leave together."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flushing = False
        if not self._closing:
            self._flush()

    def _flush(self) -> None:
        self._write()
        connection = self._connection
        if self._failed:
            self._site.stats.protocol_errors += 1
            self._finish()
        elif self._ending and not self._calls and not connection.queued_body_size():
            self._finish()
        elif not (connection.want_read or connection.want_write):
            # One side has ended it: the peer by its GOAWAY, or nghttp2 by its own, for a fault of the peer.
            self._site.stats.protocol_errors += not self._left
            self._finish()

    def _write(self) -> None:
        if self._failed:
            return
        try:
            data = self._connection.data_to_send()
        except NGH2Error:
            self._failed = True
            return
        if data:
            self._send(data)

    def _send(self, data: bytes) -> None:
        self._site.stats.bytes_out += len(data)
        self._transport.write(data)
