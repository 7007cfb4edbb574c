"""``@ratelimit`` for views."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.doors.django.conf import Configured, configured
from sluicegate.doors.django.gate import aadmit, admit, arefusal, refusal
from sluicegate.doors.django.translate import limits_of, session_user, with_route, with_user, write_headers
from sluicegate.doors.web.callables import awaited, described, is_async, no_awaitable, require_plain, require_target
from sluicegate.doors.web.declared import Limit, Stacked, limits_on, stack
from sluicegate.doors.web.request import Refusal, RequestLimits
from sluicegate.errors import ConfigurationError

__all__ = ["ratelimit"]

V = TypeVar("V", bound=Callable[..., Any])


def ratelimit(quota: str, *, block: bool = True, **options: Any) -> Callable[[V], V]:
    """A limit on a view: a function, sync or async, or by ``method_decorator`` a method of a class-based view.

    ``options`` are those of ``Limit``; ``key`` and ``cost`` functions get the request. ``per="user"`` counts the user of Django's
    session where the rules know none, and the address of those who are not logged in. ``block`` False: the view runs even where the limit
    refuses, and finds that in ``request.rate_limit.allowed``.

    Raises ConfigurationError at decoration for what cannot be read, and for a coroutine function as ``key`` or ``cost`` of a
    plain view.
    """
    declared = Limit(quota, **options)
    made: WeakKeyDictionary[Any, dict[int, Limit]] = WeakKeyDictionary()

    def decorator(view: V) -> V:
        mine = _stacked(declared, view, made)
        if _is_async_view(view):
            return cast("V", mine.mark(_limit_coroutine(mine.limit, view, block=block)))
        name = described(view)
        require_plain("key", declared.key, name)
        require_plain("cost", declared.cost, name)
        return cast("V", mine.mark(_limit_view(mine.limit, view, block=block)))

    return decorator


def _stacked(declared: Limit, view: Any, made: WeakKeyDictionary[Any, dict[int, Limit]]) -> Stacked:
    """``stack``, which makes a limit once for each function: ``method_decorator`` decorates anew for every request."""
    require_target(view)
    try:
        known = made.setdefault(inspect.unwrap(view), {})
    except TypeError:
        # What cannot be referred to weakly is no method.
        return stack(declared, view)
    below = limits_on(view)
    limit = known.get(len(below))
    if limit is None:
        limit = known[len(below)] = stack(declared, view).limit
    return Stacked(limit, below)


def _is_async_view(view: Any) -> bool:
    """Whether what it gives is awaited; also of ``as_view()``, and of ``dispatch`` of a class with async methods, which is plain itself."""
    while not (is_async(view) or iscoroutinefunction(view)):
        if isinstance(view, functools.partial):
            view = view.func
        elif hasattr(view, "__self__"):
            return bool(getattr(view.__self__, "view_is_async", False))
        elif hasattr(view, "__wrapped__"):
            view = view.__wrapped__
        else:
            return False
    return True


def _limit_view(limit: Limit, view: Callable[..., Any], *, block: bool) -> Callable[..., Any]:
    @functools.wraps(view)
    def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        conf = configured()
        if not conf.door.switched_on(limit):
            return view(request, *args, **kwargs)
        limits = _limits(conf, limit, request)
        if "user" in limit.per:
            with_user(limits, no_awaitable("user", session_user(request)))
        asked = conf.door.declared(limits, limit, limits.facts, request)
        response = admit(conf, limits, asked if block else asked._replace(refusal=Refusal.NOTED))
        if response is None:
            refused = limits.refused is not None
            response = refusal(conf, request, limits) if refused else view(request, *args, **kwargs)
        return _headed(conf, limits, response)

    return limited


def _limit_coroutine(limit: Limit, view: Callable[..., Any], *, block: bool) -> Callable[..., Any]:
    @functools.wraps(view)
    async def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        conf = configured()
        if not conf.door.switched_on(limit):
            return await view(request, *args, **kwargs)
        limits = _limits(conf, limit, request)
        if "user" in limit.per:
            with_user(limits, await awaited(session_user(request)))
        asked = await conf.door.adeclared(limits, limit, limits.facts, request)
        response = await aadmit(conf, limits, asked if block else asked._replace(refusal=Refusal.NOTED))
        if response is None:
            refused = limits.refused is not None
            response = await arefusal(conf, request, limits) if refused else await view(request, *args, **kwargs)
        return _headed(conf, limits, response)

    return limited


def _limits(conf: Configured, limit: Limit, request: Any) -> RequestLimits:
    if not isinstance(request, HttpRequest):
        request = getattr(request, "_request", request)  # that of Django REST framework wraps it
    if not isinstance(request, HttpRequest):
        raise ConfigurationError(
            f"ratelimit: {type(request).__name__} is no request; on a class-based view use "
            'method_decorator(ratelimit(...), name="dispatch")'
        )
    limits = limits_of(conf.door, request)
    if not limit.shared:
        with_route(limits, request)
    return limits


def _headed(conf: Configured, limits: RequestLimits, response: Any) -> Any:
    """With the middleware headers are written once more, by the last word; without it only here."""
    if isinstance(response, HttpResponseBase):
        write_headers(conf.door, limits, response)
    return response
