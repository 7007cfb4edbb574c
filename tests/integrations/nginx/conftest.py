"""Real nginx in front of a backend, a real server of sluicegate, and a real Redis."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from sluicegate.clock import SystemClock
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules
from sluicegate.stores.redis import RedisStore

ROOT = Path(__file__).resolve().parents[3]
INTEGRATION = ROOT / "integrations" / "nginx"
MODULES = Path("/usr/lib/nginx/modules")
START_TIMEOUT_S = 60.0

MAIN = """\
{modules}
user root;
daemon off;
worker_processes {workers};
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {included}
    server {{
        listen 127.0.0.1:{backend};
        location / {{
            add_header X-Backend yes always;
            add_header X-RateLimit-Limit 999999 always;
            return 200 "served $uri user=$http_x_user_id\\n";
        }}
        location = /broken {{ return 444; }}
        location = /missing {{ return 404; }}
        location = /accel {{ add_header X-Accel-Redirect /inner; return 200; }}
    }}
}}
"""


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Return when it holds; fail with ``what()`` after some seconds."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


def listens(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Said(NamedTuple):
    """One answer, as it stood on the wire."""

    status: int
    fields: httpx.Headers
    body: bytes


class Limits:
    """A running ``sluicegate serve``."""

    def __init__(self, folder: Path, store: str, rules: str, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.rules = folder / "rules.yaml"
        self.rules.write_text(rules)
        self.err = folder / "serve.txt"
        command = [sys.executable, "-m", "sluicegate", "serve", "--rules", str(self.rules)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")}
        with self.err.open("a") as err:
            self.process = subprocess.Popen(
                [*command, "--api", f"127.0.0.1:{self.port}", "--store", store, *options],
                stdout=err, stderr=err, cwd=folder, env=environment,
            )  # fmt: skip

    def wait(self) -> None:
        wait_for(lambda: listens(self.port) or self.process.poll() is not None, self.err.read_text)
        assert self.process.poll() is None, self.err.read_text()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Nginx:
    """A running nginx; ``get`` asks it for a path, as ``ip`` where its configuration believes X-Real-IP."""

    def __init__(self, binary: str, folder: Path, text: str, *, lua: bool, workers: int = 1) -> None:
        self.folder, self.port, self.backend = folder, free_port(), free_port()
        text = text.replace("127.0.0.1:9000", f"127.0.0.1:{self.backend}")
        text = text.replace("listen 8000;", f"listen 127.0.0.1:{self.port}; set_real_ip_from 127.0.0.1;")
        text = text.replace("/etc/nginx/sluicegate/", f"{INTEGRATION}/lua/")
        (folder / "included.conf").write_text(text)
        modules = ("ndk_http_module.so", "ngx_http_lua_module.so") if lua else ()
        main = MAIN.format(
            modules="".join(f"load_module {MODULES / name};\n" for name in modules),
            workers=workers, folder=folder, backend=self.backend, included=f"include {folder}/included.conf;",
        )  # fmt: skip
        (folder / "nginx.conf").write_text(main)
        # What is wrong before the log is open stands on standard error.
        with (folder / "stderr.txt").open("w") as err:
            self.process = subprocess.Popen([binary, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=err)
        self.client = self._client()

    def _client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60, trust_env=False)

    def wait(self) -> None:
        wait_for(lambda: listens(self.port) or self.process.poll() is not None, self.log)
        assert self.process.poll() is None, (self.folder / "stderr.txt").read_text()

    def log(self) -> str:
        path = self.folder / "error.log"
        return path.read_text() if path.exists() else ""

    def workers(self) -> list[int]:
        """The processes that answer."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children]

    def renewed(self, earlier: list[int]) -> None:
        """Wait until none of the processes with these numbers is left and others are there; kept connections went with them."""
        wait_for(lambda: not set(earlier) & set(self.workers()) and self.workers() != [], self.log)
        self.client.close()
        self.client = self._client()

    def rewrite(self, edit: Callable[[str], str]) -> None:
        """Go on with another text, once all processes with the earlier one are gone."""
        path, earlier = self.folder / "included.conf", self.workers()
        path.write_text(edit(path.read_text()))
        self.process.send_signal(signal.SIGHUP)
        self.renewed(earlier)

    def get(self, path: str, ip: str = "203.0.113.9", method: str = "GET", **headers: str | bytes) -> httpx.Response:
        fields = {"X-Real-IP": ip, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.client.request(method, path, headers=fields)

    def stop(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


@pytest.fixture
def url(servers: Any, require_program: Callable[[str], str]) -> str:
    """A Redis with nothing in it, and a deadline that a busy machine keeps."""
    found: str = servers.empty("redis", require_program).url
    return found


@pytest.fixture
def serve(tmp_path: Path, url: str) -> Iterator[Callable[..., Limits]]:
    """Start a server of decisions on the Redis: ``serve(rules, *options)``."""
    running: list[Limits] = []

    def start(rules: str, *options: str, store: str = url, port: int | None = None) -> Limits:
        running.append(Limits(tmp_path, store, rules, *options, port=port))
        running[-1].wait()
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def nginx(tmp_path: Path, require_program: Callable[[str], str]) -> Iterator[Callable[..., Nginx]]:
    """Start nginx with a text for its http block: ``nginx(text, lua=True)``."""
    running: list[Nginx] = []

    def start(text: str, *, lua: bool, workers: int = 1) -> Nginx:
        binary = require_program("nginx")
        if lua and not (MODULES / "ngx_http_lua_module.so").exists():
            require_program("the Lua module of nginx")
        folder = tmp_path / f"nginx{len(running)}"
        folder.mkdir()
        running.append(Nginx(binary, folder, text, lua=lua, workers=workers))
        running[-1].wait()
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def port_of() -> Callable[[str], int]:
    """The port in a store's URL."""

    def port(url: str) -> int:
        found = re.search(r":(\d+)(?:[/?]|$)", url)
        assert found is not None, url
        return int(found.group(1))

    return port


@pytest.fixture
def front(nginx: Callable[..., Nginx], serve: Callable[..., Limits], url: str, port_of: Callable[[str], int]) -> Any:
    """nginx by the shipped lua.conf beside a server of these rules: ``front(rules, *options, edits={old: new})``.

    The server is ``.limits``. Deadlines are those of a busy machine unless an edit says otherwise.
    """

    def start(rules: str, *options: str, edits: dict[str, str] | None = None, workers: int = 1, store: str = "") -> Any:
        limits = serve(rules, *options, store=store or url)
        text = (INTEGRATION / "lua.conf").read_text()
        for old, new in {
            "port = 6379": f"port = {port_of(store or url)}, timeout_ms = 5000",
            "port = 8081": f"port = {limits.port}, timeout_ms = 5000",
            'on_failure = "open"': 'on_failure = "open", poll_s = 0.2, pull_timeout_ms = 9000',
            **(edits or {}),
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        running = nginx(text, lua=True, workers=workers)
        return running, limits

    return start


@pytest.fixture
def asking(nginx: Callable[..., Nginx], serve: Callable[..., Limits]) -> Any:
    """nginx by the shipped auth_request.conf and a server of these rules: ``asking(rules, *options, edits={old: new})``.

    Deadlines are those of a busy machine.
    """

    def start(rules: str, *options: str, edits: dict[str, str] | None = None, slow: str = "9s") -> Any:
        limits = serve(rules, *options)
        text = (INTEGRATION / "auth_request.conf").read_text()
        for old, new in {
            "127.0.0.1:8081": f"127.0.0.1:{limits.port}",
            "100ms": slow,
            "200ms": slow,
            **(edits or {}),
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        return nginx(text, lua=False), limits

    return start


@pytest.fixture
def doors(front: Any, asking: Any) -> dict[str, Any]:
    """Both ways to limit in nginx, by name: ``doors["lua"](rules)``."""
    return {"lua": front, "auth_request": asking}


@pytest.fixture
def say() -> Callable[..., list[Said]]:
    """What nginx answers to these bytes on one connection, until it closes it: ``say(nginx, b"GET / ...")``."""

    def said(nginx: Nginx, sent: bytes) -> list[Said]:
        with contextlib.closing(socket.create_connection(("127.0.0.1", nginx.port), timeout=60)) as connection:
            connection.sendall(sent)
            received = b"".join(iter(lambda: connection.recv(65_536), b""))
        answers: list[Said] = []
        for part in re.split(rb"(?:^|(?<=[\n}]))HTTP/1\.1 ", received)[1:]:
            head, _, body = part.partition(b"\r\n\r\n")
            status, *lines = head.decode("latin-1").split("\r\n")
            fields = httpx.Headers([tuple(line.split(": ", 1)) for line in lines])
            answers.append(Said(int(status.split(" ")[0]), fields, body))
        return answers

    return said


@pytest.fixture
def python(url: str) -> Iterator[Callable[[str], Limiter]]:
    """A limiter in this process on the same counters: ``python(rules)``."""
    made: list[Limiter] = []

    def start(rules: str) -> Limiter:
        clock = SystemClock()
        made.append(Limiter.from_rules(load_rules(rules, "rules.yaml"), RedisStore(url, clock=clock), clock))
        return made[-1]

    yield start
    for limiter in made:
        limiter.close()


@pytest.fixture
def soon() -> Callable[[Callable[[], bool]], bool]:
    """Whether something comes to hold within some seconds."""

    def soon(condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    return soon
