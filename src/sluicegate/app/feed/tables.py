"""Lists and subjects of a node: fetched as what has changed, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from sluicegate.app.feed.client import FeedError
from sluicegate.app.feed.kept import Damaged, KeptTable
from sluicegate.errors import ConfigurationError, InvalidRequest
from sluicegate.limiter.fed import FedTable
from sluicegate.rules.feed import ListChanges, SubjectChanges

__all__ = ["Table"]

C = TypeVar("C", bound=ListChanges | SubjectChanges)


class Table(Generic[C]):
    """One table. ``error``: why it is not what the service has, None where it is; ``kept_error``: why it is not on disk as well."""

    def __init__(
        self,
        table: FedTable[Any, Any, Any],
        ask: Callable[[int, str], Awaitable[C]],
        kept: KeptTable[C],
        nothing: C,
    ) -> None:
        self.error: str | None = None
        self.kept_error: str | None = None
        self._table = table
        self._ask = ask
        self._kept = kept
        self._nothing = nothing

    def revision(self, incarnation: str) -> int:
        """Where it stands in this life of the database; 0 where it is of another."""
        return self._table.revision if self._table.incarnation == incarnation else 0

    def is_behind(self, incarnation: str, revision: int) -> bool:
        """Whether the service has more."""
        return self._table.incarnation != incarnation or self._table.revision < revision

    def load(self) -> None:
        """Take over what was kept, all of it or nothing. Slow; not on the loop."""
        try:
            for changes in self._kept.read():
                self._table.apply(changes)
            self._kept.go_on()
        except (Damaged, OSError, ConfigurationError, InvalidRequest) as error:
            self._table.apply(self._nothing)
            self.kept_error = str(error)

    async def catch_up(self, incarnation: str) -> None:
        """Fetch what has changed; raises FeedError. ``incarnation``: of the service now."""
        since = 0 if self._kept.is_long else self.revision(incarnation)
        try:
            try:
                await self._fetch(since)
            except ConfigurationError:
                # What came does not follow what is here. Another database has taken its place, for instance.
                if since == 0:
                    raise
                await self._fetch(0)
        except (ConfigurationError, InvalidRequest) as error:
            self.error = str(error)
            raise FeedError(f"what it told cannot be used: {error}") from error
        self.error = None

    async def _fetch(self, since: int) -> None:
        cursor = ""
        while True:
            changes = await self._ask(since, cursor)
            await asyncio.to_thread(self._take, changes)
            if not changes.more:
                return
            if not changes.cursor:
                raise FeedError("it says that there is more, and not where")
            since, cursor = changes.revision, changes.cursor

    def _take(self, changes: C) -> None:
        if not self._table.apply(changes):
            return
        try:
            self._kept.add(changes)
            if changes.full:
                self.kept_error = None
        except OSError as error:
            self.kept_error = str(error)
