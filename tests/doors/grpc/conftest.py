"""The messages as generated code knows them, the services without a network, and a running gRPC door with clients that see every frame."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc_tools
import pytest
from grpc_tools import protoc
from ngh2 import (
    Connection,
    ConnectionClosed,
    ConnectionStateError,
    DataReceived,
    GoAwayReceived,
    ResponseReceived,
    Role,
    StreamClosed,
    StreamReset,
    TrailersReceived,
)

from sluicegate.clock import ManualClock
from sluicegate.doors.grpc.calls import CODES
from sluicegate.doors.grpc.door import GrpcDoor
from sluicegate.doors.grpc.service import Services
from sluicegate.doors.grpc.settings import GrpcSettings
from sluicegate.doors.grpc.stats import GrpcStats
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.listen import Address
from sluicegate.doors.refusals import Refusals
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules

RATE_LIMIT = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
HEALTH = "/grpc.health.v1.Health/Check"

RULES = """
version: 1
rules:
  - name: floor
    quota: 1000/second
  - name: per-key
    match: {domain: edge}
    per: [descriptor.api_key]
    quota: 5/minute
  - name: per-route
    match: {domain: edge, descriptors: {route: login}}
    per: [descriptor.ip]
    quota: 2/hour
    algorithm: fixed_window
"""


@pytest.fixture(scope="session")
def pb(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module that protoc generates from ``rls.proto``."""
    here, folder = Path(__file__).parent, tmp_path_factory.mktemp("rls")
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    assert protoc.main(["protoc", f"-I{here}", f"-I{well_known}", f"--python_out={folder}", "rls.proto"]) == 0
    spec = importlib.util.spec_from_file_location("sluicegate_tests_rls_pb2", folder / "rls_pb2.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Asked:
    """A call that keeps its answer."""

    def __init__(self) -> None:
        self.message: bytes | None = None
        self.failure: tuple[str, str] | None = None
        self.answered = asyncio.Event()

    def answer(self, message: bytes) -> None:
        assert self.message is self.failure is None, "answered twice"
        self.message = message
        self.answered.set()

    def fail(self, code: int, detail: str) -> None:
        assert self.message is self.failure is None, "answered twice"
        self.failure = (CODES[code], detail)
        self.answered.set()


class Bench:
    """The services over a limiter whose clock stands still. ``ask`` takes descriptors as texts, ``"api_key=a route=login"``."""

    def __init__(self, pb: Any, limiter: Limiter, clock: ManualClock, headers: str, jitter_s: int) -> None:
        self.pb = pb
        self.limiter = limiter
        self.clock = clock
        self.ready = True
        self.stats = GrpcStats()
        self.services = Services(
            limiter,
            RateHeaders(headers),
            clock,
            self.stats,
            ready=lambda: (self.ready, {}),
            refusals=Refusals(limiter, jitter_s),
        )

    def request(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> Any:
        made = [self.descriptor(each) if isinstance(each, str) else each for each in descriptors]
        return self.pb.RateLimitRequest(domain=domain, descriptors=made, hits_addend=hits)

    def descriptor(self, text: str, **fields: Any) -> Any:
        entries = [dict(zip(("key", "value"), pair.split("=", 1), strict=True)) for pair in text.split()]
        return self.pb.RateLimitDescriptor(entries=entries, **fields)

    async def ask(self, *descriptors: Any, domain: str = "edge", hits: int = 0) -> Any:
        return await self.send(self.request(*descriptors, domain=domain, hits=hits).SerializeToString())

    async def send(self, message: bytes) -> Any:
        """The answer, or the failure as ``(code, words)``."""
        call = Asked()
        self.services.should_rate_limit(message, call)
        await asyncio.wait_for(call.answered.wait(), 10)
        if call.message is None:
            return call.failure
        return self.pb.RateLimitResponse.FromString(call.message)


@pytest.fixture
def bench(pb: Any) -> Callable[..., Bench]:
    """Make services: ``bench(rules, headers=..., store=...)``."""

    def make(rules: str = RULES, *, headers: str = "x-ratelimit", store: Any = "memory://", jitter_s: int = 0) -> Bench:
        clock = ManualClock()
        store = store(clock) if callable(store) else store
        return Bench(pb, Limiter.from_rules(load_rules(rules, "rules.yaml"), store, clock), clock, headers, jitter_s)

    return make


@dataclass
class Reply:
    """One response. ``code``: the gRPC status by name, None where there is none. ``reset``: HTTP/2 code of a stream that was reset."""

    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    reset: int | None = None

    @property
    def code(self) -> str | None:
        number = self.fields.get("grpc-status")
        return None if number is None else CODES[int(number)]

    @property
    def message(self) -> bytes:
        assert self.body[:5] == b"\0" + (len(self.body) - 5).to_bytes(4, "big")
        return self.body[5:]


class Client:
    """A connection: ``http2`` builds frames, ``send`` writes bytes of any kind, replies come by stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, **configuration: Any) -> None:
        self.reader = reader
        self.writer = writer
        self.http2 = Connection(Role.CLIENT)
        self.replies: dict[int, Reply] = {}
        self.closed: set[int] = set()
        self.goaways: list[tuple[int, int]] = []
        """(last stream, code) of each GOAWAY."""
        self.ended = False
        self.reading = True

    async def begin(self, settings: dict[int, int] | None = None) -> None:
        self.http2.initiate_connection(settings or {})
        await self.flush()

    async def flush(self) -> None:
        await self.send(self.http2.data_to_send())

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def request(
        self, path: str, message: bytes | None, *fields: tuple[str, str], method: str = "POST", framed: bool = True
    ) -> int:
        """Queue a call; ``message`` None leaves it open."""
        head = {
            ":method": method,
            ":scheme": "http",
            ":authority": "test",
            ":path": path,
            "content-type": "application/grpc",
            "te": "trailers",
        }
        head.update(fields)
        stream_id = self.http2.send_request([(k.encode(), v.encode()) for k, v in head.items()])
        if message is not None:
            body = b"\0" + len(message).to_bytes(4, "big") + message if framed else message
            self.http2.send_data(stream_id, body, end_stream=True)
        self.replies[stream_id] = Reply()
        return stream_id

    async def call(self, path: str, message: bytes | None, *fields: tuple[str, str], **how: Any) -> Reply:
        """One call and its reply."""
        stream_id = self.request(path, message, *fields, **how)
        await self.flush()
        return await self.reply(stream_id)

    async def reply(self, stream_id: int) -> Reply:
        await self.until(lambda: stream_id in self.closed or self.ended)
        return self.replies[stream_id]

    async def until(self, true: Callable[[], bool], timeout_s: float = 60) -> None:
        """Read until something is true."""
        async with asyncio.timeout(timeout_s):
            while not true():
                await self.read()

    async def read(self) -> None:
        """Take what comes next."""
        try:
            data = await self.reader.read(65536)
        except ConnectionError:
            data = b""
        if not data:
            self.ended = True
            return
        with contextlib.suppress(ConnectionStateError):  # after its last GOAWAY there is nothing more to say
            self.http2.receive_data(data)
        for event in self.http2.events():
            self._take(event)
        await self.flush()

    def _take(self, event: Any) -> None:
        if isinstance(event, GoAwayReceived):
            self.goaways.append((event.last_stream_id, event.error_code))
        elif isinstance(event, StreamClosed):
            self.closed.add(event.stream_id)
        elif not isinstance(event, ConnectionClosed) and getattr(event, "stream_id", 0) in self.replies:
            reply = self.replies[event.stream_id]
            if isinstance(event, ResponseReceived | TrailersReceived):
                reply.fields.update((k.decode(), v.decode()) for k, v in event.headers)
            elif isinstance(event, DataReceived):
                reply.body += event.data
            elif isinstance(event, StreamReset):
                reply.reset = event.error_code

    async def at_end(self) -> None:
        """Read until the server closes the connection."""
        await self.until(lambda: self.ended)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Server:
    """A running door."""

    def __init__(self, door: GrpcDoor, listener: Any, clock: Any, limiter: Limiter) -> None:
        self.door = door
        self.listener = listener
        self.clock = clock
        self.limiter = limiter
        self.ready = True
        self._clients: list[Client] = []

    @property
    def stats(self) -> GrpcStats:
        return self.door.stats

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.listener.address.port}"

    async def connect(self, settings: dict[int, int] | None = None, *, begin: bool = True) -> Client:
        address = self.listener.address
        client = Client(*await asyncio.open_connection(address.host, address.port))
        self._clients.append(client)
        if begin:
            await client.begin(settings)
        return client

    async def stop(self) -> None:
        self.listener.close()
        for client in self._clients:
            await client.close()
        await self.door.connections.drain(1)


StartDoor = Callable[..., Awaitable[Server]]


@pytest.fixture
async def start_door() -> AsyncIterator[StartDoor]:
    """Start doors with any ``GrpcSettings`` field, ``rules`` or ``limiter``; all are stopped at the end."""
    running: list[Server] = []

    async def start(
        *, rules: str = RULES, limiter: Any = None, clock: Any = None, engine: str = "auto", **settings: Any
    ) -> Server:
        clock = clock or ManualClock()
        limiter = limiter or Limiter.from_rules(load_rules(rules, "rules.yaml"), clock=clock)
        server: Server
        door = GrpcDoor(
            limiter,
            clock=clock,
            ready=lambda: (server.ready, {}),
            settings=GrpcSettings(**{"sweep_s": 0.02, **settings}),
            engine=engine,
        )
        listener = await door.open(Address("127.0.0.1", 0))
        server = Server(door, listener, clock, limiter)
        running.append(server)
        return server

    yield start
    for server in running:
        await server.stop()


@pytest.fixture
async def door(start_door: StartDoor) -> Server:
    """A door with defaults and the rules above."""
    return await start_door()


@pytest.fixture
async def client(door: Server) -> Client:
    """A connection to ``door``."""
    return await door.connect()


@pytest.fixture
def message(pb: Any) -> bytes:
    """A request of the domain ``edge`` with one descriptor, ``api_key=a``."""
    entry = {"key": "api_key", "value": "a"}
    made: bytes = pb.RateLimitRequest(domain="edge", descriptors=[{"entries": [entry]}]).SerializeToString()
    return made
