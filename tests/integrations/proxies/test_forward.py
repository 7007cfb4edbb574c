"""Caddy and Traefik asking /authz/forward, by the configurations as shipped."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "proxies.md"
START_TIMEOUT_S = 60.0
NAMES = ("caddy", "traefik")
FILES = {"caddy": ("Caddyfile",), "traefik": ("traefik.yaml", "routes.yaml")}
COMMANDS = {
    "caddy": ("run", "--config", "Caddyfile", "--adapter", "caddyfile"),
    "traefik": ("--configfile=traefik.yaml",),
}


class Backend(http.server.BaseHTTPRequestHandler):
    """Says what it got, and claims limits of its own."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        # A server that is broken says nothing at all.
        if self.path.endswith("/broken"):
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Backend", f"{self.command} {self.headers.get('X-RateLimit-Remaining')}")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        pass


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with contextlib.closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def ended(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


class Setup:
    """A proxy before a backend, and the server that it asks."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, rules: str) -> None:
        self.folder, self._stack = folder, stack
        self.port, self.api = free_port(), free_port()
        backend = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
        stack.callback(backend.server_close)
        stack.callback(backend.shutdown)
        threading.Thread(target=backend.serve_forever, daemon=True).start()
        self.backend = backend.server_port
        (folder / "rules.yaml").write_text(rules)
        serve = [sys.executable, "-m", "sluicegate", "serve", "--rules", "rules.yaml", "--api", f"127.0.0.1:{self.api}"]
        self.server = self._run(serve, self.api)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, trust_env=False)
        stack.callback(self.client.close)

    def _run(self, command: list[str], port: int) -> subprocess.Popen[bytes]:
        log = self.folder / f"log{port}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        environment |= {
            "HOME": str(self.folder),
            "XDG_DATA_HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder),
        }
        with log.open("w") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=self.folder, env=environment)
        self._stack.callback(ended, process)
        wait_for(port, process, log)
        return process

    def start(self, name: str, binary: str, *, edit: Callable[[str], str] = lambda text: text) -> None:
        for file in FILES[name]:
            text = edit((ROOT / "integrations" / name / file).read_text())
            for old, new in {
                "127.0.0.1:8081": f"127.0.0.1:{self.api}",
                "127.0.0.1:9000": f"127.0.0.1:{self.backend}",
                "address: 127.0.0.1:8000": f"address: 127.0.0.1:{self.port}",
                ":8000 {": f"http://:{self.port} {{",
                "100ms": "9s",
                "200ms": "9s",
            }.items():
                text = text.replace(old, new)
            if name == "caddy":
                text = "{\n\tadmin off\n\tauto_https off\n\tdefault_bind 127.0.0.1\n}\n" + text
            (self.folder / file).write_text(text)
        process = self._run([binary, *COMMANDS[name]], self.port)
        deadline = time.monotonic() + START_TIMEOUT_S
        # Traefik listens before it has read its routes.
        while self.ask("/begun").status_code == 404:
            assert process.poll() is None
            assert time.monotonic() < deadline, (self.folder / f"log{self.port}").read_text()
            time.sleep(0.05)

    def ask(self, path: str, method: str = "GET", **fields: str) -> httpx.Response:
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        return self.client.request(method, path, headers=headers, content=b"a body" if method == "POST" else None)


def rules_of_the_page() -> str:
    return PAGE.read_text().split("```yaml\n")[1].split("```")[0]


@pytest.fixture
def setup(tmp_path: Path, require_program: Callable[[str], str]) -> Iterator[Callable[..., Setup]]:
    """A proxy by the shipped files: ``setup("caddy")``."""
    with contextlib.ExitStack() as stack:

        def start(name: str, **options: Any) -> Setup:
            binary = require_program(name)
            made = Setup(tmp_path, stack, rules_of_the_page())
            made.start(name, binary, **options)
            return made

        yield start


@pytest.mark.parametrize("name", NAMES)
def test_refusals(setup: Callable[..., Setup], name: str) -> None:
    """What passes reaches the backend with its method and body; the third is 429 with fields, Retry-After and a problem document."""
    proxy = setup(name)
    passed = [proxy.ask("/login?next=/", "POST") for _ in range(2)]
    assert [answer.status_code for answer in passed] == [200, 200]
    assert passed[0].content == b"a body"
    assert passed[0].headers["X-Backend"].startswith("POST ")
    refused = proxy.ask("/login", "POST")
    assert refused.status_code == 429
    assert refused.headers["X-RateLimit-Remaining"] == "0"
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["violated-policies"] == ["login"]
    assert proxy.ask("/login").status_code == 200, "another method is not limited"


@pytest.mark.parametrize("name", NAMES)
def test_a_clients_word_is_nothing(setup: Callable[..., Setup], name: str) -> None:
    """No field of a client's changes what is asked about, or who the client is."""
    proxy = setup(name)
    lies = {"X_Forwarded_Uri": "/free", "X_Forwarded_Method": "GET", "X_Original_URI": "/free"}
    statuses = [
        proxy.ask(
            "/login", "POST", X_Forwarded_For=f"198.51.100.{n}", Forwarded=f"for=198.51.100.{n}", **lies
        ).status_code
        for n in range(3)
    ]
    assert statuses == [200, 200, 429]


def test_caddy_shows_the_fields_on_every_answer(setup: Callable[..., Setup]) -> None:
    """With Caddy the rate fields stand on what passes too, once, also where the backend is broken, and nowhere else."""
    proxy = setup("caddy")
    answer = proxy.ask("/api/x")
    assert answer.headers.get_list("X-RateLimit-Limit") == ["100"]
    assert answer.headers["X-RateLimit-Policy"].startswith("api;q=100;w=60")
    assert "X-RateLimit-Limit" not in proxy.ask("/elsewhere").headers
    awaited = proxy.ask("/api/x", "POST", Expect="100-continue")
    assert (awaited.status_code, awaited.content) == (200, b"a body")
    assert awaited.headers.get_list("X-RateLimit-Remaining") == ["98"]
    broken = proxy.ask("/broken")
    assert broken.status_code == 502
    failed = proxy.ask("/api/broken")
    assert (failed.status_code, failed.headers.get_list("X-RateLimit-Remaining")) == (502, ["97"])


def test_traefik_tells_the_backend_only(setup: Callable[..., Setup]) -> None:
    """With Traefik the fields of what passes go to the backend: its client does not see them."""
    proxy = setup("traefik")
    answer = proxy.ask("/api/x")
    assert answer.headers["X-Backend"] == "GET 99"
    assert "X-RateLimit-Limit" not in answer.headers


@pytest.mark.parametrize(
    ("name", "how", "status"),
    [
        ("caddy", "gone", 200),
        ("caddy", "silent", 200),
        ("caddy closed", "gone", 502),
        ("caddy closed", "silent", 504),
        # Where the server is silent Traefik waits for half a minute, which no setting changes.
        ("traefik", "gone", 500),
    ],
)
def test_fail_mode(setup: Callable[..., Setup], name: str, how: str, status: int) -> None:
    """Without the server Caddy does as its configuration says, and Traefik always refuses."""
    name, _, closed = name.partition(" ")

    def edit(text: str) -> str:
        text = text.replace("response_header_timeout 200ms", "response_header_timeout 1s")
        return re.sub(r"\n\t\t@undecided.*\n.*", "", text) if closed else text

    proxy = setup(name, edit=edit)
    assert proxy.ask("/login", "POST").status_code == 200
    if how == "gone":
        ended(proxy.server)
    else:
        os.kill(proxy.server.pid, signal.SIGSTOP)
    answer = proxy.ask("/api/x")
    assert answer.status_code == status
    assert "X-RateLimit-Limit" not in answer.headers


@pytest.mark.parametrize(("language", "file"), [("caddyfile", "caddy/Caddyfile"), ("yaml", "traefik/routes.yaml")])
def test_the_page_prints_what_is_shipped(language: str, file: str) -> None:
    """docs/proxies.md prints the configurations that are tested."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert (ROOT / "integrations" / file).read_text() in blocks
