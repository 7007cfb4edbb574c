"""The rules service's view of traffic: a ``Home``, asked on threads, in the words of ``control.traffic``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from sluicegate.analytics.home import Home
from sluicegate.analytics.model import Span, Where, cells_of
from sluicegate.analytics.offenders import Names, load_secrets
from sluicegate.app.analytics.accuracy import AccuracyWatch, accuracy_metrics
from sluicegate.app.analytics.homes import open_home
from sluicegate.app.control.offenders import answer
from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.control.suggestions import proposed
from sluicegate.bounds import TRAFFIC_ROWS_MAX
from sluicegate.clock import Clock
from sluicegate.control.errors import Conflict, Fault, Invalid, Unavailable
from sluicegate.control.offenders import OffendersAnswer, OffendersQuestion
from sluicegate.control.service import RulesService
from sluicegate.control.suggestions import SuggestionsQuestion
from sluicegate.control.traffic import TrafficAnswer, TrafficQuestion, TrafficRow
from sluicegate.errors import AnalyticsError, ConfigurationError, InvalidRequest
from sluicegate.events import decode
from sluicegate.rules.document import load_document
from sluicegate.rules.proposals import Suggestion

__all__ = ["HomeTraffic", "traffic_kept"]

T = TypeVar("T")

_THREADS: Final = 2
_PRUNE_EVERY_S: Final = 60


class HomeTraffic:
    """See ``control.traffic.Traffic``. Calls wait for one of a few threads, so that who asks much holds up nobody but who asks.

    ``secrets``: those by which clients are told as digests, none where they are not known; called when one is looked for.
    """

    def __init__(self, home: Home, secrets: Callable[[], Sequence[bytes]] = tuple) -> None:
        self.home = home
        self._secrets = secrets
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="traffic")

    async def counts(self, question: TrafficQuestion) -> TrafficAnswer:
        return await self.ask(lambda home: _counts(home, question))

    async def offenders(self, question: OffendersQuestion, now_us: int) -> OffendersAnswer:
        def look(home: Home) -> OffendersAnswer:
            secrets = self._secrets() if question.subject else ()
            return answer(home, question, now_us, Names(secrets) if secrets else None)

        return await self.ask(look)

    async def suggestions(self, question: SuggestionsQuestion, document: Mapping[str, Any]) -> list[Suggestion]:
        return await self.ask(lambda home: proposed(home, load_document(document, "rules in service", 1), question))

    async def take(self, batches: Sequence[bytes]) -> None:
        await self.ask(lambda home: home.ingest([decode(each) for each in batches]))

    async def ask(self, question: Callable[[Home], T]) -> T:
        """Ask the home on a thread. Raises ControlError: Invalid, Conflict or Unavailable."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, question, self.home)
        except InvalidRequest as error:
            raise Invalid([Fault(str(error), f"/{error.field}")]) from error
        except AnalyticsError as error:
            raise (Unavailable if error.transient else Conflict)(f"traffic: {error}") from error
        except ConfigurationError as error:
            raise Conflict(f"traffic: {error}") from error

    async def keep_pruned(self, clock: Clock) -> None:
        """Let the home go of what is old, for as long as this runs: the nodes may all be elsewhere."""
        while True:
            await asyncio.sleep(_PRUNE_EVERY_S)
            with contextlib.suppress(Conflict, Unavailable):
                await self.ask(lambda home: _prune(home, clock.now_us()))

    def close(self) -> None:
        """Let go of the threads and the home."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.home.close()


@contextlib.asynccontextmanager
async def traffic_kept(service: RulesService, settings: ControlSettings, clock: Clock) -> AsyncIterator[None]:
    """The service answers about traffic while this is open, where the settings say so."""
    if not settings.analytics:
        yield
        return
    traffic = HomeTraffic(
        open_home(settings.data, settings.clickhouse),
        lambda: load_secrets(settings.data, make=False, file=settings.analytics_secret_file),
    )
    service.traffic = traffic
    # A home that consumers fill is judged by them.
    watch = AccuracyWatch(traffic.home, clock) if settings.clickhouse is None else None
    if watch is not None:
        service.more_metrics = partial(accuracy_metrics, watch)
        watch.start()
    pruning = asyncio.create_task(traffic.keep_pruned(clock))
    try:
        yield
    finally:
        service.traffic = None
        pruning.cancel()
        service.more_metrics = tuple
        await asyncio.gather(pruning, return_exceptions=True)
        if watch is not None:
            await asyncio.to_thread(watch.stop)
        traffic.close()


def _prune(home: Home, now_us: int) -> None:
    # Asked first: an embedded home that nobody has written to is not made by looking after it.
    home.status()
    home.prune(now_us)


def _counts(home: Home, question: TrafficQuestion) -> TrafficAnswer:
    span = Span(question.since_us, question.until_us)
    named = {name: getattr(question, name) for name in ("rule", "outcome", "tier", "version", "node")}
    where = Where(**{name: (value,) for name, value in named.items() if value is not None})
    rows = getattr(home, question.of)(span, step_s=question.step_s, by=question.by, where=where)
    if len(rows) > TRAFFIC_ROWS_MAX:
        raise InvalidRequest("step", f"{len(rows)} rows; at most {TRAFFIC_ROWS_MAX}: ask for less, or longer steps")
    cell_s = cells_of(span, question.step_s, home.status().kept_since_us)
    wide = span.in_cells_of(cell_s)
    step_s = None if question.step_s is None else max(question.step_s, cell_s)
    told = [TrafficRow(*(getattr(row, name) for name in TrafficRow.__struct_fields__)) for row in rows]
    return TrafficAnswer(
        wide.since_us,
        wide.until_us,
        cell_s,
        step_s,
        told,
        home.nodes(span),
        home.dropped(span).decisions,
    )
