"""One client of a server, made when it is needed and again after it failed, and what its errors mean."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from sluicegate.analytics.clickhouse.settings import ClickHouseSettings
from sluicegate.bounds import CLICKHOUSE_CONNECT_S, CLICKHOUSE_TIMEOUT_S
from sluicegate.errors import AnalyticsError, MissingExtra

__all__ = ["Connection"]

_CODE: Final = re.compile(r"\bcode[: ]+(\d+)", re.IGNORECASE)
_MEANINGS: Final = {
    60: "has no table of ours, or not all: run `sluicegate analytics migrate`",
    81: "has no such database: run `sluicegate analytics migrate`",
    164: "does not let this user write",
    192: "knows no such user",
    193: "refuses the password",
    194: "wants a password",
    497: "does not give this user a right that is needed",
    516: "refuses user or password",
}
"""Errors that pass only when somebody changes something; all others may pass by themselves."""

# Inserts are made whole before they are sent, so the server shall carry out each at once and say so; the replay of old logs touches many days.
_OURS: Final = {
    "async_insert": "0",
    "materialized_views_ignore_errors": "0",
    "max_partitions_per_insert_block": "0",
}


class Connection:
    """Statements for one server. Safe from any thread; every call may wait for the network. Raises AnalyticsError and MissingExtra."""

    def __init__(self, settings: ClickHouseSettings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._client: Any = None

    def rows(self, statement: str, values: Mapping[str, Any] | None = None) -> list[Sequence[Any]]:
        """What a question answers. ``values``: for its ``{name:Type}``; the server puts them in."""
        with self._using() as client:
            found: list[Sequence[Any]] = client.query(statement, parameters=dict(values or {})).result_rows
            return found

    def run(self, statement: str, values: Mapping[str, Any] | None = None) -> None:
        """Carry out a statement that answers nothing."""
        with self._using() as client:
            client.command(statement, parameters=dict(values or {}), settings=_OURS)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows at once. Where it raises, all, some or none of them may have been written."""
        with self._using() as client:
            client.insert(table, rows, column_names=list(columns), settings=_OURS)

    def close(self) -> None:
        """Let go of the connections; a later call opens new ones."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    @contextlib.contextmanager
    def _using(self) -> Iterator[Any]:
        try:
            import clickhouse_connect
            import urllib3
            from clickhouse_connect.driver import exceptions
        except ImportError:
            raise MissingExtra("clickhouse", "the ClickHouse home") from None
        try:
            yield self._made(clickhouse_connect)
        except exceptions.ProgrammingError as error:
            # The client knows by itself what this user may not set, or that a statement makes no sense.
            raise AnalyticsError(f"{self.settings}: {_line(str(error))}", transient=False) from error
        except exceptions.ClickHouseError as error:
            raise self._meaning(str(error)) from error
        except (OSError, EOFError, urllib3.exceptions.HTTPError) as error:
            self.close()
            raise AnalyticsError(f"{self.settings}: {_line(str(error))}", transient=True) from error

    def _made(self, clickhouse_connect: Any) -> Any:
        with self._lock:
            if self._client is None:
                given = self.settings
                self._client = clickhouse_connect.get_client(
                    host=given.host,
                    port=given.port,
                    username=given.user,
                    password=given.password,
                    database=given.database,
                    secure=given.secure,
                    verify=given.verify,
                    ca_cert=given.ca or None,
                    connect_timeout=CLICKHOUSE_CONNECT_S,
                    send_receive_timeout=CLICKHOUSE_TIMEOUT_S,
                    query_retries=0,
                    compress="gzip",
                    # A session takes one statement at a time; threads share this client.
                    autogenerate_session_id=False,
                )
            return self._client

    def _meaning(self, message: str) -> AnalyticsError:
        found = _CODE.search(message)
        code = int(found[1]) if found else 0
        if code in _MEANINGS:
            return AnalyticsError(f"{self.settings} {_MEANINGS[code]} ({_line(message)})", transient=False)
        # Also what the client says of a connection that ended: a new one may do better.
        self.close()
        return AnalyticsError(f"{self.settings}: {_line(message)}", transient=True)


def _line(message: str) -> str:
    """The first line, cut: the server repeats statements, and so values, in full."""
    line = (message.strip().splitlines() or ["no message"])[0]
    return line if len(line) <= 300 else f"{line[:300]}..."
