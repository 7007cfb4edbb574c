"""Several upstreams, upstreams over TLS, and settings that are none."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl

import pytest

from sluicegate.doors.gateway import Gateway, Settings
from sluicegate.doors.gateway.target import Target
from sluicegate.doors.gateway.upstream import Upstream, UpstreamConnection
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def closed_port():
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def assert_problem(reply, status):
    """A problem document that carries the rate headers of its decision."""
    assert reply.status == status
    assert reply.get("Content-Type") == "application/problem+json"
    assert json.loads(reply.body)["status"] == status
    assert reply.get("X-RateLimit-Limit") == "1000000"


async def hold(line):
    """Read the request and never answer."""
    line.backend.heads.append(await line.head())
    await line.rest()
    line.backend.heads.append(b"GONE HTTP/")


async def test_a_request_goes_to_another_upstream_when_the_first_cannot_be_connected(world):
    """With its body, whatever its method: nothing was sent."""
    w = await world()
    both = await world(urls=[f"http://127.0.0.1:{closed_port()}", w.backend.url], balance="round_robin")
    for _ in range(4):
        assert (await both.ask(POST)).status == 200
    assert both.stats.failovers == 2
    assert w.backend.bodies == [b"hello"] * 4


async def test_an_upstream_that_keeps_failing_is_left_out(world):
    """After eject_after failures in a row, for eject_s."""
    good = await world()
    w = await world(
        urls=[f"http://127.0.0.1:{closed_port()}", good.backend.url], balance="round_robin", eject_after=2, eject_s=60
    )
    for _ in range(20):
        assert (await w.ask(GET)).status == 200
    assert w.stats.ejections == 1
    assert w.stats.upstream_errors == {"connect": 2}
    assert [state[3] for state in w.gateway.upstreams.values()] == [True, False]


async def test_the_only_upstreams_are_used_even_when_they_fail(world):
    """All left out is none left out."""
    w = await world(urls=[f"http://127.0.0.1:{closed_port()}", f"http://127.0.0.1:{closed_port()}"], eject_after=1)
    for _ in range(3):
        assert_problem(await w.ask(GET), 502)
    assert w.stats.upstream_errors["connect"] == 6


@pytest.mark.parametrize("balance", ["round_robin", "least_outstanding"])
async def test_upstreams_share_the_load(world, balance):
    """Equal upstreams get equal parts."""

    async def ok(line):
        while True:
            line.backend.heads.append(await line.head())
            line.send(OK)

    w = await world(ok, ok, ok, balance=balance)
    client = await w.client()
    for _ in range(30):
        assert (await client.ask(GET)).status == 200
    assert [len(backend.heads) for backend in w.backends] == [10, 10, 10]


async def test_a_busy_upstream_gets_less(world):
    """least_outstanding looks at requests in flight."""

    async def ok(line):
        while True:
            line.backend.heads.append(await line.head())
            line.send(OK)

    w = await world(hold, ok)
    while not w.backends[0].heads:
        (await w.client()).send(GET)
        await asyncio.sleep(0.01)
    before = len(w.backends[1].heads)
    for _ in range(6):
        assert (await w.ask(GET)).status == 200
    assert len(w.backends[1].heads) == before + 6


async def test_an_upstream_over_tls(world, tmp_path, certificate):
    """Verified against the given authority; without it the connection is refused."""

    async def ok(line):
        while True:
            await line.head()
            line.send(OK)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    w = await world(ok, ssl=context, tls_ca_file=str(certificate))
    client = await w.client()
    for _ in range(2):
        assert (await client.ask(POST)).body == b"ok"
    assert w.stats.upstream_connects == 1
    stranger = await world(urls=[w.backend.url])
    assert_problem(await stranger.ask(GET), 502)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:80",
        "ftp://x",
        "http://",
        "http://x/path",
        "http://x?q",
        "http://u:p@x",
        "http://x:99999",
        "unix:",
        "http://x y",
    ],
)
def test_an_upstream_url_that_is_none_is_named(url):
    """Nothing is guessed."""
    with pytest.raises(ConfigurationError, match="upstream"):
        Target.parse(url)


def test_a_gateway_needs_an_upstream(trusting):
    """None is a mistake of configuration."""
    limiter = Limiter.from_rules(load_rules(trusting, "test"))
    with pytest.raises(ConfigurationError, match="upstream"):
        Gateway(limiter, [])
    with pytest.raises(ConfigurationError, match="tls_ca_file"):
        Gateway(limiter, ["https://x"], settings=Settings(tls_ca_file="/nonexistent"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"connect_timeout_s": 0},
        {"idle_timeout_s": 1e9},
        {"held_max": 0},
        {"balance": "random"},
        {"proto": "ftp"},
        {"via": "a b"},
        {"eject_after": -1},
    ],
)
def test_a_setting_out_of_range_is_named(wrong):
    """Field and value."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Settings(**wrong)


class Transport:
    """Notes whether it was aborted."""

    aborted = False

    def set_write_buffer_limits(self, *, high):
        assert high > 0

    def abort(self):
        self.aborted = True


class Books:
    """Keeps an upstream's number of open connections, as the pool does."""

    def lost(self, connection):
        connection.upstream.open -= 1


@pytest.mark.parametrize("given_up_first", [False, True])
async def test_a_connection_that_is_given_up_is_counted_as_often_as_it_is_discounted(given_up_first):
    """An attempt that is given up as its connection is made leaves neither an open connection nor a wrong number of them."""
    upstream = Upstream(Target.parse("http://127.0.0.1:1"), None)
    connection, transport = UpstreamConnection(upstream, Books()), Transport()
    if given_up_first:
        connection.close()
        connection.connection_made(transport)
    else:
        connection.connection_made(transport)
        assert upstream.open == 1
        connection.close()
    connection.connection_lost(None)
    assert (transport.aborted, upstream.open) == (True, 0)
