"""Being told of changes by Redis and PostgreSQL, and what becomes of nodes when they are not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from random import Random

import msgspec
import pytest
from real_servers import BINARIES, free_port_now, running

from sluicegate.control import hints as hints_module
from sluicegate.control.hints import Backoff, hints_from
from sluicegate.control.push import RedisPublisher
from sluicegate.errors import ConfigurationError
from sluicegate.rules.feed import Revisions, redis_channel

pytestmark = pytest.mark.slow


@pytest.fixture(params=["redis", "valkey"])
def server(request, servers, require_program: Callable[[str], str]):
    """One server of each kind."""
    return servers.empty(request.param, require_program)


@pytest.fixture
def start_redis(require_program: Callable[[str], str], tmp_path):
    """Starts a Redis that can be ended and started again on its port."""
    program = require_program(BINARIES["redis"])
    return lambda port: running(program, tmp_path, port=port)


async def listening(hints, until):
    """The task of a listener, and what it was told, once it listens."""
    told: list[Revisions | None] = []
    task = asyncio.create_task(hints.listen(told.append))
    await until(lambda: hints.connected)
    return task, told


async def end(task):
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=10)
    assert done, "it goes on although it was cancelled"


@contextlib.asynccontextmanager
async def falling_silent():
    """A server that answers the first bytes of two connections as Redis answers a subscriber, and nothing else: its port, and its connections."""
    connections = []

    async def swallow(reader, writer):
        connections.append(writer)
        subscribed = b"*3\r\n$9\r\nsubscribe\r\n$28\r\nsluicegate:default:revisions\r\n:1\r\n"
        while await reader.read(1_000):
            if subscribed and len(connections) < 3:
                writer.write(b"+OK\r\n" * 2 + subscribed)
                subscribed = b""

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as fake:
        yield fake.sockets[0].getsockname()[1], connections
        for writer in connections:
            writer.close()


async def test_what_redis_tells(server, until):
    """A listener says that it may have missed something when it begins to listen, and then tells of each message; what is no revision is a reason to ask."""
    hints = hints_from(server.url, "default", Random(1))
    task, told = await listening(hints, until)
    assert told == [None]
    publisher = RedisPublisher(server.url, "default")
    await publisher.publish(Revisions("a", 1))
    await until(lambda: len(told) == 2)
    with server.client() as client:
        client.publish(redis_channel("default"), b"what is this")
        client.publish(redis_channel("another"), b"not for us")
        client.publish(redis_channel("default"), msgspec.json.encode(Revisions("a", 2)))
    await until(lambda: len(told) == 4)
    assert told == [None, Revisions("a", 1), None, Revisions("a", 2)]
    assert hints.received == 3
    await publisher.close()
    await end(task)
    assert not hints.connected


async def test_a_redis_that_goes_and_comes(start_redis, until):
    """While Redis is away a listener says why, and when it is back it says that something may have been missed."""
    port = free_port_now()
    hints = hints_from(f"redis://127.0.0.1:{port}", "default", Random(1))
    told: list[Revisions | None] = []
    task = asyncio.create_task(hints.listen(told.append))
    await until(lambda: hints.error)
    with start_redis(port):
        await until(lambda: hints.connected)
        assert hints.error is None
    await until(lambda: not hints.connected)
    assert told == [None]
    with start_redis(port):
        await until(lambda: hints.connected, 25)
        assert told == [None, None]
    await end(task)


async def test_a_connection_that_is_silent(until, monkeypatch):
    """A connection on which nothing comes back, not even an answer to a question, is given up."""
    monkeypatch.setattr(hints_module, "PUSH_PING_S", 0.1)
    async with falling_silent() as (port, connections):
        hints = hints_from(f"redis://127.0.0.1:{port}", "default", Random(1))
        task = asyncio.create_task(hints.listen(lambda _: None))
        await until(lambda: len(connections) >= 2)
        assert not hints.connected or len(connections) >= 2
        await end(task)


async def test_a_listener_ends_at_any_moment(monkeypatch):
    """A listener that is cancelled ends, at whichever turn of the loop that is: in a send, for an answer, a message, a pause."""
    monkeypatch.setattr(hints_module, "PUSH_PING_S", 0.001)
    for turns in range(150):
        async with falling_silent() as (port, _):
            hints = hints_from(f"redis://127.0.0.1:{port}", "default", Random(1))
            task = asyncio.create_task(hints.listen(lambda _: None))
            for _ in range(turns):
                await asyncio.sleep(0)
            await end(task)


async def test_what_postgresql_tells(new_database, make_control, until):
    """A change kept on PostgreSQL is told to who listens there, with its numbers; so is every connection that was lost."""
    url = new_database()
    control = await make_control(url)
    hints = hints_from(url, "default", Random(1))
    task, told = await listening(hints, until)
    assert told == [None]
    await control.put("5/minute")
    await until(lambda: len(told) == 2)
    assert told[1] == await control.service.revisions()
    async with control.service.ledger.database.read() as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()"
        await connection.exec_driver_sql(query)
    await until(lambda: told[2:] == [None])
    await end(task)


def test_what_can_be_listened_to():
    """Other URLs are refused with what is possible, and a bad one of Redis or PostgreSQL without its password."""
    with pytest.raises(ConfigurationError, match="want postgresql"):
        hints_from("kafka://somewhere", "default", Random(1))
    with pytest.raises(ConfigurationError) as raised:
        hints_from("redis://user:secret@/x", "default", Random(1))
    assert "secret" not in str(raised.value)
    with pytest.raises(ConfigurationError, match="the port of the PostgreSQL") as raised:
        hints_from("postgresql://user:sec/ret@somewhere/x", "default", Random(1))
    assert "sec/" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_pauses_between_attempts():
    """Pauses are random, grow to their bound, and begin anew after a success."""
    backoff = Backoff(Random(1), 0.5, 4.0)
    limits = [0.5, 1.0, 2.0, 4.0, 4.0]
    assert all(0 <= backoff.fail() <= limit for limit in limits)
    assert max(backoff.fail() for _ in range(50)) > 2
    backoff.succeed()
    assert backoff.fail() <= 0.5


@pytest.mark.measured
@pytest.mark.parametrize("way", ["redis", "postgresql"])
async def test_a_change_is_live_by_push_alone(
    way, servers, require_program, new_database, make_control, make_node, until, monkeypatch
):
    """With no poll under way, a change is live in a node within a second of its being kept, over Redis and over PostgreSQL."""
    if way == "redis":
        push = servers.empty("redis", require_program).url
        control = await make_control(publisher=RedisPublisher(push, "default"))
    else:
        push = new_database()
        control = await make_control(push)
    await control.put("5/minute")
    node = make_node(control.url, push=push)
    await node.feed.begin()

    async def never():
        await asyncio.Event().wait()

    monkeypatch.setattr(node.node, "_poll", never)
    monkeypatch.setattr(node.node, "_report", never)
    node.run()
    await until(lambda: node.node.hints.connected)
    for version in range(2, 12):
        began = time.monotonic()
        await control.put(f"{version}/minute")
        await until(lambda version=version: node.state.version == version)
        assert time.monotonic() - began < 1
    if control.publisher is not None:
        await control.publisher.close()


async def test_two_services_on_one_database(new_database, make_control, make_node, until, editor):
    """Two services on one PostgreSQL that write in turns and at once lead every node to the same rules, whichever it asks."""
    url = new_database()
    one, two = await make_control(url), await make_control(url)
    await one.put("5/minute")
    nodes = [make_node(service.url, push=push) for service in (one, two) for push in (url, "off")]
    for node in nodes:
        await node.feed.begin()
        node.run()

    async def write(control, count):
        for number in range(count):
            entry = f"{control.port}-{number}"
            await control.service.lists.put(editor, "block", "user", entry)
            rule = {"name": f"p{entry}", "per": ["user"], "quota": "7/minute"}
            await control.service.rulesets.create_rule(editor, rule)

    await asyncio.gather(write(one, 10), write(two, 10))
    # Each service knows what it did itself, so where both know the same they know all.
    await until(lambda: one.service.hub.latest == two.service.hub.latest, 30)
    await until(lambda: all(node.node.standing.applied == two.service.hub.latest for node in nodes), 30)
    assert {len(node.limiter.ruleset.rules) for node in nodes} == {21}
    assert {len(node.limiter.lists) for node in nodes} == {20}
    assert {node.limiter.version for node in nodes} == {21}
    assert len({node.limiter.ruleset.digest for node in nodes}) == 1
