"""What the rules decide, the client sees, and a refused request never leaves the gateway."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from sluicegate.clock import ManualClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.flaky import FlakyStore

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
TWO = """
version: 1
rules:
  - {name: two, per: [ip], quota: 2/minute, algorithm: fixed_window}
"""
ORIGIN = b"GET /a HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\n\r\n"


def post(size, extra=b""):
    """A POST head that announces a body."""
    return b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n" % (size, extra)


async def never(line):
    """An upstream nobody may call."""
    line.backend.errors.append(AssertionError(f"the upstream was called: {await line.reader.read(1000)!r}"))


async def test_a_refused_request_opens_no_upstream_connection(world):
    """429 as a problem document, with Retry-After and the rate headers; the upstream saw the allowed ones only."""
    w = await world(rules=TWO, clock=ManualClock())
    client = await w.client()
    assert [(await client.ask(GET)).status for _ in range(4)] == [200, 200, 429, 429]
    reply = await w.ask(GET)
    assert reply.status == 429
    assert reply.get("Content-Type") == "application/problem+json"
    problem = json.loads(reply.body)
    assert (problem["status"], problem["violated-policies"]) == (429, ["two"])
    assert int(reply.get("Retry-After")) == problem["retry-after"] == int(reply.get("X-RateLimit-Reset")) > 0
    assert (reply.get("X-RateLimit-Limit"), reply.get("X-RateLimit-Remaining")) == ("2", "0")
    assert reply.get("Date") is not None
    assert w.backend.targets == ["GET /a", "GET /a"]
    assert (w.stats.allowed, w.stats.refused, w.stats.upstream_connects) == (2, 3, 1)


async def test_a_refusal_needs_no_upstream_at_all(world):
    """No connection is even tried."""
    w = await world(never, rules=TWO.replace("2/minute", "0"))
    assert (await w.ask(GET)).status == 429
    head = await w.ask(GET.replace(b"GET", b"HEAD"), method="HEAD")
    assert (head.status, head.body) == (429, b"")
    assert w.stats.upstream_connects == 0


async def test_pipelined_requests_are_decided_one_by_one(world):
    """Refusals keep their place among the answers."""
    w = await world(rules=TWO, clock=ManualClock())
    client = await w.client()
    client.send(GET * 2 + post(4) + b"body" + GET)
    assert [(await client.reply()).status for _ in range(4)] == [200, 200, 429, 429]


async def test_a_refusal_comes_before_the_body_is_asked_for(world):
    """A client that waits for 100 (Continue) gets 429 and a closed connection instead."""
    w = await world(never, rules=TWO.replace("2/minute", "0"))
    client = await w.client()
    reply = await client.ask(post(10_000_000, b"Expect: 100-continue\r\n"))
    assert (reply.status, reply.get("Connection")) == (429, "close")
    assert await client.ended() == "closed"


async def test_a_refused_small_body_is_thrown_away_and_the_connection_kept(world):
    """The next request on it is understood, however the body arrives."""
    w = await world(rules=TWO.replace("2/minute", "1/minute"), clock=ManualClock())
    client = await w.client()
    assert (await client.ask(GET)).status == 200
    client.send(post(50) + b"GET /smuggled HTTP/1.1\r\n")
    assert (await client.reply()).status == 429
    client.send(b"Host: x\r\n\r\n" + b"z" * 15)
    assert (await client.ask(GET)).status == 429
    assert w.stats.requests == 3
    assert w.backend.targets == ["GET /a"]


async def test_a_refused_large_body_is_cut_off_after_the_client_could_read_why(world):
    """The answer is not destroyed by a reset while the client is still sending."""
    w = await world(never, rules=TWO.replace("2/minute", "0"))
    client = await w.client()
    client.send(post(1 << 40) + b"x" * 100_000)
    await asyncio.sleep(0.02)
    client.send(b"y" * 100_000)
    reply = await client.reply()
    assert (reply.status, reply.get("Connection")) == (429, "close")
    assert await client.ended() == "closed"


async def test_a_refused_chunked_body_ends_the_connection(world):
    """How long it is cannot be known, so it is not waited for."""
    w = await world(never, rules=TWO.replace("2/minute", "0"))
    client = await w.client()
    reply = await client.ask(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel")
    assert (reply.status, reply.get("Connection")) == (429, "close")


async def test_an_allowed_client_is_told_to_continue_by_the_upstream(world):
    """Expect goes through, 100 comes back, then the body flows."""

    async def serve(line):
        head = await line.head()
        assert b"\r\nExpect: 100-continue\r\n" in head
        line.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await line.exactly(5) == b"hello"
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await line.head()

    w = await world(serve)
    client = await w.client()
    assert (await client.ask(post(5, b"Expect: 100-continue\r\n"))).status == 100
    reply = await client.ask(b"hello")
    assert (reply.status, reply.get("Connection")) == (200, None)


async def test_an_upstream_may_refuse_instead_of_continuing(world):
    """Whether the client then sends its body cannot be told, so the connection ends."""

    async def serve(line):
        await line.head()
        line.send(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        await line.head()

    w = await world(serve)
    client = await w.client()
    reply = await client.ask(post(5, b"Expect: 100-continue\r\n"))
    assert (reply.status, reply.get("Connection")) == (413, "close")
    assert await client.ended() == "closed"


async def test_rate_headers_of_the_upstream_are_replaced(world):
    """Not doubled; its own Retry-After stays; where no rule matches, its headers are left alone."""

    async def serve(line):
        while True:
            await line.head()
            line.send(
                b"HTTP/1.1 503 Busy\r\nx-ratelimit-limit: 7\r\nX-RATELIMIT-REMAINING: 7\r\nRetry-After: 9\r\n"
                b"RateLimit-Limit: 3\r\nContent-Length: 0\r\n\r\n"
            )

    rules = TWO.replace("quota", "match: {path: /a}, quota")
    w = await world(serve, rules=rules, clock=ManualClock())
    reply = await w.ask(GET)
    assert reply.all("X-RateLimit-Limit") == ["2"]
    assert reply.all("X-RateLimit-Remaining") == ["1"]
    assert reply.all("RateLimit-Limit") == ["3"]
    assert reply.get("Retry-After") == "9"
    other = await w.ask(GET.replace(b"/a", b"/b"))
    assert other.all("X-RateLimit-Limit") == ["7"]


async def test_the_chosen_dialects_are_sent(world):
    """As the server was told, on passes and refusals."""
    w = await world(rules=TWO, headers="x-ratelimit,ietf", clock=ManualClock())
    replies = [await w.ask(GET) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    for reply in replies:
        assert reply.get("RateLimit-Policy") == '"two";q=2;w=60'
        assert reply.get("RateLimit").startswith('"two";r=')
        assert reply.get("X-RateLimit-Limit") == "2"


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        (b"", "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-RateLimit-Policy, Retry-After"),
        (
            b"Access-Control-Expose-Headers: ETag\r\naccess-control-expose-headers: X-A, X-B\r\n",
            "ETag, X-A, X-B, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-RateLimit-Policy, Retry-After",
        ),
        (b"Access-Control-Expose-Headers: *\r\n", "*"),
    ],
)
async def test_a_script_of_another_origin_may_read_the_rate_headers(world, upstream, expected):
    """The names are merged with those the upstream exposes, and only where the request has an Origin."""

    async def serve(line):
        while True:
            await line.head()
            line.send(b"HTTP/1.1 200 OK\r\n" + upstream + b"Content-Length: 0\r\n\r\n")

    w = await world(serve)
    assert (await w.ask(ORIGIN)).all("Access-Control-Expose-Headers") == [expected]
    assert "X-RateLimit-Limit" not in ",".join((await w.ask(GET)).all("Access-Control-Expose-Headers"))


async def test_a_refusal_exposes_its_headers_too(world):
    """Or a browser application could not tell its user when to come back."""
    w = await world(never, rules=TWO.replace("2/minute", "0"))
    reply = await w.ask(ORIGIN)
    assert "Retry-After" in reply.get("Access-Control-Expose-Headers")


LEAKY = """
version: 1
rules:
  - {name: line, quota: {capacity: 10, refill_per_sec: 20}, algorithm: leaky_bucket}
"""


async def test_a_leaky_bucket_spaces_the_starts(world):
    """Requests are held for their delay, then go on in order."""
    starts = []

    async def serve(line):
        while True:
            await line.head()
            starts.append(asyncio.get_running_loop().time())
            line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    w = await world(serve, rules=LEAKY)
    clients = [await w.client() for _ in range(4)]
    replies = await asyncio.gather(*(client.ask(GET) for client in clients))
    assert [reply.status for reply in replies] == [200] * 4
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert all(gap > 0.03 for gap in gaps), gaps
    assert (w.stats.held, w.stats.held_total) == (0, 3)


async def test_a_client_that_leaves_while_held_is_not_forwarded(world):
    """Its token is spent, and the upstream never hears of it."""
    w = await world(rules=LEAKY.replace("20}", "2}"))
    assert (await w.ask(GET)).status == 200
    client = await w.client()
    client.send(GET.replace(b"/a", b"/left"))
    await w.until(lambda: w.stats.held == 1)
    client.close()
    await w.until(lambda: w.stats.held == 0)
    assert w.stats.cancelled == 1
    await asyncio.sleep(0.6)
    assert w.backend.targets == ["GET /a"]


async def test_a_client_that_leaves_behind_a_large_body_while_held_is_not_forwarded(world):
    """Reading is paused then, so the gateway has to ask the kernel."""
    w = await world(rules=LEAKY.replace("20}", "5}"))
    assert (await w.ask(GET)).status == 200
    client = await w.client()
    client.send(post(10_000_000).replace(b"/a", b"/left") + b"x" * 400_000)
    await w.until(lambda: w.stats.held == 1)
    await asyncio.sleep(0.02)
    client.reset()
    await w.until(lambda: w.stats.cancelled == 1)
    assert w.backend.targets == ["GET /a"]


async def test_more_requests_than_may_be_held_are_refused(world):
    """429 with the time at which the turn would have come."""
    w = await world(rules=LEAKY.replace("20}", "3}"), held_max=1)
    assert (await w.ask(GET)).status == 200
    waiting = await w.client()
    waiting.send(GET)
    await w.until(lambda: w.stats.held == 1)
    reply = await w.ask(GET)
    assert (reply.status, w.stats.held_rejected) == (429, 1)
    assert int(reply.get("Retry-After")) >= 1
    assert reply.get("X-RateLimit-Limit") == "10"
    assert (w.stats.allowed, w.stats.refused) == (2, 1)


async def test_new_rules_are_live_on_an_open_connection(world, trusting):
    """Limits, and who is trusted, are those in force when the request arrives."""

    async def serve(line):
        while True:
            head = await line.head()
            line.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(head), head))

    w = await world(serve)
    client = await w.client()
    request = GET.replace(b"\r\n\r\n", b"\r\nX-User-Id: u1\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n")
    assert b"X-Forwarded-For: 127.0.0.1\r\n" in (await client.ask(request)).body
    w.limiter.apply(load_rules(trusting, "test", 2))
    body = (await client.ask(request)).body
    assert b"X-Forwarded-For: 192.0.2.1, 127.0.0.1\r\n" in body
    assert b"X-User-Id: u1\r\n" in body
    w.limiter.apply(load_rules(TWO.replace("2/minute", "0"), "test", 3))
    assert (await client.ask(request)).status == 429


async def test_a_limiter_that_breaks_admits_nobody(world):
    """A fault of the program is 500 for this request, is counted, and is not an admission."""

    class Broken(Limiter):
        def check(self, facts, cost=1, **_):
            raise RuntimeError("broken")

    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about["exception"]))
    w = await world(never, rules=Broken.from_rules(load_rules(TWO, "test")))
    assert (await w.ask(GET)).status == 500
    assert [str(error) for error in complaints] == ["broken"]
    assert w.stats.internal_errors == 1
    w.stats.internal_errors = 0


async def test_a_path_that_cannot_be_decided_is_refused(world):
    """The engine bounds what it reads; such a request is the client's fault."""
    w = await world(never, request_line_bytes_max=30_000)
    reply = await w.ask(b"GET /" + b"a/" * 14_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert reply.status == 400
    assert "path" in json.loads(reply.body)["detail"]


async def test_a_rule_that_fails_closed_is_503(world):
    """While its counters are out of reach; the upstream is not asked."""
    clock = ManualClock()
    store = FlakyStore(MemoryStore(clock))
    rules = load_rules(TWO.replace("2/minute", "2/minute, on_store_failure: closed"), "test")
    w = await world(rules=Limiter.from_rules(rules, store, clock), clock=clock)
    assert (await w.ask(GET)).status == 200
    store.down = True
    reply = await w.ask(GET)
    assert (reply.status, json.loads(reply.body)["status"]) == (503, 503)
    assert int(reply.get("Retry-After")) >= 1
    assert (w.stats.undecided, len(w.backend.heads)) == (1, 1)


RESPOND = """
version: 1
rules:
  - {name: asks, match: {path: /asks}, per: [ip], quota: 0, respond: challenge}
  - name: told
    match: {path: /told}
    per: [ip]
    quota: 1/minute
    algorithm: fixed_window
    respond: {template: "<p>{rule}: {remaining} of {limit}, again in {retry_after_s} s</p>", content_type: text/html}
"""


async def test_a_rule_says_how_its_refusals_look(world):
    """``respond: challenge`` marks the problem document, a template is the body; status and headers stay what they are."""
    w = await world(rules=RESPOND, clock=ManualClock())
    asked = await w.ask(GET.replace(b"/a", b"/asks"))
    assert (asked.status, asked.get("Content-Type")) == (429, "application/problem+json")
    assert json.loads(asked.body)["challenge"] is True
    client = await w.client()
    request = GET.replace(b"/a", b"/told")
    assert (await client.ask(request)).status == 200
    told = await client.ask(request)
    wait_s = told.get("Retry-After")
    assert (told.status, told.get("Content-Type")) == (429, "text/html; charset=utf-8")
    assert told.body.decode() == f"<p>told: 0 of 1, again in {wait_s} s</p>"
    assert told.get("X-RateLimit-Reset") == wait_s


async def test_jitter_spreads_refused_clients_out(world):
    """Retry-After, Reset and body agree on a time that is at most the jitter later than the true one, and not always the same."""
    w = await world(rules=TWO, clock=ManualClock(), retry_jitter_s=30)
    client = await w.client()
    assert [(await client.ask(GET)).status for _ in range(2)] == [200, 200]
    waits_s = []
    for _ in range(20):
        reply = await client.ask(GET)
        wait_s = int(reply.get("Retry-After"))
        assert wait_s == int(reply.get("X-RateLimit-Reset")) == json.loads(reply.body)["retry-after"]
        waits_s.append(wait_s)
    least_s = -(-w.limiter.peek(Facts(ip="127.0.0.1")).retry_after_us // 1_000_000)
    assert all(least_s <= wait_s <= least_s + 30 for wait_s in waits_s)
    assert len(set(waits_s)) > 5
