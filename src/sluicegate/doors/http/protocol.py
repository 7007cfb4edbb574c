"""One connection of the decision API.

Theory of operation. A client repeats the same request head for as long as it lives, so the whole head, as bytes, is the key
of a memo of parsed heads (``Site.heads``); the parser runs once per distinct head, and the usual request costs one ``find``,
one lookup, one slice for the body, one call of its handler and one write. Most handlers are synchronous: a decision in memory
takes a few microseconds, far less than a task would. All complete requests of one read are answered in order by one write.

A handler whose answer takes time gets a ``Due`` to give it to. Answers that are due stand in a row (``_due``) in the order of
their requests, and leave when none before them is missing. Requests that may (``Route.beside``) are begun while others of their
kind are due, so that the pipelined requests of one read ride together in the store; the first one that may not is *held*, with
reading stopped, until the row is empty. So the answers that have to wait are few and small.

Whatever is incomplete waits in ``_rest`` (bounded: a head by its limit, a body by its limit, pipelined requests by one read
of the loop). When the peer does not take its answers, reading stops until it does.

A connection ends by closing at once when everything the peer sent has been read. Otherwise it *lingers*: our side is
closed, and what still comes is thrown away for a bounded time; closing with unread bytes would make the kernel send a
reset, which can destroy the answer before the peer has read it.
"""

from __future__ import annotations

import asyncio
import socket
from enum import IntEnum
from typing import Final, cast

from sluicegate.bounds import DECISION_S_MAX, HTTP_LINGER_BYTES_MAX, HTTP_WRITE_BYTES_MAX
from sluicegate.doors.connections import NEVER_S
from sluicegate.doors.http.chunked import ChunkedBody
from sluicegate.doors.http.due import Due
from sluicegate.doors.http.faults import fault_reply
from sluicegate.doors.http.head import CHUNKED, BadHead
from sluicegate.doors.http.respond import CONTINUE, Reply, frame, problem_reply
from sluicegate.doors.http.site import KnownHead, LaterHandler, Site
from sluicegate.doors.problem import problem

__all__ = ["HttpProtocol"]


class _Phase(IntEnum):
    IDLE = 0
    """Between requests; nothing of the next one has come."""
    HEAD = 1
    BODY = 2
    WRITE = 3
    """Reading has stopped until the peer takes its answers, or the last answer is on its way out."""
    LINGER = 4
    ANSWER = 5
    """An answer is due. Whoever owes it has a deadline; that of this phase only ends what a fault of ours would leave for ever."""


_PHASE_NAMES: Final = ("idle", "head", "body", "write", "linger", "answer")


class HttpProtocol(asyncio.Protocol):
    """Reads requests, calls the site's handlers, writes answers. See the module."""

    __slots__ = (
        "_beginning", "_chunks", "_closing", "_discarded", "_due", "_eof", "_head", "_held", "_need", "_paused", "_phase", "_rest",
        "_peer", "_settings", "_site", "_transport", "_unread", "deadline_s",
    )  # fmt: skip

    _transport: asyncio.Transport

    def __init__(self, site: Site) -> None:
        self._site = site
        self._settings = site.settings
        self._rest = bytearray()
        self._need = 0
        self._head: KnownHead | None = None
        self._chunks: ChunkedBody | None = None
        self._due: list[Due] = []
        self._held = False
        """A complete head is in ``_rest`` whose request may not begin before all that is due is answered."""
        self._beginning = False
        self._unread = False
        """The peer has sent, or is sending, what will not be read: the end of the connection needs to linger."""
        self._phase = _Phase.IDLE
        self._closing = False
        self._peer: str | None = None
        self._paused = False
        self._eof = False
        self._discarded = 0
        self.deadline_s = NEVER_S

    # ------------------------------------------------------------------ the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        connections = self._site.connections
        connections.add(self)
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self._peer = name[0]
        elif (sock := transport.get_extra_info("socket")) is not None and sock.family != socket.AF_UNIX:
            # A TCP peer that is gone already has no address; it must not pass for one on a Unix socket.
            self.abort()
            return
        if len(connections) > self._settings.connections_max:
            self._site.stats.connections_refused += 1
            reply = problem_reply(503, problem(503, "too many connections"), "Retry-After: 1\r\n")
            self._finish([self._frame_last(reply)], lingering=True)
            return
        self.deadline_s = connections.now_s + self._settings.idle_s

    def data_received(self, data: bytes) -> None:
        self._site.stats.bytes_in += len(data)
        rest = self._rest
        if self._closing:
            self._discard(len(data))
        elif not rest and not self._paused:
            self._serve(data)
        else:
            rest += data
            if len(rest) >= self._need and not (self._paused or self._held):
                self._serve_rest()

    def eof_received(self) -> bool:
        """The peer sends no more. Stay half open only while it has requests that wait for an answer, or for it to read answers."""
        self._eof = True
        return bool(self._due) or (self._paused and not self._closing)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._site.connections.discard(self)
        self._closing = True
        self._forget()

    def pause_writing(self) -> None:
        self._paused = True
        if not self._closing:
            self._transport.pause_reading()
            self._enter(_Phase.WRITE, self._settings.write_s)

    def resume_writing(self) -> None:
        self._paused = False
        if not self._closing:
            self._go_on()

    # ------------------------------------------------------------------ the registry calls

    def expire(self) -> None:
        """Time is up for what this phase waits for."""
        phase = self._phase
        self._site.stats.timeouts[_PHASE_NAMES[phase]] += 1
        if phase in (_Phase.HEAD, _Phase.BODY):
            detail = f"the request's {_PHASE_NAMES[phase]} did not arrive in time"
            self._finish([self._frame_last(problem_reply(408, problem(408, detail)))], lingering=True)
        elif phase is _Phase.IDLE:
            self._finish([], lingering=False)
        else:
            self.abort()

    def drain(self) -> None:
        """Close if idle; else the next answer says so (the registry is draining) and is the last."""
        if self._phase is _Phase.IDLE and not self._closing:
            self._finish([], lingering=False)

    def abort(self) -> None:
        self._closing = True
        self._transport.abort()

    # ------------------------------------------------------------------ requests

    def _serve_rest(self) -> None:
        data = bytes(self._rest)
        self._rest.clear()
        self._need = 0
        self._serve(data)

    def _serve(self, data: bytes) -> None:
        """Answer every complete request in ``data`` and keep what is left."""
        out: list[bytes] = []
        try:
            pos = self._serve_complete(data, out)
        except BadHead as bad:
            kind = "too_large" if bad.status in (413, 431) else "body" if self._head is not None else "head"
            self._site.stats.bad_requests[kind] += 1
            self._refuse(bad, out)
            return
        if self._closing and not self._due:
            return
        if pos < len(data) and not self._closing:
            self._rest += memoryview(data)[pos:]
        if self._due and self._take_answered(out):
            return
        if out:
            self._phase = _Phase.IDLE
            self._write(out)
        if not self._paused:
            self._settle()

    def _serve_complete(self, data: bytes, out: list[bytes]) -> int:
        """Put answers into ``out``; returns the position up to which ``data`` is used up. Raises BadHead."""
        site = self._site
        known = site.heads.young.get
        pos = size = 0
        end = len(data)
        while pos < end:
            head = self._head
            if head is None:
                stop = data.find(b"\r\n\r\n", pos) + 4
                if stop < 4:
                    self._check_partial_head(data, pos)
                    break
                raw = data[pos:stop]
                head = known(raw) or site.learn(raw, self._peer)
                if self._due and self._must_wait(head, out):
                    break
                pos = stop
            length = head.length
            if length == 0:
                body = b""
            elif 0 < length <= end - pos:
                body = data[pos : pos + length]
                pos += length
            else:
                pos, got = self._collect(head, data, pos, out)
                if got is None:
                    break
                body = got
            self._head = None
            if head.later is not None:
                self._begin(head, head.later, body)
                if head.keep_alive:
                    continue
                self._closing = True
                self._unread = pos < end
                break
            last = not head.keep_alive or site.connections.draining
            answer = self._answer(head, body, close=last)
            out.append(answer)
            if last:
                self._finish(out, lingering=head.cut or pos < end)
                break
            size += len(answer)
            if size > HTTP_WRITE_BYTES_MAX:
                self._write(out)
                out.clear()
                size = 0
                if self._paused:
                    break
        return pos

    def _collect(self, head: KnownHead, data: bytes, pos: int, out: list[bytes]) -> tuple[int, bytes | None]:
        """The body of a request that is chunked or not all here: (new position, the body or None for not yet)."""
        first = self._head is None
        self._head = head
        if head.length == CHUNKED:
            chunks = self._chunks
            if chunks is None:
                chunks = self._chunks = ChunkedBody(self._settings.body_bytes_max)
            pos = chunks.feed(data, pos)
            if chunks.done:
                self._chunks = None
                return pos, chunks.body
        else:
            self._need = head.length
        if first and head.expect and pos == len(data):
            out.append(CONTINUE)
        return pos, None

    def _answer(self, head: KnownHead, body: bytes, *, close: bool) -> bytes:
        site = self._site
        try:
            reply = head.handler(body)
        except Exception:  # noqa: BLE001 - a fault of ours must not take the connection with it
            reply = fault_reply(site.stats, head.route)
        status = reply[0]
        counts = head.counts
        counts[status] = counts.get(status, 0) + 1
        return frame(reply, site.date, close=close, http10=head.http10, bodiless=head.bodiless)

    # ------------------------------------------------------------------ answers that take time

    def _begin(self, head: KnownHead, handler: LaterHandler, body: bytes) -> None:
        """Ask for an answer that may come later, and give it its place in the row."""
        due = Due(self, head, last=not head.keep_alive)
        self._due.append(due)
        self._beginning = True
        try:
            handler(body, due)
        except Exception:  # noqa: BLE001 - as in _answer
            due(fault_reply(self._site.stats, head.route))
        self._beginning = False

    def _must_wait(self, head: KnownHead, out: list[bytes]) -> bool:
        """Whether a request may not begin yet, for what is due before it; then it is held."""
        if self._is_behind(head):
            if self._take_answered(out):
                return True
            if sum(map(len, out)) > HTTP_WRITE_BYTES_MAX:
                self._write(out)
                out.clear()
        if self._is_behind(head):
            self._held = True
            self._transport.pause_reading()
        return self._held or self._paused

    def _is_behind(self, head: KnownHead) -> bool:
        due = self._due
        if not due:
            return False
        last = due[-1].head
        # What waited for all before it (a batch) is decided before anything after it.
        return len(due) > head.beside or last is None or not last.beside

    def answered(self, due: Due) -> None:
        """An answer is there (called by ``Due``): write what can leave."""
        # While requests are begun, whoever does that writes; and for a connection that is lost there is nothing to do.
        if self._beginning or not self._due or self._due[0] is not due:
            return
        out: list[bytes] = []
        if self._take_answered(out):
            return
        self._write(out)
        if self._paused:
            return
        if self._held or self._eof:
            self._go_on()
        else:
            self._settle()

    def _take_answered(self, out: list[bytes]) -> bool:
        """Move the answers that can leave from the row to ``out``; whether that was the end of the connection."""
        due, site = self._due, self._site
        while due and (reply := due[0].reply) is not None:
            head = due[0].head
            close = due.pop(0).last or (not due and site.connections.draining)
            if head is None:
                out.append(self._frame_last(reply))
            else:
                out.append(frame(reply, site.date, close=close, http10=head.http10, bodiless=head.bodiless))
            if close:
                self._finish(out, lingering=self._unread or bool(self._rest))
                return True
        return False

    def _go_on(self) -> None:
        """The row is shorter, or the peer takes answers again: do what had to wait for that."""
        self._settle()
        if (self._held and self._due) or self._transport.is_closing():
            return
        self._held = False
        if not self._eof:
            self._transport.resume_reading()
        if self._rest:
            self._serve_rest()
        if self._eof and not (self._paused or self._due or self._closing):
            self._finish([], lingering=False)

    # ------------------------------------------------------------------ faults of the peer

    def _refuse(self, bad: BadHead, out: list[bytes]) -> None:
        """Answer what is no request, after the answers that are due; nothing after it can be trusted."""
        reply = problem_reply(bad.status, problem(bad.status, bad.detail))
        if not self._due:
            out.append(self._frame_last(reply))
            self._finish(out, lingering=True)
            return
        due = Due(self, None, last=True)
        due.reply = reply
        self._due.append(due)
        self._closing = self._unread = True
        self._rest.clear()
        self._head = self._chunks = None
        if self._take_answered(out):
            return
        if out:
            self._write(out)
        self._settle()

    def _check_partial_head(self, data: bytes, pos: int) -> None:
        """Refuse early what cannot become a request."""
        if len(data) - pos > self._settings.head_bytes_max:
            raise BadHead(431, f"the request head is larger than {self._settings.head_bytes_max} bytes")
        first = data[pos : pos + 1]
        if not (first.isalpha() or first == b"\r") or data.find(b"\n\n", pos) >= 0:
            raise BadHead(400, "this is not HTTP/1.1 (is the client speaking TLS or HTTP/2?)")

    def _frame_last(self, reply: Reply) -> bytes:
        """An answer that belongs to no parsed request; it closes the connection."""
        counts = self._site.stats.requests["other"]
        counts[reply[0]] = counts.get(reply[0], 0) + 1
        return frame(reply, self._site.date, close=True, http10=False, bodiless=False)

    # ------------------------------------------------------------------ phases

    def _settle(self) -> None:
        """Say what is waited for now, and until when."""
        if self._due:
            self._phase = _Phase.ANSWER
            self.deadline_s = self._site.connections.now_s + DECISION_S_MAX
        elif self._head is not None:
            self._enter(_Phase.BODY, self._settings.body_s)
        elif self._rest:
            self._enter(_Phase.HEAD, self._settings.head_s)
        elif self._site.connections.draining:
            self._finish([], lingering=False)
        else:
            self._phase = _Phase.IDLE
            self.deadline_s = self._site.connections.now_s + self._settings.idle_s

    def _enter(self, phase: _Phase, seconds: float) -> None:
        # A phase keeps the deadline it began with: a trickle of bytes does not extend it.
        if self._phase is not phase:
            self._phase = phase
            self.deadline_s = self._site.connections.now_s + seconds

    def _write(self, out: list[bytes]) -> None:
        data = out[0] if len(out) == 1 else b"".join(out)
        self._site.stats.bytes_out += len(data)
        self._transport.write(data)

    def _finish(self, out: list[bytes], *, lingering: bool) -> None:
        """Write what is in ``out``, then close, after lingering where the peer may still be sending."""
        self._closing = True
        self._forget()
        transport = self._transport
        if out:
            self._write(out)
        if lingering and not self._eof and transport.can_write_eof():
            self._enter(_Phase.LINGER, self._settings.linger_s)
            try:
                transport.write_eof()
            except OSError:
                # The peer has reset the connection and asyncio has not told us yet: there is nobody to linger for.
                transport.abort()
                return
            if self._paused or self._held:
                transport.resume_reading()
        else:
            self._enter(_Phase.WRITE, self._settings.write_s)
            transport.close()

    def _forget(self) -> None:
        """Nothing more is served."""
        self._rest.clear()
        self._due.clear()
        self._head = self._chunks = None

    def _discard(self, size: int) -> None:
        self._unread = True
        self._discarded += size
        if self._discarded > HTTP_LINGER_BYTES_MAX:
            self.abort()
