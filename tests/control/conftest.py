from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sluicegate.clock import ManualClock
from sluicegate.control.model import Actor, Publisher, Role
from sluicegate.control.service import RulesService

EDITOR = Actor("eve", "token:1", "192.0.2.7", "req-1", Role.EDITOR)
ADMIN = Actor("ann", "token:2", "192.0.2.8", "req-2", Role.ADMIN)
VIEWER = Actor("vic", "token:3", role=Role.VIEWER)
NODE = Actor("gateway", "token:4", role=Role.NODE)

Opened = Callable[..., Awaitable[RulesService]]


@pytest.fixture
def actors() -> dict[Role, Actor]:
    """One of each role."""
    return {actor.role: actor for actor in (EDITOR, ADMIN, VIEWER, NODE)}


@pytest.fixture
def editor() -> Actor:
    return EDITOR


@pytest.fixture
def admin() -> Actor:
    return ADMIN


@pytest.fixture
def viewer() -> Actor:
    return VIEWER


@pytest.fixture
def node() -> Actor:
    return NODE


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'control.db'}"
    url: str = request.getfixturevalue("new_database")()
    return url


@pytest.fixture
async def open_service(database_url: str, clock: ManualClock) -> AsyncIterator[Opened]:
    """Opens services on the database of the test, which look for changes of others only when told to."""
    opened: list[RulesService] = []

    async def start(
        *, watched: bool = False, publisher: Publisher | None = None, url: str = database_url
    ) -> RulesService:
        opened.append(await RulesService.open(url, clock, watched=watched, publisher=publisher))
        return opened[-1]

    yield start
    for service in opened:
        await service.close()


@pytest.fixture
async def service(open_service: Opened) -> RulesService:
    return await open_service()
