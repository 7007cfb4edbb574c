"""The Flask extension: rules for the whole application, limits beside views and blueprints.

    rate_limit = RateLimit(app, limiter=Limiter.from_file("rules.yaml"), default="100/minute")

    @app.post("/login")
    @rate_limit.limit("5/minute")
    def login(): ...

The rules of the limiter and the defaults are decided before a request is dispatched: every request, also to static files and to paths
that nobody serves. Limits beside views are decided where they stand, so a decorator above one runs before it. Each rule is charged
once per request, and nothing is charged for a request that some rule refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar, cast

import msgspec

from sluicegate.bounds import WSGI_HELD_MAX
from sluicegate.doors.refusals import Reply, bad_request
from sluicegate.doors.web.callables import described, is_async, no_awaitable, require_function, require_plain
from sluicegate.doors.web.declared import Limit, no_rules, stack, texts
from sluicegate.doors.web.door import Asked, Door
from sluicegate.doors.web.environ import ENVIRON_KEY, environ_facts
from sluicegate.doors.web.hold import Holder
from sluicegate.doors.web.request import RequestLimits
from sluicegate.errors import ConfigurationError, InvalidRequest, MissingExtra
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts

try:
    from flask import Blueprint, Flask, Response, current_app, g, request
except ImportError as error:
    raise MissingExtra("flask", "sluicegate.doors.flask") from error

__all__ = ["Limit", "RateLimit", "RequestLimits", "no_rules"]

F = TypeVar("F")
_MARK = "__sluicegate_flask__"


class RateLimit:
    """Limits Flask applications.

    ``limiter``: rules or a quota for every request; ``no_rules(store)`` for limits beside views only, which None means with
    counters in this process. ``default``: quotas
    for every route that has no limit of its own, each route counted apart. ``per`` or ``key``: whose a request is for the defaults and
    for limits that do not say it themselves; ``key`` is a plain function of the request. ``identify``, ``headers``,
    ``retry_jitter_s``, ``random``: see ``Door``; functions get the request. ``on_refused``: called with the ``RequestLimits`` of a refused
    request, gives whatever a view may return, or None for the usual answer; rate headers are added to either.

    With an application factory, make it without ``app`` and call ``init_app``. The result is ``g.rate_limit``. Several on one
    application all apply.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        limiter: Limiter | None = None,
        default: str | Sequence[str] = (),
        per: str | Sequence[str] = ("ip",),
        key: Callable[[Any], Any] | None = None,
        identify: Callable[[Any], Any] | None = None,
        headers: str = "x-ratelimit",
        on_refused: Callable[[RequestLimits], Any] | None = None,
        retry_jitter_s: int = 0,
        random: Random | None = None,
        held_max: int = WSGI_HELD_MAX,
    ) -> None:
        require_function("key", key)
        require_function("on_refused", on_refused)
        require_plain("key", key, "this extension")
        require_plain("on_refused", on_refused, "this extension")
        limiter = no_rules() if limiter is None else limiter
        if not isinstance(limiter, Limiter):
            raise ConfigurationError(f"limiter: want a Limiter, got {type(limiter).__name__}")
        keyed = limiter._live.keyed is not None
        self.door = Door(
            limiter,
            headers=headers,
            key=key if keyed else None,
            identify=identify,
            retry_jitter_s=retry_jitter_s,
            random=random,
        )
        self._whose: dict[str, Any] = {"per": per} if key is None else {"key": key}
        Limit("1/second", **self._whose)  # wrong dimensions are told here, not at the first limit
        quotas = texts("default", default)
        names = ("default", *(f"default-{number}" for number in range(2, len(quotas) + 1)))
        self._defaults = tuple(
            Limit(quota, name=name, **self._whose) for quota, name in zip(quotas, names, strict=False)
        )
        self._on_refused = on_refused
        self._holder = Holder(held_max)
        self._exempt: frozenset[Blueprint] = frozenset()
        self._named: dict[Blueprint, int] = {}
        self._own: dict[Blueprint, list[Limit]] = {}
        """Blueprints with limits of their own that replace the defaults."""
        if app is not None:
            self.init_app(app)

    @property
    def limiter(self) -> Limiter:
        """What decides the rules of the whole application; its store and clock serve the limits beside views, too."""
        return self.door.limiter

    @property
    def enabled(self) -> bool:
        """Whether anything is limited; may be set at any time."""
        return self.limiter.enabled

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self.limiter.enabled = enabled

    def reset(self) -> None:
        """Forget every counter, for tests; raises ConfigurationError for a store that other processes share."""
        self.door.clear()

    def init_app(self, app: Flask) -> None:
        """Put the extension to work on an application."""
        # Ours is the first of the functions before a request, so that none of the application's own runs for a refused one.
        app.before_request_funcs.setdefault(None, []).insert(0, self._before_request)
        app.after_request(self._after_request)
        app.extensions.setdefault("sluicegate", []).append(self)

    # ------------------------------------------------------------------ beside views

    def limit(self, quota: str, *, keep_default: bool = False, **options: Any) -> Callable[[F], F]:
        """A limit on a view, sync or async, or on every view of a blueprint and of those nested in it.

        ``options`` are those of ``Limit``; ``key`` and ``cost`` functions get the request and are plain ones, except on an async
        view. ``keep_default``: the defaults apply as well; else they do not apply to what has a limit of its own.
        Raises ConfigurationError at decoration.
        """
        given = options if "per" in options or "key" in options else {**self._whose, **options}
        declared = Limit(quota, **given)

        def decorator(target: F) -> F:
            if isinstance(target, Blueprint):
                self._limit_blueprint(target, declared, keep_default=keep_default)
                return target
            mine = stack(declared, cast("Callable[..., Any]", target))
            limited = self._limit_coroutine if is_async(target) else self._limit_view
            view = limited(mine.limit, cast("Callable[..., Any]", target))
            if not keep_default:
                self._mark(view, mine.limit)
            return cast("F", mine.mark(view))

        return decorator

    def exempt(self, target: F) -> F:
        """Except a view, or every view of a blueprint and of those nested in it, from the defaults.

        Rules of a file and limits beside views apply to it all the same.
        """
        if isinstance(target, Blueprint):
            self._exempt |= {target}
        else:
            self._mark(target, None)
        return target

    def _mark(self, view: object, limit: Limit | None) -> None:
        """Note on a view what replaces the defaults: a limit of its own, or None: nothing does, it is exempt.

        ``functools.wraps`` of decorators above carries the note on.
        """
        setattr(view, _MARK, (*getattr(view, _MARK, ()), (self, limit)))

    def _limit_blueprint(self, blueprint: Blueprint, declared: Limit, *, keep_default: bool) -> None:
        require_plain("key", declared.key, "a blueprint")
        require_plain("cost", declared.cost, "a blueprint")
        limit = declared
        if limit.name is None:
            below = self._named.get(blueprint, 0)
            self._named[blueprint] = below + 1
            limit = limit.named(blueprint.name if below == 0 else f"{blueprint.name}-{below + 1}")
        blueprint.before_request(functools.partial(self._gate, limit))
        if not keep_default:
            self._own.setdefault(blueprint, []).append(limit)

    def _limit_view(self, limit: Limit, view: Callable[..., Any]) -> Callable[..., Any]:
        require_plain("key", limit.key, described(view))
        require_plain("cost", limit.cost, described(view))

        @functools.wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            refused = self._gate(limit)
            return view(*args, **kwargs) if refused is None else refused

        return limited

    def _limit_coroutine(self, limit: Limit, view: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(view)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            if self.door.switched_on(limit):
                limits = self._limits()
                real = _request()
                asked = await self.door.adeclared(limits, limit, limits.facts, real)
                refused = self._refusal(limits, asked)
                if refused is not None:
                    return refused
            return await view(*args, **kwargs)

        return limited

    # ------------------------------------------------------------------ while a request is served

    def _before_request(self) -> Any:
        limits = self._limits()
        real = _request()
        try:
            asked = self.door.base(limits.facts, real)
        except InvalidRequest as error:
            return _response(bad_request(error))
        if asked is not None:
            if isinstance(asked.what, Facts):
                limits.facts = asked.what
            refused = self._refusal(limits, asked)
            if refused is not None:
                return refused
        if self._defaults and not self._has_own():
            for limit in self._defaults:
                refused = self._gate(limit)
                if refused is not None:
                    return refused
        return None

    def _after_request(self, response: Response) -> Response:
        limits: RequestLimits | None = request.environ.get(ENVIRON_KEY)
        if limits is not None:
            ours = self.door.items(limits, response.status_code)
            for name in self.door.replaced(limits) if ours else ():
                response.headers.remove(name)
            response.headers.extend(ours)
        return response

    def _gate(self, limit: Limit) -> Any:
        """Decide one limit; None where the request may proceed, else what to answer."""
        if not self.door.switched_on(limit):
            return None
        limits = self._limits()
        real = _request()
        return self._refusal(limits, self.door.declared(limits, limit, limits.facts, real))

    def _refusal(self, limits: RequestLimits, asked: Asked) -> Any:
        try:
            self._holder.admit(limits, asked)
        except InvalidRequest as error:
            return _response(bad_request(error))
        if limits.refused is None:
            return None
        if self._on_refused is not None:
            own = no_awaitable("on_refused", self._on_refused(limits))
            if own is not None:
                return own
        return _response(self.door.reply(limits))

    def _limits(self) -> RequestLimits:
        limits: RequestLimits | None = request.environ.get(ENVIRON_KEY)
        if limits is None:
            facts, seen = environ_facts(self.door, request.environ)
            limits = request.environ[ENVIRON_KEY] = RequestLimits(facts, seen=seen, made_by=self.door.resolver)
        else:
            self.door.meet(limits, lambda: environ_facts(self.door, request.environ))
        # Not whether ``g`` has any: an application context that was pushed by hand has those of the request before.
        if g.get("rate_limit") is not limits:
            rule = request.url_rule
            if rule is not None and limits.facts.route is None:
                # Rules of two hosts or subdomains may have the same path.
                limits.facts = msgspec.structs.replace(
                    limits.facts, route=f"{rule.host or rule.subdomain or ''}{rule.rule}"
                )
            g.rate_limit = limits
        return limits

    def _has_own(self) -> bool:
        """Whether the defaults do not apply: the view is exempt, or it or a blueprint it is in has a limit for this method."""
        known = current_app.blueprints
        # A dot in the name of a view need not be a blueprint.
        blueprints = [known[name] for name in request.blueprints if name in known]
        if not self._exempt.isdisjoint(blueprints):
            return True
        view = current_app.view_functions.get(request.endpoint or "")
        own: list[Limit | None] = [
            limit
            for function in (view, _method_of(view, request.method))
            for owner, limit in getattr(function, _MARK, ())
            if owner is self
        ]
        own += [limit for blueprint in blueprints if blueprint in self._own for limit in self._own[blueprint]]
        return any(
            limit is None or not limit.methods or request.method in {method.upper() for method in limit.methods}
            for limit in own
        )


def _method_of(view: object, method: str) -> object:
    """The method of a class-based view that serves a request; None where the view is no class, or has none for it."""
    kind = getattr(view, "view_class", None)
    found = getattr(kind, method.lower(), None)
    return getattr(kind, "get", None) if found is None and method == "HEAD" else found


def _request() -> Any:
    """The request itself: what a key function keeps must not become another request later."""
    return request._get_current_object()  # type: ignore[attr-defined]


def _response(reply: Reply) -> Response:
    return Response(reply.body, reply.status, content_type=reply.content_type)
