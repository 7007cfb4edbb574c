"""``ClickHouseHome``: see ``Home``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Final

from sluicegate.analytics.clickhouse import asking
from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.clickhouse.migrate import SCHEMA, check_schema
from sluicegate.analytics.clickhouse.retention import kept_since_us
from sluicegate.analytics.clickhouse.rollup import TABLES, roll_up
from sluicegate.analytics.clickhouse.settings import ClickHouseSettings
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
from sluicegate.bounds import CLICKHOUSE_INSERT_BATCHES, CLICKHOUSE_INSERT_BYTES, CLICKHOUSE_UNIQUE_EXACT
from sluicegate.clock import US_PER_S
from sluicegate.events import Batch, Demand, Dropped, encode

__all__ = ["ClickHouseHome"]

_MADE_OF: Final = {
    "requests": ("requests",),
    "rules": ("rules",),
    "offenders": ("subjects",),
    "offender_totals": ("totals",),
}
"""The tables of cells, and the fields of a batch that each is made of."""


class ClickHouseHome:
    """A home in a ClickHouse server whose tables ``migrate`` has made. Nothing is opened before it is needed.

    An id of a batch is known for ever: one that comes again adds nothing, whatever went wrong before. Not added is a batch that comes more than
    CLICKHOUSE_KEPT_SECONDS_MIN_S (or ``seconds_s`` of the retention, if longer) after others of its minute and node, to that minute and hour.
    """

    def __init__(self, settings: ClickHouseSettings) -> None:
        self.settings = settings
        self._connection = Connection(settings)
        self._lock = threading.Lock()
        self._checked = False

    def ingest(self, batches: Sequence[Batch]) -> None:
        """See ``Home``. After an AnalyticsError bring the same batches again, in the same or in other company."""
        connection = self._ready()
        for some, bodies in _blocks(batches):
            connection.insert("landing", ("body",), [(body,) for body in bodies])
            for table, parts in _MADE_OF.items():
                told = {batch.at_us // US_PER_S for batch in some if any(getattr(batch, part) for part in parts)}
                roll_up(connection, TABLES[table], told)

    def roll_up(self, span: Span) -> None:
        """Make minutes and hours of a span anew from the seconds that are kept: after tables were filled by other ways than ``ingest``."""
        connection = self._ready()
        values = {"since": span.since_us // US_PER_S, "until": -(-span.until_us // US_PER_S)}
        for name, table in TABLES.items():
            text = f"SELECT DISTINCT at_s FROM {name}_seconds WHERE at_s >= {{since:Int64}} AND at_s < {{until:Int64}}"  # noqa: S608
            roll_up(connection, table, (second for (second,) in connection.rows(text, values)))

    def requests(
        self, span: Span, *, step_s: int | None = None, by: Sequence[str] = (), where: Where = ANYTHING
    ) -> list[CountRow]:
        return asking.counts(self._ready(), "requests", span, step_s, by, where)

    def rules(
        self, span: Span, *, step_s: int | None = None, by: Sequence[str] = (), where: Where = ANYTHING
    ) -> list[CountRow]:
        return asking.counts(self._ready(), "rules", span, step_s, by, where)

    def offenders(
        self,
        span: Span,
        *,
        rule: str | None = None,
        kind: Kind = "refused",
        limit: int = 20,
        subject: str | None = None,
    ) -> Offenders:
        return asking.offenders(self._ready(), span, rule=rule, kind=kind, limit=limit, subject=subject)

    def decisions(
        self,
        span: Span,
        *,
        rule: str | None = None,
        outcome: str | None = None,
        subject: str | None = None,
        limit: int = 100,
    ) -> list[DecisionRow]:
        return asking.decisions(self._ready(), span, {"rule": rule, "outcome": outcome}, subject, limit)

    def demand(self, span: Span, *, rule: str | None = None, tier: str | None = None) -> list[Demand]:
        return asking.demand(self._ready(), span, {"rule": rule, "tier": tier})

    def admissions(self, span: Span) -> Watched:
        return asking.watched(self._ready(), span)

    def dropped(self, span: Span) -> Dropped:
        return asking.dropped(self._ready(), span)

    def nodes(self, span: Span) -> list[str]:
        return asking.nodes(self._ready(), span)

    def status(self) -> HomeStatus:
        """See ``Home``. Beyond CLICKHOUSE_UNIQUE_EXACT rows of batches their number is an estimate."""
        connection = self._ready()
        rows, first_us, last_us = connection.rows("SELECT count(), min(at_us), max(at_us) FROM batches")[0]
        unique = "uniqExact" if rows <= CLICKHOUSE_UNIQUE_EXACT else "uniq"
        batches = connection.rows(f"SELECT {unique}(batch) FROM batches")[0][0]  # noqa: S608
        size = connection.rows(
            "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = {database:String}",
            {"database": self.settings.database},
        )[0][0]
        return HomeStatus(
            "clickhouse",
            SCHEMA,
            int(batches),
            first_us // US_PER_S * US_PER_S if rows else None,
            # An interval is about a second long.
            (last_us // US_PER_S + 1) * US_PER_S if rows else None,
            int(size),
            kept_since_us(connection),
        )

    def prune(self, now_us: int) -> None:
        """Nothing: the server lets go of what is past its time by itself."""

    def close(self) -> None:
        self._connection.close()

    def _ready(self) -> Connection:
        """The connection, once it is known that its tables are those of this release."""
        with self._lock:
            if not self._checked:
                check_schema(self._connection)
                self._checked = True
        return self._connection


def _blocks(batches: Sequence[Batch]) -> Iterator[tuple[list[Batch], list[bytes]]]:
    """Batches and their bytes, in blocks that are inserted at once."""
    some: list[Batch] = []
    bodies: list[bytes] = []
    size = 0
    for batch in batches:
        body = encode(batch)
        if some and (len(some) >= CLICKHOUSE_INSERT_BATCHES or size + len(body) > CLICKHOUSE_INSERT_BYTES):
            yield some, bodies
            some, bodies, size = [], [], 0
        some.append(batch)
        bodies.append(body)
        size += len(body)
    if some:
        yield some, bodies
