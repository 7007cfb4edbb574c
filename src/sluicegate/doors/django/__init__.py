"""Django: the middleware, ``@ratelimit`` for views, throttle classes for Django REST framework.

    INSTALLED_APPS = ["sluicegate.doors.django", ...]  # for its system check
    MIDDLEWARE = ["sluicegate.doors.django.RateLimitMiddleware", ...]
    SLUICEGATE = {"RULES": BASE_DIR / "rules.yaml", "STORE": "redis://10.0.0.5/0"}

    @ratelimit("5/minute", methods=["POST"])
    def login(request): ...

Settings are read when the first request comes and again whenever a test overrides them; nothing is read on import.
"""

from __future__ import annotations

from sluicegate.errors import MissingExtra

try:
    import django as _django
except ImportError as error:
    raise MissingExtra("django", "sluicegate.doors.django") from error

from sluicegate.doors.django.checks import check_settings
from sluicegate.doors.django.conf import get_limiter, reset
from sluicegate.doors.django.decorator import ratelimit
from sluicegate.doors.django.middleware import RateLimitMiddleware
from sluicegate.doors.django.throttles import AnonThrottle, RateLimitThrottle, ScopedThrottle, UserThrottle
from sluicegate.doors.django.translate import session_user
from sluicegate.doors.web.request import RequestLimits

DJANGO_VERSION = _django.VERSION
"""Of the Django this door runs in."""

__all__ = [
    "DJANGO_VERSION",
    "AnonThrottle",
    "RateLimitMiddleware",
    "RateLimitThrottle",
    "RequestLimits",
    "ScopedThrottle",
    "UserThrottle",
    "check_settings",
    "get_limiter",
    "ratelimit",
    "reset",
    "session_user",
]
