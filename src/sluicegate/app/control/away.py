"""What a rules service stands on, and whether it is there: the log says once when it is not, and once when it is again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sluicegate.app import logs
from sluicegate.bounds import CONTROL_POLL_S, PUSH_PING_S
from sluicegate.control.push import RedisPublisher
from sluicegate.control.service import RulesService
from sluicegate.stores.base import AsyncStore, FleetStore

__all__ = ["Needed", "needs_of"]

Probe = Callable[[], Awaitable[str | None]]


@dataclass(slots=True)
class Needed:
    """``what``: its name in events, such as ``database``. ``probe``: why it is away, None where it is there. ``every_s``: seconds between two looks."""

    what: str
    probe: Probe
    every_s: float
    error: str | None = None

    async def look(self) -> None:
        """Log what has changed since the last look."""
        try:
            error = await self.probe()
        except TimeoutError:
            error = "it gives no answer in time"
        except Exception as failure:  # noqa: BLE001
            # Whatever a client raises, it is not there; and a fault of ours must not end the watch.
            error = str(failure) or type(failure).__name__
        if error is not None and self.error is None:
            logs.event(logging.WARNING, f"{self.what}_away", error=error)
        elif error is None and self.error is not None:
            logs.event(logging.INFO, f"{self.what}_back")
        self.error = error

    async def keep_watching(self) -> None:
        """For as long as the process lives."""
        while True:
            await self.look()
            await asyncio.sleep(self.every_s)


def needs_of(service: RulesService, publisher: RedisPublisher | None, store: object) -> list[Needed]:
    """The database; and the Redis of hints and the store of counters, where there are any over a network."""

    async def database() -> str | None:
        return service.watch.away

    needed = [Needed("database", database, CONTROL_POLL_S)]
    if publisher is not None:

        async def push() -> str | None:
            await publisher.ping()
            return None

        needed.append(Needed("push", push, PUSH_PING_S))
    if isinstance(store, AsyncStore):

        async def counters() -> str | None:
            if await store.awarm():
                return None
            errors = [server.error for server in store.health()] if isinstance(store, FleetStore) else []
            return next((error for error in errors if error is not None), "it gives no answer")

        needed.append(Needed("store", counters, PUSH_PING_S))
    return needed
