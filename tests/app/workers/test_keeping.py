"""Starting workers again, with processes that are only told of."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.app.settings import Settings
from sluicegate.app.workers import pacing
from sluicegate.app.workers.messages import Ready, Restarts, Start
from sluicegate.app.workers.process import WorkerProcess, describe
from sluicegate.app.workers.supervisor import Supervisor
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError, InternalError


class Told:
    """A worker: it becomes ready, or fails to, and ends when it is told to."""

    pid = 1

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.messages: list[Any] = []

    async def ready(self) -> Ready:
        if self._fault is not None:
            raise self._fault
        return Ready([])

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    def tell(self, message: Any) -> None:
        self.messages.append(message)

    def kill(self) -> bool:
        self.ended.set_result(-9)
        return True


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[Start]:
    """What workers were started with; pauses are too short to wait for."""
    monkeypatch.setattr(pacing, "RESTART_PAUSE_FIRST_S", 0.001)
    monkeypatch.setattr(pacing, "RESTART_PAUSE_MAX_S", 0.001)
    return []


@pytest.fixture
def supervise(monkeypatch: pytest.MonkeyPatch, spawned: list[Start]) -> Callable[..., Supervisor]:
    """A supervisor whose attempts to start a worker end as listed."""

    def supervise(*outcomes: Told | Exception) -> Supervisor:
        left = list(outcomes)

        async def spawn(start: Start) -> Told:
            spawned.append(start)
            outcome = left.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(WorkerProcess, "spawn", spawn)
        return Supervisor(Settings(workers=2, store="redis://h"), ManualClock(), contextlib.AsyncExitStack())

    return supervise


async def test_what_cannot_be_started_is_tried_again(
    supervise: Callable[..., Supervisor], spawned: list[Start]
) -> None:
    """A fork that fails, a worker that cannot start and one that is not ready in time are tried again, and counted."""
    first, refused, late, good = Told(), Told(ConfigurationError("no")), Told(InternalError("not ready")), Told()
    no_room = OSError(errno.EAGAIN, "Resource temporarily unavailable")
    supervisor = supervise(first, no_room, refused, late, good)
    other: Any = Told()
    supervisor._running[1] = other
    await supervisor._spawn(2)
    keeper = asyncio.create_task(supervisor._keep(2))
    first.kill()
    async with asyncio.timeout(60):
        while not good.messages:
            await asyncio.sleep(0)
    assert [start.restarts.workers.get(2, 0) for start in spawned] == [0, 1, 2, 3, 4]
    assert (refused.ended.done(), late.ended.done(), good.ended.done()) == (True, True, False)
    assert other.messages[-1] == Restarts({2: 4}) == good.messages[-1]
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)


async def test_one_being_started_is_known_when_all_is_to_stop(
    supervise: Callable[..., Supervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is being started while the server stops is ended with the others."""
    supervisor = supervise()
    begun, go_on, worker = asyncio.Event(), asyncio.Event(), Told()

    async def slow(_start: Start) -> Told:
        begun.set()
        await go_on.wait()
        return worker

    monkeypatch.setattr(WorkerProcess, "spawn", slow)
    waiting = asyncio.create_task(supervisor._spawn(1))
    await begun.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    ending = asyncio.create_task(supervisor._end())
    await asyncio.sleep(0)
    go_on.set()
    await ending
    assert worker.ended.result() == -9


@pytest.mark.parametrize(
    ("status", "words"),
    [(0, "exit status 0"), (3, "exit status 3"), (-11, "killed by SIGSEGV"), (-200, "killed by signal 200")],
)
def test_ends_are_described(status: int, words: str) -> None:
    """How a process ended, in words."""
    assert describe(status) == words
