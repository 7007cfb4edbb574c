"""What all connections of one server share: routes, limits, counters, the memo of heads, the current Date."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from sluicegate.bounds import HTTP_HEAD_MEMO_BYTES_MAX, HTTP_HEADS_MEMO_MAX
from sluicegate.clock import Clock
from sluicegate.doors.connections import Connections
from sluicegate.doors.durations import Durations
from sluicegate.doors.http.head import BadHead, Head, Subrequest, essence, parse_head, parse_subrequest
from sluicegate.doors.http.memo import Memo
from sluicegate.doors.http.respond import Reply, date_line, problem_reply
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.http.stats import HttpStats
from sluicegate.doors.problem import problem
from sluicegate.doors.tracing import Parent, Tracer, sampled_parent
from sluicegate.errors import InternalError

__all__ = ["Answer", "Asking", "Handler", "KnownHead", "LaterHandler", "Route", "Site"]

Handler: TypeAlias = Callable[[bytes], Reply]
"""Answers one request, given its body. Synchronous, and must not block for longer than a decision takes."""

Answer: TypeAlias = Callable[[Reply], None]
"""Takes the answer to one request, on the loop's thread; what comes after the first call is ignored."""

LaterHandler: TypeAlias = Callable[[bytes, Answer], None]
"""The same for an answer that may take time: it is given to ``Answer``, before this returns or later."""

Asking: TypeAlias = Callable[[Subrequest, str | None, bytes, Answer], None]
"""Answers a request that asks about another one, given its head, the address of who asks (None: a Unix socket) and its body."""

TOKEN_FIELD: Final = b"x-sluicegate-token"
"""Where a proxy that asks has the API token: ``Authorization`` is its client's."""

_OTHER: Final = "other"
_TRACEPARENT: Final = re.compile(rb"\r\ntraceparent:[^\r\n]*(?=\r\n)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Route:
    """One path. ``handlers`` by method (GET also answers HEAD); ``guarded`` routes ask for the API token.

    ``later``: methods whose answers may take time. ``beside``: how many answers may be due on a connection when such a request
    begins. 0: it waits until all before it are answered, as every request with a ``Handler`` does, and all after it wait for it.
    """

    path: str
    handlers: Mapping[str, Handler] = field(default_factory=dict)
    guarded: bool = True
    later: Mapping[str, LaterHandler] = field(default_factory=dict)
    beside: int = 0
    etag: Callable[[], str] | None = None
    """The version of what GET gives, a quoted text; a client that has it is answered 304 without the body."""
    by_accept: Callable[[bytes], Route] | None = None
    """Set: gives the route that takes the place of this one, by the value of ``Accept``."""
    asking: Asking | None = None
    """Set: the route takes all methods and all that is below its path."""

    @property
    def methods(self) -> frozenset[str]:
        """The methods it takes, HEAD apart."""
        return frozenset((*self.handlers, *self.later))

    @property
    def allow(self) -> str:
        """The value of the Allow field."""
        methods = self.methods
        return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


class KnownHead:
    """A request head, parsed, routed and authorised: everything the connection needs to serve it again.

    ``length``: bytes of the body to wait for, or ``CHUNKED``. ``cut``: the answer does not wait for the body and is the last of
    the connection. ``counts``: the route's answers by status. ``bodiless``: a HEAD request. ``later`` and ``beside``: see ``Route``;
    where ``later`` is set ``handler`` is not called.
    """

    __slots__ = (
        "beside", "bodiless", "counts", "cut", "expect", "handler", "http10", "keep_alive", "later", "length", "route",
    )  # fmt: skip

    def __init__(self, head: Head, route: str, handler: Handler, counts: dict[int, int], *, cut: bool) -> None:
        self.route = route
        self.handler = handler
        self.later: LaterHandler | None = None
        self.beside = 0
        self.counts = counts
        self.cut = cut
        self.length = 0 if cut else head.length
        self.keep_alive = head.keep_alive and not cut
        self.http10 = head.http10
        self.expect = head.expect
        self.bodiless = head.method == "HEAD"


class Site:
    """The shared part of a server. ``date`` is the Date line, right to the second."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        settings: HttpSettings,
        clock: Clock,
        stats: HttpStats,
        tracer: Tracer | None = None,
        durations: Durations | None = None,
    ) -> None:
        self._tracer = tracer
        self._durations = durations or Durations(clock)
        self.routes = routes
        self.settings = settings
        self.stats = stats
        self.date = date_line(clock.now_us())
        self.connections = Connections(interval_s=settings.sweep_s, on_tick=self._tick)
        self.heads: Memo[KnownHead] = Memo(HTTP_HEADS_MEMO_MAX, HTTP_HEAD_MEMO_BYTES_MAX)
        self._asking = tuple((f"{path}/".encode(), route) for path, route in routes.items() if route.asking)
        self._clock = clock
        self._token = None if settings.api_token is None else settings.api_token.encode("ascii")

    def learn(self, raw: bytes, peer: str | None) -> KnownHead:
        """The meaning of a head that is not in ``heads.young``, for requests of ``peer``. Raises BadHead."""
        if self._tracer is not None:
            parent = sampled_parent(raw)
            if parent is not None:
                # Not remembered as it is: each request with it has a span of its own.
                asked = self._ask(raw, peer) if len(raw) <= self.settings.head_bytes_max else None
                plain = asked or self.learn(_TRACEPARENT.sub(b"", raw), peer)
                return self._traced(plain, self._tracer, parent, raw.lstrip()[:16].partition(b" ")[0].decode("latin-1"))
        known = self.heads.recall(raw)
        if known is None:
            settings = self.settings
            if len(raw) > settings.head_bytes_max:
                raise BadHead(431, f"the request head is larger than {settings.head_bytes_max} bytes")
            asking = self._ask(raw, peer)
            if asking is not None:
                return asking
            core = essence(raw, settings.fields_max)
            known = self.heads.recall(core)
            if known is None:
                known = self._route(parse_head(raw, settings.fields_max))
                self.heads.remember(core, known)
            self.heads.remember(raw, known)
        return known

    def _ask(self, raw: bytes, peer: str | None) -> KnownHead | None:
        """The meaning of a head that asks about another request; None where it does not.

        It is not remembered: all of its fields count, and who asks.
        """
        line = raw[: raw.find(b"\r\n", 2)]
        if not any(path[:-1] in line for path, _ in self._asking):
            return None
        head = parse_subrequest(raw, self.settings.fields_max)
        target = head.path.encode("latin-1") + b"/"
        for path, route in self._asking:
            # The target of OPTIONS may be an asterisk, for the server as a whole.
            if not (target.startswith(path) or target == path[:-1] + b"*/"):
                continue
            return self._asking_about(head, route, peer)
        return None

    def _asking_about(self, head: Subrequest, route: Route, peer: str | None) -> KnownHead:
        counts = self.stats.requests[route.path]
        if not self._is_token(b"".join(head.values(TOKEN_FIELD))):
            refusal = problem_reply(401, problem(401, "this path needs X-Sluicegate-Token with the API token"))
            return KnownHead(head, route.path, lambda _body: refusal, counts, cut=head.expect)
        if head.length > self.settings.body_bytes_max:
            return KnownHead(head, route.path, self._too_large, counts, cut=True)
        known = KnownHead(head, route.path, _answers_later, counts, cut=False)
        assert route.asking is not None
        known.later = partial(route.asking, head, peer)
        known.beside = 0 if head.expect else route.beside
        return known

    def _route(self, head: Head) -> KnownHead:
        route = self.routes.get(head.path)
        if route is not None and route.by_accept is not None:
            route = route.by_accept(head.accept)
        refusal = self._refusal(head, route)
        name = route.path if route is not None else _OTHER
        counts = self.stats.requests[name]
        if head.length > self.settings.body_bytes_max:
            return KnownHead(head, name, self._too_large, counts, cut=True)
        if route is None or refusal is not None:
            reply = refusal or problem_reply(404, problem(404, "there is nothing at this path"))
            # A client that waits for 100 Continue learns the refusal instead, and need not send the body.
            return KnownHead(head, name, lambda _body: reply, counts, cut=head.expect)
        method = "GET" if head.method == "HEAD" else head.method
        handler = route.handlers.get(method, _answers_later)
        if route.etag is not None:
            handler = _conditional(handler, route.etag, head.if_none_match)
        known = KnownHead(head, name, handler, counts, cut=False)
        known.later = route.later.get(method)
        # 100 Continue must not come before the answers to earlier requests.
        known.beside = 0 if head.expect else route.beside
        return known

    def _refusal(self, head: Head, route: Route | None) -> Reply | None:
        if route is None:
            return None
        if route.guarded and not self._authorised(head.authorization):
            document = problem(401, "this path needs Authorization: Bearer with the API token")
            return problem_reply(401, document, "WWW-Authenticate: Bearer\r\n")
        if (head.method if head.method != "HEAD" else "GET") not in route.methods:
            document = problem(405, f"{route.path} takes {route.allow}")
            return problem_reply(405, document, f"Allow: {route.allow}\r\n")
        return None

    def _authorised(self, authorization: bytes | None) -> bool:
        if self._token is None:
            return True
        scheme, _, given = (authorization or b"").partition(b" ")
        return scheme.lower() == b"bearer" and self._is_token(given.strip())

    def _is_token(self, given: bytes) -> bool:
        return self._token is None or hmac.compare_digest(given, self._token)

    def _too_large(self, _body: bytes) -> Reply:
        self.stats.bad_requests["too_large"] += 1
        return problem_reply(413, problem(413, f"the body is larger than {self.settings.body_bytes_max} bytes"))

    def _traced(self, known: KnownHead, tracer: Tracer, parent: Parent, method: str) -> KnownHead:
        """The same head for one request, which gets a span that begins when it is complete."""
        traced, handler, later, durations = copy(known), known.handler, known.later, self._durations

        def handle(body: bytes) -> Reply:
            ended = tracer.begin(parent, method, known.route)
            try:
                with durations.of_trace(parent.trace_id):
                    reply = handler(body)
            except BaseException:
                ended(500, b"")
                raise
            ended(reply[0], reply[2])
            return reply

        def handle_later(body: bytes, answer: Answer) -> None:
            assert later is not None
            ended = tracer.begin(parent, method, known.route)

            def answered(reply: Reply) -> None:
                ended(reply[0], reply[2])
                answer(reply)

            try:
                with durations.of_trace(parent.trace_id):
                    later(body, answered)
            except BaseException:
                ended(500, b"")
                raise

        traced.handler = handle
        traced.later = None if later is None else handle_later
        return traced

    def _tick(self) -> None:
        self.date = date_line(self._clock.now_us())


def _conditional(handler: Handler, etag: Callable[[], str], if_none_match: bytes | None) -> Handler:
    """``handler`` with its version, and without its body for who has that version (RFC 9110 section 13.1.2)."""
    given = (if_none_match or b"").decode("latin-1")
    known = {tag.strip().removeprefix("W/") for tag in given.split(",")}

    def conditional(body: bytes) -> Reply:
        version = etag()
        status, lines, content = handler(body)
        if status == 200 and (version in known or known == {"*"}):
            status = 304
        return status, f"{lines}ETag: {version}\r\n", content

    return conditional


def _answers_later(_body: bytes) -> Reply:
    raise InternalError("a request that is answered later was treated as one that is answered at once")
