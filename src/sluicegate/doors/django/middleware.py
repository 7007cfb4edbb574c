"""The middleware: the rules of the whole site, and rate headers on every answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.doors.django.conf import Configured, configured
from sluicegate.doors.django.gate import aadmit, admit, arefusal, refusal
from sluicegate.doors.django.translate import limits_of, with_route, write_headers
from sluicegate.doors.web.door import Asked
from sluicegate.doors.web.request import RequestLimits
from sluicegate.errors import ConfigurationError
from sluicegate.rules.facts import Facts

__all__ = ["RateLimitMiddleware"]


class RateLimitMiddleware:
    """Decides before a view is called, for sync and async requests; see the setting ``SLUICEGATE``.

    Put it first, so that nothing is done for a refused request; or, where ``IDENTIFY`` looks at ``request.user``, right after
    ``AuthenticationMiddleware``. The result is ``request.rate_limit``.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._awaits = iscoroutinefunction(get_response)
        if self._awaits:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self._awaits:
            return self._acall(request)
        conf = configured()
        if conf.waits_for is not None:
            raise ConfigurationError(
                f"SLUICEGATE: {conf.waits_for}: is a coroutine function, which a site under WSGI cannot await"
            )
        limits = self._limits(conf, request)
        asked = conf.door.base(limits.facts, request)
        response = None if asked is None else admit(conf, limits, _noted(limits, asked))
        if response is None:
            served = limits.refused is None
            response = self.get_response(request) if served else refusal(conf, request, limits)
        write_headers(conf.door, limits, response)
        return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        conf = configured()
        limits = self._limits(conf, request)
        asked = await conf.door.abase(limits.facts, request)
        response = None if asked is None else await aadmit(conf, limits, _noted(limits, asked))
        if response is None:
            served = limits.refused is None
            response = await self.get_response(request) if served else await arefusal(conf, request, limits)
        write_headers(conf.door, limits, response)
        return response

    @staticmethod
    def _limits(conf: Configured, request: HttpRequest) -> RequestLimits:
        limits = limits_of(conf.door, request)
        if conf.door.by_endpoint:
            with_route(limits, request)
        return limits


def _noted(limits: RequestLimits, asked: Asked) -> Asked:
    """What the application vouched for holds for the limits beside views, too."""
    if isinstance(asked.what, Facts):
        limits.facts = asked.what
    return asked
