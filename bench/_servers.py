"""A Redis to measure against: started on a free port of loopback, on one core where there are two, and stopped afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

import redis

__all__ = ["cores", "pinned", "redis_cluster", "redis_server"]


def cores() -> tuple[int | None, int | None]:
    """(core of what is measured, core of what it talks to); None, None on a machine with one core."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (usable[0], usable[1]) if len(usable) > 1 and shutil.which("taskset") else (None, None)


def pinned(core: int | None) -> list[str]:
    """How a command begins that is to run on this core."""
    return [] if core is None else ["taskset", "-c", str(core)]


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def redis_server(core: int | None, *options: str, binary: str | None = None) -> Iterator[int]:
    """Run Debian's Redis, or another server like it, without persistence; gives its port."""
    binary = binary or shutil.which("redis-server")
    if binary is None:
        raise SystemExit("this benchmark needs redis-server (Debian package redis-server)")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            folder,
        ]
        process = subprocess.Popen([*pinned(core), *command, *options], stdout=subprocess.DEVNULL)
        try:
            wait(port)
            yield port
        finally:
            process.kill()
            process.wait(10)


def wait(port: int) -> None:
    """Until the server answers, ten seconds at most."""
    until = time.monotonic() + 10
    with contextlib.closing(redis.Redis(port=port)) as client:
        while True:
            try:
                client.ping()
            except redis.ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
            else:
                return


@contextlib.contextmanager
def redis_cluster(masters: int, core: int | None) -> Iterator[list[int]]:
    """Run a cluster of so many masters without replicas; gives their ports."""
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(masters):
            options = (
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                "15000",
                "--cluster-port",
                str(free_port()),
            )
            ports.append(stack.enter_context(redis_server(core, *options)))
        servers = [f"127.0.0.1:{port}" for port in ports]
        command = ["redis-cli", "--cluster", "create", *servers, "--cluster-replicas", "0", "--cluster-yes"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        yield ports
