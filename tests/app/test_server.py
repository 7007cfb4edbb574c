"""A server process from its first line to its exit status."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

pytestmark = pytest.mark.slow

Start = Callable[..., Any]
UP = ("up", "--gateway", "127.0.0.1:0", "--api", "127.0.0.1:0", "--grpc", "127.0.0.1:0")


def test_up_shows_itself_at_work(start: Start, require_program: Callable[[str], str]) -> None:
    """The three lines that ``up`` prints do as they are printed: a pass, a burst that is refused, a live edit."""
    require_program("curl")
    server = start(*UP)
    lines = [line.strip() for line in server.out.read_text().splitlines() if line.startswith("  ")]
    assert len(lines) == 3

    def run(line: str) -> str:
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=server.directory, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run(lines[0])
    assert first.startswith("HTTP/1.1 200 OK")
    for header in ("Limit: 100", "Remaining: 99", "Reset: ", "Policy: api;q=100;w=60;alg=token_bucket"):
        assert f"X-RateLimit-{header}" in first

    *burst, count = run(lines[1]).splitlines()
    assert [answer.split()[0] for answer in burst] == ["200"] * 5 + ["429"] * 3
    waits = [int(answer.partition("retry-after=")[2] or 0) for answer in burst]
    assert waits[:5] == [0] * 5
    assert min(waits[5:]) >= 1
    # One request to /api/hello and the five logins that passed: what was refused never arrived.
    assert json.loads(count) == {"count": 6}

    assert run(lines[2]).startswith("HTTP/1.1 200 OK")
    assert server.stop() == 0


def test_up_prints_where_everything_is(start: Start) -> None:
    """There is one line per listener, and one for the rules."""
    server = start(*UP)
    text = server.out.read_text()
    for name in ("gateway", "api", "grpc", "demo"):
        assert re.search(rf"^{name} +http://127\.0\.0\.1:\d+$", text, re.MULTILINE), text
    assert f"rules    {server.directory / '.sluicegate' / 'rules.yaml'} (4 rules" in text


def test_grpc(start: Start, rules: Path) -> None:
    """The gRPC listener answers health checks and decides, is counted in the metrics, and ends with the process."""
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
    target = re.findall(r"^grpc +http://(127\.0\.0\.1:\d+)$", server.out.read_text(), re.MULTILINE)[0]
    with grpc.insecure_channel(target) as channel:
        assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60) == b"\x08\x01"
        ask = channel.unary_unary("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
        # Domain "d", one descriptor with one entry, "k"; by the rules everything is OK.
        assert ask(b"\x0a\x01d\x12\x05\x0a\x03\x0a\x01k", timeout=60)[:2] == b"\x08\x01"
        text = httpx.get(server.url("api") + "/metrics", timeout=60).text
        assert 'sluicegate_grpc_calls_total{code="OK",method="ShouldRateLimit"} 1.0' in text
    assert server.stop() == 0


def test_start_is_logged_with_the_version_of_the_rules(start: Start) -> None:
    """The event ``started`` names the version as ``rules_accepted`` does, which is not the number of rules."""
    events = [json.loads(line) for line in start(*UP).err.read_text().splitlines()]
    started = [event for event in events if event["event"] == "started"]
    assert [(event["version"], event.get("rules")) for event in started] == [(1, None)]


def test_up_keeps_the_rules_it_finds(start: Start) -> None:
    """The embedded rules are written only where there are none, and what was edited is kept over a restart."""
    first = start(*UP)
    path = first.directory / ".sluicegate" / "rules.yaml"
    edited = path.read_text().replace("5/minute", "7/minute")
    path.write_text(edited)
    assert first.stop() == 0
    second = start(*UP, "--data", str(path.parent))
    assert path.read_text() == edited
    assert "[1-10]" in second.out.read_text()


def test_up_with_an_upstream_has_no_demo(start: Start, rules: Path) -> None:
    """With ``--upstream`` requests go there, and nothing is suggested to try."""
    behind = start(*UP)
    server = start(*UP, "--rules", str(rules), "--upstream", behind.url("demo"))
    assert "demo" not in server.out.read_text()
    assert server.client.get(f"{server.url('gateway')}/_demo/count").json() == {"count": 0}


def test_demo_streams_through_the_gateway(start: Start) -> None:
    """An answer that is made line by line arrives line by line, with its rate headers first."""
    server = start(*UP)
    with server.client.stream("GET", f"{server.url('gateway')}/stream?lines=3") as answer:
        assert "x-ratelimit-limit" in answer.headers
        assert list(answer.iter_lines()) == ["line 1 of 3", "line 2 of 3", "line 3 of 3"]


def test_api_decides_by_the_rules(start: Start, rules: Path) -> None:
    """The decision API and the gateway share one limiter: what one charges the other sees."""
    server = start(*UP, "--rules", str(rules))
    facts = {"method": "POST", "path": "/login", "ip": "127.0.0.1"}
    for _ in range(5):
        assert server.client.post(f"{server.url('gateway')}/login").status_code == 200
    answer = server.client.post(f"{server.url('api')}/v1/check", json={"facts": facts})
    assert (answer.status_code, answer.json()["rule"], answer.json()["version"]) == (429, "login", 1)


def test_serve_has_the_api_only(start: Start, rules: Path) -> None:
    """``serve`` opens one listener, on a Unix socket too."""
    server = start("serve", "--rules", str(rules), "--api", "unix:api.sock")
    assert server.out.read_text().splitlines()[0] == "api      unix:api.sock"
    transport = httpx.HTTPTransport(uds=str(server.directory / "api.sock"))
    with httpx.Client(transport=transport) as client:
        assert client.get("http://api/readyz").json()["ready"] is True
    assert server.stop() == 0
    assert not (server.directory / "api.sock").exists()


def test_gateway_has_health_where_asked(start: Start, rules: Path) -> None:
    """``gateway`` opens the proxy, and with ``--health`` a listener that answers health and metrics and nothing else."""
    behind = start(*UP)
    server = start(
        "gateway", "--rules", str(rules), "--gateway", "127.0.0.1:0", "--health", "127.0.0.1:0",
        "--upstream", behind.url("demo"),
    )  # fmt: skip
    health = server.url("health")
    assert server.client.get(f"{server.url('gateway')}/api/x").status_code == 200
    assert server.client.get(f"{health}/readyz").status_code == 200
    assert "sluicegate_gateway_requests_total" in server.client.get(f"{health}/metrics").text
    assert server.client.post(f"{health}/v1/check", json={}).status_code == 404


def test_api_token_guards_checks_and_not_health(start: Start, rules: Path) -> None:
    """With a token ``/v1`` asks for it; health does not, since the balancer has none."""
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0", SLUICEGATE_API_TOKEN="secret-token")
    api = server.url("api")
    question = {"facts": {"method": "GET", "path": "/"}}
    assert server.client.post(f"{api}/v1/check", json=question).status_code == 401
    right = {"Authorization": "Bearer secret-token"}
    assert server.client.post(f"{api}/v1/check", json=question, headers=right).status_code == 200
    assert server.client.get(f"{api}/readyz").status_code == 200
    assert "secret-token" not in server.err.read_text() + server.out.read_text()


def until(holds: Callable[[], bool]) -> None:
    """Return when it holds."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_shut(url: str) -> bool:
    """Whether nobody listens there any more. A connection that was waiting when the listener closed is reset."""
    try:
        httpx.get(f"{url}/api/x", timeout=60)
    except httpx.ConnectError:
        return True
    except httpx.HTTPError:
        pass
    return False


def test_sigterm_finishes_what_is_in_flight(start: Start) -> None:
    """After SIGTERM the answer that is being streamed is completed, new connections are refused, and the exit status is 0."""
    server = start(*UP)
    gateway = server.url("gateway")
    with server.client.stream("GET", f"{gateway}/stream?lines=10") as answer:
        lines = answer.iter_lines()
        assert next(lines) == "line 1 of 10"
        server.process.terminate()
        until(lambda: is_shut(gateway))
        assert [*lines][-1] == "line 10 of 10"
    assert server.process.wait(60) == 0
    assert '"event": "stopped", "cut_off": 0' in server.err.read_text()


@pytest.mark.measured
def test_drain_delay_keeps_serving_unready(start: Start) -> None:
    """During the drain delay requests are still served, while ``/readyz`` already says no."""
    server = start(*UP, "--drain-delay", "3s")
    api, gateway = server.url("api"), server.url("gateway")
    assert server.client.get(f"{api}/readyz").status_code == 200
    begun = time.monotonic()
    server.process.send_signal(signal.SIGINT)
    until(lambda: "stop_requested" in server.err.read_text())
    detail = server.client.get(f"{api}/readyz")
    assert (detail.status_code, detail.json()["stopping"]) == (503, True)
    assert server.client.get(f"{api}/livez").status_code == 200
    assert server.client.get(f"{gateway}/api/x").status_code == 200
    assert server.process.wait(60) == 0
    assert time.monotonic() - begun >= 3


def test_drain_timeout_cuts_off(start: Start) -> None:
    """What is not finished when the drain timeout has passed is cut off; the exit status is still 0."""
    server = start(*UP, "--drain-timeout", "300ms")
    with server.client.stream("GET", f"{server.url('gateway')}/stream?lines=9000") as answer:
        lines = answer.iter_lines()
        next(lines)
        assert server.stop() == 0
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
    assert '"cut_off": 1' in server.err.read_text()


def test_closed_terminal_drains(start: Start, rules: Path) -> None:
    """SIGHUP ends a server as SIGTERM does, not in the middle of its answers."""
    server = start("serve", "--rules", str(rules), "--api", "127.0.0.1:0")
    server.process.send_signal(signal.SIGHUP)
    assert server.process.wait(60) == 0
    assert "stop_requested" in server.err.read_text()


def test_second_signal_forces(start: Start) -> None:
    """A second signal ends the process at once, with exit status 1."""
    server = start(*UP, "--drain-delay", "60s")
    server.process.terminate()
    until(lambda: "stop_requested" in server.err.read_text())
    # Signals that come at the same time are one.
    time.sleep(0.3)
    assert server.process.poll() is None
    assert server.stop() == 1
    assert "stop_forced" in server.err.read_text()


@pytest.mark.measured
def test_signal_delivered_twice_is_one(start: Start) -> None:
    """Two signals at once, as a supervisor and a process group send them, are one request to stop."""
    server = start(*UP, "--drain-delay", "500ms")
    server.process.send_signal(signal.SIGINT)
    assert server.stop() == 0
    assert "stop_forced" not in server.err.read_text()


def refusal(server: Any) -> str:
    """The one line a server says that cannot start; its exit status is 2."""
    assert server.process.wait(60) == 2
    text = str(server.err.read_text())
    assert "Traceback" not in text
    assert text.count("\n") == 1, text
    return text


def test_port_in_use(start: Start, rules: Path) -> None:
    """An address somebody else listens on is named, and nothing stays open."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "{}:{}".format(*taken.getsockname())
        server = start("serve", "--rules", str(rules), "--api", address, ready=False)
        assert refusal(server) == f"sluicegate: --api: cannot listen on {address}: the address is in use\n"
    assert server.out.read_text() == ""


@pytest.mark.parametrize("flag", ["gateway", "api", "grpc"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_socket_in_use(start: Start, rules: Path, tmp_path: Path, flag: str, workers: str) -> None:
    """Whichever listener cannot be opened, on a Unix socket too, its flag is named; one that was asked for is not left out."""
    path = tmp_path / "taken.sock"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        addresses = {"gateway": "127.0.0.1:0", "api": "127.0.0.1:0", "grpc": "127.0.0.1:0", flag: f"unix:{path}"}
        listeners = [word for name, address in addresses.items() for word in (f"--{name}", address)]
        server = start("up", *listeners, "--rules", str(rules), "--workers", workers, ready=False)
        assert refusal(server) == f"sluicegate: --{flag}: cannot listen on unix:{path}: the address is in use\n"


def test_health_in_use(start: Start, rules: Path) -> None:
    """The listener for health has its flag named too."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "{}:{}".format(*taken.getsockname())
        arguments = ("--gateway", "127.0.0.1:0", "--upstream", "http://127.0.0.1:9", "--health", address)
        server = start("gateway", *arguments, "--rules", str(rules), ready=False)
        assert refusal(server) == f"sluicegate: --health: cannot listen on {address}: the address is in use\n"


@pytest.fixture
def default_taken() -> Iterator[None]:
    """Somebody listens where ``up`` would open gRPC: this test, or whoever was there before."""
    with socket.socket() as taken:
        try:
            taken.bind(("127.0.0.1", 8082))
            taken.listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        yield


@pytest.mark.usefixtures("default_taken")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_default_of_grpc_in_use(start: Start, rules: Path, workers: str) -> None:
    """A listener that nobody asked for does not stop the others: one line says that it is not there and how to choose another."""
    listeners = ("--gateway", "127.0.0.1:0", "--api", "127.0.0.1:0")
    server = start("up", *listeners, "--rules", str(rules), "--workers", workers)
    said = [line for line in server.out.read_text().splitlines() if line.startswith("grpc")]
    assert said == ["grpc: 127.0.0.1:8082 is in use, not opened; --grpc HOST:PORT chooses another, --grpc off none"]
    assert "sluicegate_grpc_" not in httpx.get(f"{server.url('api')}/metrics", timeout=60).text
    assert server.stop() == 0


@pytest.mark.usefixtures("default_taken")
def test_the_same_address_asked_for(start: Start, rules: Path) -> None:
    """Who names the address that is the default means it: in use, it ends the start."""
    listeners = ("--gateway", "127.0.0.1:0", "--api", "127.0.0.1:0", "--grpc", "127.0.0.1:8082")
    server = start("up", *listeners, "--rules", str(rules), ready=False)
    assert refusal(server) == "sluicegate: --grpc: cannot listen on 127.0.0.1:8082: the address is in use\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "2", "--store", "memory://"), ("workers is 2", "memory://", "the whole limit", "embedded://")),
        (("--workers", "2", "--store", "MEMORY:"), ("workers is 2", "each worker would admit the whole limit")),
        (("--workers", "0"), ("workers must be 1 to 512, got 0",)),
        (("--workers", "513"), ("workers must be 1 to 512, got 513",)),
        (("--nodes", "0"), ("nodes must be 1 to 100000, got 0",)),
        (("--store", "embedded://host"), ("embedded:// takes no host",)),
        (("--store", "embedded://", "--data", "x" * 120), ("--data", "too long a path")),
        (("--store", "redis://localhost:99999"), ("store: ", "port")),
        (("--store", "memory://?size=3"), ("size", "max_counters")),
        (("--api", "0.0.0.0:0"), ("0.0.0.0:0", "--api-token")),
        (("--api", "8081"), ("'8081'", "HOST:PORT")),
        (("--headers", "x-rate"), ("x-rate", "x-ratelimit")),
        (("--upstream", "localhost:3000"), ("localhost:3000", "http://HOST:PORT")),
        (("--drain-delay", "soon"), ("drain-delay", "'soon'")),
        (("--connect-timeout", "0"), ("connect_timeout_s", "more than 0")),
        (("--rules", "absent.yaml"), ("absent.yaml", "does not exist")),
        (("--no-such-flag",), ("--no-such-flag",)),
        (("--config", "absent.yaml"), ("absent.yaml",)),
    ],
)
def test_bad_configuration_is_one_line(start: Start, arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    """What is wrong is said in one line that names flag and value; exit status 2."""
    text = refusal(start(*UP, *arguments, ready=False))
    for word in words:
        assert word in text


def test_bad_rules_are_listed_completely(start: Start, rules: Path) -> None:
    """A server does not start on a bad rule file; it lists every problem, a line each."""
    rules.write_text("version: 1\nrules:\n  - {name: a, qouta: 5/minute}\n  - {name: a, quota: 5/fortnight}\n")
    server = start(*UP, "--rules", str(rules), ready=False)
    assert server.process.wait(60) == 2
    text = server.err.read_text()
    assert "did you mean 'quota'?" in text
    assert "fortnight" in text
    assert all(line.startswith(f"{rules}:") for line in text.splitlines())


def test_data_that_cannot_be_written(start: Start, tmp_path: Path) -> None:
    """Without a place for the rules the server says which file it could not write."""
    (tmp_path / "file").write_text("")
    text = refusal(start(*UP, "--data", str(tmp_path / "file"), ready=False))
    assert f"cannot write {tmp_path / 'file' / 'rules.yaml'}" in text


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(rules: Path, tmp_path: Path, closed: str) -> None:
    """A server started without standard streams serves and stops like any other; no socket takes their place."""
    path = tmp_path / "api.sock"
    command = f'exec "$0" -m sluicegate serve --rules "$1" --api "unix:$2" {closed}'
    process = subprocess.Popen(["sh", "-c", command, sys.executable, str(rules), str(path)])
    try:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=60) as client:
            deadline = time.monotonic() + 60
            while not path.is_socket():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert client.get("http://api/livez").status_code == 200
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_closed_standard_streams_are_open_to_children() -> None:
    """What stands for a closed standard stream is handed on, so that workers have all three as well."""
    child = "import os; [os.fstat(descriptor) for descriptor in range(3)]"
    program = f"""
import subprocess, sys
from sluicegate.cli.root import run
run(["--version"])
sys.exit(subprocess.run([sys.executable, "-c", {child!r}]).returncode)
"""
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_standard_output_that_takes_nothing(rules: Path) -> None:
    """A server that cannot say where it listens does not start: one line, exit status 2."""
    command = 'exec "$0" -m sluicegate serve --rules "$1" --api 127.0.0.1:0 >/dev/full'
    ran = subprocess.run(
        ["sh", "-c", command, sys.executable, str(rules)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (
        2,
        "sluicegate: cannot write to standard output: No space left on device\n",
    )


def test_full_pipe_for_the_log_stops_nothing(rules: Path) -> None:
    """With a standard error that nobody reads any more the server starts, answers and stops."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x")
    os.set_blocking(writing, True)
    arguments = [sys.executable, "-m", "sluicegate", "serve", "--rules", str(rules), "--api", "127.0.0.1:0"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=writing, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[1]
        assert httpx.get(f"{url}/livez", timeout=60).status_code == 200
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(reading)
        os.close(writing)


def test_a_key_that_is_not_used(start: Start, rules: Path, tmp_path: Path) -> None:
    """What the configuration file holds for a server of another command is said in a line, with several workers too."""
    file = tmp_path / "flags.yaml"
    file.write_text("health: 127.0.0.1:0\ngrpc: off\n")
    for workers in ("1", "2"):
        arguments = ("--config", str(file), "--gateway", "127.0.0.1:0", "--api", "127.0.0.1:0", "--rules", str(rules))
        server = start("up", *arguments, "--workers", workers)
        said = server.out.read_text().splitlines()
        assert "health: in the configuration file, but no flag of this command, not used" in said
        assert not any(line.startswith("grpc") for line in said)
        assert server.stop() == 0
