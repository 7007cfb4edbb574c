"""Decisions that take time: the order of answers, what waits for what, and what becomes of clients that do not wait."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from sluicegate.bounds import HTTP_BATCH_SLICE, HTTP_DUE_MAX
from sluicegate.clock import ManualClock
from sluicegate.errors import StoreError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing.later import LaterStore

Start = Callable[..., Awaitable[Any]]
Request = Callable[..., bytes]
Serve = Callable[..., Awaitable["Held"]]

POLICY = {"algorithm": "token_bucket", "capacity": 1000, "refill_per_sec": 1}
CHECK = json.dumps({"key": "k", "policy": POLICY}).encode()
FACTS = json.dumps({"facts": {"method": "POST", "path": "/login", "ip": "203.0.113.9"}}).encode()
RULES = """
version: 1
rules:
  - name: login
    match: {path: /login}
    per: [ip]
    quota: 5/minute
    algorithm: fixed_window
  - name: money
    match: {path: /money}
    per: [ip]
    quota: 5/minute
    on_store_failure: closed
"""


class Held(NamedTuple):
    """A server whose store answers when it is told to."""

    server: Any
    store: LaterStore
    limiter: Limiter


@pytest.fixture
def serve(start: Start) -> Serve:
    """Start a server with a ``LaterStore``; ``holding``: answers wait for ``store.release``."""

    async def serve(*, holding: bool = True, **settings: Any) -> Held:
        clock = ManualClock()
        store = LaterStore(MemoryStore(clock))
        limiter = Limiter.from_rules(load_rules(RULES, "rules.yaml"), store, clock)
        server = await start(limiter=limiter, **settings)
        if holding:
            store.hold()
        return Held(server, store, limiter)

    return serve


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the server's loop run until the condition holds; fail after 5 s."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


async def remaining(client: Any, count: int) -> list[int]:
    """What the next answers say is left."""
    return [(await client.read()).json["remaining"] for _ in range(count)]


async def test_pipelined_checks_wait_together_and_are_answered_in_order(serve: Serve, make_request: Request) -> None:
    """Ten checks of one write are with the store at once, and their answers leave in order whichever comes first."""
    server, store, _ = await serve()
    client = await server.connect()
    await client.send(make_request("POST", "/v1/check", CHECK) * 10)
    await eventually(lambda: store.waiting == 10)
    store.release(newest_first=True)
    assert await remaining(client, 10) == list(range(999, 989, -1))


async def test_an_answer_leaves_as_soon_as_none_before_it_is_missing(serve: Serve, make_request: Request) -> None:
    """The second answer waits for the first and not for the third."""
    server, store, _ = await serve()
    client = await server.connect()
    await client.send(make_request("POST", "/v1/check", CHECK) * 3)
    await eventually(lambda: store.waiting == 3)
    store.release(1)
    assert await remaining(client, 1) == [999]
    store.release(1)
    assert await remaining(client, 1) == [998]
    store.release()
    assert await remaining(client, 1) == [997]


async def test_answers_due_on_one_connection_are_bounded(serve: Serve, make_request: Request) -> None:
    """A client that pipelines 5,000 checks has ``HTTP_DUE_MAX`` with the store, is not read on, and gets all answers in order."""
    server, store, _ = await serve()
    client = await server.connect()
    sending = asyncio.create_task(client.send(*[make_request("POST", "/v1/check", CHECK)] * 5_000))
    await eventually(lambda: store.waiting == HTTP_DUE_MAX)
    await asyncio.sleep(0.05)
    assert store.waiting == HTTP_DUE_MAX
    assert server.stats.bytes_in < 600_000, "reading has stopped"
    store.release()
    answers = [await client.read() for _ in range(5_000)]
    assert [answer.json["remaining"] for answer in answers[:1_000]] == list(range(999, -1, -1))
    assert [answer.status for answer in answers] == [200] * 1_000 + [429] * 4_000
    await sending


async def test_what_asks_nothing_of_the_store_never_waits_for_it(serve: Serve, make_request: Request) -> None:
    """Health and metrics answer on another connection while the store is silent; on the same one they keep their place."""
    server, store, _ = await serve()
    waiting, other = await server.connect(), await server.connect()
    await waiting.send(make_request("POST", "/v1/check", CHECK) + make_request("GET", "/livez"))
    await eventually(lambda: store.waiting == 1)
    for path in ("/livez", "/readyz", "/healthz", "/metrics"):
        assert (await other.ask(make_request("GET", path))).status == 200
    store.release()
    assert await remaining(waiting, 1) == [999]
    assert (await waiting.read()).json == {"live": True}


async def test_requests_that_arrive_while_an_answer_is_due_are_served(serve: Serve, make_request: Request) -> None:
    """A second write is begun while the first waits, and one cut in the middle waits for its end."""
    server, store, _ = await serve()
    client = await server.connect()
    raw = make_request("POST", "/v1/check", CHECK)
    await client.send(raw)
    await eventually(lambda: store.waiting == 1)
    await client.send(raw + raw[:30])
    await eventually(lambda: store.waiting == 2)
    store.release(2)
    assert await remaining(client, 2) == [999, 998]
    await client.send(raw[30:])
    await eventually(lambda: store.waiting == 1)
    store.release()
    assert await remaining(client, 1) == [997]


@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_leaves_has_been_charged_and_leaves_nothing_behind(
    serve: Serve, make_request: Request, reset: bool
) -> None:
    """The charge of a client that does not wait stands, its connection is forgotten, its answer goes nowhere."""
    server, store, limiter = await serve()
    client = await server.connect()
    await client.send(make_request("POST", "/v1/check", CHECK) * 3)
    await eventually(lambda: store.waiting == 3)
    if reset:
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()
    if reset:
        await eventually(lambda: len(server.door.connections) == 0)
    store.release()
    await eventually(lambda: len(server.door.connections) == 0)
    assert limiter.stats.allowed == 3
    assert server.stats.requests["/v1/check"] == {200: 3}
    assert (await (await server.connect()).check(CHECK)).json["remaining"] == 996
    assert server.stats.internal_errors == 0


async def test_a_client_that_only_stops_sending_gets_its_answers(serve: Serve, make_request: Request) -> None:
    """A half-closed connection stays until what is due is written."""
    server, store, _ = await serve()
    client = await server.connect()
    await client.send(make_request("POST", "/v1/check", CHECK) * 2 + make_request("GET", "/livez"))
    client.writer.write_eof()
    await eventually(lambda: store.waiting == 2)
    await asyncio.sleep(0.02)
    store.release(1)
    assert await remaining(client, 1) == [999]
    store.release()
    assert await remaining(client, 1) == [998]
    assert (await client.read()).status == 200
    assert await client.at_end() == b""
    await eventually(lambda: len(server.door.connections) == 0)


async def test_close_is_honoured_after_the_answer(serve: Serve, make_request: Request) -> None:
    """What follows a request with Connection: close is not served, also where its answer takes time."""
    server, store, _ = await serve()
    client = await server.connect()
    last = make_request("POST", "/v1/check", CHECK, "Connection: close")
    await client.send(make_request("POST", "/v1/check", CHECK) + last + make_request("POST", "/v1/check", CHECK))
    await eventually(lambda: store.waiting == 2)
    await client.send(b"more that is not read")
    store.release()
    assert await remaining(client, 1) == [999]
    answer = await client.read()
    assert (answer.json["remaining"], answer.headers["connection"]) == (998, "close")
    assert await client.at_end() == b""
    assert store.submitted == 2


async def test_http_1_0_says_that_the_connection_stays(serve: Serve) -> None:
    """The framing of an answer that comes later is that of its request."""
    server, _, _ = await serve(holding=False)
    client = await server.connect()
    head = b"POST /v1/check HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(CHECK)
    assert (await client.ask(head + CHECK)).headers["connection"] == "keep-alive"
    answer = await client.ask(head.replace(b"Connection: keep-alive\r\n", b"") + CHECK)
    assert answer.headers["connection"] == "close"
    assert await client.at_end() == b""


async def test_continue_does_not_overtake_an_answer(serve: Serve, make_request: Request) -> None:
    """100 Continue belongs to the next answer, so it is not sent while an earlier one is due."""
    server, store, _ = await serve()
    client = await server.connect()
    await client.send(
        make_request("POST", "/v1/check", CHECK)
        + b"POST /v1/check HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(CHECK)
    )
    await eventually(lambda: store.waiting == 1)
    store.release(1)
    assert [(await client.read()).status for _ in range(2)] == [200, 100]
    await client.send(CHECK)
    await eventually(lambda: store.waiting == 1)
    store.release()
    assert await remaining(client, 1) == [998]


async def test_broken_framing_is_answered_after_what_is_due(serve: Serve, make_request: Request) -> None:
    """A 400 keeps its place behind the answers that are still missing, and ends the connection."""
    server, store, _ = await serve()
    client = await server.connect()
    await client.send(make_request("POST", "/v1/check", CHECK) * 2 + b"BROKEN\r\n\r\n" + b"x" * 50)
    await eventually(lambda: store.waiting == 2)
    await client.send(b"more")
    store.release(newest_first=True)
    assert await remaining(client, 2) == [999, 998]
    assert (await client.read()).status == 400
    assert await client.at_end() == b""


async def test_a_slow_reader_stops_reading_and_loses_nothing(serve: Serve, make_request: Request) -> None:
    """Answers that come while the peer takes none are kept, within the bound, and reading goes on when it does."""
    server, store, _ = await serve()
    client = await server.connect()
    raw = make_request("POST", "/v1/check", CHECK)
    (protocol,) = server.door.connections._live
    await client.send(raw * 3)
    await eventually(lambda: store.waiting == 3)
    protocol.pause_writing()
    await client.send(raw * 2)
    store.release(newest_first=True)
    assert await remaining(client, 3) == [999, 998, 997]
    assert store.submitted == 3
    protocol.resume_writing()
    assert await remaining(client, 2) == [996, 995]


async def test_drain_waits_for_what_is_due(serve: Serve, make_request: Request) -> None:
    """An answer on its way is given when the server stops, says that it is the last, and then the connection ends."""
    server, store, _ = await serve()
    waiting, idle = await server.connect(), await server.connect()
    await waiting.send(make_request("POST", "/v1/check", CHECK) * 2)
    await eventually(lambda: store.waiting == 2)
    drain = asyncio.create_task(server.door.connections.drain(5))
    assert await idle.at_end() == b""
    assert not drain.done()
    store.release()
    answers = [await waiting.read(), await waiting.read()]
    assert [answer.headers.get("connection") for answer in answers] == [None, "close"]
    assert await waiting.at_end() == b""
    assert await drain == 0


async def test_drain_ends_although_the_store_does_not_answer(serve: Serve, make_request: Request) -> None:
    """What is due after the time to drain is cut off; the answer that comes later goes nowhere."""
    server, store, _ = await serve()
    client = await server.connect()
    await client.send(make_request("POST", "/v1/check", CHECK))
    await eventually(lambda: store.waiting == 1)
    assert await server.door.connections.drain(0.05) == 1
    store.release()
    assert server.stats.internal_errors == 0


async def test_a_decision_that_never_comes_ends_its_connection(
    serve: Serve, make_request: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a store break its promise to answer in time, the connection is cut and counted, not kept for ever."""
    monkeypatch.setattr("sluicegate.doors.http.protocol.DECISION_S_MAX", 0.05)
    server, store, _ = await serve()
    client = await server.connect()
    await client.send(make_request("POST", "/v1/check", CHECK))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await client.read()
    assert server.stats.timeouts["answer"] == 1
    store.release()


async def test_rules_and_peeks_and_receipts(serve: Serve) -> None:
    """Facts, peeks and receipts are decided as with a store in the process, and a receipt is good once."""
    server, _, _ = await serve(holding=False)
    client = await server.connect()
    facts = json.loads(FACTS)
    peek = await client.check({**facts, "peek": True, "cost": 0})
    assert (peek.status, peek.json["remaining"]) == (200, 5)
    taken = await client.check({**facts, "receipt": True, "cost": 3})
    assert (taken.json["remaining"], taken.json["degraded"]) == (2, False)
    refused = await client.check({**facts, "cost": 3})
    assert (refused.status, refused.headers["retry-after"]) == (429, "40")
    inline = await client.check({"key": "i", "policy": POLICY, "receipt": True})
    for decision_id in (taken.json["decision_id"], inline.json["decision_id"]):
        assert (await client.post("/v1/refund", {"decision_id": decision_id})).json == {"refunded": 1}
        assert (await client.post("/v1/refund", {"decision_id": decision_id})).status == 404
    assert (await client.check({**facts, "cost": 5})).status == 200
    assert (await client.post("/v1/refund", {"decision": "x"})).status == 400


async def test_a_refund_that_the_store_fails_is_503(serve: Serve) -> None:
    """Whether anything was given back is not known, and the answer says to come back."""
    server, store, _ = await serve(holding=False)
    client = await server.connect()
    taken = await client.check({"key": "i", "policy": POLICY, "receipt": True})
    store.hold()
    asked = asyncio.create_task(client.post("/v1/refund", {"decision_id": taken.json["decision_id"]}))
    await eventually(lambda: store.waiting == 1)
    store.release(error=StoreError("gone"))
    answer = await asked
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_a_batch_of_plain_checks_is_one_call(serve: Serve) -> None:
    """64 plain checks go to the store as one batch, in order, and so does the same batch when its shape is known."""
    server, store, _ = await serve()
    client = await server.connect()
    items = [{"key": "k", "policy": POLICY} for _ in range(64)]
    for first in (999, 935, 871, 807):
        asked = asyncio.create_task(client.post("/v1/check/batch", items))
        await eventually(lambda: store.waiting == 1)
        store.release(1)
        answers = (await asked).json
        assert [item["remaining"] for item in answers] == list(range(first, first - 64, -1))
        assert {item["status"] for item in answers} == {200}
    assert store.submitted == 0
    assert server.stats.batch_items == 256


async def test_a_batch_of_anything_is_answered_in_order(serve: Serve) -> None:
    """Facts, peeks, receipts, plain checks and mistakes keep their places, and each is charged before the next."""
    server, store, _ = await serve()
    client = await server.connect()
    facts, plain = json.loads(FACTS), {"key": "k", "policy": POLICY}
    items = [plain, facts, {"key": "k"}, {**plain, "peek": True}, {**facts, "receipt": True}, {"cost": -1}, plain]
    asked = asyncio.create_task(client.post("/v1/check/batch", items))
    await eventually(lambda: store.waiting == 5)
    store.release(newest_first=True)
    answers = (await asked).json
    assert [item["status"] for item in answers] == [200, 200, 400, 200, 200, 400, 200]
    assert [item.get("remaining") for item in answers] == [999, 4, None, 999, 3, None, 998]
    assert answers[4]["decision_id"]


async def test_a_large_mixed_batch_goes_in_slices(serve: Serve) -> None:
    """No more than ``HTTP_BATCH_SLICE`` items of a batch wait for the store at once."""
    server, store, _ = await serve()
    client = await server.connect()
    items = [{"key": "k", "policy": POLICY, "receipt": True}] * 600
    asked = asyncio.create_task(client.post("/v1/check/batch", items))
    for size in (HTTP_BATCH_SLICE, HTTP_BATCH_SLICE, 600 - 2 * HTTP_BATCH_SLICE):
        await eventually(lambda size=size: store.waiting == size)  # type: ignore[misc]
        store.release(size, newest_first=True)
    assert [item["remaining"] for item in (await asked).json] == list(range(999, 399, -1))


async def test_bad_batches_are_refused_as_a_whole(serve: Serve) -> None:
    """What is no array, or too long, is a 400, and the connection lives on."""
    server, _, _ = await serve(holding=False)
    client = await server.connect()
    for body in (b"{}", b"[", json.dumps([{}] * 1_001).encode()):
        assert (await client.post("/v1/check/batch", body)).status == 400
    assert (await client.post("/v1/check/batch", [])).json == []


async def test_an_outage_is_said_in_every_answer(serve: Serve) -> None:
    """Where the store fails, answers say ``degraded``; a closed rule answers 503 with a problem and Retry-After."""
    server, store, limiter = await serve()
    client = await server.connect()

    async def fail(path: str, document: object, waiting: int = 1) -> Any:
        asked = asyncio.create_task(client.post(path, document))
        await eventually(lambda: store.waiting == waiting)
        store.release(waiting, error=StoreError("the store is gone"))
        return await asked

    plain = {"key": "k", "policy": POLICY}
    single = await fail("/v1/check", plain)
    assert (single.status, single.json["allowed"], single.json["degraded"]) == (200, True, True)
    assert single.headers["x-ratelimit-limit"] == "1000"
    facts = await fail("/v1/check", json.loads(FACTS))
    assert (facts.status, facts.json["degraded"]) == (200, True)
    closed = await fail("/v1/check", {"facts": {"path": "/money", "ip": "203.0.113.9"}})
    assert (closed.status, closed.headers["retry-after"]) == (503, "1")
    assert closed.headers["content-type"] == "application/problem+json"
    assert closed.json["violated-policies"] == ["money"]
    batch = await fail("/v1/check/batch", [plain, plain])
    assert [item["degraded"] for item in batch.json] == [True, True]
    mixed = await fail("/v1/check/batch", [json.loads(FACTS), {"facts": {"path": "/money", "ip": "203.0.113.9"}}], 2)
    assert [item["status"] for item in mixed.json] == [200, 503]
    assert limiter.stats.degraded == 7


async def test_a_fault_of_ours_is_a_500_for_one_request(
    serve: Serve, make_request: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in the writing of an answer that comes later is counted and answered; the connection and others live on."""
    server, store, _ = await serve()
    client = await server.connect()
    raw = make_request("POST", "/v1/check", CHECK)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr("sluicegate.doors.http.waiting.single_of", broken)
        patch.setattr("sluicegate.doors.http.replies.check_document", broken)
        patch.setattr("sluicegate.doors.http.waiting.texts_of", broken)
        await client.send(raw + make_request("POST", "/v1/check", FACTS))
        await eventually(lambda: store.waiting == 2)
        store.release()
        assert [(await client.read()).status for _ in range(2)] == [500, 500]
        assert (await client.post("/v1/check/batch", b"[%b]" % CHECK)).status == 500
        assert (await client.post("/v1/check/batch", b"[%b]" % FACTS)).status == 500
    assert server.stats.internal_errors == 4
    assert (await client.check(CHECK)).json["remaining"] == 997


async def test_switching_off_needs_no_store(serve: Serve) -> None:
    """A limiter that is switched off answers at once, also while the store is silent."""
    server, store, limiter = await serve()
    client = await server.connect()
    limiter.enabled = False
    assert (await client.check(CHECK)).json["allowed"] is True
    assert (await client.check(FACTS)).json["allowed"] is True
    assert [item["status"] for item in (await client.post("/v1/check/batch", [json.loads(CHECK)])).json] == [200]
    assert store.waiting == 0
