"""``EmbeddedHome``: see ``Home``. Several processes may write to one file, and read from it, at once; readers are in nobody's way (WAL)."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from sluicegate.analytics.embedded import asking, offenders, pruning
from sluicegate.analytics.embedded.connection import as_analytics_errors, open_reader, open_writer, transaction
from sluicegate.analytics.embedded.keeping import keep
from sluicegate.analytics.embedded.retention import Retention
from sluicegate.analytics.embedded.schema import MIGRATIONS
from sluicegate.analytics.model import (
    ANYTHING,
    CountRow,
    DecisionRow,
    HomeStatus,
    Kind,
    Offenders,
    Span,
    Watched,
    Where,
)
from sluicegate.bounds import EMBEDDED_HOME_BATCHES, TRAFFIC_ROWS_MAX
from sluicegate.clock import US_PER_S
from sluicegate.errors import InvalidRequest
from sluicegate.events import Batch, Demand, Dropped

__all__ = ["EmbeddedHome"]


class EmbeddedHome:
    """A home in a SQLite file. Nothing is opened before it is needed; what is opened for writing is opened anew after an error, and where the
    file was replaced or removed.

    An id of a batch is known for ever. Counts are exact up to 2^63 - 1 in a cell and stay there; sums over cells go beyond. ``retention``
    is used by ``prune``, which somebody has to call.
    """

    def __init__(self, path: Path, retention: Retention | None = None) -> None:
        self.path = path
        self._retention = retention or Retention()
        self._lock = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._inode = 0

    def ingest(self, batches: Sequence[Batch]) -> None:
        """See ``Home``. One transaction for up to EMBEDDED_HOME_BATCHES batches.

        Raises SinkFull where another process writes for too long or there is no room: the same batches may be brought again.
        """
        for start in range(0, len(batches), EMBEDDED_HOME_BATCHES):
            with self._writing() as connection, transaction(connection):
                for batch in batches[start : start + EMBEDDED_HOME_BATCHES]:
                    keep(connection, batch)

    def requests(
        self, span: Span, *, step_s: int | None = None, by: Sequence[str] = (), where: Where = ANYTHING
    ) -> list[CountRow]:
        with self._reading() as connection:
            return asking.counts(connection, "requests", span, step_s, by, where)

    def rules(
        self, span: Span, *, step_s: int | None = None, by: Sequence[str] = (), where: Where = ANYTHING
    ) -> list[CountRow]:
        with self._reading() as connection:
            return asking.counts(connection, "rules", span, step_s, by, where)

    def offenders(
        self,
        span: Span,
        *,
        rule: str | None = None,
        kind: Kind = "refused",
        limit: int = 20,
        subject: str | None = None,
    ) -> Offenders:
        if not 1 <= limit <= TRAFFIC_ROWS_MAX:
            raise InvalidRequest("limit", f"must be 1 to {TRAFFIC_ROWS_MAX}, got {limit}")
        with self._reading() as connection:
            pieces = asking.pieces(connection, span, kept_us=asking.clients_kept_us(connection))
            return offenders.ask(connection, pieces, rule=rule, kind=kind, limit=limit, subject=subject)

    def decisions(
        self,
        span: Span,
        *,
        rule: str | None = None,
        outcome: str | None = None,
        subject: str | None = None,
        limit: int = 100,
    ) -> list[DecisionRow]:
        with self._reading() as connection:
            return asking.decisions(connection, span, {"rule": rule, "outcome": outcome}, subject, limit)

    def demand(self, span: Span, *, rule: str | None = None, tier: str | None = None) -> list[Demand]:
        with self._reading() as connection:
            return asking.demand(connection, span, {"rule": rule, "tier": tier})

    def admissions(self, span: Span) -> Watched:
        with self._reading() as connection:
            return asking.watched(connection, span)

    def dropped(self, span: Span) -> Dropped:
        with self._reading() as connection:
            return asking.dropped(connection, span)

    def nodes(self, span: Span) -> list[str]:
        with self._reading() as connection:
            return asking.nodes(connection, span)

    def status(self) -> HomeStatus:
        with self._reading() as connection:
            batches = connection.execute("SELECT value FROM numbers WHERE name = 'batches'").fetchone()[0]
            edges = [
                connection.execute(f"SELECT {edge}(at_s) FROM dropped WHERE cell_s = ?", (cell_s,)).fetchone()[0]  # noqa: S608
                for edge in ("min", "max")
                for cell_s in (1, 60, 3_600)
            ]
            first, last = [at for at in edges[:3] if at is not None], [at for at in edges[3:] if at is not None]
            return HomeStatus(
                "embedded",
                len(MIGRATIONS),
                batches,
                min(first) * US_PER_S if first else None,
                # An interval is about a second long.
                (max(last) + 1) * US_PER_S if last else None,
                pruning.size_bytes(connection),
                asking.kept_since_us(connection),
                asking.clients_since_us(connection),
            )

    def prune(self, now_us: int) -> None:
        with self._writing() as connection:
            pruning.prune(connection, now_us, self._retention)

    def close(self) -> None:
        with self._lock:
            self._forget()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, as_analytics_errors(self.path):
            if self._writer is not None and self._replaced():
                self._forget()
            try:
                if self._writer is None:
                    self._writer = open_writer(self.path)
                    self._inode = self.path.stat().st_ino
                yield self._writer
            except sqlite3.Error as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    self._forget()
                raise

    def _replaced(self) -> bool:
        try:
            return self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def _forget(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(sqlite3.Error):
                writer.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with as_analytics_errors(self.path), contextlib.closing(open_reader(self.path)) as connection:
            # One moment for all that is asked: what is pruned meanwhile is still there.
            connection.execute("BEGIN")
            yield connection
