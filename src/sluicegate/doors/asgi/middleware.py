"""The middleware itself: decide, then serve or refuse."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from random import Random
from typing import Any, TypeAlias, cast

import msgspec

from sluicegate.bounds import ASGI_HELD_MAX
from sluicegate.doors.asgi.exchange import Exchange, HttpExchange, SocketExchange
from sluicegate.doors.asgi.handlers import handle_refusals
from sluicegate.doors.asgi.translate import SCOPE_KEY, App, Receive, Scope, Send, facts_of, innermost
from sluicegate.doors.refusals import bad_request
from sluicegate.doors.web.callables import answering, awaited, require_function, require_plain, template_of
from sluicegate.doors.web.declared import Limit
from sluicegate.doors.web.door import Asked, Door
from sluicegate.doors.web.hold import Holder
from sluicegate.doors.web.request import Refusal, RequestLimits
from sluicegate.doors.web.routes import RouteTables
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts

__all__ = ["Current", "RateLimitMiddleware", "current"]

_MESSAGES = "messages"


Current: TypeAlias = "tuple[RateLimitMiddleware, RequestLimits, Scope]"
"""The request that the running code belongs to: the door it came through, its limits, its scope."""

current: ContextVar[Current | None] = ContextVar("sluicegate_request", default=None)
"""Set while the application serves a request; threads that frameworks start for a handler inherit it."""


class RateLimitMiddleware:
    """Limits an ASGI application by a limiter's rules.

    ``limiter``, ``key``, ``identify``, ``headers``, ``retry_jitter_s``, ``random``: see ``Door``; functions get the scope and may
    be coroutine functions. ``endpoint``: what ``endpoint`` in a rule means: ``route`` is the route template of Starlette and
    FastAPI applications (and of Litestar's, inside its stack), ``path`` the raw path, so that every path is counted apart; a
    function of the scope gives a template itself, or None. ``on_refused``: called with scope and ``RequestLimits`` of a refused
    request, gives an ASGI application that answers it, such as a Starlette response, or None for the usual answer; rate
    headers are added to either. ``messages``: a quota or a ``Limit`` for the messages a client sends over its WebSockets;
    who sends more is disconnected with code 1008. ``held_max``: how many requests may wait for their turn (leaky_bucket).

    The result is ``request.state.rate_limit`` and ``scope["sluicegate.rate_limit"]``. Where several of these middlewares stand around
    each other, all decide, each limiter once, and the outermost writes the headers of all.
    """

    def __init__(
        self,
        app: App,
        limiter: Limiter,
        *,
        headers: str = "x-ratelimit",
        key: Callable[[Scope], Any] | None = None,
        identify: Callable[[Scope], Any] | None = None,
        endpoint: str | Callable[[Scope], str | None] = "route",
        on_refused: Callable[[Scope, RequestLimits], Any] | None = None,
        messages: str | Limit | None = None,
        retry_jitter_s: int = 0,
        random: Random | None = None,
        held_max: int = ASGI_HELD_MAX,
    ) -> None:
        self.app = app
        self.door = Door(
            limiter,
            headers=headers,
            key=key,
            identify=identify,
            retry_jitter_s=retry_jitter_s,
            random=random,
            awaits=True,
        )
        if not (callable(endpoint) or endpoint in {"route", "path"}):
            raise ConfigurationError(f"endpoint: want 'route', 'path' or a function of the scope, got {endpoint!r:.64}")
        require_plain("endpoint", endpoint, "the place that needs it")
        require_function("on_refused", on_refused)
        if not (messages is None or isinstance(messages, (str, Limit))):
            raise ConfigurationError(f"messages: want a quota or a Limit, got {messages!r:.64}")
        self._endpoint = endpoint
        self._on_refused = on_refused
        self._messages = Limit(messages, name=_MESSAGES, shared=True) if isinstance(messages, str) else messages
        self.holder = Holder(held_max)
        self._routes = RouteTables()
        self._inner = innermost(app)
        handle_refusals(self._inner, _limits_now)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        limits = scope.get(SCOPE_KEY)
        if limits is None:
            limits = self.begin(scope)
        else:
            self.door.meet(limits, lambda: facts_of(self.door, scope))
            if self.door.by_endpoint:
                self.with_route(limits, scope)
        exchange: Exchange
        if kind == "http":
            exchange = HttpExchange(self.door, limits, scope, receive, send)
        else:
            admits = None if self._messages is None else self._message_gate(limits, scope)
            exchange = SocketExchange(self.door, limits, scope, receive, send, admits)
        try:
            if self.door.plain and not self.door.limiter.waits:
                # The usual case, without a coroutine for each step.
                asked = self.door.base(limits.facts, scope)
                if asked is not None:
                    decision = limits.decide(*asked)
                    if decision.allowed and decision.delay_us:
                        await self.holder.hold(limits, asked, decision)
            else:
                await self._decide(limits, scope)
        except InvalidRequest as error:
            await exchange.answer(bad_request(error))
            return
        if limits.refused is not None:
            await self._refuse(exchange)
            return
        await self._serve(exchange)

    async def _serve(self, exchange: Exchange) -> None:
        token = current.set((self, exchange.limits, exchange.scope))
        try:
            await self.app(exchange.scope, exchange.receive, exchange.send)
            if exchange.dropped:
                await (exchange.stop() if exchange.begun else self._refuse(exchange))
            elif exchange.refused:
                await exchange.limits.settle()
        except Exception as error:
            # A limit beside a route refused. Somebody else's error, or one after an HTTP answer began, is not ours to tell.
            if not _is_ours(error, exchange.limits):
                raise
            if not exchange.begun:
                await self._refuse(exchange)
            elif not await exchange.stop():
                raise
        finally:
            current.reset(token)

    async def _decide(self, limits: RequestLimits, scope: Scope) -> None:
        asked = await self.door.abase(limits.facts, scope)
        if asked is not None:
            if type(asked.what) is Facts:
                limits.facts = asked.what
            await self.admit(limits, asked)

    async def admit(self, limits: RequestLimits, asked: Asked) -> Decision:
        """Decide what is asked, and hold the request where a rule says so."""
        if asked.limiter.waits:
            decision = await limits.adecide(*asked)
        else:
            decision = limits.decide(*asked)
        return await self.holder.hold(limits, asked, decision) if decision.delay_us else decision

    async def admit_declared(
        self, limits: RequestLimits, limit: Limit, scope: Scope, request: Any, refusal: Refusal = Refusal.FINAL
    ) -> Decision:
        """Decide a limit beside a route. ``request``: what its functions get."""
        facts = self.with_route(limits, scope)
        if limit.plain:
            asked = self.door.declared(limits, limit, facts, request)
        else:
            asked = await self.door.adeclared(limits, limit, facts, request)
        if refusal is not Refusal.FINAL:
            asked = asked._replace(refusal=refusal)
        if asked.limiter.waits:
            return await self.admit(limits, asked)
        decision = limits.decide(*asked)
        return await self.holder.hold(limits, asked, decision) if decision.delay_us else decision

    async def _refuse(self, exchange: Exchange) -> None:
        if exchange.limits.refused is None:
            assert exchange.limits.invalid is not None
            await exchange.answer(bad_request(exchange.limits.invalid))
            return
        await exchange.limits.settle()
        if self._on_refused is not None:
            own = answering(await awaited(self._on_refused(exchange.scope, exchange.limits)))
            if own is not None:
                await exchange.delegate(own)
                return
        await exchange.answer(self.door.reply(exchange.limits))

    def _message_gate(self, limits: RequestLimits, scope: Scope) -> Callable[[], Any]:
        async def admits() -> bool:
            limit = cast("Limit", self._messages)
            if not self.door.switched_on(limit):
                return True
            try:
                asked = await self.door.adeclared(limits, limit, self.with_route(limits, scope), scope)
                # Each message is a charge of its own, so it is not one of the request's decisions.
                decision = await asked.limiter.acheck(asked.what, asked.cost)
            except InvalidRequest:
                return False
            return decision.allowed and (not decision.delay_us or await self.holder.wait(decision.delay_us))

        return admits

    # ------------------------------------------------------------------ what is known of a request

    def begin(self, scope: Scope) -> RequestLimits:
        """Note a request that no door has seen yet."""
        facts, seen = facts_of(self.door, scope)
        origin = (scope.get("app") or self._inner, scope.get("root_path", ""))
        if self.door.by_endpoint:
            facts = msgspec.structs.replace(facts, route=self._route(scope, origin))
        limits = scope[SCOPE_KEY] = RequestLimits(facts, origin, seen, self.door.resolver)
        state = scope.get("state")
        if state is None:
            state = scope["state"] = {}
        state["rate_limit"] = limits
        return limits

    def with_route(self, limits: RequestLimits, scope: Scope) -> Facts:
        """The request's facts, the route template among them."""
        if limits.facts.route is None:
            limits.facts = msgspec.structs.replace(limits.facts, route=self._route(scope, limits.origin))
        return limits.facts

    def _route(self, scope: Scope, origin: tuple[object, str]) -> str | None:
        """What ``endpoint`` means for this request."""
        endpoint = self._endpoint
        if callable(endpoint):
            return template_of(endpoint(scope))
        if endpoint == "path":
            return cast("str", scope["path"])
        # Litestar says it, once it has found the route.
        return scope.get("path_template") or self._routes.template(origin[0], scope, origin[1])


def _limits_now() -> RequestLimits | None:
    found = current.get()
    return None if found is None else found[1]


def _is_ours(error: BaseException, limits: RequestLimits) -> bool:
    """Whether an error says nothing but that a limit refused this request, or could not decide it; a task group wraps those of its tasks."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_ours(inner, limits) for inner in error.exceptions)
    return limits.stopped_by(error)
