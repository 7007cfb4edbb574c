"""The WSGI middleware: what passes, what is refused, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from werkzeug.wrappers import Response

from sluicegate.clock import ManualClock
from sluicegate.doors.wsgi import RateLimitMiddleware
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

Make = Callable[..., Limiter]
CallWsgi = Callable[..., Any]


def hello(environ: Any, start_response: Any) -> list[bytes]:
    """The smallest application."""
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-RateLimit-Limit", "999")])
    return [b"hello"]


def test_pass_and_refusal(by_quota: Make, call_wsgi: CallWsgi, clock: ManualClock) -> None:
    """What is over the quota gets 429 with a problem document, and does not reach the application."""
    app = RateLimitMiddleware(hello, by_quota("1/minute"))
    first, second = call_wsgi(app), call_wsgi(app)
    assert (first.status, first.body, first["X-RateLimit-Limit"]) == (200, b"hello", "1")
    assert (second.status, second["Retry-After"], second["X-RateLimit-Reset"]) == (429, "60", "60")
    assert second["Content-Type"] == "application/problem+json"
    assert "Retry-After" not in first
    clock.advance(60_000_000)
    assert call_wsgi(app).status == 200


def test_a_refusal_has_no_fields_from_elsewhere(by_rules: Make, call_wsgi: CallWsgi) -> None:
    """What can never pass has neither Reset nor Retry-After, also where the answer of the application's own brings some along."""
    fields = {"X-RateLimit-Reset": "7", "Retry-After": "3", "X-Own": "kept"}
    own = Response("no", 429, headers=fields)
    answer = call_wsgi(
        RateLimitMiddleware(hello, by_rules("rules: [{name: ban, quota: 0}]"), on_refused=lambda *_: own)
    )
    assert (answer.status, answer["X-RateLimit-Limit"], answer["X-Own"]) == (429, "0", "kept")
    assert "X-RateLimit-Reset" not in answer
    assert "Retry-After" not in answer


def test_the_wait_of_an_application_that_is_away_is_its_own(by_quota: Make, call_wsgi: CallWsgi) -> None:
    """On a pass the application's Retry-After stays."""

    def away(environ: Any, start_response: Any) -> list[bytes]:
        start_response("503 Service Unavailable", [("Retry-After", "120")])
        return [b""]

    answer = call_wsgi(RateLimitMiddleware(away, by_quota("1/minute")))
    assert (answer.status, answer["Retry-After"], answer["X-RateLimit-Remaining"]) == (503, "120", "0")


def test_streams_are_the_applications_own(by_quota: Make, call_wsgi: CallWsgi) -> None:
    """The iterable is handed on as it is, closed by the server, and a generator may start its answer late."""
    closed: list[bool] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            yield from (b"1", b"2", b"3")

        def close(self) -> None:
            closed.append(True)

    body = Body()

    def streaming(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        return body

    def late(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"late"

    app = RateLimitMiddleware(streaming, by_quota("5/minute"))
    assert app({"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "1.1.1.1"}, lambda *_: print) is body
    assert call_wsgi(app).body == b"123"
    assert closed == [True]
    answer = call_wsgi(RateLimitMiddleware(late, by_quota("5/minute")))
    assert (answer.body, answer["X-RateLimit-Remaining"]) == (b"late", "4")


def test_head_and_errors(by_quota: Make, call_wsgi: CallWsgi) -> None:
    """A refused HEAD has no body; an answer that is replaced after an error (``exc_info``) has the headers as well."""

    def failing(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        start_response("500 Oops", [("Content-Type", "text/plain")], (ValueError, ValueError(), None))
        return [b"failed"]

    assert call_wsgi(RateLimitMiddleware(hello, by_quota("0")), method="HEAD").body == b""
    answer = call_wsgi(RateLimitMiddleware(failing, by_quota("5/minute")))
    assert (answer.status, answer["X-RateLimit-Remaining"]) == (500, "4")


def test_rules_see_the_path_as_the_application_routes_it(by_rules: Make, call_wsgi: CallWsgi) -> None:
    """Mounted below a prefix the whole path counts, also where it holds characters that were encoded."""
    app = RateLimitMiddleware(
        hello, by_rules("rules: [{name: a, match: {path: /app/caf%C3%A9}, per: [ip], quota: 1/minute}]")
    )
    decoded = "/café".encode().decode("latin-1")
    assert [call_wsgi(app, decoded, SCRIPT_NAME="/app").status for _ in range(2)] == [200, 429]
    assert [call_wsgi(app, "/other", SCRIPT_NAME="/app").status for _ in range(2)] == [200, 200]


def test_endpoints(by_rules: Make, call_wsgi: CallWsgi) -> None:
    """Without a function the pattern of the rule is the endpoint; a function gives the template."""
    rules = "rules: [{name: each, match: {path: /users/*}, per: [ip, endpoint], quota: 2/minute}]"
    app = RateLimitMiddleware(hello, by_rules(rules))
    assert [call_wsgi(app, f"/users/{n}").status for n in range(3)] == [200, 200, 429]
    app = RateLimitMiddleware(hello, by_rules(rules), endpoint=lambda environ: environ["PATH_INFO"])
    assert [call_wsgi(app, f"/users/{n}").status for n in range(3)] == [200, 200, 200]


def test_keys_and_custom_answers(by_quota: Make, call_wsgi: CallWsgi) -> None:
    """A key function counts by what it gives; a handler gives the answer, such as a Werkzeug response."""
    app = RateLimitMiddleware(
        hello,
        by_quota("1/minute"),
        key=lambda environ: environ.get("HTTP_X_KEY"),
        on_refused=lambda environ, limits: Response(f"no: {limits.rule}", 429) if "own" in environ else None,
    )
    assert [call_wsgi(app, HTTP_X_KEY=key).status for key in ("a", "a", "b")] == [200, 429, 200]
    own = call_wsgi(app, HTTP_X_KEY="a", own=True)
    assert (own.body, own["Retry-After"]) == (b"no: quota", "60")


@pytest.mark.parametrize("option", ["key", "on_refused", "endpoint"])
def test_coroutine_functions_are_refused(by_quota: Make, option: str) -> None:
    """WSGI cannot await: a coroutine function is an error at construction, never a key that all share."""

    async def function(environ: Any) -> str:
        return "k"

    with pytest.raises(ConfigurationError, match=option):
        RateLimitMiddleware(hello, by_quota("1/minute"), **{option: function})


def test_nested_middleware_charges_once(by_quota: Make, call_wsgi: CallWsgi) -> None:
    """P19: two of them with one limiter are one gate, with headers once; with two limiters both apply (P83)."""
    limiter, other = by_quota("5/minute"), by_quota("2/minute", name="other")
    app = RateLimitMiddleware(RateLimitMiddleware(RateLimitMiddleware(hello, limiter), other), limiter)
    assert call_wsgi(app)["X-RateLimit-Remaining"] == "1"
    assert limiter.peek("203.0.113.9").remaining == 4
    call_wsgi(app)
    refused = call_wsgi(app)
    assert (refused.status, refused["X-RateLimit-Limit"]) == (429, "2")
    assert limiter.peek("203.0.113.9").remaining == 3


def test_failures_and_bad_requests(by_rules: Make, call_wsgi: CallWsgi, clock: ManualClock) -> None:
    """P47: a store that fails is 503 where a rule fails closed, and no exception anywhere; what cannot be decided is 400."""
    store = FlakyStore(MemoryStore(clock))
    rules = "rules: [{name: a, match: {path: /**}, per: [ip], quota: 5/minute, on_store_failure: closed}]"
    app = RateLimitMiddleware(hello, by_rules(rules, store))
    assert call_wsgi(app, "/" + "x" * 5_000).status == 400
    store.down = True
    assert call_wsgi(app).status == 503


def test_a_leaky_bucket_holds_and_bounds_the_threads_it_holds(by_quota: Make, call_wsgi: CallWsgi) -> None:
    """A request waits its turn in its thread; where as many wait as may, the next is refused with the time of its turn."""
    app = RateLimitMiddleware(hello, by_quota("1/second burst 5", algorithm="leaky_bucket"), held_max=0)
    assert call_wsgi(app).status == 200
    refused = call_wsgi(app)
    assert (refused.status, refused["Retry-After"], refused["X-RateLimit-Remaining"]) == (429, "1", "0")
    held = RateLimitMiddleware(hello, by_quota("1000/second burst 5", algorithm="leaky_bucket"), held_max=1)
    assert [call_wsgi(held).status for _ in range(3)] == [200, 200, 200]
    assert held._holder.take()
    assert not held._holder.take()
    assert call_wsgi(held).status == 429
    held._holder.give_back()
    assert held._holder.take()
