"""One client connection: heads in, decisions, answers out, one request after the other.

The parts of a connection's life: perhaps a PROXY header, then heads; a head either is answered here (a fault, a
refusal) or becomes an exchange, which owns the connection until its answer is written. Where the counters are not in this process
the decision takes time, and until it is there the request is a ``Deciding``. Further requests that
have arrived in the meantime wait in ``_rest`` with reading paused, so pipelining costs no more memory than one read.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from sluicegate.bounds import (
    DECISION_S_MAX,
    GATEWAY_DISCARD_BYTES_MAX,
    GATEWAY_LINGER_BYTES_MAX,
    GATEWAY_LINGER_S,
    GATEWAY_WRITE_BYTES_MAX,
)
from sluicegate.doors.connections import NEVER_S
from sluicegate.doors.gateway.answers import answer, connection_line
from sluicegate.doors.gateway.body import Decoder
from sluicegate.doors.gateway.context import Context
from sluicegate.doors.gateway.deciding import Deciding
from sluicegate.doors.gateway.exchange import Exchange
from sluicegate.doors.gateway.flow import ClientSide, has_left, pause, resume
from sluicegate.doors.gateway.forward import Peer
from sluicegate.doors.gateway.heads import HeadBuffer
from sluicegate.doors.gateway.proxyproto import ProxyHeader, read_proxy_header
from sluicegate.doors.gateway.request import Request, read_request
from sluicegate.doors.gateway.wire import Fault, parse_request
from sluicegate.doors.problem import CONTENT_TYPE, problem
from sluicegate.doors.tracing import sampled_parent
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.decision import Decision
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.addresses import canonical_ip
from sluicegate.rules.identity.resolver import IdentityResolver

__all__ = ["ClientConnection"]

_RESET_ON_CLOSE = b"\x01\x00\x00\x00\x00\x00\x00\x00"  # struct linger {1, 0}


class ClientConnection(asyncio.Protocol):
    """Implements ``doors.connections.Connection``."""

    __slots__ = (
        "_address", "_body", "_context", "_heads", "_looping", "_resolver", "_rest", "_spent", "_take", "deadline_s", "flow",
        "full", "peer", "transport",
    )  # fmt: skip

    transport: asyncio.Transport
    peer: Peer

    def __init__(self, context: Context) -> None:
        self._context = context
        self._heads = HeadBuffer(context.settings.head_bytes_max, context.settings.request_line_bytes_max)
        self._take: Callable[[ClientConnection, bytes], None] = ClientConnection._take_heads
        """What is done with bytes while there is no flow."""
        self._rest = b""
        self._body: Decoder | None = None
        """The body of an answered request, to be thrown away."""
        self._spent = 0
        """Bytes thrown away."""
        self._looping = False
        self._resolver: IdentityResolver | None = None
        self._address: str | None = None
        self.flow: ClientSide | None = None
        self.full = False
        self.deadline_s = NEVER_S

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports are no subclasses of asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=GATEWAY_WRITE_BYTES_MAX)
        name = transport.get_extra_info("peername")
        context = self._context
        context.clients.add(self)
        if isinstance(name, tuple):
            self._address = canonical_ip(name[0])
        elif self.transport.get_extra_info("socket").family != socket.AF_UNIX:
            # A TCP peer that is gone already has no address; it must not pass for one on a Unix socket.
            self.abort()
            return
        self.deadline_s = context.clients.now_s + context.settings.header_timeout_s
        if len(context.clients) > context.settings.connections_max:
            context.stats.connections_refused += 1
            self.reject(Fault(503, "too_many_connections", "The gateway has too many connections."))
            return
        if context.settings.proxy_protocol:
            self._take = ClientConnection._take_proxy_header

    def data_received(self, data: bytes) -> None:
        try:
            flow = self.flow
            if flow is None:
                self._take(self, data)
            else:
                flow.client_data(data)
        except Exception as error:  # noqa: BLE001 - nothing a client sends may end more than its own connection
            self._context.crashed(error, self.abort)

    def eof_received(self) -> None:
        # A client that stops sending has left: one that is only half closed cannot be told from it.
        self._leave()

    def connection_lost(self, _error: Exception | None) -> None:
        self._context.clients.discard(self)
        self.deadline_s = NEVER_S
        self._leave()

    def pause_writing(self) -> None:
        self.full = True
        if self.flow is not None:
            self.flow.client_full()

    def resume_writing(self) -> None:
        self.full = False
        try:
            if self.flow is not None:
                self.flow.client_ready()
            else:
                self._take_rest()
        except Exception as error:  # noqa: BLE001
            self._context.crashed(error, self.abort)

    # -- the registry's side

    def expire(self) -> None:
        """See ``doors.connections.Connection``."""
        stats = self._context.stats
        if self.flow is not None:
            self.flow.expire()
        elif self._take is ClientConnection._take_heads and self._heads.started:
            stats.count(stats.timeouts, "header")
            self.reject(Fault(408, "timeout", "the request head did not arrive in time"))
        else:
            if self._take is ClientConnection._take_heads:
                stats.count(stats.timeouts, "idle")
            self.abort()

    def drain(self) -> None:
        """See ``doors.connections.Connection``; what is in flight sees that the registry is draining."""
        waiting = self._take in {ClientConnection._take_heads, ClientConnection._take_proxy_header}
        if waiting and self.flow is None and not self._heads.started and not self._rest:
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._leave()
        self.transport.abort()

    # -- the flow's side

    @property
    def last(self) -> bool:
        """No further request is wanted on this connection."""
        return self._context.clients.draining

    def stash(self, data: bytes) -> None:
        """Keep bytes of the next request until this one is answered."""
        self._rest += data
        pause(self.transport)

    def unstash(self) -> bytes:
        """Take the kept bytes for another use."""
        rest, self._rest = self._rest, b""
        return rest

    def update_reading(self) -> None:
        """Read or do not read, by what the flow takes and what is kept already."""
        if self._rest or (self.flow is not None and not self.flow.accepts):
            pause(self.transport)
        else:
            resume(self.transport)

    def reset(self) -> None:
        """Break the connection so that the client can see that its answer is incomplete."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX and not self.transport.is_closing():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.abort()

    def done(self, body: Decoder, *, keep: bool) -> None:
        """An answer is written; go on with the next request. ``body``: of the request, perhaps not complete."""
        self.flow = None
        if self.transport.is_closing():
            return
        if not keep:
            self._close_after_answer(unread=not body.done or bool(self._rest))
            return
        clients = self._context.clients
        self.deadline_s = clients.now_s + self._context.settings.idle_timeout_s
        if not body.done:
            self._discard(body)
        elif self.last and not self._rest:
            self.transport.close()
            return
        self._take_rest()

    def reply(
        self,
        status: int,
        document: bytes,
        request: Request,
        body: Decoder,
        fields: bytes = b"",
        *,
        rate: bytes = b"",
        content_type: str = CONTENT_TYPE,
    ) -> None:
        """Answer a request from here. ``rate``: rate headers of its decision."""
        stats = self._context.stats
        stats.responses[status // 100] += 1
        request.ended(status)
        keep = request.keep_alive and not self.last and self._may_discard(request, body)
        if request.has_origin and rate:
            fields += b"Access-Control-Expose-Headers: %b\r\n" % self._context.exposed
        lines = b"".join((self._context.date_line(), rate, fields, connection_line(request.minor, keep=keep)))
        self.transport.write(
            answer(status, document, lines, bodiless=request.method == b"HEAD", content_type=content_type)
        )
        self.done(body, keep=keep)

    def reject(self, fault: Fault) -> None:
        """Answer what is no valid request; nothing after it can be trusted, so it is the last."""
        stats = self._context.stats
        if fault.status not in {408, 503}:
            stats.count(stats.bad_requests, fault.kind)
        stats.responses[fault.status // 100] += 1
        retry = b"Retry-After: 1\r\n" if fault.status == 503 else b""
        lines = self._context.date_line() + retry + connection_line(1, keep=False)
        self.transport.write(answer(fault.status, problem(fault.status, fault.detail), lines, bodiless=False))
        self._close_after_answer(unread=True)

    # -- heads

    def _take_proxy_header(self, data: bytes) -> None:
        data = self.unstash() + data
        header = read_proxy_header(data)
        if header is None:
            self._rest = data
            return
        if not isinstance(header, ProxyHeader) or not self._context.limiter.resolver.is_trusted(self._address):
            self._context.stats.proxy_rejected += 1
            self.abort()
            return
        if header.address is not None:
            self._address = canonical_ip(header.address)
        self._take = ClientConnection._take_heads
        if header.used < len(data):
            self._take_heads(data[header.used :])

    def _take_rest(self) -> None:
        """Go on with what has been kept."""
        if self._rest and self.flow is None and not self.full and not self._looping:
            self._take(self, self.unstash())
        self.update_reading()

    def _take_heads(self, data: bytes) -> None:
        heads = self._heads
        if self.full:
            self.stash(data)
            return
        if not heads.started:
            self.deadline_s = self._context.clients.now_s + self._context.settings.header_timeout_s
        pos = 0
        self._looping = True
        try:
            while pos < len(data):
                found = heads.find(data, pos)
                if found is None:
                    return
                if isinstance(found, Fault):
                    self.reject(found)
                    return
                data, head, pos = found
                pos = self._begin(head, data, pos)
                if self.flow is not None or self._take is not ClientConnection._take_heads or self.full:
                    break
        finally:
            self._looping = False
        self._keep_rest(data, pos)

    def _keep_rest(self, data: bytes, pos: int) -> None:
        """What follows the request that was begun: it is thrown away, or waits for its turn."""
        if pos < len(data) and not self.transport.is_closing():
            if self.flow is None and self._take is not ClientConnection._take_heads:
                self._take(self, data[pos:])
            else:
                self.stash(data[pos:])

    def _begin(self, head: bytes, data: bytes, pos: int) -> int:
        """Decide on one request and start it, or wait for the decision. Returns where the next one begins."""
        context = self._context
        settings = context.settings
        line = parse_request(head, line_bytes_max=settings.request_line_bytes_max, fields_max=settings.fields_max)
        if isinstance(line, Fault):
            self.reject(line)
            return pos
        resolver = context.follow_rules()
        if resolver is not self._resolver:
            self._resolver = resolver
            self.peer = context.forwarder.peer(self._address, trusted=resolver.is_trusted(self._address))
        request = read_request(line, context.request_names)
        if isinstance(request, Fault):
            self.reject(request)
            return pos
        context.stats.requests += 1
        if context.tracer is not None:
            parent = sampled_parent(head + b"\r\n")
            if parent is not None:
                request.span = context.tracer.passing(parent, request.method.decode("ascii"))
        decision = self._decide(request, resolver)
        return pos if decision is None else self._proceed(request, decision, data, pos)

    def _decide(self, request: Request, resolver: IdentityResolver) -> Decision | None:
        """The decision; None where it comes later (then there is a flow), or where there is none and the client was told why."""
        host = request.host
        try:
            facts = resolver.facts(
                request.method.decode("ascii"),
                request.target.decode("latin-1"),
                None if host is None else host.decode("latin-1"),
                request.seen,
                self._address,
            )
            limiter = self._context.limiter
            return self._submit(request, facts) if limiter.waits else limiter.check(facts)
        except InvalidRequest as error:
            request.ended(400)
            self.reject(Fault(400, "undecidable", str(error)))
        except Exception as error:  # noqa: BLE001 - a fault of ours must neither admit the request nor end the server
            self._context.crashed(error, lambda: None)
            request.ended(500)
            self.reject(Fault(500, "internal", "the request could not be decided"))
        return None

    def _submit(self, request: Request, facts: Facts) -> Decision | None:
        """Ask for a decision that may come later."""
        deciding = Deciding(self._context, self, request, self._decided)
        try:
            self._context.limiter.submit(facts, deciding.decided)
        except BaseException:
            deciding.end()
            raise
        if deciding.decision is not None:
            deciding.end()
            return deciding.decision
        deciding.awaited = True
        self.flow = deciding
        self.deadline_s = self._context.clients.now_s + DECISION_S_MAX
        return None

    def _decided(self, request: Request, decision: Decision) -> None:
        """The decision came later: go on as if it had come at once, with what has arrived in the meantime."""
        try:
            self.flow = None
            data = self.unstash()
            if data and decision.allowed and has_left(self.transport):
                # Reading is paused, so nobody has told us; the upstream must not see this request.
                self._context.stats.count_decision(decision)
                self._context.stats.cancelled += 1
                request.ended(0)
                self.abort()
                return
            self._looping = True
            try:
                pos = self._proceed(request, decision, data, 0)
            finally:
                self._looping = False
            self._keep_rest(data, pos)
            self._take_rest()
        except Exception as error:  # noqa: BLE001 - as in data_received
            self._context.crashed(error, self.abort)

    def _proceed(self, request: Request, decision: Decision, data: bytes, pos: int) -> int:
        """Refuse the request, or start its exchange. Returns where the next one begins."""
        context = self._context
        if request.span is not None:
            refused = "undecided" if decision.refusal == "store" else "refused"
            request.span.decided("allowed" if decision.allowed else refused, decision.rule)
        if not decision.allowed:
            return self._refuse(request, decision, data, pos)
        context.stats.allowed += 1
        exchange = Exchange(context, self, request, decision)
        self.flow = exchange
        if request.has_body and pos < len(data):
            pos = exchange.take_body(data, pos)
        if self.flow is exchange:
            exchange.start(decision.delay_us)
        return pos

    def _refuse(self, request: Request, decision: Decision, data: bytes, pos: int) -> int:
        """Answer 429 or 503 before anything is asked of the upstream, or of the client (100 Continue)."""
        context = self._context
        body = request.body()
        if request.has_body and pos < len(data):
            _, pos = body.feed(data, pos)
        told = context.refusals.told(decision)
        block = context.headers.block(told, context.clock.now_us())
        if decision.refusal == "store":
            context.stats.undecided += 1
        else:
            context.stats.refused += 1
        status, content_type, document = context.refusals.reply(told)
        self.reply(status, document, request, body, rate=block, content_type=content_type)
        return pos

    # -- throwing away and closing

    @staticmethod
    def _may_discard(request: Request, body: Decoder) -> bool:
        """Whether reading the rest of a body is cheaper than a new connection, and sure to find its end."""
        if body.done:
            return True
        if body.fault is not None or request.expects:
            # A client that was not told to continue may send the body or leave it out; its next bytes could be either.
            return False
        return body.left is not None and body.left <= GATEWAY_DISCARD_BYTES_MAX

    def _discard(self, body: Decoder) -> None:
        self._body = body
        self._spent = 0
        self._take = ClientConnection._take_discarded
        self.deadline_s = self._context.clients.now_s + self._context.settings.body_timeout_s
        resume(self.transport)

    def _take_discarded(self, data: bytes) -> None:
        body = self._body
        assert body is not None
        _, pos = body.feed(data, 0)
        self._spent += pos
        if body.fault is not None or self._spent > GATEWAY_DISCARD_BYTES_MAX:
            self._close_after_answer(unread=True)
        elif body.done:
            self._body = None
            self._take = ClientConnection._take_heads
            self.deadline_s = self._context.clients.now_s + self._context.settings.idle_timeout_s
            if self.last:
                self._close_after_answer(unread=False)
            elif pos < len(data):
                self._take_heads(data[pos:])

    def _close_after_answer(self, *, unread: bool) -> None:
        """Close; where the client may still be sending, read a while, or the reset would destroy the answer."""
        self.flow = None
        self._rest = b""
        self._take = ClientConnection._take_nothing
        if not unread or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._spent = 0
        self.deadline_s = self._context.clients.now_s + GATEWAY_LINGER_S
        if not self.transport.is_closing():
            try:
                self.transport.write_eof()
            except OSError:
                # The client has reset the connection and asyncio has not told us yet: there is nobody to linger for.
                self.abort()
            else:
                resume(self.transport)

    def _take_nothing(self, data: bytes) -> None:
        self._spent += len(data)
        if self._spent > GATEWAY_LINGER_BYTES_MAX:
            self.abort()

    def _leave(self) -> None:
        """The client is gone, or we are leaving it."""
        flow = self.flow
        self.flow = None
        self._rest = b""
        if flow is not None:
            flow.client_lost()
