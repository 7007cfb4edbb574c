"""The Django door: the middleware, limits beside views, sync and async."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import Client, override_settings
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View

from sluicegate.clock import ManualClock
from sluicegate.doors.django import get_limiter, ratelimit, reset
from sluicegate.doors.web.declared import Limit, no_rules
from sluicegate.doors.wsgi import RateLimitMiddleware as WsgiMiddleware
from sluicegate.errors import ConfigurationError, MissingExtra
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

Make = Callable[..., Limiter]
Site = Callable[..., Any]

BY_ENDPOINT = "rules: [{name: each, per: [ip, endpoint], quota: 2/minute}]"


def home(request: HttpRequest) -> HttpResponse:
    """The smallest view."""
    return HttpResponse("home")


def user(request: HttpRequest, pk: int) -> HttpResponse:
    """A view with a parameter; shows what the door found."""
    limits = request.rate_limit
    return JsonResponse({"route": limits.facts.route, "rule": limits.rule, "remaining": limits.remaining})


def statuses(client: Any, paths: list[str], method: str = "get", **options: Any) -> list[int]:
    """The statuses of several requests, one after the other."""
    return [getattr(client, method)(path, **options).status_code for path in paths]


def test_rules_of_the_site(django_site: Site, by_rules: Make) -> None:
    """Every request is decided before a view is called: by route template, unknown paths too."""
    nested = [path("deep/<slug:name>/", user)]
    client = django_site(
        [path("", home), path("users/<int:pk>/", user), path("v1/", include(nested))],
        SLUICEGATE={"LIMITER": by_rules(BY_ENDPOINT)},
    )
    first = client.get("/users/1/")
    assert first.json() == {"route": "users/<int:pk>/", "rule": "each", "remaining": 1}
    assert statuses(client, ["/users/2/", "/users/3/", "/", "/nothing", "/else", "/third"]) == [
        200,
        429,
        200,
        404,
        404,
        429,
    ]
    refused = client.get("/users/4/")
    assert refused["Content-Type"] == "application/problem+json"
    assert refused["Retry-After"] == refused["X-RateLimit-Reset"] == "30"
    assert client.get("/", REMOTE_ADDR="198.51.100.1")["X-RateLimit-Remaining"] == "1"
    assert "Retry-After" not in first


def test_a_refusal_has_no_fields_from_elsewhere(django_site: Site, by_rules: Make) -> None:
    """What can never pass has neither Reset nor Retry-After, also where the answer of the application's own brings some along."""

    def own(_request: Any, _limits: Any) -> HttpResponse:
        fields = {"X-RateLimit-Reset": "7", "Retry-After": "3", "X-Own": "kept"}
        return HttpResponse("no", status=429, headers=fields)

    banned = by_rules("rules: [{name: ban, quota: 0}]")
    answer = django_site([path("", home)], SLUICEGATE={"LIMITER": banned, "ON_REFUSED": own}).get("/")
    assert (answer.status_code, answer["X-RateLimit-Limit"], answer["X-Own"]) == (429, "0", "kept")
    assert "X-RateLimit-Reset" not in answer
    assert "Retry-After" not in answer


async def test_async_sites(django_site: Site, by_rules: Make) -> None:
    """Under ASGI the middleware and async views are awaited; functions of the settings may be coroutine functions."""

    @ratelimit("1/minute", key=None, per="user")
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.rate_limit.facts.user)

    async def identify(request: HttpRequest) -> dict[str, str]:
        return {"user": request.headers["X-Session"]}

    async def refused(request: HttpRequest, limits: Any) -> HttpResponse:
        return HttpResponse("no", status=429)

    client = django_site(
        [path("view/", view), path("", home)],
        awaits=True,
        SLUICEGATE={
            "LIMITER": by_rules("rules: [{name: all, per: [user], quota: 3/minute}]"),
            "IDENTIFY": identify,
            "ON_REFUSED": refused,
        },
    )

    async def ask(url: str, session: str) -> HttpResponse:
        return await client.get(url, headers={"X-Session": session})

    first, second, third = [await ask("/view/", who) for who in ("ann", "ann", "bob")]
    assert (first.status_code, first.content, first["X-RateLimit-Limit"]) == (200, b"ann", "1")
    assert (second.status_code, second.content, second["Retry-After"]) == (429, b"no", "60")
    assert third.content == b"bob"
    assert [(await ask("/", "ann")).status_code for _ in range(3)] == [200, 200, 429]


def test_coroutine_functions_cannot_be_awaited_under_wsgi(django_site: Site, by_rules: Make) -> None:
    """A coroutine function in the settings of a sync site is an error that names the entry."""

    async def identify(request: HttpRequest) -> dict[str, str]:
        return {}

    client = django_site([path("", home)], SLUICEGATE={"LIMITER": by_rules(BY_ENDPOINT), "IDENTIFY": identify})
    with pytest.raises(ConfigurationError, match="IDENTIFY"):
        client.get("/")


def test_limits_beside_views(django_site: Site, by_rules: Make) -> None:
    """A decorated view has a limit of its own; stacked ones are two; a refusal costs the rules of the site nothing (P10)."""

    @ratelimit("5/hour")
    @ratelimit("2/minute", methods=["POST"])
    def login(request: HttpRequest) -> HttpResponse:
        return JsonResponse([result.rule for result in request.rate_limit.results], safe=False)

    limiter = by_rules("rules: [{name: all, per: [ip], quota: 9/minute}]")
    client = django_site([path("login/", login)], SLUICEGATE={"LIMITER": limiter})
    assert client.get("/login/").json() == ["all", "login-2"]
    assert client.post("/login/").json() == ["all", "login-2", "login"]
    assert statuses(client, ["/login/"] * 3, "post") == [200, 429, 429]
    refused = client.post("/login/")
    assert refused["X-RateLimit-Policy"].startswith("login;q=2")
    assert limiter.peek({"ip": "127.0.0.1"}).remaining == 6


def test_a_view_that_is_not_blocked(django_site: Site, by_rules: Make) -> None:
    """With ``block=False`` the view runs and sees that the limit refuses."""

    @ratelimit("1/minute", block=False)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok" if request.rate_limit.allowed else "too many", status=200)

    client = django_site([path("", view)], SLUICEGATE={"LIMITER": by_rules("rules: [{name: all, quota: 9/second}]")})
    answers = [client.get("/") for _ in range(2)]
    assert [answer.content for answer in answers] == [b"ok", b"too many"]
    assert not any("Retry-After" in answer for answer in answers)


def test_a_view_that_is_not_blocked_is_charged_by_all_others(django_site: Site, by_quota: Make) -> None:
    """A limit that lets its requests pass switches off no other: neither the site's rules nor limits above and below it."""
    soft, hard = ratelimit("1/minute", block=False), ratelimit("3/minute")

    def said(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(request.rate_limit.allowed), status=404)

    urls = [path("site/", soft(said)), path("above/", soft(hard(said))), path("below/", hard(soft(said)))]
    client = django_site(urls, SLUICEGATE={"LIMITER": by_quota("3/minute")})
    for number, url in enumerate(("/site/", "/above/", "/below/")):
        answers = [client.get(url, REMOTE_ADDR=f"192.0.2.{number}") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [404, 404, 404, 429]
        assert [answer.content for answer in answers[:3]] == [b"True", b"False", b"False"]
        assert ["Retry-After" in answer for answer in answers] == [False, False, False, True]
        assert answers[3]["Retry-After"] == answers[3]["X-RateLimit-Reset"] == "20"


def test_class_based_views(django_site: Site) -> None:
    """P84: class-based views are limited by route, so two of them never share a group."""

    @method_decorator(ratelimit("1/minute"), name="dispatch")
    class Page(View):  # type: ignore[misc]
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("page")

    class Other(View):  # type: ignore[misc]
        @method_decorator(ratelimit("1/minute"))
        async def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("other")

    reset()
    client = django_site(
        [path("a/", Page.as_view()), path("b/", Page.as_view()), path("c/", Other.as_view())], SLUICEGATE={}
    )
    assert statuses(client, ["/a/", "/a/", "/b/", "/b/", "/c/", "/c/"]) == [200, 429] * 3
    with pytest.raises(ConfigurationError, match="method_decorator"):
        ratelimit("1/minute")(Page.get)(Page(), HttpRequest())


@pytest.mark.parametrize("middleware", [["sluicegate.doors.django.RateLimitMiddleware"], []])
async def test_async_class_based_views(django_site: Site, middleware: list[str]) -> None:
    """A refusal of a class with async methods is awaited as its answers are: by ``dispatch``, by a method, and by ``as_view``."""

    class Page(View):  # type: ignore[misc]
        async def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("page")

    by_dispatch = method_decorator(ratelimit("1/minute"), name="dispatch")(type("ByDispatch", (Page,), {}))
    by_both = method_decorator([ratelimit("1/minute"), ratelimit("9/minute")], name="dispatch")(type("B", (Page,), {}))
    urls = [
        path("dispatch/", by_dispatch.as_view()),
        path("both/", by_both.as_view()),
        path("view/", ratelimit("1/minute")(Page.as_view())),
    ]
    await sync_to_async(reset)()
    client = django_site(urls, awaits=True, SLUICEGATE={}, MIDDLEWARE=middleware)
    for url in ("/dispatch/", "/both/", "/view/"):
        first, second = await client.get(url), await client.get(url)
        assert (first.status_code, first["X-RateLimit-Remaining"], second.status_code) == (200, "0", 429)
    assert await sync_to_async(lambda: Client().get("/dispatch/").status_code)() == 429


def test_a_limit_on_a_method_is_made_once(django_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """``method_decorator`` decorates for every request, but what a limit means is worked out for the first one only."""
    read: list[str] = []
    rules = Limit.rules

    def counted(limit: Limit, name: str) -> Any:
        read.append(name)
        return rules(limit, name)

    monkeypatch.setattr(Limit, "rules", counted)

    @method_decorator(ratelimit("9/minute"), name="dispatch")
    class Page(View):  # type: ignore[misc]
        def get(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("page")

    client = django_site([path("", Page.as_view())], SLUICEGATE={"LIMITER": no_rules()})
    client.get("/")
    before = len(read)
    assert before > 0
    assert [client.get("/").status_code for _ in range(3)] == [200] * 3
    assert len(read) == before


def test_without_the_middleware(django_site: Site) -> None:
    """A decorated view is limited, with headers, where the middleware is not installed."""

    @ratelimit("1/minute", name="alone")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    client = django_site([path("", view), path("plain/", home)], SLUICEGATE={}, MIDDLEWARE=[])
    reset()
    answers = [client.get("/") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert [answer["X-RateLimit-Remaining"] for answer in answers] == ["0", "0"]
    assert "X-RateLimit-Limit" not in client.get("/plain/")


def test_keys_and_users(django_site: Site) -> None:
    """A key gets the request; ``per="user"`` is the user of the session, by address for those who are not logged in."""

    @ratelimit("1/minute", key=lambda request: request.GET.get("who"), name="by-key")
    def keyed(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    @ratelimit("1/minute", per="user", name="by-user")
    def mine(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    def logged_in(get_response: Any) -> Any:
        def middleware(request: HttpRequest) -> HttpResponse:
            name = request.headers.get("X-Session")
            request.user = SimpleNamespace(is_authenticated=name is not None, pk=name)
            return get_response(request)

        return middleware

    sys.modules["middleware_of_a_test"] = SimpleNamespace(logged_in=logged_in)  # type: ignore[assignment]
    client = django_site(
        [path("keyed/", keyed), path("mine/", mine)],
        SLUICEGATE={},
        MIDDLEWARE=["middleware_of_a_test.logged_in", "sluicegate.doors.django.RateLimitMiddleware"],
    )
    reset()
    assert statuses(client, ["/keyed/?who=a", "/keyed/?who=a", "/keyed/?who=b", "/keyed/", "/keyed/"]) == [
        200, 429, 200, 200, 429,
    ]  # fmt: skip
    sessions = [client.get("/mine/", headers={"X-Session": who}).status_code for who in ("1", "1", "2")]
    assert sessions == [200, 429, 200]
    assert statuses(client, ["/mine/", "/mine/"]) == [200, 429]


async def test_users_of_async_requests(django_site: Site, by_rules: Make) -> None:
    """In an async request the session's user is awaited, by ``session_user`` and by ``per="user"``; sessions are never read in the loop."""

    class Lazy:
        """A session that may not be read where an event loop runs, as Django's must not."""

        @property
        def is_authenticated(self) -> bool:
            raise AssertionError

    def logged_in(get_response: Any) -> Any:
        async def middleware(request: HttpRequest) -> HttpResponse:
            name = request.headers.get("X-Session")

            async def auser() -> Any:
                return SimpleNamespace(is_authenticated=name is not None, pk=name)

            request.user, request.auser = Lazy(), auser
            return await get_response(request)

        return markcoroutinefunction(middleware)

    logged_in.async_capable, logged_in.sync_capable = True, False  # type: ignore[attr-defined]

    @ratelimit("2/minute", per="user", name="async-user")
    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    sys.modules["async_middleware_of_a_test"] = SimpleNamespace(logged_in=logged_in)  # type: ignore[assignment]
    given = {"LIMITER": by_rules("rules: [{name: each, match: {path: /plain/}, per: [user], quota: 1/minute}]")}
    client = django_site(
        [path("view/", view), path("plain/", home)],
        awaits=True,
        SLUICEGATE={**given, "IDENTIFY": "sluicegate.doors.django.session_user"},
        MIDDLEWARE=["async_middleware_of_a_test.logged_in", "sluicegate.doors.django.RateLimitMiddleware"],
    )

    async def status(url: str, who: str) -> int:
        return (await client.get(url, headers={"X-Session": who})).status_code

    assert [await status("/plain/", who) for who in ("1", "1", "2")] == [200, 429, 200]
    assert [await status("/view/", who) for who in ("1", "1", "1", "2")] == [200, 200, 429, 200]


def test_a_coroutine_function_as_key_of_a_plain_view_is_an_error_at_decoration() -> None:
    """Nobody would await it, and all clients would share one key."""

    async def key(request: HttpRequest) -> str:
        return "k"

    with pytest.raises(ConfigurationError, match="key"):
        ratelimit("1/minute", key=key)(home)


def test_settings_are_read_when_they_change(django_site: Site, tmp_path: Path) -> None:
    """P101: nothing is read on import; overridden settings hold for the next request, and the counters outlive the override."""
    file = tmp_path / "rules.yaml"
    file.write_text("version: 1\nrules: [{name: all, per: [ip], quota: 2/hour}]")
    given = {"RULES": file, "HEADERS": "ietf"}
    client = django_site([path("", home)], SLUICEGATE=given)
    assert client.get("/")["RateLimit"].startswith('"all";r=1')
    with override_settings(SLUICEGATE={**given, "ENABLED": False}):
        assert statuses(client, ["/"] * 3) == [200] * 3
        assert not get_limiter().enabled
    assert statuses(client, ["/"] * 2) == [200, 429]
    reset()
    assert statuses(client, ["/"]) == [200]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"RULE": "x"}, "RULE"),
        ({"LIMITER": "sluicegate.clock.ManualClock"}, "LIMITER"),
        ({"LIMITER": "sluicegate.doors.django.get_limiter", "STORE": "memory://"}, "LIMITER"),
        ({"LIMITER": "nowhere.limiter"}, "LIMITER: .*nowhere"),
        ({"IDENTIFY": 17}, "IDENTIFY"),
        ({"ON_REFUSED": "sluicegate.doors.django.nothing"}, "ON_REFUSED: .*nothing"),
        ({"ENABLED": "False"}, "ENABLED: want True or False"),
        (["RULES"], "dict"),
    ],
)
def test_wrong_settings_are_named(django_site: Site, given: Any, problem: str) -> None:
    """An entry that is unknown or cannot be used is an error that names it."""
    client = django_site([path("", home)], SLUICEGATE=given)
    with pytest.raises(ConfigurationError, match=problem):
        client.get("/")


def test_failures_and_bad_requests(django_site: Site, by_rules: Make, clock: ManualClock) -> None:
    """P47, P50: a store that fails is 503 where a rule fails closed, also beside a view, and never a 500."""

    @ratelimit("5/minute", on_store_failure="open")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("ok")

    store = FlakyStore(MemoryStore(clock))
    rules = "rules: [{name: shut, match: {path: /shut/**}, per: [ip], quota: 5/minute, on_store_failure: closed}]"
    client = django_site([path("shut/", home), path("open/", view)], SLUICEGATE={"LIMITER": by_rules(rules, store)})
    store.down = True
    assert statuses(client, ["/shut/", "/open/"]) == [503, 200]
    assert client.get("/shut/" + "x" * 5_000).status_code == 400


def test_streams(django_site: Site, by_quota: Make) -> None:
    """A streaming response stays one."""

    def stream(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(f"{number};" for number in range(10))

    client = django_site([path("", stream)], SLUICEGATE={"LIMITER": by_quota("5/minute")})
    answer = client.get("/")
    assert answer.streaming
    assert list(answer.streaming_content) == [f"{number};".encode() for number in range(10)]
    assert answer["X-RateLimit-Remaining"] == "4"


def test_custom_answers(django_site: Site, by_quota: Make) -> None:
    """``ON_REFUSED`` gives the response, or None for the usual one; something else is an error."""

    def own(request: HttpRequest, limits: Any) -> Any:
        return {"/own/": HttpResponse(limits.rule, status=429), "/usual/": None}.get(request.path, "text")

    client = django_site([], SLUICEGATE={"LIMITER": by_quota("0"), "ON_REFUSED": own})
    answer = client.get("/own/")
    assert (answer.status_code, answer.content, answer["X-RateLimit-Limit"]) == (429, b"quota", "0")
    assert client.get("/usual/")["Content-Type"] == "application/problem+json"
    with pytest.raises(ConfigurationError, match="ON_REFUSED"):
        client.get("/wrong/")


def test_inside_wsgi_middleware(django_site: Site, by_quota: Make, call_wsgi: Any) -> None:
    """P19: the WSGI middleware around a site with the same limiter is the same gate, and headers are there once."""
    from django.core.handlers.wsgi import WSGIHandler

    limiter = by_quota("20/hour")
    django_site([path("", home)], SLUICEGATE={"LIMITER": limiter})
    import io

    app = WsgiMiddleware(WSGIHandler(), limiter)
    left = [call_wsgi(app, **{"wsgi.input": io.BytesIO()})["X-RateLimit-Remaining"] for _ in range(3)]
    assert left == ["19", "18", "17"]


def test_without_django(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the door without Django says which extra to install."""
    monkeypatch.setitem(sys.modules, "django", None)
    for name in [name for name in sys.modules if name.startswith("sluicegate.doors.django")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtra, match=r"sluicegate\[django\]"):
        __import__("sluicegate.doors.django")
