"""What happens without anybody asking: looking for changes that other processes made, and for what ends by itself.

A poll a second apart finds everything. With PostgreSQL a connection listens besides, and what another service commits is known here
at once; while it is down, the poll goes on. Neither ends before it is told to: whatever goes wrong is counted, and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy.engine import URL

from sluicegate.bounds import CONTROL_POLL_S, PUSH_PING_S
from sluicegate.control.errors import ControlError, Unavailable
from sluicegate.control.ledger import Ledger
from sluicegate.errors import MissingExtra
from sluicegate.rules.feed import POSTGRES_CHANNEL

__all__ = ["Watch"]

_CONNECT_S: Final = 10


class Watch:
    """The background of a rules service, on one event loop. ``chores``: what is done at each poll, one after another.

    ``failures`` counts polls and chores that could not be done; ``error`` is why the last one could not, None since one could.
    ``away``: why the database gave no answer when it was asked last, None where it did. ``listening``: whether PostgreSQL tells of changes.
    """

    def __init__(self, ledger: Ledger, chores: list[Callable[[], Awaitable[None]]]) -> None:
        self.failures = 0
        self.error: str | None = None
        self.away: str | None = None
        self.listening = False
        self._ledger = ledger
        self._chores = chores
        self._woken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin, on the running loop."""
        self._tasks.append(asyncio.create_task(self._poll()))
        if self._ledger.database.is_postgresql:
            self._tasks.append(asyncio.create_task(self._listen()))

    async def close(self) -> None:
        """End, and wait for it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def once(self) -> None:
        """Look once, and do all chores, each whatever becomes of the others; raises the first thing that goes wrong."""
        await self._ledger.refresh()
        first: Exception | None = None
        for chore in self._chores:
            try:
                await chore()
            except Exception as error:  # noqa: BLE001 - told below
                first = first or error
        if first is not None:
            raise first

    async def look(self, *, chores: bool = True) -> None:
        """As ``once``, without the chores where they are not wanted; what goes wrong is noted, because nobody is there to be told."""
        try:
            await (self.once() if chores else self._ledger.refresh())
        except Exception as error:  # noqa: BLE001 - the next look may succeed
            self._fail(error)
            self.away = str(error) if isinstance(error, Unavailable) else None
        else:
            self.error = self.away = None

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if loop.time() >= due:
                due = loop.time() + CONTROL_POLL_S
                await self.look()
            else:
                await self.look(chores=False)
            # Not wait_for: in Python 3.11 it loses a cancellation that comes together with what it waits for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._woken.wait()
            self._woken.clear()

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except Exception as error:  # noqa: BLE001 - the poll goes on meanwhile
                self._fail(error)
            self.listening = False
            await asyncio.sleep(CONTROL_POLL_S)

    async def _listen_once(self) -> None:
        """Listen until the connection is lost."""
        lost = asyncio.Event()
        connection = await _connect(self._ledger.database.url)
        try:
            connection.add_termination_listener(lambda _connection: lost.set())
            await connection.add_listener(POSTGRES_CHANNEL, lambda *_told: self._woken.set())
            self.listening = True
            # What was told before the connection listened is not told again.
            self._woken.set()
            while not lost.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PUSH_PING_S):
                        await lost.wait()
                        return
                # A network that takes everything and brings nothing does not end a connection.
                await connection.execute("SELECT 1", timeout=PUSH_PING_S)
        finally:
            connection.terminate()

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        self.error = str(error) if isinstance(error, ControlError | OSError) else repr(error)


async def _connect(url: URL) -> Any:
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        raise MissingExtra("postgres", "listening to PostgreSQL") from error
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    return await asyncpg.connect(address, timeout=_CONNECT_S)
