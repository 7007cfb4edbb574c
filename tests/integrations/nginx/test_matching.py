"""Which rules apply inside nginx, and to whose counters, beside what the engine says in Python."""

from __future__ import annotations

import http.client
import random
from collections.abc import Callable
from typing import Any

from sluicegate.limiter.engine import Engine
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

Start = Callable[..., Any]

IP = "203.0.113.9"
STATED = "identity: {trusted_peers: [127.0.0.1/32], user: {header: X-User}, tenant: {header: X-Tenant}, tier: {header: X-Tier}}\n"
RULES = f"""
version: 1
tiers: {{names: [free, paid], default: free}}
subjects: {{"user:vip": paid}}
{STATED}
rules:
  - {{name: all, quota: 1000/hour}}
  - {{name: exact, match: {{path: /Login/}}, per: [ip], quota: 900/hour}}
  - {{name: one, match: {{path: "/users/{{id}}"}}, per: [endpoint, ip], quota: 900/hour}}
  - {{name: deep, match: {{path: "/api/**"}}, per: [path], quota: 900/hour}}
  - {{name: tail, match: {{path: "/**/admin"}}, per: [ip], quota: 900/hour}}
  - {{name: glob, match: {{path: "/files/report-*.pdf"}}, per: [ip], quota: 900/hour}}
  - {{name: several, match: {{path: [/a, "/b/*"]}}, per: [endpoint], quota: 900/hour}}
  - {{name: posts, match: {{methods: [POST, PUT]}}, per: [ip, method], quota: 900/hour}}
  - {{name: host, match: {{host: [shop.example, "*.api.example"]}}, per: [host], quota: 900/hour}}
  - {{name: header, match: {{headers: {{X-Kind: bulk}}}}, per: [ip], quota: 900/hour}}
  - {{name: present, match: {{headers: {{X-Batch: }}}}, per: [header.X-Batch, ip], quota: 900/hour}}
  - {{name: known, match: {{authenticated: true}}, per: [user], quota: 900/hour}}
  - {{name: unknown, match: {{authenticated: false}}, per: [ip], quota: 900/hour}}
  - {{name: named, match: {{user: [alice, bob]}}, per: [user], quota: 900/hour}}
  - {{name: tenant, match: {{tenant: [acme]}}, per: [tenant, user], quota: 900/hour}}
  - {{name: tiered, per: [tier], quota: {{free: 800/hour, paid: 900/hour}}}}
  - {{name: paying, match: {{tier: [paid]}}, per: [ip], quota: 900/hour}}
  - {{name: except, match: {{path: "/api/**", not: {{path: /api/health, methods: [GET]}}}}, per: [ip], quota: 900/hour}}
  - {{name: except_user, match: {{not: {{user: [alice]}}}}, per: [ip], quota: 900/hour}}
  - {{name: first, per: {{first_of: [user, tenant, ip]}}, quota: 900/hour}}
  - {{name: or_ip, per: [user], on_missing: ip, quota: 900/hour}}
  - {{name: root, match: {{path: /}}, per: [ip], quota: 900/hour}}
  - {{name: glob_first, match: {{path: "/fi*s/x"}}, per: [ip], quota: 900/hour}}
  - {{name: any_first, match: {{path: "/*/admin"}}, per: [ip], quota: 900/hour}}
  - {{name: users, match: {{path: ["/users/**", "/*/y/**"]}}, per: [ip], quota: 900/hour}}
  - {{name: marks, match: {{path: "/a~b!$&'()*+,=:@c"}}, per: [ip], quota: 900/hour}}
  - {{name: envoys, match: {{domain: edge, entries: [{{key: route}}]}}, quota: 900/hour}}
  - {{name: not_envoys, match: {{not: {{domain: edge, entries: [{{key: route}}]}}}}, per: [ip], quota: 900/hour}}
"""
GIVEN = (
    'require("sluicegate").access { user = ngx.var.http_test_user, tenant = ngx.var.http_test_tenant, '
    "tier = ngx.var.http_test_tier }"
)
PATHS = (
    "/", "/login", "/LOGIN/", "/users/7", "/users/7/x", "/users", "/api", "/api/", "/api/x/y?q=/admin", "/api/health",
    "/admin", "/x/y/admin", "/x/adminx", "/files/report-.pdf", "/files/report-1.pdf", "/files/report-1.pdf.x", "/a", "/b/c", "/b",
    "/B/C?x#y", "/files/x", "/fis/x", "/fi/x", "/x/admin", "/usersx/7", "/a~b!$&'()*+,=:@c",
)  # fmt: skip


def ask(port: int, method: str, path: str, host: str, headers: dict[str, str]) -> tuple[int, list[str]]:
    """Status and names of the rules that were charged, in order. The path goes out as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in {"Host": host, "X-Real-IP": IP, **headers}.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    answer.read()
    policies = answer.headers.get("RateLimit-Policy", "")
    connection.close()
    return answer.status, [policy.split('"')[1] for policy in policies.split(", ") if policy]


def test_same_rules_as_the_engine(front: Start, servers: Any, require_program: Start, python: Start) -> None:
    """Random requests charge the rules and the counters inside nginx that the engine charges."""
    edits = {'require("sluicegate").access()': GIVEN, "timeout_ms = 5000": "timeout_ms = 5001"}
    nginx, _ = front(RULES, "--headers", "ietf", edits=edits)
    limiter = python(RULES)
    engine = Engine(load_rules(RULES, "rules.yaml"))
    client = servers.get("redis", require_program("redis-server")).client()
    draw = random.Random(3)
    keys: set[str] = set()
    for _ in range(250):
        method = draw.choice(("GET", "POST", "PUT", "DELETE", "FROB"))
        path, host = (
            draw.choice(PATHS),
            draw.choice(("shop.example", "SHOP.example:8000", "x.api.example", "api.example")),
        )
        known = {
            name: value
            for name in ("user", "tenant", "tier")
            if (value := draw.choice((None, "alice", "vip", "acme", "paid", "free")))
        }
        headers = {
            name: value for name in ("x-kind", "x-batch") if (value := draw.choice((None, None, "bulk", "7 of 9")))
        }
        facts = Facts(method=method, path=path.split("#")[0], host=host, ip=IP, headers=headers, **known)
        plan = engine.plan(facts)
        expected = [counter.name for counter, _, _ in plan.charges]
        sent = {**headers, **{f"Test-{name}": value for name, value in known.items()}, "X-User": "mallory"}
        status, names = ask(nginx.port, method, path, host, sent)
        assert status == 200, nginx.log()
        assert names == expected, (method, path, host, known, headers)
        keys |= {limiter.store.key(counter, subject) for counter, subject, _ in plan.charges}  # type: ignore[attr-defined]
    found = {key.decode() for key in client.keys("rl1:default:*")}
    client.close()
    assert found == keys
    assert " [error] " not in nginx.log()


def test_paths_with_several_readings(front: Start) -> None:
    """What may be read in several ways is decided by the server, which knows the readings; it cannot slip past a rule."""
    trusted = "identity: {trusted_peers: [127.0.0.1/32]}\n"
    rules = f"version: 1\n{trusted}rules:\n  - {{name: login, match: {{path: /login}}, per: [ip], quota: 2/hour}}\n"
    nginx, _ = front(rules, "--headers", "ietf")
    for number, path in enumerate(("/a/../login", "/%6cogin", "//login", "/login;x", "/./login")):
        client = {"X-Real-IP": f"203.0.113.{number}"}
        answers = [ask(nginx.port, "GET", path, "x", client) for _ in range(3)]
        assert answers == [(200, ["login"]), (200, ["login"]), (429, ["login"])], (path, nginx.log())
        assert ask(nginx.port, "GET", "/login", "x", client) == (429, ["login"]), "the same counter"
    assert [ask(nginx.port, "GET", "/./a", "x", {}) for _ in range(3)] == [(200, [])] * 3


def test_paths_of_a_thousand_segments(front: Start) -> None:
    """Where a pattern's expression needs more than there is for it, the server decides; without it the request is refused, and does not slip past."""
    trusted = "identity: {trusted_peers: [127.0.0.1/32]}\n"
    rules = (
        f"version: 1\n{trusted}rules:\n  - {{name: export, match: {{path: '/**/export'}}, per: [ip], quota: 3/hour}}\n"
    )
    nginx, limits = front(rules)
    long = "/" + "a/" * 2000 + "export"
    assert nginx.get("/export").headers["X-RateLimit-Remaining"] == "2"
    assert nginx.get(long).headers["X-RateLimit-Remaining"] == "1"
    limits.stop()
    assert nginx.get(long).status_code == 503
    assert nginx.get("/a/export").headers["X-RateLimit-Remaining"] == "0"


def test_many_rules(front: Start) -> None:
    """Of a thousand paths with a beginning of their own each finds its rule, in order with those for paths anywhere."""
    rules = "".join(
        f"  - {{name: r{number}, match: {{path: '/p{number}/*'}}, per: [ip], quota: 9/hour}}\n"
        f"  - {{name: s{number}, match: {{path: '/*/s{number}'}}, per: [ip], quota: 9/hour}}\n"
        for number in range(600)
    )
    nginx, _ = front(f"version: 1\nidentity: {{trusted_peers: [127.0.0.1/32]}}\nrules:\n{rules}", "--headers", "ietf")
    for number in (0, 17, 599):
        assert ask(nginx.port, "GET", f"/p{number}/s{number}", "x", {}) == (200, [f"r{number}", f"s{number}"])
    assert ask(nginx.port, "GET", "/p17/s16", "x", {}) == (200, ["s16", "r17"])
    assert ask(nginx.port, "GET", "/p600/s600", "x", {}) == (200, [])
    assert "regex cache" not in nginx.log()
