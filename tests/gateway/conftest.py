"""A gateway between raw sockets: the tests write and read every byte on both sides.

``world(serve, rules=..., **settings)`` starts an upstream whose connections run ``serve(line)``, a gateway in front of it
and gives clients. At the end of each test the fixture checks that nothing is left: no request in flight, no held request,
no open upstream connection, no fault of the program, no complaint of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ipaddress
import socket
import struct
from dataclasses import dataclass, field
from random import Random

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sluicegate.clock import SystemClock
from sluicegate.doors.gateway import Gateway, Settings
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.listen import Address, open_listener
from sluicegate.doors.refusals import Refusals
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules

PATIENCE_S = 60
"""How long a test waits for bytes before it fails; nothing here takes that long."""

OPEN_RULES = """
version: 1
rules:
  - {name: all, quota: 1000000/second}
"""


def pytest_asyncio_loop_factories(config, item):
    """Every test of sockets runs on both event loops: their transports differ in details that matter here."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@dataclass
class Reply:
    """One answer as a client reads it. ``body`` is decoded; ``raw`` is what was on the wire."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes
    raw: bytes
    trailers: list[tuple[str, str]] = field(default_factory=list)

    def get(self, name):
        """The value of a field that is there at most once."""
        values = self.all(name)
        assert len(values) <= 1, values
        return values[0] if values else None

    def all(self, name):
        """All values of a field."""
        return [value for key, value in self.fields if key.lower() == name.lower()]


class Line:
    """One raw connection."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    def send(self, data):
        """Write bytes now."""
        self.writer.write(data)

    async def flush(self):
        """Wait until what was written is under way."""
        await asyncio.wait_for(self.writer.drain(), PATIENCE_S)

    async def head(self):
        """Read up to an empty line."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)

    async def exactly(self, size):
        """Read so many bytes."""
        return await asyncio.wait_for(self.reader.readexactly(size), PATIENCE_S)

    async def line(self):
        """Read a line with its CRLF."""
        return await asyncio.wait_for(self.reader.readuntil(b"\r\n"), PATIENCE_S)

    async def rest(self):
        """Read until the other side ends; a reset is the empty end of what came before."""
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := await asyncio.wait_for(self.reader.read(65536), PATIENCE_S):
                data += piece
        return data

    async def ended(self):
        """Whether the other side ends without another byte: "closed" or "reset"."""
        try:
            data = await asyncio.wait_for(self.reader.read(1000), PATIENCE_S)
        except ConnectionError:
            return "reset"
        assert data == b""
        return "closed"

    async def chunked(self):
        """Read a chunked body: payload and trailer lines."""
        body = b""
        while size := int((await self.line()).split(b";")[0], 16):
            body += await self.exactly(size)
            assert await self.exactly(2) == b"\r\n"
        trailers = []
        while (line := await self.line()) != b"\r\n":
            trailers.append(pair(line))
        return body, trailers

    async def request_body(self, head):
        """Read the body a request head announces."""
        fields = {name.lower(): value for name, value in map(pair, head.split(b"\r\n")[1:-2])}
        if "transfer-encoding" in fields:
            return (await self.chunked())[0]
        return await self.exactly(int(fields.get("content-length", "0")))

    async def reply(self, *, method="GET"):
        """Read one answer."""
        head = await self.head()
        first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        status = int(first.split(b" ")[1])
        fields = [pair(line) for line in lines]
        named = {name.lower(): value for name, value in fields}
        body, trailers = b"", []
        if method == "HEAD" or status < 200 or status in {204, 304}:
            pass
        elif "transfer-encoding" in named:
            body, trailers = await self.chunked()
        elif "content-length" in named:
            body = await self.exactly(int(named["content-length"]))
        else:
            body = await self.rest()
        return Reply(status, fields, body, head, trailers)

    async def ask(self, data, *, method="GET"):
        """Send and read one answer."""
        self.send(data)
        return await self.reply(method=method)

    def reset(self):
        """Close with a reset."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self):
        """Close."""
        self.writer.close()


def pair(line):
    """Name and value of a field line."""
    name, _, value = line.decode("latin-1").partition(":")
    return name, value.strip()


async def answer_ok(line):
    """The plain upstream: reads requests and answers each with what it saw."""
    while True:
        head = await line.head()
        line.backend.heads.append(head)
        line.backend.bodies.append(await line.request_body(head))
        line.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


class Backend:
    """An upstream whose connections run ``serve(line)``; an end of stream in it is the end of the connection."""

    def __init__(self, serve):
        self.serve = serve
        self.heads, self.bodies, self.lines, self.errors = [], [], [], []
        self._tasks = set()

    async def start(self, path=None, ssl=None):
        if path is None:
            self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=ssl)
            self.port = self.server.sockets[0].getsockname()[1]
            self.url = f"http{'s' if ssl else ''}://127.0.0.1:{self.port}"
        else:
            self.server = await asyncio.start_unix_server(self._accept, path)
            self.url = f"unix:{path}"
        return self

    def _accept(self, reader, writer):
        task = asyncio.get_running_loop().create_task(self._run(reader, writer))
        self._tasks.add(task)

    async def _run(self, reader, writer):
        line = Line(reader, writer)
        line.backend = self
        self.lines.append(line)
        try:
            await self.serve(line)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            writer.close()

    @property
    def targets(self):
        """Method and target of each request seen."""
        return [head.split(b" HTTP/")[0].decode() for head in self.heads]

    async def stop(self):
        self.server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for line in self.lines:
            # asyncio before 3.11.5 forgets the inside of a TLS transport that is closed, and then cannot abort it.
            with contextlib.suppress(AttributeError):
                line.writer.transport.abort()


class World:
    """A running gateway with its upstreams."""

    def __init__(self, gateway, listener, backends, limiter):
        self.gateway, self.listener, self.backends, self.limiter = gateway, listener, backends, limiter
        self.stats = gateway.stats
        self._clients = []

    @property
    def backend(self):
        return self.backends[0]

    @property
    def address(self):
        return self.listener.address

    async def client(self):
        """A new raw connection to the gateway."""
        if self.address.path is not None:
            line = Line(*await asyncio.open_unix_connection(self.address.path))
        else:
            line = Line(*await asyncio.open_connection("127.0.0.1", self.address.port))
        self._clients.append(line)
        return line

    async def ask(self, data, *, method="GET"):
        """One request on a connection of its own."""
        return await (await self.client()).ask(data, method=method)

    async def until(self, condition):
        """Wait until something is so."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.002)

    async def stop(self):
        for line in self._clients:
            line.writer.transport.abort()
        self.listener.close()
        await self.gateway.close()
        await asyncio.sleep(0)
        for backend in self.backends:
            await backend.stop()
        await asyncio.sleep(0.001)


@pytest.fixture
async def world():
    """Start worlds; see the head of this file."""
    worlds, complaints = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))

    async def start(
        *serves,
        rules=OPEN_RULES,
        headers="x-ratelimit",
        listen=None,
        urls=(),
        clock=None,
        paths=(),
        ssl=None,
        retry_jitter_s=0,
        **settings,
    ):
        backends = [
            await Backend(serve).start(path, ssl)
            for serve, path in zip(serves or (answer_ok,), (*paths, *[None] * 9), strict=False)
        ]
        clock = clock or SystemClock()
        limiter = rules if hasattr(rules, "check") else Limiter.from_rules(load_rules(rules, "test"), clock=clock)
        refusals = Refusals(limiter, retry_jitter_s, Random(7)) if retry_jitter_s else None
        urls = urls or [backend.url for backend in backends]
        gateway = Gateway(limiter, urls, RateHeaders(headers), Settings(**settings), clock, refusals)
        listener = await open_listener(listen or Address("127.0.0.1", 0), gateway.protocol_factory)
        made = World(gateway, listener, backends, limiter)
        worlds.append(made)
        return made

    yield start
    for made in worlds:
        await made.stop()
        assert [backend.errors for backend in made.backends if backend.errors] == []
        stats = made.stats
        assert (stats.internal_errors, stats.in_flight, stats.held, stats.tunnels) == (0, 0, 0, 0)
        assert [state[:3] for state in made.gateway.upstreams.values() if any(state[:3])] == []
        assert len(made.gateway.connections) == 0
    assert complaints == []


@pytest.fixture
def trusting():
    """Rules that trust loopback to say who its clients are."""
    return """
version: 1
identity:
  trusted_peers: [127.0.0.0/8]
  user: {header: X-User-Id}
rules:
  - {name: all, quota: 1000000/second}
"""


@pytest.fixture
def certificate(tmp_path):
    """A file with a key and a self-signed certificate for 127.0.0.1, valid now."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = tmp_path / "certificate.pem"
    path.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
    return path
