"""Who a client is behind the Python doors: the peer of the connection, unless a trusted peer says otherwise."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask, g
from litestar import Litestar
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sluicegate.doors.asgi import RateLimitMiddleware, RequestLimits, limit, no_rules
from sluicegate.doors.flask import RateLimit
from sluicegate.doors.wsgi import RateLimitMiddleware as WsgiMiddleware
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter

Make = Callable[..., Limiter]
Ask = Callable[..., Awaitable[httpx.Response]]

PER_USER = """
identity: {trusted_peers: [10.0.0.0/8], user: {header: X-User-Id}}
rules: [{name: each, per: {first_of: [user, ip]}, quota: 2/minute}]
"""


async def who(request: Request) -> Response:
    """Shows who the door thinks is asking."""
    limits: RequestLimits = request.state.rate_limit
    return JSONResponse({"ip": limits.facts.ip, "user": limits.facts.user, "tier": limits.facts.tier})


def site(limiter: Limiter, **options: Any) -> Any:
    """An application that shows the client."""
    return RateLimitMiddleware(Starlette(routes=[Route("/", who)]), limiter, **options)


@pytest.mark.parametrize("field", ["X-Forwarded-For", "Forwarded", "X_FORWARDED_FOR", "X-Real-IP", "X-User-Id"])
async def test_headers_of_strangers_are_not_believed(by_rules: Make, ask: Ask, field: str) -> None:
    """P87, P89: whoever rotates a header with every request stays one client, and cannot pass for somebody else."""
    app = site(by_rules(PER_USER))
    answers = [await ask(app, headers={field: f"192.0.2.{number}"}) for number in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert answers[0].json()["ip"] == "203.0.113.9"
    assert (await ask(app, peer="192.0.2.1")).status_code == 200


async def test_a_trusted_proxy_names_its_clients(by_rules: Make, ask: Ask) -> None:
    """From a trusted peer the chain is walked from the right, and the user it vouches for counts."""
    app = site(by_rules(PER_USER))
    forwarded = {"X-Forwarded-For": "1.2.3.4, 198.51.100.7, 10.9.9.9"}
    assert (await ask(app, peer="10.0.0.1", headers=forwarded)).json()["ip"] == "198.51.100.7"
    user = {"X-User-Id": "ann", **forwarded}
    assert [(await ask(app, peer="10.0.0.1", headers=user)).status_code for _ in range(3)] == [200, 200, 429]


async def test_a_quota_counts_networks_of_ipv6(by_quota: Make, ask: Ask) -> None:
    """A /64 is one client, and the two spellings of an IPv4 address are one."""
    app = site(by_quota("2/minute"))
    peers = ["2001:db8::1", "2001:db8::ffff", "2001:db8:0:0:1::"]
    assert [(await ask(app, peer=peer)).status_code for peer in peers] == [200, 200, 429]
    assert [(await ask(app, peer=peer)).status_code for peer in ("1.2.3.4", "::ffff:1.2.3.4", "1.2.3.4")] == [
        200,
        200,
        429,
    ]


async def test_the_application_may_vouch_for_the_user(by_rules: Make, ask: Ask) -> None:
    """``identify``, sync or async, adds what the application has verified itself; None adds nothing."""

    async def identify(scope: Any) -> dict[str, str] | None:
        session = dict(scope["headers"]).get(b"cookie", b"").decode()
        return {"user": session, "tier": "paid"} if session else None

    limiter = by_rules(
        "tiers: {default: free, names: [free, paid]}\n"
        "rules: [{name: each, per: {first_of: [user, ip]}, quota: {free: 1/minute, paid: 3/minute}}]"
    )
    for function in (identify, lambda scope: {"user": "bob", "tier": "paid"}):
        app = site(limiter, identify=function)
        statuses = [(await ask(app, headers={"Cookie": "ann"})).status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
    app = site(limiter, identify=identify)
    assert [(await ask(app)).status_code for _ in range(2)] == [200, 429]


async def test_what_is_vouched_for_holds_for_limits_beside_routes(by_rules: Make, ask: Ask) -> None:
    """A limit per user counts the user that ``identify`` named."""

    @limit("1/minute", per="user")
    async def endpoint(request: Request) -> Response:
        return JSONResponse({})

    app = RateLimitMiddleware(
        Starlette(routes=[Route("/", endpoint)]),
        by_rules("rules: [{name: all, quota: 50/second}]"),
        identify=lambda scope: {"user": dict(scope["headers"])[b"cookie"].decode()},
    )

    async def status(user: str) -> int:
        return (await ask(app, headers={"Cookie": user})).status_code

    assert [await status("ann"), await status("bob"), await status("ann")] == [200, 200, 429]


async def test_keys_of_a_quota(by_quota: Make, ask: Ask) -> None:
    """P74: a key function gives each client a counter of its own; None counts nothing; anything but a text is an error."""

    async def key(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-key", b"").decode() or None

    app = site(by_quota("1/minute"), key=key)

    async def status(**headers: str) -> int:
        return (await ask(app, headers=headers)).status_code

    assert [await status(x_key="ignored")] == [200]
    assert [(await ask(app, headers={"X-Key": name})).status_code for name in ("a", "a", "b")] == [200, 429, 200]
    assert [(await ask(app)).status_code for _ in range(3)] == [200, 200, 200]
    with pytest.raises(ConfigurationError, match="key"):
        await ask(site(by_quota("1/minute"), key=lambda scope: 17))
    assert (await ask(site(by_quota("1/minute"), key=lambda scope: ""))).status_code == 400


@pytest.mark.parametrize(("gives", "problem"), [({"usr": "x"}, "no fact"), (["user"], "mapping")])
async def test_what_identify_gives_is_checked(by_rules: Make, ask: Ask, gives: Any, problem: str) -> None:
    """A name that is no fact would be ignored silently; it is an error."""
    app = site(by_rules("rules: [{name: all, quota: 5/second}]"), identify=lambda scope: gives)
    with pytest.raises(ConfigurationError, match=problem):
        await ask(app)


async def test_unix_sockets(by_rules: Make, wire: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A peer on a Unix socket is believed where the rules trust it; a TCP peer without an address never passes for one."""
    trusting = by_rules(
        "identity: {trusted_peers: [unix], ip: {header: X-Forwarded-For}, user: {header: X-User-Id}}\nrules: [{name: each, per: [user], quota: 5/minute}]"
    )
    app = site(trusting)
    headers = [(b"x-user-id", b"ann"), (b"x-forwarded-for", b"198.51.100.7")]
    local = wire(client=None, server=("/run/app.sock", None), headers=headers)
    await local.run(app)
    assert b'"ip":"198.51.100.7","user":"ann"' in local.sent[1]["body"]
    left = wire(client=None, server=("127.0.0.1", 80), headers=headers)
    await left.run(app)
    assert b'"ip":null,"user":null' in left.sent[1]["body"]


async def test_a_quota_without_an_address_warns_once(
    by_quota: Make, wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no client has an address a limit by address cannot apply, and the log says so, once."""
    app = site(by_quota("1/minute"))
    with caplog.at_level(logging.WARNING, "sluicegate.doors"):
        for _ in range(3):
            request = wire(client=None, server=("/run/app.sock", None))
            await request.run(app)
            assert request.sent[0]["status"] == 200
    assert [record.name for record in caplog.records] == ["sluicegate.doors"]


def test_wsgi_identity(by_rules: Make, call_wsgi: Any) -> None:
    """Under WSGI the same holds: strangers' headers do not count, a trusted proxy's do, an empty address is a Unix socket."""
    seen: list[Any] = []

    def application(environ: Any, start_response: Any) -> list[bytes]:
        seen.append(environ["sluicegate.rate_limit"].facts)
        start_response("200 OK", [])
        return [b""]

    app = WsgiMiddleware(application, by_rules(PER_USER))
    headers = {"HTTP_X_USER_ID": "ann", "HTTP_X_FORWARDED_FOR": "1.2.3.4, 198.51.100.7"}
    call_wsgi(app, **headers)
    call_wsgi(app, peer="10.0.0.1", **headers)
    assert [(facts.ip, facts.user) for facts in seen] == [("203.0.113.9", None), ("198.51.100.7", "ann")]
    unix = WsgiMiddleware(
        application,
        by_rules(
            "identity: {trusted_peers: [unix], ip: {header: X-Forwarded-For}}\nrules: [{name: a, per: [ip], quota: 5/minute}]"
        ),
    )
    for peer in ("", "localhost"):  # the second is what waitress says
        call_wsgi(unix, peer=peer, **headers)
        assert seen.pop().ip == "198.51.100.7"


async def test_django_under_asgi_reads_the_connection_itself(django_site: Any, by_rules: Make, wire: Any) -> None:
    """A repeated identity header, a name with underscores and a peer that is gone are told apart, which META could not."""
    from django.core.handlers.asgi import ASGIHandler
    from django.http import HttpResponse
    from django.urls import path

    limiter = by_rules(
        "identity: {trusted_peers: [127.0.0.1, unix], user: {header: X-User-Id}, ip: {header: X-Real-IP}}\n"
        "rules: [{name: users, per: [user], on_missing: deny, quota: 9/minute}]"
    )
    seen: list[Any] = []

    async def view(request: Any) -> HttpResponse:
        seen.append((request.rate_limit.facts.user, request.rate_limit.facts.ip))
        return HttpResponse("seen")

    django_site([path("", view)], SLUICEGATE={"LIMITER": limiter})

    async def status(*headers: tuple[bytes, bytes], **more: Any) -> int:
        connection = wire(headers=[(b"host", b"app.example"), *headers], **{"client": ("127.0.0.1", 1), **more})
        await connection.run(ASGIHandler())
        found: int = connection.sent[0]["status"]
        return found

    ann, bob = (b"x-user-id", b"ann"), (b"x-user-id", b"bob")
    assert await status(ann, (b"x_user_id", b"mallory"), (b"x-real-ip", b"192.0.2.7")) == 200
    assert await status(ann, bob) == 429
    assert await status((b"x_user_id", b"mallory")) == 429
    assert await status(ann, client=None) == 429
    assert await status(ann, client=None, server=("/run/app.sock", None)) == 200
    assert seen == [("ann", "192.0.2.7"), ("ann", None)]


@pytest.mark.filterwarnings("ignore:Using `httpx`")
@pytest.mark.parametrize("of", ["starlette", "fastapi", "litestar"])
def test_test_clients_are_limited(by_rules: Make, of: str) -> None:
    """The test clients of frameworks have a name for an address; they count as 127.0.0.1, so that tests see the limits."""
    from litestar.testing import TestClient as LitestarClient
    from starlette.testclient import TestClient

    made: dict[str, Any] = {
        "starlette": Starlette,
        "fastapi": FastAPI,
        "litestar": partial(Litestar, [], openapi_config=None),
    }
    app: Any = RateLimitMiddleware(made[of](), by_rules("rules: [{name: all, per: [ip], quota: 1/minute}]"))
    client: Any = LitestarClient(app) if of == "litestar" else TestClient(app)
    assert [client.get("/").status_code for _ in range(2)] == [404, 429]


@pytest.mark.parametrize("rules", ["quota: unlimited", "per: [ip], quota: 99/minute"])
async def test_limits_by_headers_that_no_rule_looks_at(by_rules: Make, ask: Ask, call_wsgi: Any, rules: str) -> None:
    """A limit beside a route counts by a header of the request, whatever the rules look at, in every door."""
    rules = f"rules: [{{name: all, {rules}}}]"

    @limit("1/minute", per="header.X-Region", on_missing="skip")
    async def regional(request: Request) -> Response:
        return JSONResponse("regional")

    app = RateLimitMiddleware(Starlette(routes=[Route("/", regional)]), by_rules(rules))
    regions = ["eu", "eu", "us", "us"]
    answers = [(await ask(app, headers={"X-REGION": region})).status_code for region in regions]
    assert answers == [200, 429, 200, 429]
    flask = Flask("regions")
    rate_limit = RateLimit(flask, limiter=by_rules(rules))
    flask.get("/")(rate_limit.limit("1/minute", per="header.x-region", on_missing="skip")(lambda: "regional"))
    assert [call_wsgi(flask, HTTP_X_REGION=region).status for region in regions] == [200, 429, 200, 429]


async def test_limits_by_guarded_headers_believe_trusted_peers_only(by_rules: Make, ask: Ask) -> None:
    """An identity header counts for a limit beside a route only where a trusted peer sends it, and once."""

    @limit("1/minute", per="header.x-user-id", on_missing="deny")
    async def mine(request: Request) -> Response:
        return JSONResponse("mine")

    app = RateLimitMiddleware(Starlette(routes=[Route("/", mine)]), by_rules(PER_USER))
    ann, twice = [("X-User-Id", "ann")], [("X-User-Id", "ann"), ("X-User-Id", "bob")]
    assert (await ask(app, headers=ann)).status_code == 429
    assert (await ask(app, headers=twice, peer="10.0.0.1")).status_code == 429
    assert [(await ask(app, headers=ann, peer="10.0.0.1")).status_code for _ in range(2)] == [200, 429]


async def test_limits_by_path(ask: Ask) -> None:
    """``per="path"`` counts each path by itself, in its normal form; a path that is too long is a bad request."""

    @limit("1/minute", per="path", on_missing="deny")
    async def each(request: Request) -> Response:
        return JSONResponse("each")

    app = RateLimitMiddleware(Starlette(routes=[Route("/{rest:path}", each)]), no_rules())
    paths = ["/a", "/%61/", "/b", "/" + "x" * 5000]
    assert [(await ask(app, path)).status_code for path in paths] == [200, 429, 200, 400]


IDENTIFIED = """
identity: {trusted_peers: [10.0.0.0/8], user: {header: X-User-Id}}
rules: [{name: users, per: [user, endpoint], on_missing: deny, quota: 2/minute}]
"""


async def test_doors_around_each_other_identify_by_their_own_rules(by_rules: Make, by_quota: Make, ask: Ask) -> None:
    """A rule by user or header holds also where an outer door knows neither, and what that one's application vouches for stays."""
    inner = RateLimitMiddleware(Starlette(routes=[Route("/", who)]), by_rules(IDENTIFIED))
    app = RateLimitMiddleware(inner, by_quota("99/minute"))
    ann = {"X-User-Id": "ann"}
    answers = [await ask(app, peer="10.0.0.1", headers=ann) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].json()["user"] == "ann"
    assert (await ask(app, headers=ann)).status_code == 429

    plain = "rules: [{name: all, per: [ip], quota: 99/minute}]"
    vouching = RateLimitMiddleware(inner, by_rules(plain), identify=lambda scope: {"user": "bob"})
    assert (await ask(vouching, headers=ann)).json()["user"] == "bob"
    regional = by_rules("rules: [{name: region, per: [header.x-region], on_missing: deny, quota: 1/minute}]")
    nested = RateLimitMiddleware(RateLimitMiddleware(Starlette(), regional), by_rules(plain))
    assert [(await ask(nested, headers={"X-Region": name})).status_code for name in "aab"] == [404, 429, 404]


def test_flask_inside_wsgi_identifies_by_its_own_rules(by_rules: Make, by_quota: Make, call_wsgi: Any) -> None:
    """As under ASGI; an extension without rules of its own goes by those of the middleware around it."""
    headers = {"HTTP_X_USER_ID": "ann"}
    for outer, own in ((by_quota("99/minute"), by_rules(IDENTIFIED)), (by_rules(IDENTIFIED), None)):
        flask = Flask("nested")
        RateLimit(flask, limiter=own)
        flask.get("/")(lambda: str(g.rate_limit.facts.user))
        app = WsgiMiddleware(flask, outer)
        answers = [call_wsgi(app, peer="10.0.0.1", **headers) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert answers[0].body == b"ann"


PROXY = {"trusted_peers": ["10.0.0.0/8"], "ip": {"ipv4_prefix": 24}}


async def test_applications_without_rules_behind_a_proxy(ask: Ask, call_wsgi: Any, tmp_path: Path) -> None:
    """Where all limits stand beside routes, ``no_rules`` or a file with an identity alone tells the proxy's clients apart."""

    @limit("1/minute")
    async def page(request: Request) -> Response:
        return Response("page")

    path = tmp_path / "rules.yaml"
    path.write_text("version: 1\nidentity: {trusted_peers: [10.0.0.0/8], ip: {ipv4_prefix: 24}}\n")
    for limiter in (no_rules(identity=PROXY), Limiter.from_file(path)):
        app = RateLimitMiddleware(Starlette(routes=[Route("/", page)]), limiter)
        clients = ("203.0.113.1", "198.51.100.2", "203.0.113.255")
        answers = [await ask(app, peer="10.0.0.1", headers={"X-Forwarded-For": client}) for client in clients]
        assert [answer.status_code for answer in answers] == [200, 200, 429], "one network is one client, here"
    flask = Flask("behind_a_proxy")
    rate_limit = RateLimit(flask, limiter=no_rules(identity=PROXY), default="1/minute")
    assert rate_limit.limiter.check({}).rule is None
    flask.add_url_rule("/", "home", lambda: "home")
    answered = [call_wsgi(flask, peer="10.0.0.1", HTTP_X_FORWARDED_FOR=client).status for client in clients]
    assert answered == [200, 200, 429]


async def test_a_quota_behind_a_proxy(ask: Ask) -> None:
    """A limiter made from a quota counts the clients its ``identity`` finds, cut as it says, also after another quota was applied."""
    limiter = Limiter.from_quota("1/minute", identity=PROXY)
    app = site(limiter)

    async def statuses_of(*clients: str) -> list[int]:
        answers = [await ask(app, peer="10.0.0.1", headers={"X-Forwarded-For": client}) for client in clients]
        return [answer.status_code for answer in answers]

    assert await statuses_of("203.0.113.1", "198.51.100.2", "203.0.113.255") == [200, 200, 429]
    limiter.apply("2/minute")
    assert await statuses_of("192.0.2.1", "192.0.2.2", "192.0.2.3") == [200, 200, 429]
    assert (await ask(app, peer="10.0.0.1")).json()["ip"] == "10.0.0.1"


@pytest.mark.parametrize("make", [no_rules, partial(Limiter.from_quota, "1/minute")])
def test_an_identity_that_cannot_be_read(make: Callable[..., Limiter]) -> None:
    """Every mistake in ``identity`` is told at once, as of a rules file."""
    with pytest.raises(ConfigurationError, match=r"identity\.trusted_peer.*trusted_peers.*identity\.user") as told:
        make(identity={"trusted_peer": ["10.0.0.0/8"], "user": {"header": 5}})
    assert "\n" not in str(told.value)


async def test_rules_without_an_identity_keep_what_others_found_out(by_rules: Make, ask: Ask) -> None:
    """A file that says nothing about identity goes by what the door around it has made out."""
    inner = site(by_rules("rules: [{name: inner, per: [ip], quota: 1/minute}]"))
    app = RateLimitMiddleware(inner, by_rules(PER_USER))
    answers = [await ask(app, peer="10.0.0.1", headers={"X-Forwarded-For": f"192.0.2.{number}"}) for number in (1, 2)]
    assert [answer.json()["ip"] for answer in answers] == ["192.0.2.1", "192.0.2.2"]


async def test_a_quota_inside_goes_by_its_own_identity(by_rules: Make, ask: Ask) -> None:
    """Where a quota limiter has an identity, that counts, and not what the door around it believes."""
    inner = site(Limiter.from_quota("1/minute", identity={"trusted_peers": ["10.0.0.0/8"]}))
    app = RateLimitMiddleware(inner, by_rules("rules: [{name: all, quota: 9/minute}]"))
    answers = [await ask(app, peer="10.0.0.1", headers={"X-Forwarded-For": f"192.0.2.{number}"}) for number in (1, 2)]
    assert [answer.status_code for answer in answers] == [200, 200]
