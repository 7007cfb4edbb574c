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
    "/B/C?x#y", "/a~b!$&'()*+,=:@c",
)  # fmt: skip


def ask(port: int, method: str, path: str, host: str, headers: dict[str, str]) -> tuple[int, list[str]]:
    """Status and names of the rules that were charged, in order. The path goes out as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
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
