"""What a Django request says, and answers as Django has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve

from sluicegate.doors.asgi.translate import facts_of
from sluicegate.doors.refusals import Reply
from sluicegate.doors.web.callables import on_event_loop
from sluicegate.doors.web.door import Door
from sluicegate.doors.web.environ import ENVIRON_KEY, environ_facts
from sluicegate.doors.web.request import RequestLimits, Seen
from sluicegate.rules.facts import Facts

__all__ = [
    "ATTRIBUTE",
    "limits_of",
    "response_of",
    "route_of",
    "session_user",
    "with_route",
    "with_user",
    "write_headers",
]

ATTRIBUTE: Final = "rate_limit"
"""Of the request: its ``RequestLimits``."""


def limits_of(door: Door, request: HttpRequest) -> RequestLimits:
    """The request's limits, those of an ASGI or WSGI middleware around Django included."""
    found: RequestLimits | None = getattr(request, ATTRIBUTE, None)
    if found is None:
        around: Any = request.scope if isinstance(request, ASGIRequest) else getattr(request, "environ", {})
        found = around.get(ENVIRON_KEY)
        if found is None:
            facts, seen = _facts(door, request)
            found = around[ENVIRON_KEY] = RequestLimits(facts, seen=seen, made_by=door.resolver)
        else:
            door.meet(found, lambda: _facts(door, request))
        setattr(request, ATTRIBUTE, found)
    return found


def _facts(door: Door, request: HttpRequest) -> tuple[Facts, Seen]:
    if isinstance(request, ASGIRequest):
        # Not from META: it tells neither repeated headers nor names with underscores apart, nor a Unix socket from a lost peer.
        return facts_of(door, request.scope)
    return environ_facts(door, {**request.META, "REQUEST_METHOD": request.method})


def route_of(request: HttpRequest) -> str | None:
    """The route template, ``users/<int:pk>/``; None where no view serves the path."""
    matched = request.resolver_match
    if matched is None:
        try:
            matched = resolve(request.path_info, getattr(request, "urlconf", None))
        except Resolver404:
            return None
    return matched.route or "/"


def with_route(limits: RequestLimits, request: HttpRequest) -> None:
    """Add the route template to the request's facts, where it is not known yet."""
    if limits.facts.route is None:
        limits.facts = msgspec.structs.replace(limits.facts, route=route_of(request))


def with_user(limits: RequestLimits, known: Mapping[str, str] | None) -> None:
    """Add the user of Django's session to the request's facts, where the rules know none."""
    if known is not None and limits.facts.user is None:
        limits.facts = msgspec.structs.replace(limits.facts, user=known["user"])


def session_user(request: Any) -> Any:
    """The user that Django's authentication found, for the setting ``IDENTIFY``; needs its middleware before ours.

    Gives ``{"user": ID}`` or None; in an async request, where the session may not be read at once, something to await.
    """
    if not hasattr(request, "user"):
        return None
    if hasattr(request, "auser") and on_event_loop():
        return _asession_user(request)
    return _known(request.user)


async def _asession_user(request: Any) -> dict[str, str] | None:
    return _known(await request.auser())


def _known(user: Any) -> dict[str, str] | None:
    return {"user": str(user.pk)} if user is not None and user.is_authenticated else None


def response_of(reply: Reply) -> HttpResponse:
    """A reply of the door."""
    return HttpResponse(reply.body, status=reply.status, content_type=reply.content_type)


def write_headers(door: Door, limits: RequestLimits, response: HttpResponseBase) -> None:
    """Set the rate headers, in the place of those of the same names."""
    ours = door.items(limits, response.status_code)
    for name in door.replaced(limits) if ours else ():
        del response[name]
    for name, value in ours:
        response[name] = value
