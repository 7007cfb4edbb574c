"""nginx with the limiter inside, by the configuration as shipped, against Python on the same counters."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sluicegate.clock import SystemClock
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.problem import quota_exceeded
from sluicegate.rules.facts import Facts

Start = Callable[..., Any]

IP = "203.0.113.9"
LOGIN = "version: 1\nrules:\n  - {name: login, match: {path: /login}, per: [ip], quota: 4/hour}\n"
ALGORITHMS = (
    "quota: 4/hour",
    "quota: 7/hour burst 3",
    "quota: 4/hour, algorithm: fixed_window",
    "quota: 4/hour, algorithm: sliding_window",
    "quota: 4/hour, algorithm: sliding_window, strict: true",
    "quota: 4/hour, algorithm: sliding_log",
    "quota: 4/hour, cost: 2",
    "quota: 7/minute",
    "quota: 4/hour; 9/day",
    "quota: 0/hour",
    "quota: 4/hour, denied_counts: true",
    "quota: 4/hour, algorithm: fixed_window, denied_counts: true",
    "quota: 4/hour, mode: shadow",
    "quota: unlimited",
)


def rate_fields(headers: Any) -> dict[str, str]:
    """The rate fields of an answer, in lower case, without one of the backend's that is of another dialect."""
    found = {name: value for name, value in headers.items() if "ratelimit" in name or name == "retry-after"}
    return {name: value for name, value in found.items() if value != "999999"}


def in_a_word(fields: dict[str, str]) -> dict[str, str]:
    """The fields without the times, which pass between two looks."""
    timeless = {"retry-after", "x-ratelimit-reset", "ratelimit-reset"}
    return {name: "t" if name in timeless else re.sub(r";t=\d+", ";t", value) for name, value in fields.items()}


def times(fields: dict[str, str]) -> list[int]:
    return [
        int(number)
        for name, value in sorted(fields.items())
        for number in re.findall(
            r"(?:;t=|^)(\d+)", value if ";t=" in value or name.endswith(("reset", "after")) else ""
        )
    ]


def test_budget_is_shared_with_python(front: Start, python: Start) -> None:
    """A client spends one budget in nginx and in a Python program, and is refused by both when it is spent."""
    nginx, _ = front(LOGIN)
    limiter = python(LOGIN)
    facts = Facts(method="GET", path="/login", ip=IP)
    assert nginx.get("/login").headers["X-RateLimit-Remaining"] == "3"
    assert limiter.check(facts).remaining == 2
    assert nginx.get("/login").headers["X-RateLimit-Remaining"] == "1"
    assert limiter.check(facts).remaining == 0
    refused = nginx.get("/login")
    assert refused.status_code == 429, nginx.log()
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json() == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota Exceeded",
        "status": 429,
        "detail": f"Refused by 'login'. Try again in {refused.headers['Retry-After']} s.",
        "retry-after": int(refused.headers["Retry-After"]),
        "violated-policies": ["login"],
    }
    here = limiter.check(facts)
    assert not here.allowed
    assert re.sub(rb"\d+", b"n", refused.content) == re.sub(rb"\d+", b"n", quota_exceeded(here)), "byte for byte"
    assert nginx.get("/login", ip="203.0.113.10").status_code == 200
    assert nginx.get("/elsewhere").headers.get("X-RateLimit-Limit") is None


@pytest.mark.parametrize("dialects", ["x-ratelimit,ietf", "x-ratelimit-epoch", "ietf-legacy"])
def test_same_words_as_python(front: Start, python: Start, dialects: str) -> None:
    """For every algorithm and dialect nginx says of a counter what Python says of it, request by request."""
    rules = "version: 1\nrules:\n" + "".join(
        f"  - {{name: r{number}, match: {{path: /p{number}}}, per: [ip], {fields}}}\n"
        for number, fields in enumerate(ALGORITHMS)
    )
    nginx, _ = front(rules, "--headers", dialects)
    limiter, headers = python(rules), RateHeaders(dialects)
    statuses = set()
    for number, fields in enumerate(ALGORITHMS):
        facts = Facts(method="GET", path=f"/p{number}", ip=IP)
        for turn in range(7):
            answer = nginx.get(f"/p{number}")
            statuses.add(answer.status_code)
            decision = limiter.peek(facts, 0 if answer.status_code == 200 else 1)
            assert decision.allowed == (answer.status_code == 200), (fields, turn, nginx.log())
            expected = {name.lower(): value for name, value in headers.items(decision, SystemClock().now_us())}
            seen = rate_fields(answer.headers)
            assert in_a_word(seen) == in_a_word(expected), (fields, turn)
            for mine, other in zip(times(seen), times(expected), strict=True):
                assert abs(mine - other) <= 5, (fields, turn, seen, expected)
    assert statuses == {200, 429}
    assert " [error] " not in nginx.log()


def test_several_rules_are_all_or_nothing(front: Start, python: Start) -> None:
    """A request that one rule refuses is charged to none, and the rule nearest its end is told (T06)."""
    rules = (
        "version: 1\nrules:\n"
        "  - {name: wide, per: [ip], quota: 20/hour}\n"
        "  - {name: narrow, match: {path: /narrow}, per: [ip], quota: 2/hour}\n"
    )
    nginx, _ = front(rules)
    answers = [nginx.get("/narrow") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429, 429]
    assert all(answer.headers["X-RateLimit-Policy"].startswith("narrow;") for answer in answers)
    assert python(rules).peek(Facts(method="GET", path="/", ip=IP), 0).remaining == 18


def test_exact_with_several_workers(front: Start) -> None:
    """Two workers and many connections at once admit exactly the quota."""
    nginx, _ = front(LOGIN.replace("4/hour", "20/hour"), workers=2)
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(lambda _: nginx.get("/login").status_code, range(60)))
    assert (statuses.count(200), statuses.count(429)) == (20, 40), nginx.log()


def test_refusals_are_kept_for_a_moment(
    front: Start, servers: Any, require_program: Start, python: Start, soon: Start
) -> None:
    """While a client is refused Redis is not asked again, and a reset is seen within the second."""
    nginx, _ = front(LOGIN)
    statuses = [nginx.get("/login").status_code for _ in range(5)]
    assert statuses == [200] * 4 + [429]
    client = servers.get("redis", require_program("redis-server")).client()
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    refused = [nginx.get("/login") for _ in range(20)]
    after = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    client.close()
    assert {answer.status_code for answer in refused} == {429}
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert after - before <= 10, "twenty refusals within a moment"
    python(LOGIN).reset(Facts(method="GET", path="/login", ip=IP))
    assert soon(lambda: nginx.get("/login").status_code == 200)


def test_refusals_that_count_reach_redis(front: Start, python: Start) -> None:
    """A refusal that is counted is never answered from memory."""
    rules = LOGIN.replace("4/hour", "2/hour, denied_counts: true")
    nginx, _ = front(rules)
    assert [nginx.get("/login").status_code for _ in range(3)] == [200, 200, 429]
    limiter, facts = python(rules), Facts(method="GET", path="/login", ip=IP)
    limiter.reset(facts)
    assert nginx.get("/login").status_code == 200


def test_edits_are_live(front: Start, soon: Start) -> None:
    """An edit of the rules reaches nginx by itself, and counters go on under it."""
    nginx, limits = front(LOGIN)
    assert [nginx.get("/login").status_code for _ in range(5)] == [200] * 4 + [429]
    limits.rules.write_text(LOGIN.replace("4/hour", "6/hour"))
    assert soon(lambda: nginx.get("/login").headers["X-RateLimit-Limit"] == "6")


def test_headers_on_every_answer(front: Start) -> None:
    """The fields are nginx's own, whatever the backend sends, and stand on answers that nginx makes itself."""
    nginx, _ = front(LOGIN.replace("4/hour", "50/hour").replace("/login", "/**"))
    served = nginx.get("/x")
    assert served.headers["X-Backend"] == "yes"
    assert served.headers.get_list("X-RateLimit-Limit") == ["50"]
    broken = nginx.get("/broken")
    assert broken.status_code == 502
    assert broken.headers["X-RateLimit-Limit"] == "50"
    assert "Retry-After" not in served.headers


def test_an_error_page_is_not_charged_again(front: Start) -> None:
    """A page for errors that another location makes has the fields too, and costs nothing more."""
    page = "location / {\n        error_page 502 /sorry.html;"
    nginx, _ = front(LOGIN.replace("4/hour", "50/hour").replace("/login", "/**"), edits={"location / {": page})
    answers = [nginx.get("/broken") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [502] * 3
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["49", "48", "47"]
