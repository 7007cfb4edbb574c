"""Servers, proxies and holders of one scene, and what is done to them. Everything that happens is drawn from the scene's seed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis
from chaos_history import History, read_history
from real_clusters import Cluster, until
from real_servers import BINARIES, Proxy, Server, free_port_now, running
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["HARM", "NO_HARM", "SEEDS", "Nursery", "Scene", "Stage", "each", "rule", "rules"]

PROGRAM = Path(__file__).parent.parent / "chaos_leases" / "holders.py"
NO_HARM = {"lost": 0.0, "late": 0.0, "doubled": 0.0}
HARM = {"lost": 0.06, "late": 0.06, "doubled": 0.1}
"""The usual shares of the messages about leases to which something happens, on their way or on that of their answer."""

LEAD_S = 0.4
"""Before a scene begins, its holders are made."""
PATIENCE_S = 45
"""After its end so much may pass until all holders have given back what they hold, on a machine that has other work."""


SEEDS = range(int(os.environ.get("SLUICEGATE_CHAOS_SEEDS", "1")))
"""Each scene is played with so many."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A fleet under load. ``rules`` and ``facts``: what its holders check; ``play`` does what is done meanwhile.

    ``ttl_us``, ``horizon_us``, ``exact_below``: of the holders. ``rate``: checks a second of each; ``burst``: about so many at a time. ``forks``: how often one of the holders is forked.
    ``changes``: (part of the scene's length, rules) from then on. ``harm``: see ``HARM``. ``drift_ppm``: how wrong their clocks are, in either direction. ``wrong``: see ``wrong_holders``.
    ``kind``: "redis", "valkey", or either with " cluster".
    """

    name: str
    rules: str
    play: Callable[[Stage], None]
    facts: tuple[dict[str, str], ...] = ({"path": "/a"},)
    weights: tuple[float, ...] = (1,)
    kind: str = "redis"
    options: tuple[str, ...] = ()
    holders: int = 4
    seconds: float = 4.0
    rate: int = 350
    burst: int = 4
    ttl_us: int = 200_000
    horizon_us: int = 50_000
    exact_below: int = 5
    harm: dict[str, float] = field(default_factory=lambda: HARM)
    drift_ppm: int = 10_000
    forks: int = 0
    changes: tuple[tuple[float, str], ...] = ()
    ends: tuple[str, ...] = ("close",)
    wrong: str = ""
    look: Callable[[str], object] = str
    """What is asked of the server at the end, by its URL; the answer is the history's ``found``."""


class Nursery:
    """The process of which holders are forked. Safe under threads."""

    def __init__(self) -> None:
        plugins = str(Path(__file__).parent)
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": plugins},
        )
        self._lock = threading.Lock()
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def begin(self, order: dict[str, Any]) -> int:
        """Begin a holder; returns a descriptor of its process, which names nobody else when it has ended."""
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return os.pidfd_open(int(self._process.stdout.readline()))

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Stage:
    """Where one scene is played, by the thread that made this."""

    def __init__(self, scene: Scene, seed: int, folder: Path, nursery: Nursery, program: Callable[[str], str]) -> None:
        self.scene, self.seed, self.folder = scene, seed, folder
        self.draw = Random(f"{scene.name} {seed}")
        self.begins_s = self.ends_s = 0.0
        self.proxy: Proxy | None = None
        self.server: Server | None = None
        self._binary = program(BINARIES[scene.kind.split()[0]])
        self._nursery = nursery
        self._holders: dict[str, int] = {}
        self._killed: set[str] = set()
        self._stopped: set[str] = set()
        self._count = 0
        self._servers: dict[int, contextlib.AbstractContextManager[Server]] = {}
        self._stack = contextlib.ExitStack()

    # ------------------------------------------------------------------ the whole

    def run(self) -> History:
        """Play the scene to its end; what was admitted."""
        try:
            offset_us = wall_offset_us()
            self.url = self._open()
            self.begins_s = time.monotonic() + LEAD_S
            self.ends_s = self.begins_s + self.scene.seconds
            for number in range(self.scene.holders):
                self.add(forks=self.scene.forks if number == 0 else 0)
            self.wait(0)
            self.scene.play(self)
            for name in list(self._stopped):
                self.go_on(name)
            self._wait_for_ends()
            name = f"{self.scene.name}, seed {self.seed}"
            history = read_history(name, self.folder, self._killed, wall_offset_us() - offset_us)
            history.found = self.scene.look(self.url)
            return history
        finally:
            self._close()

    def _open(self) -> str:
        more = "timeout_ms=2000&keys=plain"
        if self.scene.kind.endswith("cluster"):
            found = self._stack.enter_context(Cluster(self._binary, self.folder, replicas=False))
            return found.url.replace("timeout_ms=5000", more)
        self.server = self.start_server(*self.scene.options)
        self.proxy = self.start_proxy(self.server.port)
        return f"redis://127.0.0.1:{self.proxy.port}?{more}"

    def _wait_for_ends(self) -> None:
        until_s = self.ends_s + PATIENCE_S
        for name, process in self._holders.items():
            if name not in self._killed:
                select.select([process], [], [], max(until_s - time.monotonic(), 0))
        while time.monotonic() < until_s and not all(
            log.suffix or log.name in self._killed or any(map(Path.exists, (Path(f"{log}.end"), Path(f"{log}.error"))))
            for log in self.folder.glob("holder-*")
        ):
            threading.Event().wait(0.02)

    def _close(self) -> None:
        for process in self._holders.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            os.close(process)
        self._stack.close()
        for context in self._servers.values():
            context.__exit__(None, None, None)

    # ------------------------------------------------------------------ time

    def wait(self, part: float) -> None:
        """Wait until this part of the scene's length is over."""
        self.wait_s(self.begins_s + part * self.scene.seconds - time.monotonic())

    def wait_s(self, seconds: float) -> None:
        if seconds > 0:
            threading.Event().wait(seconds)

    @property
    def part(self) -> float:
        """The part of the scene's length that is over."""
        return (time.monotonic() - self.begins_s) / self.scene.seconds

    # ------------------------------------------------------------------ holders

    def add(self, forks: int = 0) -> str:
        """One more holder."""
        scene, draw = self.scene, self.draw
        name = f"holder-{self._count}"
        order = {
            "url": self.url,
            "rules": scene.rules,
            "facts": scene.facts,
            "weights": scene.weights,
            "seed": draw.getrandbits(32),
            "log": str(self.folder / name),
            "manner": ("calls", "tasks", "batches")[self._count % 3],
            "ppm": (scene.drift_ppm, -scene.drift_ppm, 0)[self._count % 3],
            "ttl_us": scene.ttl_us,
            "horizon_us": scene.horizon_us,
            "exact_below": scene.exact_below,
            "harm": scene.harm,
            "begins_s": max(self.begins_s, time.monotonic()),
            "ends_s": self.ends_s,
            "rate": scene.rate,
            "burst": scene.burst,
            "changes": [(self.begins_s + part * scene.seconds, rules) for part, rules in scene.changes],
            "forks": sorted(self.begins_s + draw.uniform(0.3, 0.9) * scene.seconds for _ in range(forks)),
            "end": scene.ends[self._count % len(scene.ends)],
            "wrong": scene.wrong,
        }
        self._count += 1
        self._holders[name] = self._nursery.begin(order)
        return name

    def alive(self) -> list[str]:
        """Holders that were not killed and are not stopped."""
        return [name for name in self._holders if name not in self._killed and name not in self._stopped]

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._killed.add(name)
        signal.pidfd_send_signal(self._holders[name], signal.SIGKILL)

    def stop(self, name: str) -> None:
        self._stopped.add(name)
        signal.pidfd_send_signal(self._holders[name], signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self._stopped.discard(name)
        signal.pidfd_send_signal(self._holders[name], signal.SIGCONT)

    # ------------------------------------------------------------------ servers

    def start_server(self, *options: str, port: int | None = None) -> Server:
        """Start a server; ``port`` is for one that comes back."""
        folder = self.folder / f"server-{len(self._servers)}" if port is None else self._server_folder(port)
        folder.mkdir(exist_ok=True)
        port = free_port_now() if port is None else port
        (self.folder / f"port-{port}").write_text(str(folder))
        context = running(self._binary, folder, *options, port=port)
        self._servers[port] = context
        return context.__enter__()

    def _server_folder(self, port: int) -> Path:
        return Path((self.folder / f"port-{port}").read_text())

    def end_server(self, server: Server) -> None:
        """SIGKILL."""
        self._servers.pop(server.port).__exit__(None, None, None)

    def start_proxy(self, port: int) -> Proxy:
        found = Proxy(port)
        self._stack.callback(found.close)
        return found

    def admin(self, server: Server | None = None) -> redis.Redis:
        """A client of the server, past the proxy."""
        server = server or self.server
        assert server is not None
        client = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0), socket_timeout=5)
        self._stack.callback(client.close)
        return client

    def replica(self) -> tuple[Server, Proxy]:
        """A replica in step with the server, and the proxy through which it hears of it."""
        assert self.server is not None
        between = self.start_proxy(self.server.port)
        found = self.start_server("--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(between.port))
        admin = self.admin(found)
        until(lambda: admin.info("replication")["master_link_status"] == "up", "the replica is not in step")
        return found, between


def wall_offset_us() -> int:
    return (time.time_ns() - time.monotonic_ns()) // 1_000


def rule(quota: str, more: str = "", name: str = "all") -> str:
    """A rule for everybody together. Nobody is admitted without the store, so what is admitted was leased or charged."""
    return f"  - {{name: {name}, quota: {quota}, on_store_failure: closed{', ' if more else ''}{more}}}"


def rules(*found: str) -> str:
    return "\n".join(["version: 1", "rules:", *found])


def each(scenes: Sequence[tuple[Scene, object]], seeds: Sequence[int] = ()) -> pytest.MarkDecorator:
    """A test of each scene, with what goes with it: its ``played`` histories, and ``spec``. One seed each, of ``SEEDS``, or all of ``seeds`` together."""
    together = [tuple(seeds)] if seeds else [(seed,) for seed in SEEDS]
    found = [
        pytest.param((scene, chosen), spec, id=f"{scene.name} {'-'.join(map(str, chosen))}")
        for scene, spec in scenes
        for chosen in together
    ]
    return pytest.mark.parametrize(("played", "spec"), found, indirect=["played"])
