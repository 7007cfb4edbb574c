"""What nginx leaves to the server, and what happens when Redis, the server or both are gone."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]

TRUSTED = "identity: {trusted_peers: [127.0.0.1/32]}\n"
LOGIN = f"version: 1\n{TRUSTED}rules:\n  - {{name: login, match: {{path: /login}}, per: [ip], quota: 3/hour}}\n"
POLICIES = f"""
version: 1
{TRUSTED}
rules:
  - {{name: money, match: {{path: /money}}, per: [ip], quota: 50/hour, on_store_failure: closed}}
  - {{name: counted, match: {{path: /counted}}, per: [ip], quota: 3/hour}}
"""
QUICK = {
    "timeout_ms = 5000": "timeout_ms = 1000",
}


@pytest.fixture
def stopped() -> Any:
    """Stop a process so that it answers nobody; it goes on when the test is over."""
    pids: list[int] = []

    def stop(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        pids.append(pid)

    yield stop
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def test_rules_that_are_the_servers(front: Start) -> None:
    """Rules that Lua cannot decide are decided by the server, with its fields, and none of them lets more through."""
    special = {
        "match: {path: /0}, per: [ip], quota: 2/hour, algorithm: leaky_bucket, nodelay: true": 429,
        "match: {path: /1, ip: [203.0.113.0/24]}, per: [ip], quota: 2/hour": 429,
        "match: {path: /2, not: {ip: [198.51.100.0/24]}}, per: [ip], quota: 2/hour": 429,
        "match: {path: /3, ip: [198.51.100.0/24]}, per: [ip], quota: 2/hour": 200,
        "match: {path: /4}, per: [ip], quota: 2/day, algorithm: fixed_window, align: calendar, tz: Europe/Berlin": 429,
        "match: {path: /5}, per: [user], quota: 2/hour, on_missing: deny": 429,
        "match: {path: /6}, per: [ip], quota: 4/hour, cost: {header: X-Cost, max: 2, default: 2}": 429,
    }
    rules = "".join(f"  - {{name: special{number}, {fields}}}\n" for number, fields in enumerate(special))
    nginx, _ = front(f"version: 1\n{TRUSTED}rules:\n{rules}")
    for number, (fields, status) in enumerate(special.items()):
        answers = [nginx.get(f"/{number}") for _ in range(3)]
        assert answers[-1].status_code == status, (fields, nginx.log())
        if status == 429:
            assert answers[-1].headers["X-RateLimit-Policy"].startswith(f"special{number};")
            assert answers[-1].json()["violated-policies"] == [f"special{number}"]
            assert answers[-1].headers.get_list("X-RateLimit-Limit") != ["999999"]
        else:
            assert "X-RateLimit-Policy" not in answers[-1].headers


def test_credentials_are_the_servers(front: Start, tmp_path: Path) -> None:
    """A request with an API key is counted under the key's name, which only the server knows; an invented key is nobody's."""
    (tmp_path / "keys.txt").write_text(f"billing: sha256:{sha256(b'secret-of-billing').hexdigest()}\n")
    rules = (
        "version: 1\nidentity: {trusted_peers: [127.0.0.1/32], api_key: {keys: keys.txt}}\n"
        "rules:\n  - {name: keyed, per: {first_of: [api_key, ip]}, quota: 2/hour}\n"
    )
    nginx, _ = front(rules)
    keyed = [nginx.get("/", ip=f"203.0.113.{n}", X_Api_Key="secret-of-billing").status_code for n in range(3)]
    assert keyed == [200, 200, 429], nginx.log()
    assert nginx.get("/", X_Api_Key="an invention").headers["X-RateLimit-Remaining"] == "1"
    assert nginx.get("/").headers["X-RateLimit-Remaining"] == "0", "the address is the same to Lua and to the server"


def test_a_clients_word_is_nothing(front: Start) -> None:
    """Fields by which a proxy states who its client is do not get through from the client, on no way to a decision."""
    rules = (
        "version: 1\nidentity: {trusted_peers: [127.0.0.1/32], user: {header: X-User-Id}}\n"
        "rules:\n  - {name: users, per: {first_of: [user, ip]}, quota: 4/hour}\n"
    )
    nginx, _ = front(rules)
    for path in ("/plain", "/%70lain"):
        for number in range(2):
            answer = nginx.get(
                path, X_User_Id=f"mallory{number}", X_Forwarded_For="198.51.100.1", Forwarded="for=1.2.3.4"
            )
            assert answer.status_code == 200
    assert nginx.get("/plain", X_User_Id="mallory9").status_code == 429


def test_without_redis_the_server_decides(
    front: Start, url: str, servers: Any, require_program: Start, stopped: Start
) -> None:
    """While Redis answers nobody the server decides by each rule's policy, and soon nobody waits for it any more."""
    nginx, _ = front(POLICIES, edits=QUICK)
    assert nginx.get("/counted").headers["X-RateLimit-Remaining"] == "2"
    stopped(servers.get("redis", require_program("redis-server")).pid)
    closed = nginx.get("/money")
    assert closed.status_code == 503, nginx.log()
    assert closed.headers["Content-Type"] == "application/problem+json"
    assert int(closed.headers["Retry-After"]) >= 1
    statuses = [nginx.get("/counted").status_code for _ in range(8)]
    assert statuses.count(200) <= 4, "a local counter of the server's limits it"
    assert statuses[-1] == 429
    assert "Redis gave no decision" in nginx.log()


def test_without_both_each_rule_has_its_way(
    front: Start, servers: Any, require_program: Start, stopped: Start, soon: Start
) -> None:
    """Neither Redis nor the server: a closed rule refuses, all else passes, and it goes on when they are back (T88)."""
    nginx, limits = front(POLICIES, edits=QUICK)
    assert nginx.get("/money").status_code == 200
    redis = servers.get("redis", require_program("redis-server"))
    stopped(redis.pid)
    limits.stop()
    refused = nginx.get("/money")
    assert refused.status_code == 503, nginx.log()
    assert refused.content == (
        b'{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",'
        b'"title":"Temporary Reduced Capacity","status":503,'
        b'"detail":"The counters that decide this request are out of reach for the moment.",'
        b'"violated-policies":["money"]}'
    ), "the bytes of every other door"
    assert refused.headers["Retry-After"] == "1"
    assert [nginx.get("/counted").status_code for _ in range(5)] == [200] * 5
    assert nginx.get("/%6doney").status_code == 503, "what may be a closed rule's is refused"
    os.kill(redis.pid, signal.SIGCONT)
    assert soon(lambda: "X-RateLimit-Limit" in nginx.get("/money").headers and nginx.get("/money").status_code == 200)


def test_nginx_may_fail_closed(front: Start, servers: Any, require_program: Start, stopped: Start, soon: Start) -> None:
    """With ``on_failure = "closed"`` what cannot be decided is refused."""
    nginx, limits = front(
        LOGIN, edits={**QUICK, 'on_failure = "open"': 'pull_timeout_ms = 9000, on_failure = "closed"'}
    )
    assert soon(lambda: nginx.get("/login").headers.get("X-RateLimit-Limit") == "3")
    stopped(servers.get("redis", require_program("redis-server")).pid)
    limits.stop()
    assert nginx.get("/login").status_code == 503
    assert nginx.get("/elsewhere").status_code == 200, "no rule, nothing to decide"


def test_the_server_may_be_away(front: Start) -> None:
    """Without the server nginx goes on deciding by the rules it has."""
    nginx, limits = front(LOGIN)
    assert nginx.get("/login").status_code == 200
    limits.stop()
    assert [nginx.get("/login").status_code for _ in range(3)] == [200, 200, 429]


def test_no_spelling_gets_around_a_rule(front: Start) -> None:
    """Without the server, and Redis there, what only the server can read is refused, though ``on_failure`` is open; the rest is decided."""
    rules = f"{LOGIN}  - {{name: kinds, match: {{headers: {{X-Kind: bulk}}}}, per: [ip], quota: 3/hour}}\n"
    nginx, limits = front(rules, edits=QUICK)
    assert nginx.get("/login").status_code == 200
    limits.stop()
    assert [nginx.get("/login").status_code for _ in range(3)] == [200, 200, 429]
    for path in (
        "/a/../login",
        "//login",
        "/%6cogin",
        "/login;x",
        "/./login",
        "/login/%2e",
        "/LOGIN%0a",
        "/l%C3%B6gin",
    ):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", nginx.port, timeout=60)) as connection:
            for _ in range(2):
                connection.request("GET", path, headers={"X-Real-IP": "203.0.113.9"})
                answer = connection.getresponse()
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1"), (path, nginx.log())
                assert answer.headers["Content-Type"] == "application/problem+json"
                answer.read()
    assert nginx.get("/elsewhere", X_Kind="bulkä".encode()).status_code == 503
    assert nginx.get("/elsewhere").status_code == 200
    assert nginx.get("/login", ip="203.0.113.10").status_code == 200


def test_invented_keys_are_limited_by_their_address(front: Start, tmp_path: Path) -> None:
    """Without the server no key can be verified, so none counts: a request with one is decided as its address's, with ``on_failure`` open."""
    (tmp_path / "keys.txt").write_text(f"billing: sha256:{sha256(b'secret-of-billing').hexdigest()}\n")
    rules = (
        "version: 1\nidentity: {trusted_peers: [127.0.0.1/32], api_key: {keys: keys.txt}}\n"
        "rules:\n  - {name: keyed, per: {first_of: [api_key, ip]}, quota: 3/hour}\n"
    )
    nginx, limits = front(rules, edits=QUICK)
    assert nginx.get("/", X_Api_Key="secret-of-billing").headers["X-RateLimit-Remaining"] == "2"
    limits.stop()
    answers = [nginx.get("/", X_Api_Key=f"an invention {number}") for number in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429], nginx.log()
    assert answers[0].headers["X-RateLimit-Remaining"] == "2"
    assert answers[3].json()["violated-policies"] == ["keyed"]
    assert nginx.get("/").status_code == 429, "the same counter"
    assert nginx.get("/", ip="203.0.113.10", X_Api_Key="secret-of-billing").status_code == 200


@pytest.mark.parametrize("how", ["a closed rule", "on_failure"])
def test_keys_and_what_fails_closed(front: Start, tmp_path: Path, how: str) -> None:
    """Without the server a request with a key is refused where a rule fails closed, or nginx does."""
    (tmp_path / "keys.txt").write_text(f"billing: sha256:{sha256(b'secret-of-billing').hexdigest()}\n")
    closed = ", on_store_failure: closed" if how == "a closed rule" else ""
    rules = (
        "version: 1\nidentity: {trusted_peers: [127.0.0.1/32], api_key: {keys: keys.txt}}\n"
        f"rules:\n  - {{name: keyed, per: [api_key], quota: 3/hour{closed}}}\n"
    )
    edits = {} if closed else {'on_failure = "open"': 'on_failure = "closed", pull_timeout_ms = 9000'}
    nginx, limits = front(rules, edits={**QUICK, **edits})
    assert nginx.get("/", X_Api_Key="secret-of-billing").headers["X-RateLimit-Remaining"] == "2"
    limits.stop()
    assert nginx.get("/", X_Api_Key="secret-of-billing").status_code == 503, nginx.log()
    assert nginx.get("/").status_code == 200


def test_rules_in_shadow_refuse_no_spelling(front: Start) -> None:
    """Where nothing is enforced there is nothing to get around."""
    nginx, limits = front(LOGIN.replace("quota: 3/hour", "quota: 3/hour, mode: shadow"), edits=QUICK)
    assert nginx.get("/login").status_code == 200
    limits.stop()
    assert nginx.get("/%6cogin").status_code == 200, nginx.log()


def test_without_rules_nothing_is_limited(nginx: Start, port_of: Start, url: str, serve: Start, soon: Start) -> None:
    """Before the first rules ``on_failure`` holds; they are fetched as soon as the server is there."""
    from_where = Path(__file__).resolve().parents[3] / "integrations" / "nginx" / "lua.conf"
    limits = serve(LOGIN)
    limits.stop()
    text = from_where.read_text().replace("port = 6379", f"port = {port_of(url)}, timeout_ms = 5000")
    text = text.replace("port = 8081", f"port = {limits.port}, timeout_ms = 5000")
    running = nginx(text, lua=True)
    assert [running.get("/login").status_code for _ in range(5)] == [200] * 5
    serve(LOGIN, port=limits.port)
    assert soon(lambda: running.get("/login").status_code == 429)


def test_a_flushed_redis(front: Start, servers: Any, require_program: Start) -> None:
    """After a flush, and with a Redis that has forgotten the scripts, nginx goes on under the secret that is put back."""
    nginx, _ = front(LOGIN)
    assert nginx.get("/login").status_code == 200
    client = servers.get("redis", require_program("redis-server")).client()
    client.flushall()
    client.script_flush()
    client.close()
    assert [nginx.get("/login").status_code for _ in range(4)] == [200, 200, 200, 429], nginx.log()


def test_a_given_secret(front: Start, python: Start, url: str) -> None:
    """Where the operator gives the secret nginx needs it too: with it keys agree, with another one the server decides."""
    given = "a secret of thirty characters!"
    store = f"{url}&key_secret={given.replace(' ', '%20').replace('!', '%21')}"
    right, _ = front(LOGIN, store=store, edits={"redis = { ": f'redis = {{ key_secret = "{given}", '})
    assert right.get("/login").headers["X-RateLimit-Remaining"] == "2"
    assert " [error] " not in right.log()
    wrong, _ = front(LOGIN, store=store, edits={"redis = { ": 'redis = { key_secret = "another secret of it", '})
    assert wrong.get("/login").headers["X-RateLimit-Remaining"] == "1", "the server's keys"
    assert "another key_secret" in wrong.log()


def test_what_nginx_states_is_one_line(front: Start) -> None:
    """An identity with a line end in it is none, to Lua and on the way to the server: it cannot add a field of its own."""
    rules = (
        "version: 1\nidentity: {trusted_peers: [127.0.0.1/32], user: {header: X-User-Id}, tier: {header: X-Tier}}\n"
        "tiers: {names: [free, paid], default: free}\n"
        "rules:\n  - {name: users, per: {first_of: [user, ip]}, quota: {free: 3/hour, paid: 90/hour}}\n"
    )
    given = 'require("sluicegate").access { user = ngx.unescape_uri(ngx.var.http_test_user or "") }'
    nginx, _ = front(rules, edits={'require("sluicegate").access()': given})
    assert nginx.get("/plain", Test_User="alice").headers["X-RateLimit-Remaining"] == "2"
    assert nginx.get("/%70lain", Test_User="alice").headers["X-RateLimit-Remaining"] == "1"
    for path in ("/plain", "/%70lain"):
        assert nginx.get(path, Test_User="alice%0d%0aX-Tier:%20paid").headers["X-RateLimit-Limit"] == "3"
    assert nginx.get("/plain").headers["X-RateLimit-Remaining"] == "0", "those were the address's"
