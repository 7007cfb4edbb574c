"""A real rules service on a real database and listener, and nodes of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sluicegate.app.feed.settings import NO_PUSH, FeedSettings
from sluicegate.app.feed.start import Feed
from sluicegate.app.tls import HTTP_1, ListenerTls, TlsFiles
from sluicegate.clock import SystemClock
from sluicegate.control.http.app import build_app
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.model import ABSENT, Actor, Publisher, Role
from sluicegate.control.server import ControlServer
from sluicegate.control.service import RulesService
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.model import RuleSet
from sluicegate.rules.watched import RulesState

TOKEN = "a-token-of-the-nodes"
EDITOR = Actor("eve", "token:1", role=Role.EDITOR)


async def until(true: Callable[[], object], timeout_s: float = 60) -> None:
    """Return when it is; fail when it is not in time."""
    async with asyncio.timeout(timeout_s):
        while not true():
            await asyncio.sleep(0.005)


class Control:
    """A rules service that can be stopped and started again on its port."""

    def __init__(self, url: str, publisher: Publisher | None = None, tls: TlsFiles | None = None) -> None:
        self.database = url
        self.publisher = publisher
        self.tls = tls
        self.port = 0
        self.service: Any = None
        self._server: ControlServer | None = None

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self.service = await RulesService.open(self.database, SystemClock(), publisher=self.publisher)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", self.port))
        self.port = sock.getsockname()[1]
        app = build_app(self.service, ApiSettings(node_token=TOKEN), SystemClock())
        tls = None if self.tls is None else ListenerTls("control", self.tls, SystemClock(), HTTP_1)
        over = None if tls is None else tls.layer.over
        self._server = ControlServer(app, sock, over=over)
        await self._server.start()

    async def stop(self) -> None:
        if self._server is None:
            return
        server, self._server = self._server, None
        closing = asyncio.create_task(server.close(1))
        await asyncio.sleep(0)
        server.cut()
        await closing
        await self.service.close()

    async def put(self, *quotas: str, **more: object) -> int:
        """Rules ``r0``, ``r1`` and so on with these quotas per user; the version."""
        rules = [{"name": f"r{at}", "per": ["user"], "quota": quota} for at, quota in enumerate(quotas)]
        current = await self.service.rulesets.current()
        expect = ABSENT if current is None else current.info.version
        document = {"version": 1, "rules": rules, **more}
        applied = await self.service.rulesets.put_ruleset(EDITOR, document, expect=expect)
        return applied.version.info.version


class NodeUnderTest:
    """A node, its limiter, and the task that keeps it."""

    def __init__(self, feed: Feed, limiter: Limiter, state: RulesState) -> None:
        self.feed = feed
        self.node = feed.node
        self.limiter = limiter
        self.state = state
        self._task: asyncio.Task[None] | None = None

    def run(self) -> None:
        self._task = asyncio.create_task(self.node.run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self.feed.close()


@pytest.fixture
def editor() -> Actor:
    return EDITOR


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Awaitable[None]]:
    return until


@pytest.fixture
async def make_control(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Control]]]:
    """Starts rules services; SQLite unless told otherwise."""
    made: list[Control] = []

    async def make(url: str | None = None, publisher: Publisher | None = None, tls: TlsFiles | None = None) -> Control:
        control = Control(url or f"sqlite:///{tmp_path / f'control{len(made)}.db'}", publisher, tls)
        made.append(control)
        await control.start()
        return control

    yield make
    for control in made:
        await control.stop()


@pytest.fixture
async def control(make_control: Callable[..., Awaitable[Control]]) -> Control:
    """One service without a version of rules."""
    return await make_control()


@pytest.fixture
async def make_node(tmp_path: Path) -> AsyncIterator[Callable[..., NodeUnderTest]]:
    """Makes nodes of a service, which neither began nor run; all that have no ``data`` of their own keep what they are told in one place."""
    made: list[NodeUnderTest] = []

    def make(url: str, *, data: Path = tmp_path / "data", first: bool = False, **settings: Any) -> NodeUnderTest:
        given = {
            "url": url,
            "token": TOKEN,
            "push": NO_PUSH,
            "node": f"n{len(made)}",
            "wait_s": 5.0,
            "report_interval_s": 1.0,
        }
        limiter = Limiter.from_rules(RuleSet((), version=0), base_dir=tmp_path)
        state = RulesState()
        feed = Feed(
            FeedSettings(**{**given, **settings}), limiter, SystemClock(),
            state=state, data=data, files=tmp_path, store="memory://", first=first,
        )  # fmt: skip
        made.append(NodeUnderTest(feed, limiter, state))
        return made[-1]

    yield make
    for node in made:
        await node.stop()
        node.limiter.close()
