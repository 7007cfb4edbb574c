"""Throttle classes for Django REST framework.

They need no import of it: a throttle is whatever has ``allow_request`` and ``wait``. Rates are looked up when a request comes,
so overridden settings hold. Unlike the framework's own, all throttles of a view are all or nothing: a request that one of them refuses is
charged to none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from django import conf as django_conf

from sluicegate.bounds import THROTTLE_LIMITS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.doors.django.conf import configured
from sluicegate.doors.django.translate import limits_of, session_user, with_user
from sluicegate.doors.web.callables import no_awaitable
from sluicegate.doors.web.declared import Limit
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.decision import Decision

__all__ = ["AnonThrottle", "RateLimitThrottle", "ScopedThrottle", "UserThrottle"]

_limits: dict[tuple[str, str, tuple[str, ...], str, str], Limit] = {}


class RateLimitThrottle:
    """A limit on everything that uses this class; subclass it and set ``rate``, or ``scope`` and a rate in the settings.

    ``rate``: a quota such as ``"100/day"``; None looks ``scope`` up in ``DEFAULT_THROTTLE_RATES``, where None means no limit. ``per``:
    whose a request is, as in a rules file; ``user`` is the user that the framework authenticated, and who is not logged in counts by
    address. ``algorithm``, ``on_store_failure``: as in a rules file; the framework's own throttles are a ``sliding_log``. One counter for all views
    with this scope, by the name of ``scope``, else of the class.
    """

    scope: str | None = None
    rate: str | None = None
    per: str | tuple[str, ...] = "user"
    algorithm: str = "token_bucket"
    on_store_failure: str = "local"

    def __init__(self) -> None:
        self._decision: Decision | None = None

    def allow_request(self, request: Any, view: Any) -> bool:
        """Decide one request; what the framework calls."""
        quota = self.quota(request, view)
        conf = configured()
        if quota is None:
            return True
        limit = self._limit(quota)
        if not conf.door.switched_on(limit):
            return True
        django_request = getattr(request, "_request", request)
        limits = limits_of(conf.door, django_request)
        if "user" in limit.per:
            # The framework's request: asked for its user it authenticates by the view's own classes.
            with_user(limits, no_awaitable("user", session_user(request)))
        self._decision = decision = conf.holder.admit(limits, conf.door.declared(limits, limit, limits.facts, request))
        if not decision.allowed:
            # As the middleware will tell it in header fields, jitter included.
            self._decision = conf.door.told(limits)
        if decision.refusal == "store":
            raise _out_of_reach(self.wait())
        return decision.allowed

    def wait(self) -> float | None:
        """Seconds until the refused request would pass; None where it never will."""
        if self._decision is None or self._decision.retry_after_us is None:
            return None
        return self._decision.retry_after_us / US_PER_S

    def quota(self, request: Any, view: Any) -> str | None:  # noqa: ARG002 - subclasses look at them
        """The quota for a request; None for no limit."""
        if self.rate is not None:
            return self.rate
        if self.scope is None:
            raise ConfigurationError(f"{type(self).__qualname__}: set `rate`, or `scope` and a rate in the settings")
        rates = _framework_settings().get("DEFAULT_THROTTLE_RATES") or {}
        if self.scope not in rates:
            raise ConfigurationError(f"DEFAULT_THROTTLE_RATES: no rate for the scope {self.scope!r}")
        found: str | None = rates[self.scope]
        return found

    def _name(self) -> str:
        """The scope, unless it is a base class's and a class derived from it sets a rate of its own: two of those are two limits."""
        if self.scope is not None and (self.rate is None or not _sets_first(type(self), "rate", "scope")):
            return self.scope
        return type(self).__name__

    def _limit(self, quota: str) -> Limit:
        name = self._name()
        per = (self.per,) if isinstance(self.per, str) else self.per
        key = (name, quota, per, self.algorithm, self.on_store_failure)
        found = _limits.get(key)
        if found is None:
            if len(_limits) >= THROTTLE_LIMITS_MAX:
                _limits.clear()
            found = _limits[key] = Limit(
                quota,
                name=name,
                per=per,
                shared=True,
                algorithm=self.algorithm,
                on_store_failure=self.on_store_failure,
            )
        return found


class UserThrottle(RateLimitThrottle):
    """Everybody: users by their id, others by address; rate of the scope ``user``."""

    scope = "user"


class AnonThrottle(RateLimitThrottle):
    """Those who are not logged in, by address; rate of the scope ``anon``."""

    scope = "anon"
    per = "ip"

    def quota(self, request: Any, view: Any) -> str | None:
        return None if request.user and request.user.is_authenticated else super().quota(request, view)


class ScopedThrottle(RateLimitThrottle):
    """By the view's ``throttle_scope``; a view without one is not limited."""

    def quota(self, request: Any, view: Any) -> str | None:
        self.scope = getattr(view, "throttle_scope", None)
        return None if self.scope is None else super().quota(request, view)


def _sets_first(kind: type, name: str, other: str) -> bool:
    """Whether, looking from ``kind`` upwards, a class that sets ``name`` comes before any that sets ``other``."""
    setting = next(base.__dict__ for base in kind.__mro__ if name in base.__dict__ or other in base.__dict__)
    return name in setting and other not in setting


def _out_of_reach(wait_s: float | None) -> Exception:
    """What the framework answers with 503: of a throttle it knows no other answer than 429, which would blame the client."""
    from rest_framework.exceptions import APIException

    error = APIException("The counters that decide this request are out of reach for the moment.", "store_unavailable")
    error.status_code = 503
    error.wait = math.ceil(wait_s or 1)
    return cast("Exception", error)


def _framework_settings() -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(django_conf.settings, "REST_FRAMEWORK", {})
    return found
