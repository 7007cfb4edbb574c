"""What the log of a rules service says of what it stands on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.app.control.away import Needed, needs_of
from sluicegate.clock import ManualClock, SystemClock
from sluicegate.control.errors import Unavailable
from sluicegate.control.push import RedisPublisher
from sluicegate.control.service import RulesService
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.urls import open_store

NOBODY = "redis+unix:///nobody/listens/here"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[RulesService]:
    async with await RulesService.open(f"sqlite:///{tmp_path / 'control.db'}", SystemClock(), watched=False) as service:
        yield service


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


async def test_once_each(caplog: pytest.LogCaptureFixture) -> None:
    """What goes away is a warning with its reason, and what is back an information, however often it is looked at, whatever the probe raises."""
    caplog.set_level(logging.INFO, "sluicegate")
    answers: list[str | Exception | None] = [
        None,
        "gone",
        "gone still",
        OSError("gone"),
        TimeoutError(),
        None,
        None,
        "gone",
    ]

    async def probe() -> str | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    needed = Needed("database", probe, 1)
    while answers:
        await needed.look()
    assert said(caplog) == [("WARNING", "database_away"), ("INFO", "database_back"), ("WARNING", "database_away")]
    assert caplog.records[0].fields == {"error": "gone"}


async def test_the_database(
    service: RulesService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll of the service finds that its database is away, and that it is back."""
    caplog.set_level(logging.INFO, "sluicegate")
    (needed,) = needs_of(service, None, MemoryStore(ManualClock()))
    with monkeypatch.context() as patched:

        @contextlib.asynccontextmanager
        async def away() -> AsyncIterator[None]:
            raise Unavailable("the database does not answer: gone")
            yield

        patched.setattr(service.ledger.database, "read", away)
        await service.watch.look()
        await needed.look()
    assert said(caplog) == [("WARNING", "database_away")]
    await service.watch.look()
    await needed.look()
    assert said(caplog)[1:] == [("INFO", "database_back")]


async def test_a_redis_that_is_not_there(service: RulesService, caplog: pytest.LogCaptureFixture) -> None:
    """A Redis of --push and a store of --store that nobody listens at are said before anybody needs them."""
    caplog.set_level(logging.INFO, "sluicegate")
    publisher, store = RedisPublisher(NOBODY, "default"), open_store(NOBODY, SystemClock(), warm=False)
    try:
        for needed in needs_of(service, publisher, store):
            await needed.look()
    finally:
        await publisher.close()
        store.close()
    assert [line for line in said(caplog) if line[1].endswith("_away")] == [
        ("WARNING", "push_away"),
        ("WARNING", "store_away"),
    ]
