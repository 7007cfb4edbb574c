"""Real Envoy in front of a backend, with a real server of sluicegate to ask."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
CONFIGURATIONS = ROOT / "integrations" / "envoy"
START_TIMEOUT_S = 60.0


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when it holds; fail with the log when the process ends first, or after some seconds."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that a test has started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)


class Backend:
    """What stands behind Envoy: answers 200 and keeps what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", "0")))
                seen.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.send_header("X-Tokens", self.headers.get("x-costs", "1"))
                self.end_headers()
                self.wfile.write(b"ok")

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_: Any) -> None:
                """Nothing is printed."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = int(self.server.server_address[1])
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


class World:
    """Envoy, sluicegate and the backend; ``url`` is where clients ask."""

    def __init__(self, folder: Path, envoy: str, configuration: str, rules: str, *flags: str) -> None:
        self.folder = folder
        self.backend = Backend()
        self.ports = {name: free_port() for name in ("listener", "admin", "api", "grpc")}
        self.url = f"http://127.0.0.1:{self.ports['listener']}"
        (folder / "rules.yaml").write_text(rules)
        (folder / "envoy.yaml").write_text(self._with_own_ports(configuration))
        self.client = httpx.Client(base_url=self.url, timeout=60)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._envoy_program, self._flags = envoy, flags
        self._asks_by_grpc = "8082" in configuration

    def start(self) -> None:
        """Start sluicegate, then Envoy; ``close`` is due whether or not this succeeds."""
        self.server = self.start_server()
        self.start_envoy()

    def _with_own_ports(self, configuration: str) -> str:
        """The configuration as it is shipped, but for its ports; a busy machine is given time."""
        own = {"10000": "listener", "9901": "admin", "8081": "api", "8082": "grpc"}
        text = configuration.replace("8000", str(self.backend.port))
        for shipped, name in own.items():
            text = text.replace(shipped, str(self.ports[name]))
        text = re.sub(r"timeout: 0\.\d+s", "timeout: 5s", text)
        return text.replace("connect_timeout: 0.1s", "connect_timeout: 5s")

    def _start(self, name: str, *command: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.folder / f"{name}.log"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SLUICEGATE_")}
        with log.open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=self.folder, env=inherited)
        self._processes.append(process)
        return process, log

    def start_server(self) -> subprocess.Popen[bytes]:
        """Start sluicegate at its port, and return when it is ready."""
        api = f"127.0.0.1:{self.ports['api']}"
        command = (sys.executable, "-m", "sluicegate", "serve", "--rules", "rules.yaml", "--api", api, *self._flags)
        if self._asks_by_grpc:
            command += ("--grpc", f"127.0.0.1:{self.ports['grpc']}")
        process, log = self._start("sluicegate", *command)
        wait_for(lambda: answers(f"http://{api}/readyz"), process, log)
        return process

    def start_envoy(self) -> None:
        """Start Envoy, and return when it is ready and has found sluicegate healthy."""
        command = (self._envoy_program, "-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "-l", "warn")
        process, log = self._start("envoy", *command)
        admin = f"http://127.0.0.1:{self.ports['admin']}"
        wait_for(lambda: answers(f"{admin}/ready"), process, log)
        healthy = "sluicegate.membership_healthy: 1"
        wait_for(
            lambda: healthy in httpx.get(f"{admin}/stats?filter=membership_healthy", timeout=60).text, process, log
        )

    def stop_server(self) -> None:
        """End sluicegate; Envoy stays."""
        stop(self.server)

    def close(self) -> None:
        self.client.close()
        for process in reversed(self._processes):
            stop(process)
        self.backend.close()


def answers(url: str) -> bool:
    """Whether there is a 200 at ``url``."""
    try:
        return httpx.get(url, timeout=60).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture
def envoy_world(tmp_path: Path, require_program: Callable[[str], str]) -> Iterator[Callable[..., World]]:
    """Start worlds: ``envoy_world("ext_authz.yaml", rules, "--flag", …)``; ``edit`` changes the configuration first."""
    beside = Path(sys.executable).parent / "envoy"
    program = str(beside) if beside.exists() else require_program("envoy")
    started: list[World] = []

    def start(name: str, rules: str, *flags: str, edit: Callable[[str], str] = str) -> World:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        world = World(folder, program, edit((CONFIGURATIONS / name).read_text()), rules, *flags)
        started.append(world)
        world.start()
        return world

    yield start
    for world in started:
        world.close()


@pytest.fixture
def curl(require_program: Callable[[str], str]) -> Callable[[list[str]], str]:
    """Run curl and give its output."""
    program = shutil.which("curl") or require_program("curl")

    def run(arguments: list[str]) -> str:
        done = subprocess.run([program, "-sS", "--max-time", "20", *arguments], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    return run
