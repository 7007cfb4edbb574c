"""The Flask extension: rules for the application, defaults, limits beside views and blueprints."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Blueprint, Flask, g, request
from flask.views import MethodView
from werkzeug.test import TestResponse

from sluicegate.clock import ManualClock
from sluicegate.doors.flask import RateLimit, no_rules
from sluicegate.doors.wsgi import RateLimitMiddleware
from sluicegate.errors import ConfigurationError, InvalidRequest, MissingExtra
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import FlakyStore

Make = Callable[..., Limiter]


def get(app: Flask, path: str = "/", *, peer: str = "203.0.113.9", method: str = "GET", **options: Any) -> TestResponse:
    """Ask an application as a client of the address ``peer``."""
    return app.test_client().open(path, method=method, environ_base={"REMOTE_ADDR": peer}, **options)


def statuses(app: Flask, paths: list[str], **options: Any) -> list[int]:
    """The statuses of several requests, one after the other."""
    found = []
    for path in paths:
        with get(app, path, **options) as answer:
            found.append(answer.status_code)
    return found


@pytest.fixture
def app() -> Flask:
    """An application with a few views."""
    made = Flask(__name__, static_folder=None)
    made.add_url_rule("/", "home", lambda: "home")
    made.add_url_rule("/users/<int:user_id>", "user", lambda user_id: f"user {user_id}")
    return made


def test_rules_for_the_application(app: Flask, by_rules: Make) -> None:
    """Every request is decided before it is dispatched: views, unknown paths, wrong methods; by route template where a rule asks."""
    RateLimit(app, limiter=by_rules("rules: [{name: each, per: [ip, endpoint], quota: 2/minute}]"))
    assert statuses(app, ["/users/1", "/users/2", "/users/3"]) == [200, 200, 429]
    assert statuses(app, ["/", "/nothing", "/else", "/third"]) == [200, 404, 404, 429]
    refused = get(app, "/users/4")
    assert refused.content_type == "application/problem+json"
    assert refused.headers["Retry-After"] == refused.headers["X-RateLimit-Reset"] == "30"
    assert get(app, "/", peer="198.51.100.1").headers["X-RateLimit-Remaining"] == "1"


def test_an_application_context_that_outlives_requests(app: Flask, by_quota: Make) -> None:
    """Where a test pushes an application context, each of its requests is still decided, and ``g`` tells of the one being served."""
    RateLimit(app, limiter=by_quota("2/minute"))
    app.add_url_rule("/left", "left", lambda: {"remaining": g.rate_limit.remaining})
    with app.app_context():
        assert [get(app, "/left").json for _ in range(2)] == [{"remaining": 1}, {"remaining": 0}]
        refused = get(app, "/left")
        assert (refused.status_code, refused.headers["X-RateLimit-Remaining"]) == (429, "0")


def test_a_refusal_has_no_fields_from_elsewhere(app: Flask, by_rules: Make) -> None:
    """What can never pass has neither Reset nor Retry-After, also where the answer of the application's own brings some along."""
    own = {"X-RateLimit-Reset": "7", "Retry-After": "3", "X-Own": "kept"}
    RateLimit(app, limiter=by_rules("rules: [{name: ban, quota: 0}]"), on_refused=lambda _: ("no", 429, own))
    answer = get(app)
    assert (answer.status_code, answer.headers["X-RateLimit-Limit"], answer.headers["X-Own"]) == (429, "0", "kept")
    assert "X-RateLimit-Reset" not in answer.headers
    assert "Retry-After" not in answer.headers


def test_limits_beside_views(app: Flask, by_quota: Make) -> None:
    """A decorated view has a limit of its own; g.rate_limit tells the view; a refusal there costs the application's quota nothing (P10)."""
    limiter = by_quota("10/minute")
    rate_limit = RateLimit(limiter=limiter)

    @app.post("/login")
    @rate_limit.limit("2/minute")
    def login() -> dict[str, object]:
        return {"rule": g.rate_limit.rule, "remaining": g.rate_limit.remaining}

    rate_limit.init_app(app)
    assert get(app, "/login", method="POST").json == {"rule": "login", "remaining": 1}
    assert statuses(app, ["/login"] * 3, method="POST") == [200, 429, 429]
    assert get(app, "/login", method="POST").headers["X-RateLimit-Policy"].startswith("login;q=2")
    assert limiter.peek("203.0.113.9").remaining == 8


def test_defaults(app: Flask, clock: ManualClock) -> None:
    """P81: defaults are per route, also for static files and unknown paths; a limit of its own replaces them unless it keeps them."""
    rate_limit = RateLimit(default=["2/minute", "100/day"], limiter=no_rules(clock=clock))
    app.add_url_rule("/own", "own", rate_limit.limit("3/minute")(lambda: "own"))
    app.add_url_rule("/both", "both", rate_limit.limit("1/minute", keep_default=True)(lambda: "both"))
    app.add_url_rule("/free", "free", rate_limit.exempt(lambda: "free"))
    files = Blueprint("files", __name__, static_folder=".", static_url_path="/files/static")
    app.register_blueprint(files)
    rate_limit.init_app(app)
    assert statuses(app, ["/users/1", "/users/2", "/users/3", "/", "/"]) == [200, 200, 429, 200, 200]
    assert statuses(app, ["/own"] * 4) == [200, 200, 200, 429]
    assert statuses(app, ["/both"] * 2) == [200, 429]
    assert statuses(app, ["/free"] * 5) == [200] * 5
    assert statuses(app, ["/files/static/conftest.py"] * 3) == [200, 200, 429]
    assert statuses(app, ["/a", "/b", "/c"]) == [404, 404, 429]
    clock.advance(60_000_000)
    assert statuses(app, ["/users/9"]) == [200]


def test_a_limit_for_some_methods_leaves_the_defaults_to_the_others(app: Flask, clock: ManualClock) -> None:
    """A limit on POST does not make GET unlimited."""
    rate_limit = RateLimit(app, limiter=no_rules(clock=clock), default="2/minute")
    limited = rate_limit.limit("1/minute", methods=["post"])(lambda: "form")
    app.add_url_rule("/form", "form", limited, methods=["GET", "POST"])
    assert statuses(app, ["/form"] * 2, method="POST") == [200, 429]
    assert statuses(app, ["/form"] * 3) == [200, 200, 429]


def test_blueprints(app: Flask, clock: ManualClock) -> None:
    """P81: a limit on a blueprint holds for each of its views and for blueprints nested in it; exempt ones inherit as well."""
    rate_limit = RateLimit(default="1/minute", limiter=no_rules(clock=clock))
    parent, child, free, deep = [Blueprint(name, __name__) for name in ("parent", "child", "free", "deep")]
    for blueprint in (parent, child, free, deep):
        blueprint.add_url_rule(f"/{blueprint.name}", "view", lambda: "ok")
    rate_limit.limit("2/minute")(parent)
    rate_limit.exempt(free)
    parent.register_blueprint(child)
    free.register_blueprint(deep)
    app.register_blueprint(parent)
    app.register_blueprint(free)
    rate_limit.init_app(app)
    assert statuses(app, ["/parent", "/parent", "/parent", "/child", "/child", "/child"]) == [200, 200, 429] * 2
    assert statuses(app, ["/free", "/free", "/deep", "/deep"]) == [200] * 4
    assert statuses(app, ["/", "/"]) == [200, 429]


def test_application_factory(by_rules: Make) -> None:
    """One extension serves several applications, made later; each reaches it."""
    rate_limit = RateLimit(limiter=by_rules("rules: [{name: all, per: [ip], quota: 2/minute}]"))

    def create() -> Flask:
        made = Flask(__name__)
        made.add_url_rule("/", "home", rate_limit.limit("1/hour")(lambda: "home"))
        rate_limit.init_app(made)
        return made

    first, second = create(), create()
    assert first.extensions["sluicegate"] == [rate_limit]
    assert statuses(first, ["/", "/"]) == [200, 429]
    assert statuses(second, ["/"]) == [429]


def test_two_extensions_both_apply(app: Flask, by_quota: Make) -> None:
    """P83: with two of them on one application both decide, and the headers tell of the nearest limit."""
    user, group = by_quota("5/minute", name="user"), by_quota("2/minute", name="group")
    RateLimit(app, limiter=user)
    RateLimit(app, limiter=group, key=lambda req: "everybody")
    answers = [get(app, peer=f"198.51.100.{n}") for n in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers.getlist("X-RateLimit-Limit") for answer in answers] == [["2"]] * 3


def test_inside_wsgi_middleware_each_rule_is_charged_once(app: Flask, by_quota: Make) -> None:
    """P19: the WSGI middleware and the extension with the same limiter are one gate."""
    limiter = by_quota("20/hour")
    RateLimit(app, limiter=limiter)
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter)  # type: ignore[method-assign]
    assert [get(app).headers["X-RateLimit-Remaining"] for _ in range(3)] == ["19", "18", "17"]


def test_class_based_views_and_other_decorators(app: Flask, clock: ManualClock) -> None:
    """P84: class-based views are limited by their ``decorators``, each route apart; a decorator above the limit runs first."""
    rate_limit = RateLimit(app, limiter=no_rules(clock=clock))
    ran: list[str] = []

    class Items(MethodView):
        decorators = [rate_limit.limit("1/minute")]

        def get(self) -> str:
            return "items"

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    app.add_url_rule("/things", view_func=Items.as_view("things"))

    def guarded() -> str:
        ran.append("view")
        return "ok"

    limited = rate_limit.limit("1/minute")(guarded)

    def login_required() -> Any:
        return limited() if "user" in request.args else ("log in", 401)

    app.add_url_rule("/guarded", "guarded", login_required)
    assert statuses(app, ["/items", "/items", "/things", "/things"]) == [200, 429, 200, 429]
    assert statuses(app, ["/guarded", "/guarded", "/guarded?user=a", "/guarded?user=a"]) == [401, 401, 200, 429]
    assert ran == ["view"]


def test_a_limit_on_a_method_of_a_class_replaces_the_defaults(app: Flask, clock: ManualClock) -> None:
    """As on a view; methods without a limit of their own keep the defaults, and HEAD is served and limited as GET."""
    rate_limit = RateLimit(app, limiter=no_rules(clock=clock), default="1/minute")

    class Items(MethodView):
        @rate_limit.limit("3/minute")
        def get(self) -> str:
            return "items"

        def post(self) -> str:
            return "made"

    app.add_url_rule("/things/", view_func=Items.as_view("things"))
    for method, expected in (("GET", [200] * 3 + [429]), ("HEAD", [200] * 3 + [429]), ("POST", [200, 429])):
        assert [get(app, "/things/", method=method).status_code for _ in expected] == expected
    assert [get(app, "/things/", method="PUT").status_code for _ in range(2)] == [405, 429]


def test_the_same_path_on_two_hosts(clock: ManualClock) -> None:
    """Rules for two hosts, or two subdomains, are two endpoints, whatever their path."""
    app = Flask("hosts", host_matching=True, static_host="static.example")
    RateLimit(app, limiter=no_rules(clock=clock), default="1/minute")
    for host in ("a.example", "b.example"):
        app.add_url_rule("/", host, lambda: "home", host=host)
    hosts = ["a.example", "b.example", "a.example", "b.example"]
    answers = [app.test_client().get("/", base_url=f"http://{host}").status_code for host in hosts]
    assert answers == [200, 200, 429, 429]


def test_async_views(app: Flask, clock: ManualClock) -> None:
    """An async view is limited as an async function, and its key may be a coroutine function."""
    rate_limit = RateLimit(app, limiter=no_rules(clock=clock))

    async def key(req: Any) -> str:
        return req.args["who"]

    @app.get("/slow")
    @rate_limit.limit("1/minute", key=key)
    async def slow() -> str:
        return "slow"

    assert statuses(app, ["/slow?who=a", "/slow?who=a", "/slow?who=b"]) == [200, 429, 200]


def test_keys_get_the_request(app: Flask, clock: ManualClock) -> None:
    """P79: a key function gets its request as an argument; without a key the address counts, for defaults too."""
    rate_limit = RateLimit(
        app, limiter=no_rules(clock=clock), default="1/minute", key=lambda req: req.headers.get("X-Key")
    )
    app.add_url_rule("/mine", "mine", rate_limit.limit("2/minute", per="ip")(lambda: "mine"))
    assert [get(app, headers={"X-Key": key}).status_code for key in ("a", "a", "b")] == [200, 429, 200]
    assert statuses(app, ["/", "/"]) == [200, 429]
    assert [get(app, "/mine", headers={"X-Key": key}).status_code for key in "abc"] == [200, 200, 429]


def test_wrong_uses_fail_early(app: Flask, clock: ManualClock) -> None:
    """Coroutine functions as keys of what cannot await them, classes and bad quotas are errors at decoration."""

    async def key(req: Any) -> str:
        return "k"

    with pytest.raises(ConfigurationError, match="key"):
        RateLimit(app, key=key)
    rate_limit = RateLimit(limiter=no_rules(clock=clock))
    with pytest.raises(ConfigurationError, match="key"):
        rate_limit.limit("1/minute", key=key)(lambda: "x")
    with pytest.raises(ConfigurationError, match="key"):
        rate_limit.limit("1/minute", key=key)(Blueprint("b", __name__))
    with pytest.raises(ConfigurationError, match="methods"):
        rate_limit.limit("1/minute")(MethodView)
    with pytest.raises(ConfigurationError, match="minit"):
        rate_limit.limit("1/minit")


def test_custom_answers(app: Flask, by_quota: Make) -> None:
    """The handler returns what a view may return; None leaves the usual answer."""
    RateLimit(
        app,
        limiter=by_quota("1/minute"),
        on_refused=lambda limits: ({"error": limits.rule}, 429) if request.path == "/" else None,
    )
    get(app)
    own = get(app)
    assert (own.json, own.headers["Retry-After"]) == ({"error": "quota"}, "60")
    assert get(app, "/users/1").content_type == "application/problem+json"


def test_the_test_kit(app: Flask, by_quota: Make) -> None:
    """P101: ``enabled`` is looked at with every request, ``reset`` forgets every counter, of decorators and defaults too."""
    rate_limit = RateLimit(app, limiter=by_quota("100/minute"), default="1/minute")
    rate_limit.enabled = False
    first = [get(app) for _ in range(3)]
    assert {answer.status_code for answer in first} == {200}
    assert "X-RateLimit-Limit" not in first[0].headers
    rate_limit.enabled = True
    assert statuses(app, ["/", "/"]) == [200, 429]
    rate_limit.reset()
    assert statuses(app, ["/", "/"]) == [200, 429]
    shared = RateLimit(limiter=Limiter.from_quota("1/minute", store=FlakyStore(MemoryStore(ManualClock()))))
    with pytest.raises(ConfigurationError, match="shared"):
        shared.reset()


def test_failures(app: Flask, by_rules: Make, clock: ManualClock) -> None:
    """P47, P48: without the store the policy decides, at the application's rules and beside views; nothing is a 500."""
    store = FlakyStore(MemoryStore(clock))
    rate_limit = RateLimit(app, limiter=by_rules("rules: [{name: all, per: [ip], quota: 9/minute}]", store))
    app.add_url_rule("/shut", "shut", rate_limit.limit("5/minute", on_store_failure="closed")(lambda: "shut"))
    store.down = True
    assert statuses(app, ["/", "/shut"]) == [200, 503]
    assert get(app, "/" + "x" * 5_000).status_code in {200, 400, 404}


def test_streams_and_errors_have_headers(app: Flask, by_quota: Make) -> None:
    """Answers that stream and answers of error handlers have the headers as well, and chunks stay chunks."""
    RateLimit(app, limiter=by_quota("9/minute"))
    app.add_url_rule("/stream", "stream", lambda: (f"{n};" for n in range(10)))

    def broken() -> str:
        raise ZeroDivisionError

    app.add_url_rule("/broken", "broken", broken)
    app.config["PROPAGATE_EXCEPTIONS"] = False
    streamed = get(app, "/stream", buffered=False)
    assert list(streamed.response) == [f"{n};".encode() for n in range(10)]
    assert streamed.headers["X-RateLimit-Remaining"] == "8"
    failed = get(app, "/broken")
    assert (failed.status_code, failed.headers["X-RateLimit-Remaining"]) == (500, "7")


def test_a_cost_that_is_none(app: Flask, clock: ManualClock) -> None:
    """A cost function that gives nonsense is the application's error, told by name."""
    rate_limit = RateLimit(app, limiter=no_rules(clock=clock))
    app.add_url_rule("/cost", "cost", rate_limit.limit("5/minute", cost=lambda req: int(req.args["n"]))(lambda: "c"))
    assert statuses(app, ["/cost?n=3", "/cost?n=3", "/cost?n=2"]) == [200, 429, 200]
    assert get(app, "/cost?n=0").status_code == 400
    assert issubclass(InvalidRequest, ValueError)


def test_many_threads(app: Flask, by_quota: Make) -> None:
    """Of many requests at once exactly as many pass as the view's limit allows, and the refused ones leave the application's quota alone."""
    limiter = by_quota("1000/minute")
    rate_limit = RateLimit(app, limiter=limiter)
    app.add_url_rule("/tight", "tight", rate_limit.limit("5/minute")(lambda: "ok"))
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: get(app, "/tight").status_code, range(64)))
    assert (found.count(200), found.count(429)) == (5, 59)
    assert limiter.peek("203.0.113.9").remaining == 995


def test_without_flask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing the door without Flask says which extra to install."""
    monkeypatch.setitem(sys.modules, "flask", None)
    monkeypatch.delitem(sys.modules, "sluicegate.doors.flask")
    with pytest.raises(MissingExtra, match=r"sluicegate\[flask\]"):
        __import__("sluicegate.doors.flask")
