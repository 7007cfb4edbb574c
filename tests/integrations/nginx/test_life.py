"""Reloads, workers that break down, documents that are none, clocks that are set back, and a Redis of every mood."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sluicegate.rules.facts import Facts

Start = Callable[..., Any]

IP = "203.0.113.9"
LOGIN = (
    "version: 1\nidentity: {trusted_peers: [127.0.0.1/32]}\n"
    "rules:\n  - {name: login, match: {path: /login}, per: [ip], quota: 3/hour}\n"
)


class Fake(http.server.BaseHTTPRequestHandler):
    """A server of rules that answers with what ``said`` holds: status and body."""

    said: tuple[int, bytes] = (500, b"")
    asked = 0
    place: http.server.ThreadingHTTPServer

    def do_GET(self) -> None:
        type(self).asked += 1
        status, body = self.said
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Callable[[int], type[Fake]]]:
    """Put a server of what is no document in the place of the real one: ``fake(port)``."""
    with contextlib.ExitStack() as stack:

        def start(port: int) -> type[Fake]:
            handler: type[Fake] = type("Answers", (Fake,), {})
            server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            handler.place = server
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return handler

        yield start


def test_a_reload_under_traffic_loses_nothing(front: Start) -> None:
    """While nginx reloads, twice, every request is answered and exactly the quota passes."""
    nginx, _ = front(LOGIN.replace("3/hour", "150/hour"), workers=2)

    def ask(_: int) -> int:
        return httpx.get(
            f"http://127.0.0.1:{nginx.port}/login", headers={"X-Real-IP": IP}, timeout=20, trust_env=False
        ).status_code

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(300)]
        for _ in range(2):
            nginx.rewrite(lambda text: text)
        statuses = [each.result() for each in asking]
    assert (statuses.count(200), statuses.count(429)) == (150, 150), nginx.log()


@pytest.mark.parametrize("how", ["reload", "crash"])
def test_new_workers_have_the_rules(front: Start, how: str) -> None:
    """A worker that starts while the server is away has the rules that nginx had, from its first request on."""
    nginx, limits = front(LOGIN)
    assert nginx.get("/login").headers["X-RateLimit-Remaining"] == "2"
    limits.stop()
    earlier = nginx.workers()
    if how == "reload":
        nginx.rewrite(lambda text: text)
    else:
        os.kill(earlier[0], signal.SIGKILL)
        nginx.renewed(earlier)
    answers = [nginx.get("/login") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429], nginx.log()
    assert nginx.get("/%6cogin").status_code == 503


def test_what_is_no_document(front: Start, serve: Start, fake: Start, soon: Start) -> None:
    """Whatever the server's place answers instead of rules, nginx goes on by those it has, and takes new ones when there are some."""
    nginx, limits = front(LOGIN)
    assert nginx.get("/login").headers["X-RateLimit-Remaining"] == "2"
    limits.stop()
    handler = fake(limits.port)
    for number, said in enumerate((
        (500, b"broken"), (200, b""), (200, b"<html>"), (200, b"5"), (200, b"null"), (200, b"[]"), (200, b'{"format": 1}'),
        (200, b'{"format": 2, "rules": []}'), (200, b'{"format": 1, "methods": 7, "rules": {}}'), (204, b""), (304, b""),
    )):  # fmt: skip
        handler.said = said
        seen = handler.asked
        assert soon(lambda seen=seen: handler.asked > seen + 1), "it asks again"
        assert nginx.get("/login", ip=f"203.0.113.{20 + number}").headers["X-RateLimit-Limit"] == "3", said
    handler.place.shutdown()
    handler.place.server_close()
    serve(LOGIN.replace("3/hour", "7/hour"), port=limits.port)
    assert soon(lambda: nginx.get("/login").headers["X-RateLimit-Limit"] == "7")
    log = nginx.log()
    assert "no new rules" in log
    assert "sluicegate: a fault" not in log
    assert "lua entry thread aborted" not in log
    assert "lua user thread aborted" not in log
    assert " failed to run timer" not in log


def test_a_clock_that_is_set_back(front: Start, python: Start) -> None:
    """A refusal kept before the clock was set back is not repeated for as long as that; Redis is asked again."""
    back = '\n    location = /back { content_by_lua_block { local now = ngx.now; ngx.now = function() return now() - 3600 end ngx.say("ok") } }'
    nginx, _ = front(
        LOGIN, edits={"listen 8000;": f"listen 8000;{back}", "poll_s = 0.2": "poll_s = 0.2, deny_cache_ms = 600000"}
    )
    assert [nginx.get("/login").status_code for _ in range(4)] == [200, 200, 200, 429]
    python(LOGIN).reset(Facts(method="GET", path="/login", ip=IP))
    assert nginx.get("/login").status_code == 429, "from memory"
    assert nginx.get("/back").status_code == 200
    assert nginx.get("/login").status_code == 200


def test_a_full_dictionary(front: Start) -> None:
    """With no room for refusals and rules, refused clients are refused by Redis, each by its own counter."""
    nginx, _ = front(
        LOGIN.replace("3/hour", "1/hour"), edits={"lua_shared_dict sluicegate 10m;": "lua_shared_dict sluicegate 12k;"}
    )
    clients = [f"203.0.113.{number}" for number in range(100)]
    assert {nginx.get("/login", ip=ip).status_code for ip in clients} == {200}
    for _ in range(2):
        answers = [nginx.get("/login", ip=ip) for ip in clients]
        assert {answer.status_code for answer in answers} == {429}
        assert all(answer.headers["X-RateLimit-Limit"] == "1" for answer in answers)
    assert "sluicegate: a fault" not in nginx.log()


def test_a_redis_that_cannot_be_written(front: Start, servers: Any, require_program: Start, soon: Start) -> None:
    """While Redis is a replica, and after it has dropped every connection, requests are decided; then its counters hold again."""
    nginx, _ = front(LOGIN)
    assert nginx.get("/login").headers["X-RateLimit-Remaining"] == "2"
    client = servers.get("redis", require_program("redis-server")).client()
    with contextlib.closing(client):
        client.client_kill_filter(_type="normal", skipme=True)
        assert nginx.get("/login").headers["X-RateLimit-Remaining"] == "1"
        client.replicaof("127.0.0.1", "1")
        try:
            limited = [nginx.get("/login", ip="203.0.113.20") for _ in range(6)]
            assert limited[-1].status_code == 429, "by the server's local counter"
            assert "READONLY" in nginx.log()
        finally:
            client.replicaof("no", "one")
    assert soon(lambda: nginx.get("/login").status_code == 429)
