"""FastAPI: ``Depends(limit("100/minute"))``, and the ASGI middleware.

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limiter=Limiter.from_file("rules.yaml"))

    @app.get("/search", dependencies=[Depends(limit("100/minute"))])
    async def search(q: str): ...

With the middleware a limit counts in the store of its limiter, every answer carries rate headers, and a refusal is a problem document.
Without it a limit counts in this process, a refusal is an ``HTTPException`` with status 429, and rate headers are on refusals and on
what an endpoint returns as data, but not on a ``Response`` that it makes itself.
"""

# No postponed annotations here: FastAPI reads those of ``Dependency.__call__``.
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sluicegate.clock import US_PER_S
from sluicegate.doors.asgi import RateLimitMiddleware, RequestLimits
from sluicegate.doors.asgi.middleware import current
from sluicegate.doors.asgi.translate import SCOPE_KEY
from sluicegate.doors.web.declared import Limit, no_rules
from sluicegate.errors import InvalidRequest, MissingExtra, RateLimited
from sluicegate.limiter.decision import Decision
from sluicegate.limiter.limiter import Limiter

try:
    from fastapi import HTTPException, Response, WebSocketException
    from fastapi.requests import HTTPConnection
except ImportError as error:
    raise MissingExtra("fastapi", "sluicegate.doors.fastapi") from error

__all__ = ["Dependency", "Limit", "RateLimitMiddleware", "RequestLimits", "limit", "no_rules"]


class _HttpRefusal(RateLimited, HTTPException):
    """A refusal where no middleware answers it: FastAPI's own handler does."""

    def __init__(self, decision: Decision, status: int, headers: Mapping[str, str]) -> None:
        # Not by the constructor of RateLimited, which would hand its message to HTTPException, as a status.
        told = RateLimited(decision, decision.rule, _retry_after_s(decision))
        HTTPException.__init__(self, status, str(told), dict(headers))
        self.decision, self.rule, self.retry_after_s = told.decision, told.rule, told.retry_after_s


class Dependency:
    """What ``limit`` gives; called by FastAPI for HTTP and WebSocket routes. Safe to use on any number of routes and routers."""

    def __init__(self, declared: Limit) -> None:
        self.declared = declared

    @functools.cached_property
    def _alone(self) -> RateLimitMiddleware:
        """What decides where no middleware is around."""
        return RateLimitMiddleware(_nowhere, self.declared.limiter or _in_process)

    async def __call__(self, connection: HTTPConnection, response: Response) -> RequestLimits:
        scope = connection.scope
        found = current.get()
        limits: RequestLimits | None = scope.get(SCOPE_KEY)
        if found is not None and found[1] is limits:
            door, known, _ = found
            if door.door.switched_on(self.declared):
                own = await door.admit_declared(known, self.declared, scope, connection)
                if not own.allowed:
                    refused = known.decision or own
                    raise RateLimited(refused, refused.rule, _retry_after_s(refused))
            return known
        if limits is None:
            limits = self._alone.begin(scope)
        await self._decide_alone(limits, connection)
        response.headers.update(dict(self._alone.door.items(limits, 200)))
        return limits

    async def _decide_alone(self, limits: RequestLimits, connection: HTTPConnection) -> None:
        if self._alone.door.switched_on(self.declared):
            try:
                await self._alone.admit_declared(limits, self.declared, connection.scope, connection)
            except InvalidRequest as error:
                if connection.scope["type"] == "websocket":
                    raise WebSocketException(_POLICY_VIOLATION, "cannot be decided") from error
                raise HTTPException(400, str(error)) from error
        decision = self._alone.door.told(limits)
        if decision is None or decision.allowed:
            return
        if connection.scope["type"] == "websocket":
            raise WebSocketException(_POLICY_VIOLATION, "rate limit exceeded")
        status = 503 if decision.refusal == "store" else 429
        raise _HttpRefusal(decision, status, dict(self._alone.door.items(limits, status)))

    def __repr__(self) -> str:
        return f"Depends({self.declared!r})"


def limit(
    quota: str,
    *,
    per: str | Sequence[str] = ("ip",),
    key: Callable[[HTTPConnection], Any] | None = None,
    name: str | None = None,
    shared: bool = False,
    cost: int | Callable[[HTTPConnection], Any] = 1,
    methods: Sequence[str] = (),
    algorithm: str = "token_bucket",
    on_missing: str = "ip",
    on_store_failure: str = "local",
    limiter: Limiter | None = None,
) -> Dependency:
    """A dependency that limits the routes it is on: ``Depends(limit("100/minute"))``, on a route, a router or an application.

    The arguments are those of ``Limit``; ``key`` and ``cost`` get the ``Request`` or ``WebSocket`` and may be coroutine functions.
    An endpoint that wants the result takes it as the dependency's value, or from ``request.state.rate_limit``.
    """
    return Dependency(
        Limit(
            quota,
            per=per,
            key=key,
            name=name,
            shared=shared,
            cost=cost,
            methods=methods,
            algorithm=algorithm,
            on_missing=on_missing,
            on_store_failure=on_store_failure,
            limiter=limiter,
        )
    )


async def _nowhere(*_: Any) -> None:
    """The application of a middleware that stands around none."""


def _retry_after_s(decision: Decision) -> float | None:
    return None if decision.retry_after_us is None else decision.retry_after_us / US_PER_S


_POLICY_VIOLATION = 1008
_in_process = no_rules()
"""Whose store the limits of applications without the middleware use."""
