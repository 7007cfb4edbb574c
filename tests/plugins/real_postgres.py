"""A real PostgreSQL for the tests of any folder: Debian's server on a free port, with a new database for each test that asks.

Loaded by the root ``conftest.py``. It does not run as root, so there it runs as the user ``postgres``. It dies with the test run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest
from real_servers import free_port_now

# One that is killed at any point must have kept what it acknowledged, so these tests do not turn fsync off everywhere.
FAST = ("fsync=off", "full_page_writes=off")


class Postgres(NamedTuple):
    """A server that runs; ``pid`` is that of its first process."""

    port: int
    folder: Path
    pid: int

    def url(self, database: str = "postgres") -> str:
        """The address of a database of it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    async def run(self, statement: str, database: str = "postgres") -> list[asyncpg.Record]:
        """The rows of one statement, as its superuser."""
        connection = await asyncpg.connect(self.url(database))
        try:
            return await connection.fetch(statement)
        finally:
            await connection.close()


def programs() -> Path | None:
    """The folder of the newest server on this machine."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return found[-1] if found else None


def as_server(*arguments: str) -> list[str]:
    """The command that runs a program of the server as a user it accepts, ended with the test run."""
    setpriv = shutil.which("setpriv")
    if os.getuid() != 0:
        return [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *arguments]
    assert setpriv is not None, "the server does not run as root"
    user = ["--reuid=postgres", "--regid=postgres", "--init-groups"]
    return [setpriv, *user, setpriv, "--pdeathsig", "KILL", *arguments]


@contextlib.contextmanager
def running_postgres(bin_folder: Path, *settings: str, folder: Path | None = None, port: int = 0) -> Iterator[Postgres]:
    """Start a server and stop it at once at the end. A folder that holds one already is started again as it is."""
    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pg")))
        if not (folder / "data").exists():
            if os.getuid() == 0:
                user = pwd.getpwnam("postgres")
                os.chown(folder, user.pw_uid, user.pw_gid)
            make = [str(bin_folder / "initdb"), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust"]
            make += ["-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
            subprocess.run(as_server(*make), check=True, capture_output=True, cwd="/")
        port = port or free_port_now()
        options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
        for setting in settings:
            options += ["-c", setting]
        command = as_server(str(bin_folder / "postgres"), "-D", str(folder / "data"), *options)
        with (folder / "log").open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
        try:
            wait_until_ready(process, bin_folder, port, folder)
            yield Postgres(port, folder, process.pid)
        finally:
            # SIGQUIT is the server's immediate stop: its children end with it, which SIGKILL would leave behind.
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(3)
            process.wait(60)


def wait_until_ready(process: subprocess.Popen[bytes], bin_folder: Path, port: int, folder: Path) -> None:
    until = time.monotonic() + 60
    ask = [str(bin_folder / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(ask, check=False).returncode != 0:
        assert process.poll() is None, f"the server ended: {(folder / 'log').read_text()}"
        assert time.monotonic() < until, "the server does not answer"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)


@pytest.fixture(scope="session")
def postgres_programs() -> Path | None:
    """The folder of the server's programs; None where there is none."""
    return programs()


@pytest.fixture(scope="session")
def shared_postgres(postgres_programs: Path | None) -> Iterator[Postgres | None]:
    """One server for all tests; None where there is none."""
    if postgres_programs is None:
        yield None
        return
    with running_postgres(postgres_programs, *FAST) as server:
        yield server


@pytest.fixture
def postgres(shared_postgres: Postgres | None, require_program: Callable[[str], str]) -> Postgres:
    """The shared server; the test is skipped where there is none (it fails where nothing may be skipped)."""
    if shared_postgres is None:
        require_program("postgres")
    assert shared_postgres is not None
    return shared_postgres


NUMBERS = itertools.count(1)


@pytest.fixture
def new_database(postgres: Postgres, postgres_programs: Path) -> Callable[[], str]:
    """Makes an empty database and gives its URL. Its texts are ordered by a language, as many installations have it."""

    def make() -> str:
        name = f"test{os.getpid()}_{next(NUMBERS)}"
        command = [
            str(postgres_programs / "psql"),
            "-qX",
            "-h",
            "127.0.0.1",
            "-p",
            str(postgres.port),
            "-U",
            "postgres",
        ]
        subprocess.run([*command, "-c", f"CREATE DATABASE {name}"], check=True, capture_output=True)
        return postgres.url(name)

    return make
