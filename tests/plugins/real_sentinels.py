"""A master with a replica behind Sentinels, of Redis 7 and of Valkey 9, for the tests of any folder.

Loaded by the root ``conftest.py``. Everything is stopped by process id when the fixture ends, and dies with the test run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from real_clusters import HOST, binary_of, free_ports, until
from real_servers import Server, running
from redis.backoff import NoBackoff
from redis.retry import Retry

SERVICE = "main"


class Watched:
    """A service that runs. ``master`` and ``replica`` are what they were at the start."""

    def __init__(self, master: Server, replica: Server, sentinels: list[int], password: str | None) -> None:
        self.master = master
        self.replica = replica
        self.sentinels = sentinels
        self._password = password

    def url(self, *sentinels: int, more: str = "") -> str:
        hosts = ",".join(f"{HOST}:{port}" for port in sentinels or self.sentinels)
        secret = f"&sentinel_password={self._password}" if self._password else ""
        return f"redis+sentinel://{hosts}/{SERVICE}?timeout_ms=5000{secret}{more}"

    def ask(self, port: int, *words: object, password: str | None = None) -> Any:
        """A command to one server; None where it does not answer."""
        client = redis.Redis(port=port, password=password, retry=Retry(NoBackoff(), 0), socket_timeout=5)
        try:
            return client.execute_command(*words)
        except redis.RedisError:
            return None
        finally:
            client.close()

    def named(self) -> int:
        """The port of the master as the first Sentinel knows it."""
        found = self.ask(self.sentinels[0], "SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE, password=self._password)
        return int(found[1]) if found else 0

    def wait_replicated(self) -> None:
        """Wait until the replica has all that the master was sent so far."""
        with redis.Redis(port=self.master.port, single_connection_client=True) as client:
            client.set("replicated", 1)
            assert client.wait(1, 8_000) == 1, "the replica does not follow"

    def fail_over(self) -> None:
        """Have the Sentinels make the replica the master."""
        assert self.ask(self.sentinels[0], "SENTINEL FAILOVER", SERVICE, password=self._password)

    def kill(self, server: Server) -> None:
        """End one server without a word."""
        os.kill(server.pid, signal.SIGKILL)


@contextlib.contextmanager
def sentinel(binary: str, folder: Path, port: int, master: int, password: str | None = None) -> Iterator[int]:
    """Start a Sentinel that watches the server at port ``master``."""
    folder.mkdir()
    lines = [
        f"port {port}", f"bind {HOST}", f"dir {folder}", "protected-mode no",
        f"sentinel monitor {SERVICE} {HOST} {master} 1", f"sentinel down-after-milliseconds {SERVICE} 700",
        f"sentinel failover-timeout {SERVICE} 3000", f"sentinel parallel-syncs {SERVICE} 1",
    ]  # fmt: skip
    if password:
        lines.append(f"requirepass {password}")
    (folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
    setpriv = shutil.which("setpriv")
    arguments = [
        *([setpriv, "--pdeathsig", "KILL"] if setpriv else []),
        binary, str(folder / "sentinel.conf"), "--sentinel",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.closing(redis.Redis(port=port, password=password)) as client:
                try:
                    if client.ping():
                        break
                except redis.RedisError:
                    assert time.monotonic() < end, "the Sentinel does not answer"
                    time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait(60)


def sees_all(found: Watched, port: int, password: str | None) -> bool:
    """Whether the Sentinel at this port sees enough others, and the replica."""
    return found.ask(port, "SENTINEL CKQUORUM", SERVICE, password=password) is not None and bool(
        found.ask(port, "SENTINEL REPLICAS", SERVICE, password=password)
    )


@contextlib.contextmanager
def watched(binary: str, folder: Path, password: str | None = None) -> Iterator[Watched]:
    """Start a master, a replica and two Sentinels, and wait until these know both."""
    for name in ("master", "replica"):
        (folder / name).mkdir()
    with contextlib.ExitStack() as stack:
        options = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
        master = stack.enter_context(running(binary, folder / "master", *options))
        replica = stack.enter_context(
            running(binary, folder / "replica", *options, "--replicaof", f"{HOST} {master.port}")
        )
        ports = [
            stack.enter_context(sentinel(binary, folder / f"sentinel{number}", port, master.port, password))
            for number, port in enumerate(free_ports(2))
        ]
        found = Watched(master, replica, ports, password)
        for port in ports:
            until(
                partial(sees_all, found, port, password),
                "the Sentinels do not see the replica",
            )
        # Until the replica has answered once its copy is not fed.
        until(
            lambda: (
                (found.ask(master.port, "INFO", "replication") or {}).get("slave0", {}).get("state") == "online"
                and (found.ask(replica.port, "ROLE") or [b""] * 5)[3:] > [b"connected", 0]
            ),
            "the replica is not in step",
        )
        yield found


@pytest.fixture(params=["redis", "valkey"])
def service(request: pytest.FixtureRequest, tmp_path: Path, require_program: Callable[[str], str]) -> Iterator[Watched]:
    """A service behind Sentinels, of each kind, of the test's own."""
    with watched(binary_of(request.param, require_program), tmp_path) as found:
        yield found


@pytest.fixture
def secret_service(tmp_path: Path, require_program: Callable[[str], str]) -> Iterator[Watched]:
    """A service whose Sentinels have a password of their own."""
    with watched(require_program("redis-server"), tmp_path, "sentinel-password") as found:
        yield found


@pytest.fixture
def start_sentinel(tmp_path: Path, require_program: Callable[[str], str]) -> Iterator[Callable[[int], int]]:
    """Starts one more Sentinel, which watches the server at a port; gives its own port."""
    with contextlib.ExitStack() as stack:
        binary = require_program("redis-server")
        yield lambda master: stack.enter_context(sentinel(binary, tmp_path / "more", free_ports(1)[0], master))
