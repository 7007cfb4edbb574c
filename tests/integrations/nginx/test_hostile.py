"""Requests that try to get past the limits of nginx, or to trip over them: both ways of limiting, by the configurations as shipped."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

Start = Callable[..., Any]

DOORS = pytest.mark.parametrize("door", ["lua", "auth_request"])
TRUSTED = "version: 1\nidentity: {trusted_peers: [127.0.0.1/32]}\n"
LOGIN = f"{TRUSTED}rules:\n  - {{name: login, match: {{path: /login}}, per: [ip], quota: 50/hour}}\n"
EVERYTHING = f"{TRUSTED}rules:\n  - {{name: all, per: [ip], quota: 50/hour}}\n"
FROM = b"X-Real-IP: 203.0.113.9\r\n"
LAST = FROM + b"Connection: close\r\n"


def request(target: bytes, fields: bytes = b"Host: x\r\n", method: bytes = b"GET", body: bytes = b"") -> bytes:
    """The bytes of one request, after which the connection closes."""
    return method + b" " + target + b" HTTP/1.1\r\n" + fields + LAST + b"\r\n" + body


@DOORS
def test_the_host_is_the_one_that_is_served(doors: dict[str, Start], say: Start, door: str) -> None:
    """A rule for a host holds for whatever nginx takes for a request of that host, however the request says it."""
    rules = f"{TRUSTED}rules:\n  - {{name: hosted, match: {{host: api.example.com}}, per: [ip], quota: 50/hour}}\n"
    nginx, _ = doors[door](rules)
    same = (
        request(b"/", b"Host: api.example.com\r\n"),
        request(b"/", b"Host: API.example.COM.:8000\r\n"),
        request(b"http://api.example.com/", b"Host: other\r\n"),
        b"GET http://api.example.com/ HTTP/1.0\r\n" + LAST + b"\r\n",
    )
    for left, sent in zip(range(49, 0, -1), same, strict=False):
        (answer,) = say(nginx, sent)
        assert (answer.status, answer.fields.get("X-RateLimit-Remaining")) == (200, str(left)), (sent, nginx.log())
    (other,) = say(nginx, request(b"http://other/", b"Host: api.example.com\r\n"))
    assert other.status == 200
    assert "X-RateLimit-Remaining" not in other.fields


@DOORS
def test_a_client_without_a_host(doors: dict[str, Start], say: Start, door: str) -> None:
    """HTTP/1.0 without a Host is limited like any request, and nothing breaks over it."""
    nginx, _ = doors[door](LOGIN.replace("50/hour", "2/hour"), edits={"proxy_set_header Host $host;": ""})
    answers = [say(nginx, b"GET /login HTTP/1.0\r\n" + FROM + b"\r\n")[0] for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429], nginx.log()
    assert " [error] " not in nginx.log()


@DOORS
def test_spellings_and_methods(doors: dict[str, Start], say: Start, door: str) -> None:
    """Each spelling of a path, and each method, counts on the one counter; a path with raw bytes beyond ASCII is decided too."""
    nginx, _ = doors[door](LOGIN)
    same = (
        request(b"/login#fragment"),
        request(b"//login"),
        request(b"/a/../login"),
        request(b"/a/..%2flogin"),
        request(b"/./login"),
        request(b"/login;a=b"),
        request(b"/%6cogin?" + b"a" * 7000),
        request(b"/%6cogin", method=b"HEAD"),
        request(b"/%6cogin", method=b"MADE_UP-ONE"),
        request(b"/%6cogin", b"Host: x\r\nTransfer-Encoding: chunked\r\n", b"POST", b"3\r\nabc\r\n0\r\n\r\n"),
        request(b"/%6cogin", b"Host: x\r\nIf-None-Match: *\r\nRange: bytes=0-1\r\nUpgrade: websocket\r\n"),
        request(b"/%6cogin", b"Host: \xff\r\n"),
        request(b"/%6cogin", b"Host: [::1]:80\r\n"),
    )
    for left, sent in zip(range(49, 0, -1), same, strict=False):
        (answer,) = say(nginx, sent)
        assert answer.status in {200, 304}, (sent, nginx.log())
        assert answer.fields.get("X-RateLimit-Remaining") == str(left), sent
    (raw,) = say(nginx, request(b"/\xfflogin"))
    assert raw.status == 200
    assert " [error] " not in nginx.log()


@DOORS
def test_what_a_client_cannot_say(doors: dict[str, Start], say: Start, door: str) -> None:
    """No field with an address, a path or a token of the client's own is believed, with hyphens or underscores (P87, P89)."""
    nginx, _ = doors[door](LOGIN)
    lies = (
        b"Forwarded: for=192.0.2.1\r\n",
        b"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-For: 192.0.2.2\r\n",
        b"X_Forwarded_For: 192.0.2.1\r\nX_Real_IP: 192.0.2.1\r\n",
        b"X-Original-URI: /free\r\nX-Original-Method: OPTIONS\r\n",
        b"X-Forwarded-Host: other\r\nX-Forwarded-Uri: /free\r\nX-Rewrite-URL: /free\r\n",
        b"X-Sluicegate-Token: a guess\r\nX-Sluicegate-Status: 200\r\n",
    )
    left = 50
    for target in (b"/login", b"/%6cogin"):
        for fields in lies:
            left -= 1
            (answer,) = say(nginx, request(target, b"Host: x\r\n" + fields))
            assert (answer.status, answer.fields["X-RateLimit-Remaining"]) == (200, str(left)), (fields, nginx.log())


def test_a_head_that_the_server_does_not_read(asking: Start, say: Start) -> None:
    """nginx takes longer heads than the server: what cannot be asked about is refused as the client's fault, 431 or 400, and not let through."""
    nginx, _ = asking(LOGIN)
    large = b"".join(b"X-%d: " % number + b"a" * 7000 + b"\r\n" for number in range(3))
    for fields, status in {
        large: 431,
        b"".join(b"X-%d: a\r\n" % number for number in range(300)): 431,
        b"Accept: \x01\r\n": 400,
    }.items():
        (answer,) = say(nginx, request(b"/login", b"Host: x\r\n" + fields))
        assert answer.status == status, nginx.log()
        assert answer.fields["Content-Type"] == "application/problem+json"
    (long,) = say(nginx, request(b"/%6c" + b"a" * 7000))
    assert long.status == 400
    assert " [error] " not in nginx.log()


def test_a_head_of_which_lua_asks_a_part(front: Start, say: Start) -> None:
    """Lua asks with the fields that rules look at: other fields, however long, change nothing, and those are refused as the client's fault."""
    nginx, _ = front(f"{LOGIN}  - {{name: kinds, match: {{headers: {{X-1: b, X-2: b, X-3: b}}}}, quota: 9/hour}}\n")
    for first, status in {1: 431, 11: 200}.items():
        large = b"".join(b"X-%d: " % (first + number) + b"a" * 7000 + b"\r\n" for number in range(3))
        (answer,) = say(nginx, request(b"/%6cogin", b"Host: x\r\n" + large))
        assert answer.status == status, nginx.log()
    assert answer.fields["X-RateLimit-Remaining"] == "49"
    assert "no decision" not in nginx.log()


def test_fields_of_the_message_are_not_passed_on(front: Start, say: Start) -> None:
    """A rule may look at a field that frames the message: the question to the server stays whole, and no client can hold it up."""
    matches = (
        "{headers: {Content-Length: '3'}}",
        "{headers: {Expect: 100-continue}}",
        "{headers: {Transfer-Encoding: chunked}}",
    )
    rules = "".join(
        f"  - {{name: r{number}, match: {match}, per: [ip], quota: 9/hour}}\n" for number, match in enumerate(matches)
    )
    nginx, _ = front(LOGIN + rules, edits={"timeout_ms = 5000": "timeout_ms = 2000"})
    for fields, body in {
        b"Content-Length: 3\r\n": b"abc",
        b"Content-Length: 3\r\nExpect: 100-continue\r\n": b"abc",
        b"Transfer-Encoding: chunked\r\n": b"3\r\nabc\r\n0\r\n\r\n",
    }.items():
        answer = say(nginx, request(b"/%6cogin", b"Host: x\r\n" + fields, b"POST", body))[-1]
        assert answer.status == 200, nginx.log()
    assert "no decision" not in nginx.log()


@DOORS
def test_kept_connections(doors: dict[str, Start], say: Start, door: str) -> None:
    """On one connection each request is decided by itself, and the body of a refused one is not taken for the next request."""
    nginx, _ = doors[door](LOGIN.replace("50/hour", "2/hour"))
    each = b"GET /login HTTP/1.1\r\nHost: x\r\n" + FROM + b"\r\n"
    inner = request(b"/login", b"Host: inner\r\n")
    framed = (
        b"Content-Length: %d\r\n\r\n" % len(inner) + inner,
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    )
    for body in framed:
        post = b"POST /login HTTP/1.1\r\nHost: x\r\n" + FROM + body
        answers = say(nginx, each + each + post + each + request(b"/elsewhere"))
        assert [answer.status for answer in answers[-3:]] == [429, 429, 200], answers
    assert [answer.status for answer in answers] == [429] * 4 + [200]
    refused = answers[0]
    assert int(refused.fields["Content-Length"]) == len(refused.body)


@DOORS
def test_two_lengths(doors: dict[str, Start], say: Start, door: str) -> None:
    """A message that states two lengths is nginx's to refuse, and costs nothing."""
    nginx, _ = doors[door](LOGIN)
    fields = b"Host: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n"
    assert say(nginx, request(b"/login", fields, b"POST", b"0\r\n\r\n"))[0].status == 400
    assert nginx.get("/login").headers["X-RateLimit-Remaining"] == "49"


@DOORS
def test_fields_on_answers_of_every_kind(doors: dict[str, Start], say: Start, door: str) -> None:
    """304, 404, 502, an answer to HEAD and a refusal of HEAD have the fields once."""
    nginx, _ = doors[door](EVERYTHING.replace("50/hour", "5/hour"))
    kinds = {
        304: request(b"/", b"Host: x\r\nIf-None-Match: *\r\n"),
        404: request(b"/missing"),
        502: request(b"/broken"),
        200: request(b"/", method=b"HEAD"),
    }
    for status, sent in kinds.items():
        (answer,) = say(nginx, sent)
        assert answer.status == status
        assert answer.fields.get_list("X-RateLimit-Limit") == ["5"], (status, answer.fields)
    say(nginx, request(b"/"))
    (refused,) = say(nginx, request(b"/", method=b"HEAD"))
    assert (refused.status, refused.body) == (429, b"")
    assert int(refused.fields["Retry-After"]) >= 1


@DOORS
def test_http_2(doors: dict[str, Start], door: str) -> None:
    """Requests of HTTP/2 are limited as those of HTTP/1, several of one connection as well."""
    nginx, _ = doors[door](LOGIN.replace("50/hour", "2/hour"))
    nginx.rewrite(lambda text: text.replace(f"listen 127.0.0.1:{nginx.port};", f"listen 127.0.0.1:{nginx.port} http2;"))
    with httpx.Client(http1=False, http2=True, base_url=nginx.client.base_url, timeout=60, trust_env=False) as client:
        answers = [client.get(path) for path in ("/login", "/%6cogin", "/login")]
    assert [(answer.http_version, answer.status_code) for answer in answers] == [
        ("HTTP/2", 200),
        ("HTTP/2", 200),
        ("HTTP/2", 429),
    ]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]


@DOORS
def test_as_many_limits_as_there_may_be(doors: dict[str, Start], door: str) -> None:
    """An answer that names 64 limits with long names is a decision like any other."""
    names = [f"{'long-' * 11}{number}" for number in range(64)]
    rules = "".join(
        f"  - {{name: {name}, match: {{path: /x}}, per: [ip], quota: {index + 2}/hour}}\n"
        for index, name in enumerate(names)
    )
    nginx, _ = doors[door](f"{TRUSTED}rules:\n{rules}", "--headers", "x-ratelimit,ietf")
    assert [nginx.get(path).status_code for path in ("/x", "/%78", "/x", "/%78")] == [200, 200, 429, 429], nginx.log()


def test_denied_by_nginx_itself(asking: Start) -> None:
    """What nginx denies by its own configuration stays 403: it is no decision that failed."""
    nginx, _ = asking(
        LOGIN, edits={"auth_request /_sluicegate;": "auth_request /_sluicegate; deny 203.0.113.66; allow all;"}
    )
    denied = nginx.get("/login", ip="203.0.113.66")
    assert (denied.status_code, denied.json()["title"]) == (403, "Forbidden")
    assert nginx.get("/login").status_code == 200


LIMITED = """access_by_lua_block { require("sluicegate").access() }
        header_filter_by_lua_block { require("sluicegate").headers() }
"""


def test_redirects_inside(front: Start, say: Start) -> None:
    """A request is decided once, in the first place it comes to that limits: also where an internal redirect took it there."""
    places = """
    error_page 400 413 414 /bad.html;
    error_page 404 = @application;
    client_max_body_size 10;
    location = /bad.html { LIMITED try_files /nothing @page; }
    location @page { return 400 "a page"; }
    location /files/ { root /nonexistent; try_files $uri @application; }
    location /missing/ { root /nonexistent; }
    location /renamed/ { rewrite ^/renamed/(.*)$ /$1 last; }
    location @application { LIMITED proxy_pass http://backend; }
    location / {
        """.replace("LIMITED", LIMITED)
    nginx, _ = front(
        EVERYTHING, edits={"    location / {\n        " + LIMITED.rstrip("\n"): places + LIMITED.rstrip("\n")}
    )
    for left, path in zip(range(49, 0, -1), ("/", "/files/x", "/missing/x", "/renamed/x", "/accel"), strict=False):
        answer = nginx.get(path)
        assert (answer.status_code, answer.headers.get_list("X-RateLimit-Remaining")) == (200, [str(left)]), path
        assert answer.headers.get_list("X-RateLimit-Limit") == ["50"]
    for sent in (
        request(b"/%zz"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"GET\r\n\r\n",
        request(b"/" + b"a" * 9000),
    ):
        assert say(nginx, sent)[0].status in {400, 414}, sent
    assert "sluicegate: a fault" not in nginx.log()


def test_streams_of_one_connection(front: Start) -> None:
    """Requests that share a connection of HTTP/2, and come to another location at the same time, are charged once each."""
    page = "location / {\n        error_page 502 /sorry;"
    nginx, _ = front(EVERYTHING, edits={"location / {": page})
    nginx.rewrite(lambda text: text.replace(f"listen 127.0.0.1:{nginx.port};", f"listen 127.0.0.1:{nginx.port} http2;"))

    async def ask() -> list[int]:
        async with httpx.AsyncClient(http1=False, http2=True, timeout=60, trust_env=False) as client:
            await client.get(f"http://127.0.0.1:{nginx.port}/", headers={"X-Real-IP": "203.0.113.10"})
            asking = [
                client.get(f"http://127.0.0.1:{nginx.port}/broken", headers={"X-Real-IP": "203.0.113.9"})
                for _ in range(20)
            ]
            return [answer.status_code for answer in await asyncio.gather(*asking)]

    assert asyncio.run(ask()) == [502] * 20
    nginx.rewrite(lambda text: text.replace(" http2;", ";"))
    assert nginx.get("/").headers["X-RateLimit-Remaining"] == "29", nginx.log()


@DOORS
def test_a_condition_in_the_location(doors: dict[str, Start], door: str) -> None:
    """Where an ``if`` of the location holds, the request is limited all the same, with the fields."""
    nginx, _ = doors[door](LOGIN, edits={"location / {": "location / {\n        if ($arg_x) { set $seen yes; }"})
    answers = [nginx.get(target) for target in ("/login?x=1", "/login", "/login?x=1")]
    assert [answer.headers.get_list("X-RateLimit-Remaining") for answer in answers] == [["49"], ["48"], ["47"]]


class Upgrading:
    """A backend that takes every request for the beginning of a WebSocket, and repeats what it is told then."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with contextlib.closing(connection):
                    while b"\r\n\r\n" not in connection.recv(65_536):
                        pass
                    connection.sendall(
                        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
                    )
                    connection.sendall(connection.recv(4))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def upgrading() -> Iterator[Upgrading]:
    """A backend of WebSockets."""
    backend = Upgrading()
    yield backend
    backend.close()


@DOORS
def test_websockets(doors: dict[str, Start], say: Start, upgrading: Upgrading, door: str) -> None:
    """The handshake of a WebSocket is limited, its 101 has the fields, and what follows is left alone."""
    nginx, _ = doors[door](
        EVERYTHING.replace("50/hour", "1/hour"),
        edits={
            "server 127.0.0.1:9000;": f"server 127.0.0.1:{upgrading.port};",
            'proxy_set_header Connection "";\n        proxy_set_header Host $host;': "proxy_set_header Upgrade websocket; proxy_set_header Connection upgrade;",
        },
    )
    handshake = b"GET /socket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" + FROM + b"\r\n"
    (begun,) = say(nginx, handshake + b"ping")
    assert (begun.status, begun.body) == (101, b"ping"), nginx.log()
    assert begun.fields["X-RateLimit-Remaining"] == "0"
    assert say(nginx, handshake.replace(b"Upgrade\r\n", b"close\r\n"))[0].status == 429
