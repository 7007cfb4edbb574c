"""Decisions that take time: what a request waits for, and what becomes of it when its client does not wait."""

from __future__ import annotations

import asyncio

import pytest

from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.later import LaterStore

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSING = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
RULES = """
version: 1
identity:
  trusted_peers: [127.0.0.0/8]
rules:
  - {name: two, match: {path: /a}, per: [ip], quota: 2/minute, algorithm: fixed_window}
  - {name: money, match: {path: /money}, per: [ip], quota: 2/minute, on_store_failure: closed}
  - {name: queue, match: {path: /queue}, per: [ip], quota: 50/second, algorithm: leaky_bucket}
"""


def post(size, path=b"/a", extra=b""):
    """A POST head that announces a body."""
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%b\r\n" % (path, size, extra)


@pytest.fixture
def held(world):
    """A gateway whose store answers when it is told to: ``(world, store)``."""

    async def start(*serves, rules=RULES, **settings):
        clock = ManualClock()
        store = LaterStore(MemoryStore(clock))
        limiter = Limiter.from_rules(load_rules(rules, "rules.yaml"), store, clock)
        made = await world(*serves, rules=limiter, **settings)
        store.hold()
        return made, store

    return start


async def test_nothing_is_forwarded_before_the_decision(held):
    """While the store is silent no upstream is asked; then the request goes its way, or is refused."""
    w, store = await held()
    client = await w.client()
    for status in (200, 200, 429):
        client.send(GET)
        await w.until(lambda: store.waiting == 1)
        assert w.stats.in_flight == 1
        asked = len(w.backend.heads)
        await asyncio.sleep(0.01)
        assert len(w.backend.heads) == asked
        store.release(1)
        assert (await client.reply()).status == status
    assert w.backend.targets == ["GET /a"] * 2
    assert (w.stats.allowed, w.stats.refused) == (2, 1)


async def test_a_store_that_answers_at_once_leaves_no_state(held):
    """A request that matches no rule asks nothing, and its decision is there while it is asked for."""
    w, store = await held()
    assert (await w.ask(GET.replace(b"/a", b"/free"))).status == 200
    assert store.waiting == 0


async def test_pipelined_requests_are_decided_and_answered_in_order(held):
    """The second is decided when the first is answered; bodies and refusals keep their places."""
    w, store = await held()
    client = await w.client()
    client.send(GET + post(4) + b"body" + post(3) + b"bad" + GET.replace(b"/a", b"/free"))
    for _ in range(3):
        await w.until(lambda: store.waiting == 1)
        store.release(1)
    assert [(await client.reply()).status for _ in range(4)] == [200, 200, 429, 200]
    assert w.backend.bodies == [b"", b"body", b""]


async def test_a_body_that_comes_meanwhile_is_forwarded_whole(held):
    """What arrives while the decision is due is kept, within one read, and forwarded with the request."""
    w, store = await held()
    client = await w.client()
    body = bytes(range(256)) * 4_000
    client.send(post(len(body)) + body[:10])
    await w.until(lambda: store.waiting == 1)
    client.send(body[10:])
    await asyncio.sleep(0.02)
    store.release(1)
    assert (await client.reply()).status == 200
    assert w.backend.bodies == [body]


async def test_a_body_that_has_not_begun_is_read_after_the_decision(held):
    """A head alone is decided, and its body is read when it comes, in chunks too."""
    w, store = await held()
    client = await w.client()
    client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await w.until(lambda: store.waiting == 1)
    client.send(b"5\r\nhello\r\n")
    await asyncio.sleep(0.01)
    store.release(1)
    await w.until(lambda: w.backend.heads != [])
    client.send(b"0\r\n\r\n")
    assert (await client.reply()).status == 200
    assert w.backend.bodies == [b"hello"]


async def test_memory_is_bounded_while_a_decision_is_due(held):
    """A client that sends without end is not read on."""
    w, store = await held()
    client = await w.client()
    client.send(post(1 << 30))
    await w.until(lambda: store.waiting == 1)
    (connection,) = w.gateway.connections._live
    for _ in range(100):
        client.send(b"x" * 100_000)
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)
    assert len(connection._rest) <= 300_000
    store.release(error=StoreError("gone"))
    client.reset()
    await w.until(lambda: w.stats.in_flight == 0)


@pytest.mark.parametrize("more", [b"", GET])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_request_whose_client_has_left_is_not_forwarded(held, how, more):
    """The charge stands and counts as what it was; the upstream never hears of the request. Also where reading is paused."""
    w, store = await held()
    client = await w.client()
    client.send(GET + more)
    await client.flush()
    await w.until(lambda: store.waiting == 1)
    await asyncio.sleep(0.01)
    getattr(client, how)()
    await asyncio.sleep(0.02)
    store.release()
    await w.until(lambda: len(w.gateway.connections) == 0)
    assert w.backend.heads == []
    assert (w.stats.allowed, w.stats.cancelled, w.stats.in_flight) == (1, 1, 0)
    assert [(await w.ask(CLOSING)).status for _ in range(2)] == [200, 429]


async def test_a_refusal_comes_before_the_body_is_asked_for(held):
    """A client that waits for 100 (Continue) hears nothing until it is decided, then 429 and the close."""
    w, store = await held(rules=RULES.replace("2/minute", "0", 1))
    client = await w.client()
    client.send(post(10_000, extra=b"Expect: 100-continue\r\n"))
    await w.until(lambda: store.waiting == 1)
    store.release(1)
    reply = await client.reply()
    assert (reply.status, reply.get("Connection")) == (429, "close")
    assert await client.ended() == "closed"


async def test_a_refused_body_is_thrown_away_and_the_connection_kept(held):
    """The next request on it is understood, although its first bytes came while the refusal was due."""
    w, store = await held(rules=RULES.replace("2/minute", "0", 1))
    client = await w.client()
    client.send(post(50) + b"GET /smuggled HTTP/1.1\r\n")
    await w.until(lambda: store.waiting == 1)
    store.release(1)
    assert (await client.reply()).status == 429
    client.send(b"Host: x\r\n\r\n" + b"z" * 15 + GET)
    await w.until(lambda: store.waiting == 1)
    store.release()
    assert (await client.reply()).status == 429
    assert w.stats.requests == 2


async def test_an_outage_is_decided_by_policy(held):
    """Where the store fails, local rules decide and pass the request on; a closed one answers 503 with Retry-After."""
    w, store = await held()
    client = await w.client()
    client.send(GET)
    await w.until(lambda: store.waiting == 1)
    store.release(1, error=StoreError("gone"))
    reply = await client.reply()
    assert (reply.status, reply.get("X-RateLimit-Limit")) == (200, "2")
    client.send(GET.replace(b"/a", b"/money"))
    await w.until(lambda: store.waiting == 1)
    store.release(1, error=StoreError("gone"))
    reply = await client.reply()
    assert (reply.status, reply.get("Retry-After")) == (503, "1")
    assert reply.get("Content-Type") == "application/problem+json"
    assert (w.stats.undecided, w.limiter.stats.degraded) == (1, 2)


async def test_a_leaky_bucket_holds_after_the_decision(held):
    """The hold begins when the decision is there."""
    w, store = await held()
    first, second = await w.client(), await w.client()
    for client in (first, second):
        client.send(GET.replace(b"/a", b"/queue"))
    await w.until(lambda: store.waiting == 2)
    assert w.stats.held == 0
    store.release()
    await w.until(lambda: w.stats.held_total == 1)
    assert [(await client.reply()).status for client in (first, second)] == [200, 200]


async def test_proxy_protocol_comes_before_anything_is_decided(held):
    """The address in the header is the one that is decided about; what follows it in one write waits as usual."""
    w, store = await held(proxy_protocol=True)
    header = b"PROXY TCP4 203.0.113.%d 192.0.2.1 5000 80\r\n"
    clients = [await w.client() for _ in range(2)]
    for number, client in enumerate(clients):
        client.send(header % number + GET * 3)
    for _ in range(3):
        await w.until(lambda: store.waiting == 2)
        store.release(2)
    for client in clients:
        assert [(await client.reply()).status for _ in range(3)] == [200, 200, 429]


async def test_drain_waits_for_the_decision(held):
    """A request that is being decided when the gateway stops is forwarded and answered, with the notice that it is the last."""
    w, store = await held()
    waiting, idle = await w.client(), await w.client()
    waiting.send(GET)
    await w.until(lambda: store.waiting == 1)
    drain = asyncio.create_task(w.gateway.connections.drain(5))
    assert await idle.ended() == "closed"
    store.release()
    reply = await waiting.reply()
    assert (reply.status, reply.get("Connection")) == (200, "close")
    assert await drain == 0


async def test_a_decision_that_never_comes_ends_its_connection(held, monkeypatch):
    """Should a store break its promise to answer in time, the connection is cut and counted, and nothing is forwarded."""
    monkeypatch.setattr("sluicegate.doors.gateway.client.DECISION_S_MAX", 0.0)
    w, store = await held()
    client = await w.client()
    client.send(GET)
    assert await client.ended() == "reset"
    store.release()
    assert w.stats.timeouts == {"decision": 1}
    assert w.backend.heads == []


async def test_a_fault_of_the_limiter_ends_one_connection(held, monkeypatch):
    """An exception when the decision arrives is counted; the others live on."""
    w, store = await held()
    with monkeypatch.context() as patch:
        patch.setattr("sluicegate.doors.gateway.client.Exchange", None)
        client = await w.client()
        client.send(GET)
        await w.until(lambda: store.waiting == 1)
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about["message"]))
        store.release()
        assert await client.ended() == "closed"
    assert complaints == ["gateway connection failed"]
    assert w.stats.internal_errors == 1
    w.stats.internal_errors = 0
    assert (await w.ask(GET)).status == 200


async def test_facts_that_cannot_be_decided_are_400_at_once(held):
    """A request that no rule can look at is refused without the store."""
    w, store = await held()
    reply = await w.ask(b"GET /" + b"a" * 7_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (reply.status, store.waiting) == (400, 0)
