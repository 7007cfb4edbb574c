"""One node of a rules service: it knows what the service has, and decides by it a moment later.

    poll      asks the service, which answers when something changes, and after ``FEED_WAIT_S`` in any case
    hints     Redis or PostgreSQL say that something has changed
    catch up  one coroutine, woken by both: fetches what differs, and puts it in service
    time      what ends or begins by itself does so here, whether or not the service can be reached
    reports   what this node did

Neither of the first two carries rules. Whatever is lost, late, doubled or out of order costs a question, and at most ``FEED_POLL_S_MAX``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from sluicegate.app import logs
from sluicegate.app.feed.client import FeedClient, FeedError
from sluicegate.app.feed.making import Maker
from sluicegate.app.feed.reports import Reports
from sluicegate.app.feed.standing import Standing
from sluicegate.app.feed.tables import Table
from sluicegate.bounds import FEED_POLL_S_MAX, FEED_RETRY_S_MAX, FEED_WAIT_S
from sluicegate.clock import US_PER_S, Clock
from sluicegate.control.hints import Backoff, Hints
from sluicegate.errors import ConfigurationError
from sluicegate.rules.feed import ListChanges, Pause, Revisions, Snapshot, SubjectChanges
from sluicegate.rules.problems import RulesInvalid
from sluicegate.rules.watched import RulesState

__all__ = ["ALL_RULES", "FeedNode"]

ALL_RULES: Final = "*"
"""Stands in the place of a rule's name for all of them."""

_AT_ONCE_S: Final = 1.0
"""An answer that comes sooner did not wait."""

_NEWS_PAUSE_S: Final = 0.02
_FIRST_IDLE_S: Final = 0.25
"""Seconds before the next poll after one that brought news, and half of those after one that was answered at once without any; they double."""

_SPREAD_S: Final = 1.0
"""Seconds over which nodes report what they have put in service."""

_UNREPORTED_S: Final = 0.5
"""Seconds at least between a report that could not be told and the next, whatever there is to tell."""

_LOOK_S: Final = 1.0
"""Seconds between two looks at files that rules name, and at the wall clock, which may be set."""


class FeedNode:
    """Keeps a limiter by the rules of a service. Used on one event loop; ``run`` until cancelled.

    ``state``: of the rules in service, as of a rules file. ``keep``: called beside the loop with each snapshot that was put in service;
    what it raises as OSError is told. ``source``: the service's URL. ``on_epoch``: called on the loop when the service says that counters were changed by hand.
    ``listeners``: where this node listens, for the report.
    """

    def __init__(
        self,
        client: FeedClient,
        clock: Clock,
        *,
        source: str,
        maker: Maker,
        lists: Table[ListChanges],
        subjects: Table[SubjectChanges],
        reports: Reports,
        state: RulesState,
        hints: Hints | None = None,
        keep: Callable[[Snapshot], None] | None = None,
        random: Random | None = None,
    ) -> None:
        self.client = client
        self.source = source
        self.hints = hints
        self.reports = reports
        self.state = state
        self.standing = Standing(clock, lists, subjects)
        self.listeners: dict[str, str] = {}
        self.on_epoch: Callable[[], None] = _nothing
        self.kept_error: str | None = None
        self.file_error: str | None = None
        """Why the rules file that the service watches, as it is now, is not what is in service."""
        self.lists = lists
        self.subjects = subjects
        self._clock = clock
        self._maker = maker
        self._keep = keep
        self._random = random or Random()  # noqa: S311 -- spreads nodes out; nothing is kept secret by it
        self._snapshot: Snapshot | None = None
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._report_now = asyncio.Event()
        self._retimed = asyncio.Event()
        self._retry_files = False
        self._paused: dict[str, Pause] = {}

    # ------------------------------------------------------------------ being told

    def hear(self, told: Revisions) -> None:
        """The service says where it stands."""
        self.standing.hear(told)
        if self.standing.is_behind:
            self._wake.set()

    def hint(self, told: Revisions | None) -> None:
        """Somebody says where it stands; None: nobody knows."""
        if self.standing.hint(told):
            self._wake.set()

    async def catch_up(self) -> None:
        """Fetch what differs and put it in service. Raises FeedError where something of it could not be had."""
        standing = self.standing
        if standing.unsure:
            # Before the question: whatever is missed while it is under way is a reason to ask again.
            standing.unsure = False
            try:
                self.hear(_some(await self.client.revisions()))
            except FeedError:
                standing.unsure = True
                raise
        hinted = standing.hinted
        wanted = standing.wanted
        errors: list[FeedError] = []
        steps: list[tuple[bool, Callable[[], Awaitable[None]]]] = [
            (standing.rules_behind(wanted), self._fetch_rules),
            (self.lists.is_behind(wanted.incarnation, wanted.lists), lambda: self.lists.catch_up(wanted.incarnation)),
            (
                self.subjects.is_behind(wanted.incarnation, wanted.subjects),
                lambda: self.subjects.catch_up(wanted.incarnation),
            ),
        ]
        changed = False
        for behind, fetch in steps:
            if behind:
                try:
                    await fetch()
                    changed = True
                except FeedError as error:
                    errors.append(error)
        if standing.epoch_behind(wanted):
            # Also where it is the first one that is heard: counters may have been changed while this node ran without the service.
            standing.epoch = (wanted.incarnation, wanted.epoch)
            self.on_epoch()
        if changed:
            self._report_now.set()
        if errors:
            raise errors[0]
        standing.done(hinted)
        if standing.is_behind:
            raise FeedError("it does not have yet what it told of")

    async def _fetch_rules(self) -> None:
        snapshot = await self.client.snapshot()
        if self.standing.is_older(snapshot.revisions):
            raise FeedError(f"it gave version {snapshot.revisions.ruleset} after a newer one")
        await self.put(snapshot)

    # ------------------------------------------------------------------ putting in service

    async def put(self, snapshot: Snapshot) -> bool:
        """Decide by this, or say why not and go on as before; whether it is in service."""
        async with self._turn:
            self.standing.judged = snapshot.revisions
            self._retry_files = False
            if snapshot.rules is None:
                self._reject("the rules service has no rules yet", awaited=True)
                return False
            if not await self._make(snapshot):
                return False
            self._accept(snapshot)
        if self._keep is not None:
            try:
                await asyncio.to_thread(self._keep, snapshot)
                self.kept_error = None
            except OSError as error:
                self.kept_error = str(error)
        return True

    async def _make(self, snapshot: Snapshot) -> bool:
        try:
            await asyncio.to_thread(self._maker.put, snapshot)
        except RulesInvalid as error:
            what = "\n".join(str(problem) for problem in error.problems)
        except ConfigurationError as error:
            # The fault may lie in a file that the rules name, which can be mended without a new version.
            self._retry_files = True
            what = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours; the rules before stay in service
            logs.LOGGER.exception("rules_apply_failed")
            what = f"internal error: {error!r}"
        else:
            self._tell_pauses()
            return True
        self._reject(f"version {snapshot.revisions.ruleset}: {what}")
        return False

    def _accept(self, snapshot: Snapshot) -> None:
        assert snapshot.rules is not None, "put in service"
        state, revisions = self.state, snapshot.revisions
        self._snapshot = snapshot
        self.standing.accepted(revisions)
        state.version, state.digest, state.error = snapshot.rules.version, self._maker.digest, None
        state.loaded_us = self._clock.now_us()
        state.accepted += 1
        self._retimed.set()
        logs.event(
            logging.INFO, "rules_accepted", version=state.version, overlay=revisions.overlay, digest=state.digest
        )

    def _reject(self, reason: str, *, awaited: bool = False) -> None:
        """Say once why not. ``awaited``: nothing is wrong, there is nothing to put in service yet."""
        if reason == self.state.error:
            return
        self.state.error = reason
        self._report_now.set()
        if awaited:
            logs.event(logging.INFO, "rules_awaited", serving=self.state.version, reason=reason)
            return
        self.state.rejected += 1
        logs.event(logging.ERROR, "rules_rejected", serving=self.state.version, error=reason)

    @property
    def has_rules(self) -> bool:
        """Whether rules of the service are in service."""
        return self._snapshot is not None

    @property
    def kept_problem(self) -> str | None:
        """Why not all of what was told is on disk, or what was there could not be used; None: it is."""
        return self.kept_error or self.lists.kept_error or self.subjects.kept_error

    # ------------------------------------------------------------------ the coroutines

    async def run(self) -> None:
        """Poll, listen, catch up, keep time and report until cancelled; a fault of one is logged, and it goes on."""
        jobs = [self._poll, self._work, self._keep_time, self._report]
        if self.hints is not None:
            jobs.append(self._listen)
        tasks = [asyncio.create_task(self._forever(job)) for job in jobs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forever(self, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await job()
            except Exception:  # noqa: BLE001 - a fault of ours must not end what keeps the rules right
                logs.LOGGER.exception("feed_failed")
                await asyncio.sleep(_LOOK_S)

    async def _poll(self) -> None:
        backoff = Backoff(self._random, 0.2, FEED_RETRY_S_MAX)
        idle_s = _FIRST_IDLE_S
        while True:
            asked_us = self._clock.monotonic_us()
            etag = self.standing.told.etag if self.standing.heard else ""
            try:
                told = await self.client.revisions(etag, FEED_WAIT_S)
            except FeedError as error:
                self._lost(error)
                await asyncio.sleep(backoff.fail())
                continue
            backoff.succeed()
            self._found()
            took_s = (self._clock.monotonic_us() - asked_us) / US_PER_S
            if told is not None:
                self.hear(told)
            news = told is not None and self.standing.is_behind
            if self._retry_files and self._snapshot is not None:
                self.standing.judged = Revisions()
                self._wake.set()
            if news:
                # Two services that do not agree must not make it a flood.
                await asyncio.sleep(_NEWS_PAUSE_S)
            elif took_s < _AT_ONCE_S:
                # Something between us answers a long poll at once.
                idle_s = min(2 * idle_s, FEED_POLL_S_MAX)
                await asyncio.sleep(self._random.uniform(0.1, 0.9) * idle_s)
            else:
                idle_s = _FIRST_IDLE_S

    async def _work(self) -> None:
        backoff = Backoff(self._random, 0.2, FEED_RETRY_S_MAX)
        pause_s: float | None = None
        if self.standing.heard and self.standing.is_behind:
            # Begun again after a fault: whatever woke it then is not done.
            self._wake.set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.catch_up()
            except FeedError as error:
                self.standing.error = str(error)
                pause_s = max(0.05, backoff.fail())
            else:
                self.standing.error = None
                pause_s = None
                backoff.succeed()

    async def _keep_time(self) -> None:
        while True:
            self._retimed.clear()
            at_us, now_us = self._maker.changes_at_us, self._clock.now_us()
            due = at_us is not None and at_us <= now_us
            if self._snapshot is not None and (due or self._maker.files_changed()):
                async with self._turn:
                    if await self._make(self._snapshot):
                        self.state.digest = self._maker.digest
                        if self.standing.judged == self._snapshot.revisions:
                            self.state.error = None
                self._report_now.set()
                at_us = None if due and at_us == self._maker.changes_at_us else self._maker.changes_at_us
            left_s = _LOOK_S if at_us is None else (at_us - self._clock.now_us()) / US_PER_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK_S, max(0.0, left_s))):
                    await self._retimed.wait()

    async def _report(self) -> None:
        reports = self.reports
        refused = ""
        # Who has begun is told of now, and not an interval later: until then nobody knows where it can be asked.
        self._report_now.set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(reports.interval_s * self._random.uniform(0.9, 1.1)):
                    await self._report_now.wait()
            if self._report_now.is_set():
                # A change reaches all nodes at once; their reports of it need not reach the service at once, too.
                await asyncio.sleep(self._random.uniform(0, min(_SPREAD_S, reports.interval_s / 5)))
            self._report_now.clear()
            error = self.state.error or self.lists.error or self.subjects.error
            report = reports.make(self.standing.applied, self.state.loaded_us, error, self.listeners)
            try:
                answer = await self.client.report(report)
            except FeedError as error_of_report:
                reports.failed(report)
                # That the service is away the polls say.
                if error_of_report.refused and str(error_of_report) != refused:
                    refused = str(error_of_report)
                    logs.event(logging.WARNING, "report_refused", error=refused)
                await asyncio.sleep(_UNREPORTED_S)
            else:
                refused = ""
                reports.answered(report, answer)
                self.file_error = answer.file_error or None
                self.hear(answer.revisions)

    async def _listen(self) -> None:
        assert self.hints is not None, "asked only then"
        await self.hints.listen(self.hint)

    # ------------------------------------------------------------------ telling of it

    def _tell_pauses(self) -> None:
        """A rule that does not apply is worth a warning when that begins, and a word when it is over."""
        before, self._paused = self._paused, {each.rule or ALL_RULES: each for each in self._maker.pauses}
        for rule, pause in self._paused.items():
            if before.get(rule) != pause:
                until = None if pause.until_us is None else datetime.fromtimestamp(pause.until_us / US_PER_S, UTC)
                told = None if until is None else until.isoformat(timespec="seconds").replace("+00:00", "Z")
                logs.event(logging.WARNING, "rules_paused", rule=rule, until=told, reason=pause.reason)
        for rule in before.keys() - self._paused.keys():
            logs.event(logging.WARNING, "rules_resumed", rule=rule)

    @property
    def paused(self) -> list[str]:
        """The rules that a pause keeps from applying; ``*``: all of them."""
        return sorted(self._paused)

    def _lost(self, error: FeedError) -> None:
        if self.standing.missed(str(error)):
            logs.event(logging.WARNING, "control_lost", serving=self.state.version, error=str(error))

    def _found(self) -> None:
        if self.standing.reached():
            logs.event(logging.INFO, "control_found", serving=self.state.version)

    def detail(self) -> dict[str, Any]:
        """What ``/readyz`` says of the service."""
        found = self.standing.detail()
        found["node"] = self.reports.node
        if self.hints is not None:
            found["push"] = {"connected": self.hints.connected, "error": self.hints.error}
        found["kept_error"] = self.kept_problem
        found["paused"] = self.paused
        return found


def _some(told: Revisions | None) -> Revisions:
    return Revisions() if told is None else told


def _nothing() -> None:
    """Nobody wants to know."""
