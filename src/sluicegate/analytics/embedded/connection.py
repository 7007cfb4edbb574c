"""Connections to the file, and what SQLite says when something is wrong with it."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sluicegate.analytics.embedded.schema import APPLICATION_ID, MIGRATIONS
from sluicegate.analytics.home import SinkFull
from sluicegate.bounds import EMBEDDED_HOME_BUSY_MS
from sluicegate.errors import AnalyticsError

__all__ = ["as_analytics_errors", "open_reader", "open_writer", "transaction"]

_WAL_ATTEMPTS: Final = 40
_WAL_PAUSE_S: Final = 0.05
_PASSING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""What may be otherwise a moment later: somebody writes, or there is no room."""


@contextlib.contextmanager
def as_analytics_errors(path: Path) -> Iterator[None]:
    """What SQLite and the system raise, as SinkFull where it may pass by itself, else as AnalyticsError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        message = f"{str(path)!r}: {error}"
        if code is not None and code & 0xFF in _PASSING:
            raise SinkFull(message) from error
        raise AnalyticsError(message, transient=False) from error
    except UnicodeEncodeError as error:
        raise AnalyticsError(f"{str(path)!r}: {error.object!r:.100} is no text", transient=False) from error
    except OSError as error:
        raise AnalyticsError(f"{str(path)!r}: {error.strerror or error}", transient=False) from error


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that writes; the file and its tables are made where they are not there. To be used inside ``as_analytics_errors``.

    The file can be read by its owner only: it tells of clients.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(
        path, timeout=EMBEDDED_HOME_BUSY_MS / 1_000, isolation_level=None, check_same_thread=False
    )
    try:
        # Only where it is done before the first table can space be given back in small steps.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _to_wal(connection)
        # A process that is killed loses nothing; a machine that loses power perhaps the last seconds, and the file stays whole.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 16777216")
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path) -> sqlite3.Connection:
    """A connection that only reads, and is in nobody's way. Raises AnalyticsError where there is no home yet or it is of a newer release."""
    if not path.exists():
        raise _nothing(path)
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(
        uri, uri=True, timeout=EMBEDDED_HOME_BUSY_MS / 1_000, isolation_level=None, check_same_thread=False
    )
    try:
        version = _version(connection, path)
    except BaseException:
        connection.close()
        raise
    if version == 0:
        connection.close()
        raise _nothing(path)
    return connection


def _nothing(path: Path) -> AnalyticsError:
    return AnalyticsError(
        f"{str(path)!r}: nothing was recorded there; nodes record in their own --data, unless by --kafka or with --analytics off",
        transient=False,
    )


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """One transaction that writes: all of it or, where it raises, nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # SQLite may have ended it by itself, as it does where the disk is full.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _to_wal(connection: sqlite3.Connection) -> None:
    """Several processes that begin at once find the file locked without SQLite's waiting for it."""
    pause = threading.Event()
    for attempt in range(_WAL_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempt == _WAL_ATTEMPTS - 1:
                raise
            pause.wait(_WAL_PAUSE_S)
        else:
            return


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the tables, 0 where there are none. Raises AnalyticsError for a file that is not ours, or of a newer release."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION_ID and tables:
        raise AnalyticsError(f"{str(path)!r}: is a database of something else", transient=False)
    if version > len(MIGRATIONS):
        raise AnalyticsError(
            f"{str(path)!r}: its tables have version {version}, of a newer release; known are those up to {len(MIGRATIONS)}",
            transient=False,
        )
    return version


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection, path) == len(MIGRATIONS):
        return
    with transaction(connection):
        # Another process may have done it while this one waited.
        for number in range(_version(connection, path), len(MIGRATIONS)):
            for statement in MIGRATIONS[number]:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
