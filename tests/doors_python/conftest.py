"""What the tests of the Python doors share: clients of applications in this process, and limiters with a clock turned by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import httpx
import pytest

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules

PEER = "203.0.113.9"


@pytest.fixture
def clock() -> ManualClock:
    """The clock of every limiter of a test."""
    return ManualClock()


@pytest.fixture
def by_rules(clock: ManualClock) -> Callable[..., Limiter]:
    """Makes a limiter from the text of a rules file (without its ``version`` line)."""

    def make(text: str, store: Any = "memory://") -> Limiter:
        return Limiter.from_rules(load_rules(f"version: 1\n{text}", "test"), store, clock)

    return make


@pytest.fixture
def by_quota(clock: ManualClock) -> Callable[..., Limiter]:
    """Makes a limiter from a quota."""

    def make(quota: str, **options: Any) -> Limiter:
        return Limiter.from_quota(quota, clock=clock, **options)

    return make


@pytest.fixture
def ask() -> Callable[..., Awaitable[httpx.Response]]:
    """Asks an ASGI application for a path, as a client of the address ``peer``."""

    async def request(app: Any, path: str = "/", method: str = "GET", *, peer: str = PEER, **options: Any) -> Any:
        transport = httpx.ASGITransport(app, client=(peer, 40_000), raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://app.example") as client:
            return await client.request(method, path, **options)

    return request


@pytest.fixture
def statuses(ask: Callable[..., Awaitable[httpx.Response]]) -> Callable[..., Awaitable[list[int]]]:
    """The statuses of several requests, one after the other."""

    async def many(app: Any, paths: Sequence[str], **options: Any) -> list[int]:
        return [(await ask(app, path, **options)).status_code for path in paths]

    return many


@dataclass
class Wire:
    """An ASGI server in miniature: gives the messages in ``inbox``, keeps those that are sent."""

    scope: dict[str, Any]
    inbox: list[dict[str, Any]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)

    async def receive(self) -> dict[str, Any]:
        if not self.inbox:
            await asyncio.Event().wait()  # a client that says no more
        return self.inbox.pop(0)

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def run(self, app: Any) -> list[dict[str, Any]]:
        """Let the application serve; returns what it sent."""
        await app(self.scope, self.receive, self.send)
        return self.sent

    @property
    def kinds(self) -> list[str]:
        """The types of the messages sent."""
        return [message["type"] for message in self.sent]

    def headers(self, index: int = 0) -> dict[str, str]:
        """The header fields of a message sent."""
        return {name.decode(): value.decode() for name, value in self.sent[index]["headers"]}


@pytest.fixture
def wire() -> Callable[..., Wire]:
    """Makes a connection to an ASGI application, message by message."""

    def make(path: str = "/", kind: str = "http", inbox: Sequence[dict[str, Any]] = (), **more: Any) -> Wire:
        scope: dict[str, Any] = {
            "type": kind,
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"host", b"app.example")],
            "client": (PEER, 40_000),
            "server": ("127.0.0.1", 80),
        }
        if kind == "http":
            scope["method"] = "GET"
        scope.update(more)
        return Wire(scope, list(inbox) or [{"type": "http.request", "body": b"", "more_body": False}])

    return make


@dataclass
class WsgiAnswer:
    """What a WSGI application answered."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str:
        (value,) = [value for found, value in self.headers if found.lower() == name.lower()]
        return value

    def __contains__(self, name: str) -> bool:
        return any(found.lower() == name.lower() for found, _ in self.headers)


@pytest.fixture
def call_wsgi() -> Callable[..., WsgiAnswer]:
    """Calls a WSGI application as a server does."""

    def call(app: Any, path: str = "/", method: str = "GET", *, peer: str = PEER, **environ: Any) -> WsgiAnswer:
        head: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[..., None]:
            head[:] = [status, headers]
            return lambda _: None

        full = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "SERVER_NAME": "app.example",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": peer,
            "HTTP_HOST": "app.example",
            "wsgi.url_scheme": "http",
            **environ,
        }
        body = app(full, start_response)
        try:
            content = b"".join(body)
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()
        return WsgiAnswer(int(head[0].split()[0]), head[1], content)

    return call


@pytest.fixture(scope="session")
def django_ready() -> None:
    """Django, configured once for the whole run: it can be no second time in one process."""
    import django
    from django.conf import settings

    settings.configure(
        DEBUG=False,
        SECRET_KEY="made up for tests",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF="",
        MIDDLEWARE=["sluicegate.doors.django.RateLimitMiddleware"],
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework"],
        REST_FRAMEWORK={
            "DEFAULT_AUTHENTICATION_CLASSES": [],
            "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
        },
        USE_TZ=True,
    )
    django.setup()


@pytest.fixture
def django_site(django_ready: None) -> Iterator[Callable[..., Any]]:
    """Puts views and settings in force for one test; gives the client of a site."""
    from django.test import AsyncClient, Client, override_settings

    overrides = contextlib.ExitStack()

    def make(urlpatterns: Sequence[Any], *, awaits: bool = False, **changed: Any) -> Any:
        urls = ModuleType("urls_of_a_test")
        urls.urlpatterns = list(urlpatterns)  # type: ignore[attr-defined]
        overrides.enter_context(override_settings(ROOT_URLCONF=urls, **changed))
        return AsyncClient() if awaits else Client()

    with overrides:
        yield make
