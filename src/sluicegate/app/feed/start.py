"""A node of a rules service put together, and its start: with what the service says, else with what it said last, else with a rules file."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random
from typing import Final

from sluicegate.app import logs
from sluicegate.app.feed.client import FeedClient, FeedError
from sluicegate.app.feed.kept import Damaged, Kept
from sluicegate.app.feed.making import Maker
from sluicegate.app.feed.node import FeedNode
from sluicegate.app.feed.reports import Reports
from sluicegate.app.feed.settings import NO_PUSH, FeedSettings
from sluicegate.app.feed.tables import Table
from sluicegate.clock import US_PER_S, Clock
from sluicegate.control.hints import Hints, hints_from
from sluicegate.errors import ConfigurationError
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.feed import ListChanges, Revisions, Snapshot, SubjectChanges
from sluicegate.rules.watched import RulesState
from sluicegate.stores.redis.settings import SCHEMES

__all__ = ["Feed"]

_ASK_S: Final = 2.0
"""How long a start waits for the service where it could do without."""

_AGAIN_S: Final = 0.2


class Feed:
    """The rules service of one process. ``node`` does the work; ``first``: there are rules to begin with, from a file.

    ``data``: directory of what is kept. ``files``: what names of files in rules are relative to. ``store``: its URL, for where to listen.
    ``worker``: the number of this process among several; the first one alone keeps what was told, for all. Raises ConfigurationError.
    """

    def __init__(
        self,
        settings: FeedSettings,
        limiter: Limiter,
        clock: Clock,
        *,
        state: RulesState,
        data: Path,
        files: Path,
        store: str,
        worker: int | None = None,
        first: bool = False,
    ) -> None:
        self.settings = settings
        self.client = FeedClient(settings)
        self.kept = Kept(data, settings.kept_as or settings.url, writes=worker in (None, 1))
        self._clock = clock
        self._first = first
        name = settings.node_name(worker)
        nothing = ListChanges("", 0, 0, True, [], [])
        nobody = SubjectChanges("", 0, 0, True, [], [])
        self.node = FeedNode(
            self.client,
            clock,
            source=settings.url,
            maker=Maker(limiter, clock, name, settings.url, files),
            lists=Table(limiter.lists, self.client.lists, self.kept.lists, nothing),
            subjects=Table(limiter.subjects, self.client.subjects, self.kept.subjects, nobody),
            reports=Reports(limiter, clock, name, settings.report_interval_s),
            state=state,
            hints=_hints(settings.push, store),
            keep=self.kept.write_rules,
        )
        # Counters were changed by hand: what is kept of them here, beside the store, is no longer true.
        self.node.on_epoch = limiter.forget

    async def begin(self) -> None:
        """Return when there are rules to decide by. Raises ConfigurationError where there are none in ``wait_s``."""
        kept = await asyncio.to_thread(self._recall)
        can_begin = kept is not None or self._first
        wait_s = min(_ASK_S, self.settings.wait_s) if can_begin else self.settings.wait_s
        error = await self._ask(wait_s, once=can_begin) if wait_s else "not asked yet"
        node = self.node
        if node.has_rules:
            return
        # Who does not ask expects no answer.
        level, why = (logging.WARNING, {"error": error}) if wait_s else (logging.INFO, {})
        if kept is not None and not (self._first and self.settings.prefer_first):
            if not node.standing.heard:
                node.standing.told = kept.revisions
            if await node.put(kept):
                logs.event(level, "started_with_kept_rules", version=node.state.version, **why)
                return
        if not self._first:
            raise ConfigurationError(
                f"there are no rules to begin with: {self.settings.url} gave none in {wait_s:g} s ({error}), and "
                f"{'what was kept cannot be used' if node.kept_error else 'none are kept'}; --rules FILE gives a first set"
            )
        logs.event(level, "started_with_first_rules", version=node.state.version, **why)

    async def close(self) -> None:
        """Give back what is open."""
        self.kept.close()
        await self.client.close()

    def _recall(self) -> Snapshot | None:
        """What was kept, as far as it can be used."""
        node = self.node
        try:
            self.kept.open()
        except OSError as error:
            node.kept_error = f"{self.kept.directory}: {error.strerror}"
            return None
        for table in (node.lists, node.subjects):
            table.load()
            if table.kept_error is not None:
                logs.event(logging.ERROR, "kept_refused", error=table.kept_error)
        try:
            return self.kept.read_rules()
        except (Damaged, OSError) as error:
            node.kept_error = str(error)
            logs.event(logging.ERROR, "kept_refused", error=node.kept_error)
            return None

    async def _ask(self, wait_s: float, *, once: bool) -> str:
        """Ask the service until its rules are in service or the time is over; the reason why they are not, "" where they are."""
        ends_us = self._clock.monotonic_us() + round(wait_s * US_PER_S)
        node, why = self.node, ""
        while True:
            left_s = (ends_us - self._clock.monotonic_us()) / US_PER_S
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    told = await self.client.revisions() or Revisions()
                    snapshot = await self.client.snapshot()
                node.standing.reached()
                node.hear(told)
                if await node.put(snapshot):
                    await self._fetch_tables(ends_us)
                    return ""
                why = node.state.error or ""
            except TimeoutError:
                return why or "it did not answer in time"
            except FeedError as error:
                why = str(error)
                if error.refused:
                    return why
            if once:
                return why
            await asyncio.sleep(min(_AGAIN_S, max(0.0, left_s)))

    async def _fetch_tables(self, ends_us: int) -> None:
        """Lists and subjects too, as far as there is time: what is not here yet comes a moment later."""
        left_s = max(0.1, (ends_us - self._clock.monotonic_us()) / US_PER_S)
        try:
            async with asyncio.timeout(left_s):
                await self.node.catch_up()
        except (FeedError, TimeoutError) as error:
            logs.event(logging.WARNING, "started_without_lists", error=str(error) or "they did not come in time")


def _hints(push: str | None, store: str) -> Hints | None:
    if push == NO_PUSH:
        return None
    if push is None and store.partition("://")[0].lower() not in SCHEMES:
        return None
    return hints_from(store if push is None else push, "default", Random())  # noqa: S311 -- spreads nodes out; nothing is kept secret by it
