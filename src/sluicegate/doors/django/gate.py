"""Deciding inside Django: for plain requests and for async ones."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from sluicegate.doors.django.conf import Configured
from sluicegate.doors.django.translate import response_of
from sluicegate.doors.refusals import bad_request
from sluicegate.doors.web.callables import awaited, no_awaitable
from sluicegate.doors.web.door import Asked
from sluicegate.doors.web.request import RequestLimits
from sluicegate.errors import ConfigurationError, InvalidRequest

__all__ = ["aadmit", "admit", "arefusal", "refusal"]


def admit(conf: Configured, limits: RequestLimits, asked: Asked) -> HttpResponseBase | None:
    """Decide what is asked. None where it may proceed, else an answer for what cannot be decided; refusals are in ``limits``."""
    try:
        conf.holder.admit(limits, asked)
    except InvalidRequest as error:
        return response_of(bad_request(error))
    return None


async def aadmit(conf: Configured, limits: RequestLimits, asked: Asked) -> HttpResponseBase | None:
    """``admit`` for async requests; a leaky bucket holds a request without holding a thread."""
    try:
        decision = await limits.adecide(*asked)
    except InvalidRequest as error:
        return response_of(bad_request(error))
    if decision.delay_us:
        await conf.holder.hold(limits, asked, decision)
    return None


def refusal(conf: Configured, request: HttpRequest, limits: RequestLimits) -> HttpResponseBase:
    """The answer to a refused request."""
    if conf.on_refused is not None:
        own = no_awaitable("ON_REFUSED", conf.on_refused(request, limits))
        if own is not None:
            return _checked(own)
    return response_of(conf.door.reply(limits))


async def arefusal(conf: Configured, request: HttpRequest, limits: RequestLimits) -> HttpResponseBase:
    """``refusal`` for async requests."""
    if conf.on_refused is not None:
        own = await awaited(conf.on_refused(request, limits))
        if own is not None:
            return _checked(own)
    return response_of(conf.door.reply(limits))


def _checked(own: Any) -> HttpResponseBase:
    if not isinstance(own, HttpResponseBase):
        raise ConfigurationError(f"SLUICEGATE: ON_REFUSED: gave {type(own).__name__}, want a response or None")
    return own
