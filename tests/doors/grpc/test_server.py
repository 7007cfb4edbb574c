"""Calls over real connections: what each client gets, in time and at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from sluicegate.clock import ManualClock
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.memory import MemoryStore
from sluicegate.testing import LaterStore

Start = Callable[..., Awaitable[Any]]

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HEALTH = "/grpc.health.v1.Health/Check"
RULES = "version: 1\nrules:\n  - {name: per-key, match: {domain: edge}, per: [descriptor.api_key], quota: 5/minute}\n"
NO_ERROR, CALM = 0, 11


def later(rules: str = RULES) -> tuple[Limiter, LaterStore]:
    """A limiter whose store answers when it is told to."""
    clock = ManualClock()
    store = LaterStore(MemoryStore(clock))
    return Limiter.from_rules(load_rules(rules, "rules.yaml"), store, clock), store


async def test_a_call(client: Any, pb: Any, message: bytes, door: Any) -> None:
    """A call is answered with one message and status 0; it is counted."""
    reply = await client.call(RATE_LIMIT, message)
    assert (reply.fields[":status"], reply.fields["content-type"], reply.code) == ("200", "application/grpc", "OK")
    assert pb.RateLimitResponse.FromString(reply.message).statuses[0].limit_remaining == 4
    assert door.stats.calls["ShouldRateLimit"] == {0: 1}


async def test_many_calls_at_once(client: Any, pb: Any, message: bytes) -> None:
    """Calls that come together are each answered, in their order of arrival."""
    streams = [client.request(RATE_LIMIT, message) for _ in range(50)]
    await client.flush()
    replies = [await client.reply(stream) for stream in streams]
    answers = [pb.RateLimitResponse.FromString(reply.message) for reply in replies]
    assert [answer.overall_code for answer in answers] == [1] * 5 + [2] * 45


async def test_a_call_in_pieces(client: Any, pb: Any, message: bytes) -> None:
    """A message that comes byte by byte, in many frames, is one message."""
    stream = client.request(RATE_LIMIT, None)
    body = b"\0" + len(message).to_bytes(4, "big") + message
    for at in range(len(body)):
        client.http2.send_data(stream, body[at : at + 1], end_stream=at == len(body) - 1)
        for byte in client.http2.data_to_send():
            await client.send(bytes((byte,)))
    reply = await client.reply(stream)
    assert pb.RateLimitResponse.FromString(reply.message).overall_code == 1


async def test_a_client_of_grpc_itself(door: Any, pb: Any, message: bytes) -> None:
    """The client of the gRPC project gets answers and statuses with their words."""
    async with grpc.aio.insecure_channel(door.target) as channel:
        call = channel.unary_unary(RATE_LIMIT, response_deserializer=pb.RateLimitResponse.FromString)
        answers = await asyncio.gather(*(call(message, timeout=60) for _ in range(20)))
        assert sorted(answer.overall_code for answer in answers) == [1] * 5 + [2] * 15
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"\xff", timeout=60)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert caught.value.details() == "request: is malformed: a number does not end"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/grpc.health.v1.Health/List")(b"", timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("service", ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"])
async def test_health(client: Any, door: Any, pb: Any, service: str) -> None:
    """The server and its service are SERVING while new requests are welcome, and then NOT_SERVING."""
    asked = pb.HealthCheckRequest(service=service).SerializeToString()
    found = [pb.HealthCheckResponse.FromString((await client.call(HEALTH, asked)).message).status]
    door.ready = False
    found.append(pb.HealthCheckResponse.FromString((await client.call(HEALTH, asked)).message).status)
    assert found == [1, 2]


async def test_health_of_others(client: Any, pb: Any) -> None:
    """An unknown service is NOT_FOUND."""
    reply = await client.call(HEALTH, pb.HealthCheckRequest(service="other").SerializeToString())
    assert (reply.code, reply.fields["grpc-message"]) == ("NOT_FOUND", "no such service: 'other'")


@pytest.mark.parametrize(
    ("path", "body", "fields", "how", "expected"),
    [
        ("/a.B/C", b"", (), {}, ("200", "UNIMPLEMENTED")),
        (RATE_LIMIT, b"", (), {}, ("200", "INVALID_ARGUMENT")),
        (RATE_LIMIT, b"", (), {"framed": False}, ("200", "INTERNAL")),
        (RATE_LIMIT, b"\0\0\0\0\x05ab", (), {"framed": False}, ("200", "INTERNAL")),
        (RATE_LIMIT, b"\0\0\0\0\0\0\0\0\0\0", (), {"framed": False}, ("200", "INTERNAL")),
        (RATE_LIMIT, b"\1\0\0\0\0", (), {"framed": False}, ("200", "UNIMPLEMENTED")),
        (RATE_LIMIT, b"", ((":method", "GET"),), {}, ("405", "UNIMPLEMENTED")),
        (RATE_LIMIT, b"", (("content-type", "application/json"),), {}, ("415", "UNIMPLEMENTED")),
        (RATE_LIMIT, b"x" * 65_537, (), {}, ("200", "RESOURCE_EXHAUSTED")),
        (RATE_LIMIT, b"x" * 5_000_000, (), {}, ("200", "RESOURCE_EXHAUSTED")),
    ],
    ids=["method", "empty", "no message", "short", "two messages", "compressed", "GET", "json", "large", "huge"],
)
async def test_calls_that_are_none(
    client: Any, door: Any, message: bytes, path: str, body: bytes, fields: Any, how: Any, expected: tuple[str, str]
) -> None:
    """What is no call of this service gets its status and words, and the connection goes on."""
    reply = await client.call(path, body, *fields, **how)
    assert (reply.fields[":status"], reply.code) == expected
    assert reply.fields["grpc-message"]
    assert (await client.call(RATE_LIMIT, message)).code == "OK"
    assert door.stats.internal_errors == 0


async def test_words_are_escaped(client: Any) -> None:
    """Words that are no printable ASCII travel as percent-encoded UTF-8, so that they cannot break the field."""
    reply = await client.call("/a%0d\\", b"")
    assert reply.fields["grpc-message"] == "no such method: /a%250d\\"


async def test_token(start_door: Start, pb: Any, message: bytes) -> None:
    """With a token rate limit calls need it; health checks do not."""
    door = await start_door(token="secret")
    client = await door.connect()
    assert (await client.call(RATE_LIMIT, message)).code == "UNAUTHENTICATED"
    assert (await client.call(RATE_LIMIT, message, ("authorization", "Bearer secrex"))).code == "UNAUTHENTICATED"
    assert (await client.call(RATE_LIMIT, message, ("authorization", "Bearer secret"))).code == "OK"
    assert (await client.call(HEALTH, b"")).code == "OK"


# ---------------------------------------------------------------------- answers that take time


async def test_answers_of_a_store(start_door: Start, pb: Any, message: bytes) -> None:
    """Calls that wait for the store do not wait for each other: the last to be decided may be the first to be answered."""
    limiter, store = later()
    door = await start_door(limiter=limiter)
    client = await door.connect()
    store.hold()
    streams = [client.request(RATE_LIMIT, message) for _ in range(3)]
    await client.flush()
    await client.until(lambda: True)
    while store.waiting < 3:
        await asyncio.sleep(0)
    store.release(1, newest_first=True)
    await client.reply(streams[2])
    assert client.closed == {streams[2]}
    store.release()
    left = [
        pb.RateLimitResponse.FromString((await client.reply(s)).message).statuses[0].limit_remaining for s in streams
    ]
    assert left == [4, 3, 2]


async def test_an_answer_after_the_deadline(start_door: Start, message: bytes) -> None:
    """A decision that comes after the call's deadline is told as DEADLINE_EXCEEDED; what it charged stays charged."""
    limiter, store = later()
    door = await start_door(limiter=limiter)
    client = await door.connect()
    store.hold()
    stream = client.request(RATE_LIMIT, message, ("grpc-timeout", "20m"))
    await client.flush()
    while not store.waiting:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.03)
    store.release()
    assert (await client.reply(stream)).code == "DEADLINE_EXCEEDED"
    assert len(store.store) == 1


@pytest.mark.parametrize(
    ("timeout", "code"),
    [("0m", "DEADLINE_EXCEEDED"), ("10S", "OK"), ("1H", "OK"), ("soon", "OK"), ("123456789S", "OK")],
)
async def test_deadlines(client: Any, door: Any, message: bytes, timeout: str, code: str) -> None:
    """A deadline that is over before the call is read is told so, and nothing is charged; what is no timeout is none."""
    assert (await client.call(RATE_LIMIT, message, ("grpc-timeout", timeout))).code == code
    assert len(door.limiter.store) == (2 if code == "OK" else 0)


async def test_a_call_that_is_given_up(start_door: Start, message: bytes) -> None:
    """A client that resets its call gets no answer; the others do, and the call is counted as cancelled."""
    limiter, store = later()
    door = await start_door(limiter=limiter)
    client = await door.connect()
    store.hold()
    first, second = client.request(RATE_LIMIT, message), client.request(RATE_LIMIT, message)
    await client.flush()
    while store.waiting < 2:
        await asyncio.sleep(0.001)
    client.http2.reset_stream(first)
    await client.flush()
    while not door.stats.cancelled:
        await asyncio.sleep(0.001)
    store.release()
    assert (await client.reply(second)).code == "OK"
    assert (door.stats.cancelled, door.stats.calls["ShouldRateLimit"]) == (1, {0: 1})


async def test_a_client_that_is_gone(start_door: Start, message: bytes) -> None:
    """Answers for a connection that is lost go nowhere, and do no harm."""
    limiter, store = later()
    door = await start_door(limiter=limiter)
    client = await door.connect()
    store.hold()
    client.request(RATE_LIMIT, message)
    await client.flush()
    while not store.waiting:
        await asyncio.sleep(0.001)
    client.writer.transport.abort()
    while len(door.door.connections):
        await asyncio.sleep(0.001)
    store.release()
    assert (await (await door.connect()).call(RATE_LIMIT, message)).code == "OK"
    assert door.stats.cancelled == 1


# ---------------------------------------------------------------------- time


@pytest.mark.measured
async def test_a_client_that_says_nothing(start_door: Start) -> None:
    """A connection without the first settings of HTTP/2 is closed."""
    door = await start_door(preface_s=0.05)
    client = await door.connect(begin=False)
    async with asyncio.timeout(60):
        await client.reader.read()
    assert door.stats.timeouts["preface"] == 1


@pytest.mark.measured
async def test_an_idle_connection(start_door: Start, message: bytes) -> None:
    """A connection without calls and bytes is told to go away and closed; one with a call under way is not."""
    limiter, store = later()
    door = await start_door(limiter=limiter, idle_s=0.1)
    idle, busy = await door.connect(), await door.connect()
    store.hold()
    stream = busy.request(RATE_LIMIT, message)
    await busy.flush()
    await idle.at_end()
    assert [code for _, code in idle.goaways] == [NO_ERROR]
    store.release()
    assert (await busy.reply(stream)).code == "OK"
    assert door.stats.timeouts["idle"] == 1


@pytest.mark.measured
async def test_half_a_call(start_door: Start, message: bytes) -> None:
    """A call that does not become complete is ended; others on its connection are not."""
    door = await start_door(request_s=0.1)
    client = await door.connect()
    half = client.request(RATE_LIMIT, None)
    client.http2.send_data(half, b"\0\0\0")
    whole = client.request(RATE_LIMIT, message)
    await client.flush()
    assert (await client.reply(whole)).code == "OK"
    assert (await client.reply(half)).code == "DEADLINE_EXCEEDED"
    assert (await client.call(RATE_LIMIT, message)).code == "OK"
    assert door.stats.timeouts["request"] == 1


@pytest.mark.measured
async def test_a_client_that_takes_no_answers(start_door: Start, message: bytes) -> None:
    """Answers that cannot leave, because the client's window stays shut, end the connection in time; until then they are held."""
    door = await start_door(write_s=0.1)
    client = await door.connect({4: 0})
    client.request(RATE_LIMIT, message)
    await client.flush()
    await client.at_end()
    assert door.stats.timeouts["write"] == 1


@pytest.mark.measured
async def test_a_client_that_throws_answers_away(start_door: Start, message: bytes) -> None:
    """To give up a call now and then is not to take answers: those that stand are not held for ever."""
    door = await start_door(write_s=0.3)
    client = await door.connect({4: 0})
    client.request(RATE_LIMIT, message)
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    while not client.ended and loop.time() < begun_s + 10:
        stream = client.request(RATE_LIMIT, message)
        await client.flush()
        await client.until(lambda stream=stream: ":status" in client.replies[stream].fields or client.ended)
        if not client.ended:
            client.http2.reset_stream(stream)
            await client.flush()
            await asyncio.sleep(0.05)
    assert door.stats.timeouts["write"] == 1


async def test_a_window_that_opens(client: Any, door: Any, message: bytes) -> None:
    """An answer waits for the client's window and leaves when it opens."""
    shut = await door.connect({4: 0})
    stream = shut.request(RATE_LIMIT, message)
    await shut.flush()
    await shut.until(
        lambda: "grpc-status" not in shut.replies[stream].fields and ":status" in shut.replies[stream].fields
    )
    assert shut.replies[stream].body == b""
    shut.http2.update_settings({4: 65_535})
    await shut.flush()
    assert (await shut.reply(stream)).code == "OK"


# ---------------------------------------------------------------------- the end


async def test_too_many_connections(start_door: Start, message: bytes) -> None:
    """A connection beyond the most is told to calm down and closed; the others live on."""
    door = await start_door(connections_max=1)
    first, second = await door.connect(), await door.connect()
    await second.at_end()
    assert [code for _, code in second.goaways] == [CALM]
    assert (await first.call(RATE_LIMIT, message)).code == "OK"
    assert door.stats.connections_refused == 1


async def test_too_many_calls(start_door: Start, message: bytes) -> None:
    """A call beyond the most that may be under way is refused in a way that tells the client to try again elsewhere."""
    limiter, store = later()
    door = await start_door(limiter=limiter, streams_max=2)
    client = await door.connect()
    await client.until(lambda: client.http2.remote_settings.get(3) == 2)
    store.hold()
    streams = [client.request(RATE_LIMIT, message) for _ in range(3)]
    await client.flush()
    while store.waiting < 2:
        await asyncio.sleep(0.001)
    assert store.waiting == 2
    store.release()
    assert [(await client.reply(stream)).code for stream in streams] == ["OK"] * 3


async def test_draining(start_door: Start, message: bytes) -> None:
    """On the way out a client is told twice: that the end is near, then which call was the last. Calls under way are answered."""
    limiter, store = later()
    door = await start_door(limiter=limiter)
    client = await door.connect()
    store.hold()
    stream = client.request(RATE_LIMIT, message)
    await client.flush()
    while not store.waiting:
        await asyncio.sleep(0.001)
    drained = asyncio.create_task(door.door.connections.drain(10))
    await client.until(lambda: len(client.goaways) == 2)
    assert client.goaways == [(2**31 - 1, NO_ERROR), (stream, NO_ERROR)]
    store.release()
    assert (await client.reply(stream)).code == "OK"
    await client.at_end()
    await client.close()
    assert await drained == 0


async def test_draining_cuts_what_does_not_end(start_door: Start, message: bytes) -> None:
    """A call that is not answered in the time there is is cut off, and counted."""
    limiter, store = later()
    door = await start_door(limiter=limiter)
    client = await door.connect()
    store.hold()
    client.request(RATE_LIMIT, message)
    await client.flush()
    while not store.waiting:
        await asyncio.sleep(0.001)
    assert await door.door.connections.drain(0.2) == 1
    store.release()


@pytest.mark.measured
async def test_age(start_door: Start, message: bytes) -> None:
    """A connection that has lived long enough ends politely, and a new one is welcome."""
    door = await start_door(age_s=0.1)
    client = await door.connect()
    assert (await client.call(RATE_LIMIT, message)).code == "OK"
    await client.at_end()
    assert client.goaways == [(2**31 - 1, NO_ERROR)]
    assert (await (await door.connect()).call(RATE_LIMIT, message)).code == "OK"
    assert door.stats.aged >= 1
    assert GrpcSettings().age_s == 24 * 3600, "not for ever: nothing else would ever move a client to a new process"


@pytest.mark.measured
async def test_grace_of_age(start_door: Start, message: bytes) -> None:
    """A call that outlives the grace of an old connection is cut off with it."""
    limiter, store = later()
    door = await start_door(limiter=limiter, age_s=0.05, age_grace_s=0.2)
    client = await door.connect()
    store.hold()
    client.request(RATE_LIMIT, message)
    await client.flush()
    await client.at_end()
    assert door.stats.timeouts["drain"] == 1
    store.release()


def test_ages_are_spread(start_door: Start) -> None:
    """Connections made together do not end together: their ages differ by up to a fifth, and stay near the setting."""
    from sluicegate.doors.grpc.site import GrpcSite
    from sluicegate.doors.grpc.stats import GrpcStats

    site = GrpcSite({}, GrpcSettings(age_s=100), GrpcStats(), lambda _: 1)
    ages = []
    for site.connections.opened in range(100):
        ages.append(site.age_s())
    assert 90 <= min(ages) < 91
    assert 109 < max(ages) <= 110
    assert len({round(age) for age in ages}) > 15


@pytest.mark.parametrize(
    "field", ["message_bytes_max", "streams_max", "connections_max", "preface_s", "write_s", "age_s"]
)
def test_settings_are_checked(field: str) -> None:
    """A setting that makes no sense is refused by its name."""
    with pytest.raises(ConfigurationError, match=field):
        GrpcSettings(**{field: -1})
