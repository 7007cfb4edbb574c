"""ClickHouse's real engine for the tests of any folder: one server for a test session, and servers of their own for tests that kill them.

Loaded by the root ``conftest.py``. The engine has a process of its own (``clickhouse_program``), which dies with the test run.
"""

from __future__ import annotations

import contextlib
import itertools
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from sluicegate.analytics.clickhouse import ClickHouseHome, ClickHouseSettings, KafkaEngine, migrate
from sluicegate.analytics.clickhouse.connection import Connection
from sluicegate.analytics.clickhouse.kafka_engine import kafka_statements, refresh_statements
from sluicegate.analytics.clickhouse.rollup import TABLES
from sluicegate.events import Batch, encode

PROGRAM = Path(__file__).with_name("clickhouse_program.py")
READY_S = 60
_numbers = itertools.count(1)


class ClickHouse:
    """A server that runs, or did. ``port`` stays the same when it is started again."""

    def __init__(self, folder: Path, password: str = "") -> None:
        self.folder = folder
        self.password = password
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it on its folder and wait until it answers."""
        setpriv = shutil.which("setpriv")
        command = [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), sys.executable, str(PROGRAM)]
        command += ["--folder", str(self.folder), "--port", str(self.port), "--password", self.password]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, cwd="/"
            )
        self._process = process
        assert process.stdout is not None
        until = time.monotonic() + READY_S
        line = ""
        while not line.startswith("ready"):
            left = until - time.monotonic()
            assert left > 0, "the server does not become ready"
            if select.select([process.stdout], [], [], left)[0]:
                line = process.stdout.readline()
                assert line or process.poll() is None, f"the server ended: {self.log()}"
        self.port = int(line.split()[1])

    def log(self) -> str:
        """What it wrote to its standard error."""
        return (self.folder.parent / f"{self.folder.name}.log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait until it is gone."""
        self._end(signal.SIGTERM)

    def wait(self) -> None:
        """Wait until it is gone by itself."""
        assert self._process is not None
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
        if process.stdout is not None:
            process.stdout.close()

    def url(self, database: str = "default", user: str = "default", **options: str) -> str:
        """Its address as settings take it."""
        query = f"?{urllib.parse.urlencode(options)}" if options else ""
        return f"clickhouse://{user}@127.0.0.1:{self.port}/{database}{query}"

    def sql(self, statement: str, database: str = "default") -> list[list[str]]:
        """The rows of a statement, as texts."""
        query = urllib.parse.urlencode({"database": database, "user": "default", "password": self.password})
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/?{query}", statement.encode())
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None
        return [line.split("\t") for line in text.splitlines()]

    def fault(self, kind: str, match: str = "", times: int = 1, seconds: float = 0) -> None:
        """Arrange for a fault; see ``clickhouse_program.Fault``."""
        query = urllib.parse.urlencode({"kind": kind, "match": match, "times": times, "seconds": seconds})
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}/fault?{query}", b"", timeout=60).close()


@contextlib.contextmanager
def running_clickhouse(password: str = "") -> Iterator[ClickHouse]:
    """A server on a new folder, stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="clickhouse", ignore_cleanup_errors=True) as folder:
        data = Path(folder) / "data"
        data.mkdir()
        server = ClickHouse(data, password)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@pytest.fixture(scope="session")
def shared_clickhouse() -> Iterator[ClickHouse]:
    """One server for all tests of the session."""
    with running_clickhouse() as server:
        yield server


@pytest.fixture
def clickhouse_database() -> str:
    """The name of a database that no other test uses; nothing has made it yet."""
    return f"test{next(_numbers)}"


class EngineFedHome(ClickHouseHome):
    """What the Kafka engine's tables make of messages, with a table that is inserted into by hand in the place of the one that reads from a
    broker: the engine that tests run has no threads for it. All views behind that table are the real ones."""

    def ingest(self, batches: Sequence[Batch]) -> None:
        connection = self._ready()
        rows = [(encode(batch), "t", 0, number, "") for number, batch in enumerate(batches)]
        connection.insert("kafka_batches", ("body", "_topic", "_partition", "_offset", "_error"), rows)
        refresh(connection)


def refresh(connection: Connection) -> None:
    """Let the server refresh the views that make minutes and hours, now, minutes first."""
    for suffix in ("minutes", "hours"):
        for table in TABLES:
            connection.run(f"SYSTEM REFRESH VIEW {table}_{suffix}_refresh")
        for table in TABLES:
            connection.run(f"SYSTEM WAIT VIEW {table}_{suffix}_refresh")


def empty(server: ClickHouse, database: str) -> None:
    """Take all rows out of a database's tables, what migrations noted left out."""
    filled = f"SELECT name FROM system.tables WHERE database = '{database}' AND total_rows > 0 AND name NOT IN ('migrations', 'retention')"
    for (name,) in server.sql(filled):
        server.sql(f"TRUNCATE TABLE {database}.{name}")


@pytest.fixture(scope="session")
def migrated_clickhouse(shared_clickhouse: ClickHouse) -> ClickHouseSettings:
    """A database with all tables, for tests that begin by emptying it."""
    settings = ClickHouseSettings.from_url(shared_clickhouse.url("migrated"))
    migrate(settings)
    return settings


@pytest.fixture(scope="session")
def engine_fed_clickhouse(shared_clickhouse: ClickHouse) -> ClickHouseSettings:
    """The same with the tables behind the Kafka engine. Views are refreshed when a test says so only: tests empty the tables."""
    settings = ClickHouseSettings.from_url(shared_clickhouse.url("engine_fed"))
    migrate(settings)
    connection = Connection(settings)
    for statement in (
        *kafka_statements(KafkaEngine(brokers="127.0.0.1:9", topic="t"), "Null"),
        *refresh_statements("1 YEAR"),
    ):
        connection.run(statement)
    connection.close()
    return settings


@pytest.fixture
def new_clickhouse_home(
    shared_clickhouse: ClickHouse, migrated_clickhouse: ClickHouseSettings
) -> Iterator[Callable[[], ClickHouseHome]]:
    """A function that gives an empty home in the server, once a test."""
    empty(shared_clickhouse, migrated_clickhouse.database)
    home = ClickHouseHome(migrated_clickhouse)
    yield lambda: home
    home.close()


@pytest.fixture
def new_kafka_engine_home(
    shared_clickhouse: ClickHouse, engine_fed_clickhouse: ClickHouseSettings
) -> Iterator[Callable[[], ClickHouseHome]]:
    """The same, fed through the tables behind the Kafka engine."""
    empty(shared_clickhouse, engine_fed_clickhouse.database)
    home = EngineFedHome(engine_fed_clickhouse)
    yield lambda: home
    home.close()
