"""One request and its answer: from the decision to the last byte, both directions at once.

    HELD ──> SEEKING ──> SENT ──> done
    leaky    a free      request out, answer in
    bucket   connection

The request's body and the answer are independent streams: an upstream may answer before it has the whole request. Each
side is told to stop while the other cannot keep up, so what is queued stays bounded whatever the length. The one deadline
of the client connection is moved on progress; what it means depends on where the exchange is.

A request is sent a second time in one case only: it went out on a kept connection, that connection ended without
a byte of an answer, the method is idempotent and there is no body. Then the upstream had, in all likelihood, closed the
connection before the request arrived; if it had not, repeating is harmless by the method's definition.
"""

from __future__ import annotations

import asyncio

from sluicegate.bounds import GATEWAY_WRITE_BYTES_MAX
from sluicegate.clock import US_PER_S
from sluicegate.doors.connections import NEVER_S
from sluicegate.doors.gateway.answering import AnswerStream, end_of_body
from sluicegate.doors.gateway.body import chunk
from sluicegate.doors.gateway.context import Context
from sluicegate.doors.gateway.flow import Client, has_left, pause, resume
from sluicegate.doors.gateway.request import Request
from sluicegate.doors.gateway.tunnel import Tunnel
from sluicegate.doors.gateway.upstream import Upstream, UpstreamConnection
from sluicegate.doors.headers import seconds_up
from sluicegate.doors.problem import problem
from sluicegate.limiter.decision import Decision

__all__ = ["Exchange"]

# What a client is told of each failure of the upstream; the words are counted in stats.upstream_errors.
_UPSTREAM_FAULTS = {
    "busy": (503, "All connections to the upstream are busy."),
    "connect": (502, "The upstream cannot be connected."),
    "connect_timeout": (504, "The upstream did not accept a connection in time."),
    "closed": (502, "The upstream closed the connection before it answered."),
    "bad_response": (502, "The upstream's answer is not valid HTTP/1.1."),
    "timeout": (504, "The upstream did not answer in time."),
}


class Exchange:
    """A flow (see ``flow.Flow``) and a seeker of connections (see ``upstream.Seeker``)."""

    __slots__ = (
        "_answer", "_body", "_body_begun", "_client", "_context", "_early", "_early_bytes", "_repeated", "_request", "_timer", "accepts",
        "connection", "tried",
    )  # fmt: skip

    def __init__(self, context: Context, client: Client, request: Request, decision: Decision) -> None:
        self._context = context
        self._client = client
        self._request = request
        self._body = request.body()
        self._answer = AnswerStream(context, request, decision)
        self._early: list[bytes] = []
        """Body that arrived before there was a connection."""
        self._early_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._repeated = False
        self._body_begun = False
        self.accepts = True
        self.connection: UpstreamConnection | None = None
        self.tried: tuple[Upstream, ...] = ()
        context.stats.in_flight += 1

    # -- getting there

    def start(self, delay_us: int) -> None:
        """Go to the upstream, after ``delay_us`` if a leaky bucket wants this request later."""
        if not delay_us:
            self.seek()
            return
        stats = self._context.stats
        if stats.held >= self._context.settings.held_max:
            stats.held_rejected += 1
            stats.refused += 1
            stats.allowed -= 1
            retry = b"Retry-After: %d\r\n" % max(1, seconds_up(delay_us))
            self._reply(429, problem(429, "Too many requests are waiting for their turn."), retry)
            return
        stats.held += 1
        stats.held_total += 1
        self._client.deadline_s = NEVER_S
        self._timer = asyncio.get_running_loop().call_later(delay_us / US_PER_S, self._let_go)

    def seek(self) -> None:
        """Ask the pool for a connection."""
        # A connection attempt ends by itself after connect_timeout_s; twice that is a wait for others to finish.
        self._wait_s(2 * self._context.settings.connect_timeout_s)
        self._context.pool.assign(self)

    def attach(self, connection: UpstreamConnection) -> None:
        """Send the request; see ``upstream.Seeker``."""
        self.connection = connection
        self._request.begin_attempt()
        head = self._context.forwarder.head(self._request, self._client.peer, connection.upstream.target.authority)
        if self._early:
            head += b"".join(self._early)
            self._early = []
            self._early_bytes = 0
        connection.transport.write(head)
        settings = self._context.settings
        if self._body.done:
            self._wait_s(settings.response_timeout_s)
        else:
            self._wait_s(settings.body_timeout_s)
            self.accepts = not connection.full
            self._client.update_reading()

    def unserved(self, kind: str) -> None:
        """See ``upstream.Seeker``."""
        if kind == "busy":
            self._context.stats.count(self._context.stats.upstream_errors, kind)
        self._fail(kind)

    # -- the client's side

    def take_body(self, data: bytes, pos: int) -> int:
        """Pass on what ``data`` holds of the body from ``pos``; returns where the next request begins."""
        body = self._body
        payload, pos = body.feed(data, pos)
        self._body_begun = True
        if body.fault is not None:
            self._reply(400, problem(400, f"The request body is not valid: {body.fault}."))
            return len(data)
        out = chunk(payload) if payload and self._request.chunked else payload
        if body.done and self._request.chunked:
            out += end_of_body(body, self._context.request_names)
        connection = self.connection
        if connection is not None:
            if out:
                connection.transport.write(out)
            settings = self._context.settings
            self._wait_s(settings.response_timeout_s if body.done or connection.full else settings.body_timeout_s)
        elif out:
            self._early.append(out)
            self._early_bytes += len(out)
            if self._early_bytes > GATEWAY_WRITE_BYTES_MAX:
                self.accepts = False
                self._client.update_reading()
        return pos

    def client_data(self, data: bytes) -> None:
        pos = 0 if self._body.done else self.take_body(data, 0)
        if pos < len(data) and self._client.flow is self:
            self._client.stash(data[pos:])

    def client_lost(self) -> None:
        self._context.stats.cancelled += 1
        self._request.ended(0)
        self._finish()

    def client_full(self) -> None:
        if self.connection is not None:
            pause(self.connection.transport)
            self._wait_s(self._context.settings.send_timeout_s)

    def client_ready(self) -> None:
        if self.connection is not None:
            resume(self.connection.transport)
            self._wait_s(self._context.settings.upstream_body_timeout_s)

    def expire(self) -> None:
        stats = self._context.stats
        connection = self.connection
        if connection is None:
            self._context.pool.withdraw(self)
            self.unserved("busy")
        elif self._client.full:
            stats.count(stats.timeouts, "send")
            self._abandon()
        elif not self._body.done and not connection.full:
            stats.count(stats.timeouts, "body")
            self._request.keep_alive = False
            self._reply(408, problem(408, "The request body did not arrive in time."))
        else:
            self._upstream_failed("timeout")

    # -- the upstream's side

    def upstream_data(self, data: bytes) -> None:
        answer = self._answer
        first = answer.response is None
        # A client that still waits for 100 may send its body after a final answer or leave it out: where the next
        # request would begin cannot be told.
        unsure = self._request.expects and not self._body_begun and not answer.continued
        out = answer.feed(data, last=self._client.last or unsure)
        if out:
            self._client.transport.write(out)
        response = answer.response
        if first and response is not None:
            self._context.stats.responses[response.status // 100] += 1
            connection = self.connection
            assert connection is not None
            connection.upstream.failures = 0
        if answer.done:
            self._complete()
        elif answer.fault is not None:
            self._upstream_failed("bad_response" if response is None else "truncated")
        elif answer.switched:
            self._switch()
        elif response is not None and not self._client.full:
            self._wait_s(self._context.settings.upstream_body_timeout_s)

    def upstream_closed(self, *, clean: bool) -> None:
        answer = self._answer
        if answer.response is None:
            if self._may_repeat():
                self._repeat()
            else:
                self._upstream_failed("closed")
            return
        last = answer.end() if clean else b""
        if answer.done:
            if last:
                self._client.transport.write(last)
            self._complete()
        else:
            self._upstream_failed("truncated")

    def upstream_full(self) -> None:
        self.accepts = False
        self._client.update_reading()
        self._wait_s(self._context.settings.response_timeout_s)

    def upstream_ready(self) -> None:
        self.accepts = True
        self._client.update_reading()
        settings = self._context.settings
        self._wait_s(settings.response_timeout_s if self._body.done else settings.body_timeout_s)

    # -- steps

    def _let_go(self) -> None:
        """The held request's time has come, if anybody still waits for its answer."""
        self._timer = None
        self._context.stats.held -= 1
        if not self.accepts and has_left(self._client.transport):
            # Reading is paused, so nobody has told us; the upstream must not see this request.
            self._client.transport.abort()
            return
        self.seek()

    def _may_repeat(self) -> bool:
        connection = self.connection
        return (
            connection is not None
            and connection.reused
            and not self._repeated
            and self._request.repeatable
            and not self._answer.heard
        )

    def _repeat(self) -> None:
        connection = self.connection
        assert connection is not None
        self._repeated = True
        self._context.stats.retries += 1
        self.connection = None
        self._context.pool.release(connection, keep=False)
        self._context.pool.forget_kept(connection.upstream)
        self.seek()

    def _switch(self) -> None:
        """From here on the two connections only exchange bytes."""
        connection, client = self.connection, self._client
        assert connection is not None
        self._context.stats.in_flight -= 1
        self._request.ended(101)
        tunnel = Tunnel(self._context, client, connection)
        client.flow = connection.flow = tunnel
        if self._answer.leftover:
            client.transport.write(self._answer.leftover)
        early = client.unstash()
        if early:
            tunnel.client_data(early)
        client.update_reading()

    def _complete(self) -> None:
        """The client has its answer; both connections serve on where they can."""
        answer, connection = self._answer, self.connection
        response = answer.response
        assert response is not None
        assert connection is not None
        self.connection = None
        self._context.stats.in_flight -= 1
        self._request.ended(response.status)
        if self._client.full:
            resume(connection.transport)
        keep = response.keep_alive and self._body.done and not answer.leftover
        self._context.pool.release(connection, keep=keep, keep_alive_s=response.keep_alive_s)
        self._client.done(self._body, keep=answer.keep)

    def _upstream_failed(self, kind: str) -> None:
        stats = self._context.stats
        stats.count(stats.upstream_errors, kind)
        if self.connection is not None:
            self._context.pool.failed(self.connection.upstream)
        if self._answer.response is None:
            self._fail(kind)
        else:
            # Part of the answer is with the client. A reset is the only way to say that the rest will not come.
            self._abandon()

    def _fail(self, kind: str) -> None:
        status, detail = _UPSTREAM_FAULTS[kind]
        self._reply(status, problem(status, detail), b"Retry-After: 1\r\n" if status == 503 else b"")

    def _reply(self, status: int, document: bytes, fields: bytes = b"") -> None:
        """Answer from here instead of from the upstream, or break off where an answer has begun."""
        if self._answer.response is not None:
            self._abandon()
            return
        self._finish()
        self._client.reply(status, document, self._request, self._body, fields, rate=self._answer.rate_block)

    def _abandon(self) -> None:
        self._request.ended(0)
        self._finish()
        self._client.flow = None
        self._client.reset()

    def _finish(self) -> None:
        """Let go of timer, queue place and connection."""
        self._context.stats.in_flight -= 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._context.stats.held -= 1
        connection = self.connection
        if connection is None:
            self._context.pool.withdraw(self)
        else:
            self.connection = None
            self._context.pool.release(connection, keep=False)

    def _wait_s(self, timeout_s: float) -> None:
        self._client.deadline_s = self._context.clients.now_s + timeout_s
