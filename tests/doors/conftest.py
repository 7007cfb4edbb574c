"""A real decision API on a free port of 127.0.0.1, and a client that sees every byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop

from sluicegate.clock import ManualClock, SystemClock
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.door import HttpDoor
from sluicegate.doors.http.settings import HttpSettings
from sluicegate.doors.listen import Address, Listener, open_listener
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.redis import RedisStore


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    """Tests with sockets run on both event loops: their transports differ in what they do when."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


RULES = """
version: 1
tiers: {default: free, names: [free, paid]}
rules:
  - name: everything
    quota: 1000/second
  - name: login
    match: {methods: [POST], path: /login}
    per: [ip]
    quota: 5/minute
    algorithm: fixed_window
  - name: api
    match: {path: /api/**}
    per: {first_of: [api_key, user, ip]}
    quota: {free: 10/minute, paid: 100/minute}
  - name: watched
    match: {path: /api/**}
    per: [ip]
    quota: 1/minute
    mode: shadow
  - name: queue
    match: {path: /queue}
    per: [ip]
    quota: 2/second
    algorithm: leaky_bucket
  - name: banned
    match: {path: /banned}
    per: [ip]
    quota: 0
"""


@dataclass
class Answer:
    """One response as it came."""

    status: int
    headers: dict[str, str]
    body: bytes
    lines: list[str] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """A raw connection: sends bytes, reads responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def read(self, *, bodiless: bool = False) -> Answer:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        size = 0 if bodiless else int(headers.get("content-length", "0"))
        body = await asyncio.wait_for(self.reader.readexactly(size), 10)
        return Answer(int(lines[0].split(" ")[1]), headers, body, lines)

    async def ask(self, *pieces: bytes) -> Answer:
        await self.send(*pieces)
        return await self.read()

    async def post(self, path: str, document: object) -> Answer:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return await self.ask(request("POST", path, body))

    async def check(self, document: object) -> Answer:
        return await self.post("/v1/check", document)

    async def at_end(self) -> bytes:
        """Everything up to the close of the connection."""
        return await asyncio.wait_for(self.reader.read(), 10)

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


def request(method: str, path: str, body: bytes = b"", *fields: str) -> bytes:
    """A well-formed request; ``Content-Length`` is there when there is a body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *fields]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


class Server:
    """A running door with its clock and limiter."""

    def __init__(self, door: HttpDoor, listener: Listener, clock: ManualClock, limiter: Limiter) -> None:
        self.door = door
        self.listener = listener
        self.clock = clock
        self.limiter = limiter
        self.ready: tuple[bool, dict[str, object]] = (True, {"version": 1})
        self._clients: list[Client] = []

    @property
    def stats(self) -> Any:
        return self.door.stats

    async def connect(self) -> Client:
        address = self.listener.address
        if address.path is not None:
            client = Client(*await asyncio.open_unix_connection(address.path))
        else:
            client = Client(*await asyncio.open_connection(address.host, address.port))
        self._clients.append(client)
        return client

    async def stop(self) -> None:
        self.listener.close()
        for client in self._clients:
            await client.close()
        await self.door.connections.drain(1)


StartServer = Callable[..., Awaitable[Server]]


@pytest.fixture
async def start() -> AsyncIterator[StartServer]:
    """Start servers with any ``HttpSettings`` field, ``rules``, ``headers`` or ``address``; all are stopped at the end."""
    running: list[Server] = []

    async def start_server(
        *,
        rules: str = RULES,
        headers: str = "x-ratelimit",
        address: str = "127.0.0.1:0",
        limiter: Any = None,
        health_only: bool = False,
        nginx_deny_status: int = 403,
        ruleset: Any = None,
        **settings: Any,
    ) -> Server:
        clock = ManualClock()
        limiter = limiter or Limiter.from_rules(load_rules(rules, "rules.yaml"), clock=clock)
        server: Server

        door = HttpDoor(
            limiter,
            clock=clock,
            ready=lambda: server.ready,
            metrics=lambda: ("text/plain; version=0.0.4", b"up 1\n"),
            headers=RateHeaders(headers),
            health_only=health_only,
            nginx_deny_status=nginx_deny_status,
            ruleset=ruleset,
            settings=HttpSettings(**{"sweep_s": 0.02, **settings}),
        )
        listener = await open_listener(Address.parse(address), door.protocol_factory)
        server = Server(door, listener, clock, limiter)
        running.append(server)
        return server

    yield start_server
    for server in running:
        await server.stop()


@pytest.fixture
async def server(start: StartServer) -> Server:
    """A server with defaults and the rules above."""
    return await start()


@pytest.fixture
async def client(server: Server) -> Client:
    """A connection to ``server``."""
    return await server.connect()


@pytest.fixture
def make_request() -> Callable[..., bytes]:
    """Builds a request; see ``request``."""
    return request


@pytest.fixture
async def redis_limiter() -> AsyncIterator[Callable[[str, str], Awaitable[Limiter]]]:
    """Makes limiters with their counters in a Redis, connected and closed after the test: ``redis_limiter(url, rules)``."""
    limiters: list[Limiter] = []

    async def make(url: str, rules: str) -> Limiter:
        clock = SystemClock()
        limiter = Limiter.from_rules(load_rules(rules, "rules.yaml"), RedisStore(url, clock=clock), clock)
        limiters.append(limiter)
        assert await limiter.awarm()
        return limiter

    yield make
    for limiter in limiters:
        await limiter.aclose()


@pytest.fixture
def redis_url(servers: Any, require_program: Callable[[str], str]) -> str:
    """A Redis with nothing in it, and a deadline that a busy machine keeps."""
    found: str = servers.empty("redis", require_program).url
    return found
