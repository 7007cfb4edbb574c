"""WSGI middleware: any application that a WSGI server calls.

    app = RateLimitMiddleware(app, limiter=Limiter.from_file("rules.yaml"))

It decides before the application is called, and adds rate headers to the head of the answer. The body is the application's own iterable,
untouched. A store over the network is waited for in the server's thread; with its deadline that is milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from random import Random
from typing import Any, TypeAlias

import msgspec

from sluicegate.bounds import WSGI_HELD_MAX
from sluicegate.doors.refusals import Reply, bad_request
from sluicegate.doors.web.callables import answering, no_awaitable, require_function, require_plain, template_of
from sluicegate.doors.web.door import Door
from sluicegate.doors.web.environ import ENVIRON_KEY, environ_facts
from sluicegate.doors.web.hold import Holder
from sluicegate.doors.web.request import RequestLimits
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts

__all__ = ["ENVIRON_KEY", "RateLimitMiddleware", "RequestLimits"]

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Callable[[bytes], object]]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]


class RateLimitMiddleware:
    """Limits a WSGI application by a limiter's rules.

    ``limiter``, ``key``, ``identify``, ``headers``, ``retry_jitter_s``, ``random``: see ``Door``; functions get the environment and are
    plain ones. ``endpoint``: a function of the environment that gives the route template; None: rules count by the pattern they
    matched. ``on_refused``: called with environment and ``RequestLimits`` of a refused request, gives a WSGI application that
    answers it, such as a Werkzeug response, or None for the usual answer; rate headers are added to either. ``held_max``:
    how many requests may wait for their turn (leaky_bucket), each in a thread of the server.

    The result is ``environ["sluicegate.rate_limit"]``. Where several stand around each other all decide, each limiter once.
    """

    def __init__(
        self,
        app: App,
        limiter: Limiter,
        *,
        headers: str = "x-ratelimit",
        key: Callable[[Environ], Any] | None = None,
        identify: Callable[[Environ], Any] | None = None,
        endpoint: Callable[[Environ], str | None] | None = None,
        on_refused: Callable[[Environ, RequestLimits], Any] | None = None,
        retry_jitter_s: int = 0,
        random: Random | None = None,
        held_max: int = WSGI_HELD_MAX,
    ) -> None:
        self.app = app
        self.door = Door(
            limiter, headers=headers, key=key, identify=identify, retry_jitter_s=retry_jitter_s, random=random
        )
        require_function("endpoint", endpoint)
        require_function("on_refused", on_refused)
        require_plain("endpoint", endpoint, "this door")
        require_plain("on_refused", on_refused, "this door")
        self._endpoint = endpoint
        self._on_refused = on_refused
        self._holder = Holder(held_max)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        limits: RequestLimits | None = environ.get(ENVIRON_KEY)
        if limits is None:
            limits = environ[ENVIRON_KEY] = self._begin(environ)
        else:
            self.door.meet(limits, lambda: environ_facts(self.door, environ))
        start = self._starting(limits, start_response)
        try:
            asked = self.door.base(limits.facts, environ)
            if asked is not None:
                if isinstance(asked.what, Facts):
                    limits.facts = asked.what
                self._holder.admit(limits, asked)
        except InvalidRequest as error:
            return _answer(bad_request(error), environ, start)
        if limits.refused is None:
            return self.app(environ, start)
        if self._on_refused is not None:
            own = answering(no_awaitable("on_refused", self._on_refused(environ, limits)))
            if own is not None:
                found: Iterable[bytes] = own(environ, start)
                return found
        return _answer(self.door.reply(limits), environ, start)

    def _begin(self, environ: Environ) -> RequestLimits:
        facts, seen = environ_facts(self.door, environ)
        if self._endpoint is not None:
            facts = msgspec.structs.replace(facts, route=template_of(self._endpoint(environ)))
        return RequestLimits(facts, seen=seen, made_by=self.door.resolver)

    def _starting(self, limits: RequestLimits, start_response: StartResponse) -> StartResponse:
        """``start_response`` that adds the rate headers, in the place of those of the same names."""
        door = self.door

        def start(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Callable[[bytes], object]:
            ours = door.items(limits, int(status[:3]))
            if ours:
                names = door.replaced(limits)
                headers = [*(pair for pair in headers if pair[0].lower() not in names), *ours]
            return start_response(status, headers, *exc_info)

        return start


def _answer(reply: Reply, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    start(
        f"{reply.status} {HTTPStatus(reply.status).phrase}",
        [("Content-Type", reply.content_type), ("Content-Length", str(len(reply.body)))],
    )
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [reply.body]
