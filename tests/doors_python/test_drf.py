"""Throttle classes for Django REST framework."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import override_settings
from django.urls import path

from sluicegate.clock import ManualClock
from sluicegate.doors.django import AnonThrottle, RateLimitThrottle, ScopedThrottle, UserThrottle, reset
from sluicegate.doors.web.declared import no_rules
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter

Site = Callable[..., Any]
BASE = {"DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"]}


class ByHeader:
    """Authenticates whoever says who he is; for tests."""

    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-User")
        return None if name is None else (SimpleNamespace(pk=name, is_authenticated=True), None)


def view_of(*throttles: type, **attributes: Any) -> Any:
    """A view with these throttles."""
    from rest_framework.response import Response
    from rest_framework.views import APIView

    def get(self: Any, request: Any) -> Any:
        return Response({"rule": request._request.rate_limit.rule})

    return type(
        "Shown",
        (APIView,),
        {"throttle_classes": throttles, "authentication_classes": [ByHeader], "get": get, **attributes},
    ).as_view()


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    """Without rules: only throttles count."""
    return no_rules(clock=clock)


def test_users_and_strangers(django_site: Site, limiter: Limiter) -> None:
    """Users are counted by id and strangers by address, over all views of a scope; a refusal is the framework's 429 with the wait."""
    rates = {"DEFAULT_THROTTLE_RATES": {"user": "2/day", "anon": "1/hour"}}
    view = view_of(UserThrottle, AnonThrottle)
    client = django_site(
        [path("a/", view), path("b/", view_of(UserThrottle, AnonThrottle))],
        SLUICEGATE={"LIMITER": limiter},
        REST_FRAMEWORK={**BASE, **rates},
    )

    def status(url: str, **headers: str) -> int:
        return client.get(url, headers=headers).status_code

    assert [status(url, **{"X-User": "1"}) for url in ("/a/", "/b/", "/a/")] == [200, 200, 429]
    assert status("/a/", **{"X-User": "2"}) == 200
    first, second = client.get("/a/"), client.get("/b/")
    assert (first.status_code, second.status_code) == (200, 429)
    assert second["Retry-After"] == "3600"
    assert second["X-RateLimit-Policy"].startswith("anon;q=1")
    assert "throttled" in second.json()["detail"]


def test_a_refusal_by_one_throttle_costs_the_others_nothing(django_site: Site, limiter: Limiter) -> None:
    """P10: with 5 a day and 2 a minute five quick requests leave the daily quota with two charges."""

    class Daily(RateLimitThrottle):
        rate = "5/day"

    class Burst(RateLimitThrottle):
        rate = "2/min"

    client = django_site(
        [path("", view_of(Daily, Burst)), path("daily/", view_of(Daily))],
        SLUICEGATE={"LIMITER": limiter},
        REST_FRAMEWORK=BASE,
    )
    assert [client.get("/").status_code for _ in range(5)] == [200, 200, 429, 429, 429]
    assert [client.get("/daily/").status_code for _ in range(4)] == [200, 200, 200, 429]


def test_jitter(django_site: Site, limiter: Limiter) -> None:
    """The framework's words and the header fields tell of the same wait, also where a throttle that passes comes after the refusal."""

    class First(RateLimitThrottle):
        rate = "1/min"

    class Second(RateLimitThrottle):
        rate = "9/min"

    client = django_site(
        [path("", view_of(First, Second))],
        SLUICEGATE={"LIMITER": limiter, "RETRY_JITTER_S": 1_000_000},
        REST_FRAMEWORK=BASE,
    )
    assert client.get("/").status_code == 200
    refused = client.get("/")
    wait_s = refused["Retry-After"]
    assert int(wait_s) >= 60
    assert refused["X-RateLimit-Reset"] == wait_s
    assert refused.json()["detail"].endswith(f"Expected available in {wait_s} seconds.")


def test_scopes_of_views(django_site: Site, limiter: Limiter, clock: ManualClock) -> None:
    """A view's ``throttle_scope`` names its rate; a view without one is not limited; a sliding log waits as the framework's do."""

    class Logged(ScopedThrottle):
        algorithm = "sliding_log"

    client = django_site(
        [path("up/", view_of(Logged, throttle_scope="uploads")), path("free/", view_of(Logged))],
        SLUICEGATE={"LIMITER": limiter},
        REST_FRAMEWORK={**BASE, "DEFAULT_THROTTLE_RATES": {"uploads": "2/min"}},
    )
    assert client.get("/up/").status_code == 200
    clock.advance(20_000_000)
    assert client.get("/up/").status_code == 200
    assert client.get("/up/")["Retry-After"] == "40"
    assert [client.get("/free/").json() for _ in range(3)] == [{"rule": None}] * 3


def test_rates_are_read_with_each_request(django_site: Site, limiter: Limiter) -> None:
    """P101: overridden settings hold at once; None is no limit; counters survive a change of the rate."""
    client = django_site([path("", view_of(UserThrottle))], SLUICEGATE={"LIMITER": limiter}, REST_FRAMEWORK=BASE)
    for rate, expected in (("1/day", [200, 429]), ("3/day", [200, 200, 429]), (None, [200, 200, 200])):
        with override_settings(REST_FRAMEWORK={**BASE, "DEFAULT_THROTTLE_RATES": {"user": rate}}):
            assert [client.get("/").status_code for _ in expected] == expected


def test_missing_rates_are_errors(django_site: Site, limiter: Limiter) -> None:
    """A scope without a rate, and a class without either, are errors, not throttles that throttle nothing."""

    class Nothing(RateLimitThrottle):
        pass

    client = django_site(
        [path("user/", view_of(UserThrottle)), path("nothing/", view_of(Nothing))],
        SLUICEGATE={"LIMITER": limiter},
        REST_FRAMEWORK=BASE,
    )
    for url, problem in (("/user/", "'user'"), ("/nothing/", "Nothing")):
        with pytest.raises(ConfigurationError, match=problem):
            client.get(url)
    reset()


def test_a_rate_of_its_own_makes_a_limit_of_its_own(django_site: Site, limiter: Limiter) -> None:
    """Two subclasses with two rates and the scope of their base are two limits: neither hides the other, and other views have their own."""
    burst = type("Burst", (UserThrottle,), {"rate": "3/minute"})
    daily = type("Daily", (UserThrottle,), {"rate": "2/day"})
    named = type("Named", (UserThrottle,), {"rate": "1/minute", "scope": "named"})
    urls = [path("both/", view_of(burst, daily)), path("burst/", view_of(burst)), path("named/", view_of(named))]
    client = django_site(urls, SLUICEGATE={"LIMITER": limiter})
    assert [client.get("/both/").status_code for _ in range(3)] == [200, 200, 429]
    assert [client.get("/burst/").status_code for _ in range(2)] == [200, 429]
    assert [client.get("/named/").status_code for _ in range(2)] == [200, 429]
    assert client.get("/both/", REMOTE_ADDR="198.51.100.7").json() == {"rule": "Daily"}
    assert client.get("/named/", REMOTE_ADDR="198.51.100.7").json() == {"rule": "named"}
