"""The database of a rules service: SQLite in a file, or PostgreSQL, with the same behaviour.

Two kinds of transactions. A reading one sees one state of everything. A writing one holds a lock against all other writing ones,
of this process and of others, from its first statement to its end: what it checks is still so when it writes. In SQLite
that is BEGIN IMMEDIATE; in PostgreSQL an advisory lock, taken before anything is read.

A commit is on disk when it returns: SQLite runs with ``synchronous=FULL``, PostgreSQL as it is set up (``synchronous_commit``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from sluicegate.bounds import CONTROL_CONNECTIONS_MAX, CONTROL_LOCK_WAIT_S, CONTROL_READ_S_MAX, CONTROL_STATEMENT_S_MAX
from sluicegate.control.errors import Unavailable
from sluicegate.errors import ConfigurationError, MissingExtra, without_login

__all__ = ["Database"]

_LOCK: Final = 0x51_75_1C_E6
"""The advisory lock of PostgreSQL that writers hold: a number of ours in one database."""

_WRITE: Final = "sluicegate_write"
_MIGRATIONS: Final = Path(__file__).parent / "migrations"


class Database:
    """One database and the connections to it. ``url``: ``sqlite:///FILE`` or ``postgresql://USER:PASSWORD@HOST/NAME``.

    Its transactions raise Unavailable where the database does not answer, or is busy longer than the bounds allow.
    """

    def __init__(self, url: str) -> None:
        self.url = _parsed(url)
        self.is_postgresql = self.url.get_backend_name() == "postgresql"
        self._engine = _engine(self.url, postgresql=self.is_postgresql)
        self._writing = asyncio.Lock()
        self._file: tuple[int, int] | None = None

    @contextlib.asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A writing transaction; what happens in it is kept at its end, and nothing of it when an exception leaves it."""
        with _answering():
            self._check_file()
            async with self._alone(), self._engine.execution_options(**{_WRITE: True}).begin() as connection:
                await self._lock(connection)
                yield connection

    @contextlib.asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A reading transaction: all its statements see the same state. It ends with Unavailable after ``CONTROL_READ_S_MAX``."""
        engine = (
            self._engine.execution_options(isolation_level="REPEATABLE READ") if self.is_postgresql else self._engine
        )
        with _answering():
            self._check_file()
            try:
                async with asyncio.timeout(CONTROL_READ_S_MAX), engine.begin() as connection:
                    yield connection
            except TimeoutError as error:
                raise Unavailable(f"the database does not answer: nothing came for {CONTROL_READ_S_MAX} s") from error

    @contextlib.asynccontextmanager
    async def scratch(self) -> AsyncIterator[AsyncConnection]:
        """A connection of its own, in which several transactions can follow one another with the same temporary tables."""
        with _answering():
            async with self._engine.connect() as connection:
                yield connection

    @contextlib.asynccontextmanager
    async def write_on(self, connection: AsyncConnection) -> AsyncIterator[AsyncConnection]:
        """As ``write``, on a connection from ``scratch`` that is in no transaction."""
        async with self._alone():
            self._check_file()
            await connection.execution_options(**{_WRITE: True})
            try:
                async with connection.begin():
                    await self._lock(connection)
                    yield connection
            finally:
                await connection.execution_options(**{_WRITE: False})

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Wait for the writing transaction of this process that came before; the others are held off by the database."""
        try:
            async with asyncio.timeout(CONTROL_LOCK_WAIT_S):
                await self._writing.acquire()
        except TimeoutError as error:
            raise Unavailable(f"another change took longer than {CONTROL_LOCK_WAIT_S} s") from error
        try:
            yield
        finally:
            self._writing.release()

    async def _lock(self, connection: AsyncConnection) -> None:
        if self.is_postgresql:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})

    async def upgrade(self) -> None:
        """Bring the tables to this release; several processes may do so at once. Raises ConfigurationError where they are
        newer, and where a file cannot be opened.
        """
        self._check_openable()
        async with self.write() as connection:
            await connection.run_sync(_migrate)
        self._file = self._file_now()

    def _check_openable(self) -> None:
        """Raises ConfigurationError where the file cannot be opened for writing, or made; for its owner only, as it holds who may do what."""
        path = self.url.database or ""
        if self.is_postgresql or path.startswith("file:"):
            return
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise ConfigurationError(f"the database {path!r} cannot be opened: {error.strerror}") from error

    def _file_now(self) -> tuple[int, int] | None:
        if self.is_postgresql:
            return None
        try:
            found = Path(self.url.database or "").stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """Nothing is acknowledged that stands in a file which has no name any more, or is not the one of this name."""
        if self._file is not None and self._file_now() != self._file:
            raise Unavailable("the file of the database was removed or replaced; start the service again")

    async def close(self) -> None:
        """Give back all connections."""
        await self._engine.dispose()


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError(
            f"database {without_login(url)!r} is no URL such as sqlite:///FILE or postgresql://HOST/NAME"
        ) from error
    backend = parsed.get_backend_name() if "+" not in parsed.drivername else ""
    if backend == "sqlite" and parsed.database not in (None, "", ":memory:"):
        return parsed.set(drivername="sqlite+aiosqlite")
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+asyncpg")
    raise ConfigurationError(f"database {parsed.render_as_string()!r} is not sqlite:///FILE or postgresql://HOST/NAME")


def _engine(url: URL, *, postgresql: bool) -> AsyncEngine:
    options: dict[str, Any] = {
        "pool_size": CONTROL_CONNECTIONS_MAX,
        "max_overflow": 0,
        "pool_timeout": CONTROL_LOCK_WAIT_S,
    }
    if postgresql:
        settings = {
            "application_name": "sluicegate control",
            "lock_timeout": str(CONTROL_LOCK_WAIT_S * 1_000),
            "statement_timeout": str(CONTROL_STATEMENT_S_MAX * 1_000),
            "idle_in_transaction_session_timeout": str(CONTROL_STATEMENT_S_MAX * 1_000),
        }
        options |= {
            "pool_pre_ping": True,
            # The server ends statements by itself; where nothing comes back from it any more, the driver does.
            "connect_args": {
                "timeout": CONTROL_LOCK_WAIT_S,
                "command_timeout": CONTROL_STATEMENT_S_MAX + CONTROL_LOCK_WAIT_S,
                "server_settings": settings,
            },
        }
    else:
        options |= {"connect_args": {"timeout": CONTROL_LOCK_WAIT_S, "factory": _SqliteConnection}}
    try:
        engine = create_async_engine(url, **options)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            "postgres" if postgresql else "control", f"a database at {url.render_as_string()}"
        ) from error
    if not postgresql:
        event.listen(engine.sync_engine, "connect", _set_up_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


class _SqliteConnection(sqlite3.Connection):
    """Ends its transaction when it is closed. Without that a statement that somebody still refers to, such as the traceback of a caller
    that was cancelled, keeps the transaction open, and the lock of all writers with it."""

    def close(self) -> None:
        # One that is closed already says so here.
        with contextlib.suppress(sqlite3.ProgrammingError):
            self.rollback()
        super().close()


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # The driver is kept from beginning transactions by itself: it would do so late, and never with the lock.
    connection.isolation_level = None
    cursor = connection.cursor()
    for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "recursive_triggers=ON"):
        cursor.execute(f"PRAGMA {setting}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITE)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _migrate(connection: Connection) -> None:
    config = Config()
    # Percent signs of a path would be read as references.
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    _refuse_newer(connection, ScriptDirectory.from_config(config))
    command.upgrade(config, "head")


def _refuse_newer(connection: Connection, scripts: ScriptDirectory) -> None:
    if not inspect(connection).has_table("alembic_version"):
        return
    known = {script.revision for script in scripts.walk_revisions()}
    for (found,) in connection.execute(text("SELECT version_num FROM alembic_version")):
        if found not in known:
            raise ConfigurationError(f"the tables are those of a newer release (schema {found}); run that release")


@contextlib.contextmanager
def _answering() -> Iterator[None]:
    """What a database that is away or busy raises, as Unavailable."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout, OSError) as error:
        raise _unavailable(error) from error
    except DBAPIError as error:
        if type(error) is DatabaseError:
            # SQLite's word for a file that is damaged, or none of its own.
            raise Unavailable(f"the database cannot be read: {_reason(error)}") from error
        if error.connection_invalidated or "timeout" in str(error.orig).lower() or _is_away(error.orig):
            raise _unavailable(error) from error
        raise
    except Exception as error:
        # What the driver raises while it connects comes as it is.
        if _is_away(error):
            raise _unavailable(error) from error
        raise


# Classes of SQLSTATE: connection, resources (a full disk, too many connections), told to go or starting, the system, a server that only
# reads (the other half of a failover), a lock or a transaction that others won; and a login that is refused.
_AWAY: Final = ("08", "53", "57", "58", "25006", "55P03", "55000", "40", "28", "3D")
_LOGIN: Final = "28"


def _is_away(error: object) -> bool:
    state = getattr(error, "sqlstate", None)
    return isinstance(state, str) and state.startswith(_AWAY)


def _unavailable(error: BaseException) -> Unavailable:
    state = getattr(getattr(error, "orig", None) or error, "sqlstate", None)
    what = "refuses the login" if isinstance(state, str) and state.startswith(_LOGIN) else "does not answer"
    return Unavailable(f"the database {what}: {_reason(error)}")


def _reason(error: BaseException) -> str:
    original = getattr(error, "orig", None) or error
    return str(original).strip().partition("\n")[0] or type(original).__name__
