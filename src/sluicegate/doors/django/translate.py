"""What a Django request says, and answers as Django has them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve

from sluicegate.doors.web.answers import Reply
from sluicegate.doors.web.door import Door
from sluicegate.doors.web.environ import ENVIRON_KEY, environ_facts
from sluicegate.doors.web.request import RequestLimits
from sluicegate.rules.facts import Facts

__all__ = ["ATTRIBUTE", "facts_with", "limits_of", "response_of", "route_of", "session_user", "write_headers"]

ATTRIBUTE: Final = "rate_limit"
"""Of the request: its ``RequestLimits``."""


def limits_of(door: Door, request: HttpRequest) -> RequestLimits:
    """The request's limits, those of an ASGI or WSGI middleware around Django included."""
    found: RequestLimits | None = getattr(request, ATTRIBUTE, None)
    if found is None:
        around: Any = request.scope if isinstance(request, ASGIRequest) else getattr(request, "environ", {})
        found = around.get(ENVIRON_KEY)
        if found is None:
            facts = environ_facts(door, {**request.META, "REQUEST_METHOD": request.method})
            found = around[ENVIRON_KEY] = RequestLimits(facts)
        setattr(request, ATTRIBUTE, found)
    return found


def route_of(request: HttpRequest) -> str | None:
    """The route template, ``users/<int:pk>/``; None where no view serves the path."""
    matched = request.resolver_match
    if matched is None:
        try:
            matched = resolve(request.path_info, getattr(request, "urlconf", None))
        except Resolver404:
            return None
    return matched.route or "/"


def facts_with(limits: RequestLimits, request: HttpRequest, *, route: bool, user: bool) -> Facts:
    """The request's facts, with its route template and the user of Django's session where they are asked for and not known."""
    facts = limits.facts
    if route and facts.route is None:
        facts = msgspec.structs.replace(facts, route=route_of(request))
    if user and facts.user is None:
        known = session_user(request)
        if known is not None:
            facts = msgspec.structs.replace(facts, user=known["user"])
    limits.facts = facts
    return facts


def session_user(request: Any) -> dict[str, str] | None:
    """The user that Django's authentication found, for the setting ``IDENTIFY``; needs its middleware before ours."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return None
    return {"user": str(user.pk)}


def response_of(reply: Reply) -> HttpResponse:
    """A reply of the door."""
    return HttpResponse(reply.body, status=reply.status, content_type=reply.content_type)


def write_headers(door: Door, limits: RequestLimits, response: HttpResponseBase) -> None:
    """Set the rate headers, in the place of those of the same names."""
    for name, value in door.items(limits):
        response[name] = value
