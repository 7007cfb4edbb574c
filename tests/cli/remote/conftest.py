"""Commands against a rules service: its process, or its database without it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sluicegate.cli.root import run

TOKEN = "an-admin-token-chosen-by-tests"
NODE_TOKEN = "an-api-token-of-nodes-in-tests"
START_TIMEOUT_S = 90.0


class Ran(NamedTuple):
    """How a command ended and what it said."""

    status: int
    out: str
    err: str


class Service(NamedTuple):
    """The process of a rules service. ``address``: as ``--server`` takes it."""

    address: str
    token: str
    data: Path
    process: subprocess.Popen[bytes]


Command = Callable[..., Ran]


@contextmanager
def process(folder: Path, listener: str, *arguments: str, **environment: str) -> Iterator[tuple[str, Any]]:
    """A server in a process of its own, ended at the end, and the address that it announces for a listener."""
    folder.mkdir(parents=True, exist_ok=True)
    out, err = folder / "out.txt", folder / "err.txt"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
    with out.open("wb") as stdout, err.open("wb") as stderr:
        started = subprocess.Popen(
            [sys.executable, "-m", "sluicegate", *arguments],
            stdout=stdout, stderr=stderr, cwd=folder, env={**inherited, **environment},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while (found := re.search(rf"^{listener} +(\S+)", out.read_text(), re.MULTILINE)) is None:
            assert started.poll() is None, err.read_text()
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.05)
        yield found[1], started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def running(data: Path, *flags: str) -> Iterator[Service]:
    """A rules service that can ask its nodes for counters."""
    listen = () if "--control" in flags else ("--control", "127.0.0.1:0")
    words = ("control", "--data", str(data), "--node-api-token", NODE_TOKEN, *listen, *flags)
    with process(data, "control", *words, SLUICEGATE_ADMIN_TOKEN=TOKEN) as (address, started):
        yield Service(address, TOKEN, data, started)


@contextmanager
def running_node(folder: Path, service: Service, token: str) -> Iterator[str]:
    """A node of a service with counters in its memory; the address of its decision API."""
    flags = (
        "--control-url",
        service.address,
        "--control-token",
        token,
        "--node-name",
        "n1",
        "--report-interval",
        "1s",
    )
    words = ("serve", "--api", "127.0.0.1:0", "--grpc", "off", "--api-token", NODE_TOKEN, *flags)
    with process(folder, "api", *words) as (address, _):
        yield address


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for the tests of a file; each uses rules, subjects and entries of its own."""
    with running(tmp_path_factory.mktemp("control")) as made:
        yield made


@pytest.fixture
def start_node(tmp_path: Path, service: Service) -> Callable[[str], Any]:
    """Starts a node of the service of the file, with a token: ``with start_node(token) as address``."""
    return lambda token: running_node(tmp_path / "node", service, token)


@pytest.fixture
def node_token() -> str:
    """The API token of nodes."""
    return NODE_TOKEN


@pytest.fixture
def start_service(tmp_path: Path) -> Callable[..., Any]:
    """Starts a service of the test's own: ``with start_service(*flags) as service``."""
    return lambda *flags: running(tmp_path / "service", *flags)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs one command in an empty directory, with no service named."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("SLUICEGATE_"):
            monkeypatch.delenv(name)

    def call(*arguments: str) -> Ran:
        status = run(arguments)
        out, err = capsys.readouterr()
        return Ran(status, out, err)

    return call


@pytest.fixture
def remote(command: Command, service: Service, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs one command against the service of the file, named by the environment."""
    monkeypatch.setenv("SLUICEGATE_SERVER", service.address)
    monkeypatch.setenv("SLUICEGATE_TOKEN", service.token)
    return command


@pytest.fixture
def offline(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs one command on a database that no process serves."""
    data = tmp_path / "offline"
    assert command("control", "upgrade", "--data", str(data)).status == 0
    monkeypatch.setenv("SLUICEGATE_DATA", str(data))
    return command
