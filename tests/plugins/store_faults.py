"""What can happen to a store, done to real servers.

Each fault is a generator: it makes ready and yields the store's URL, brings the fault about and yields, ends it and yields. When
it goes on from there the store must be as good as before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis
from real_clusters import Cluster, until
from real_servers import BINARIES, Proxy, Server, free_port_now, running
from redis.backoff import NoBackoff
from redis.retry import Retry

__all__ = ["DEADLINE_MS", "FAULTS", "PATIENT_MS", "Fault", "Place"]

DEADLINE_MS = 50
"""The deadline of a decision in these tests: on a machine that does other work, 8 ms are often over before a server has run."""

PATIENT_MS = 5_000
"""Where decisions must not fail at all: what takes so long is not the machine's other work."""

Play = Iterator[str | None]


class Place:
    """Where a fault happens: the servers and proxies of one test. ``seconds``: how long it is going to last."""

    def __init__(self, folder: Path, kind: str, program: Callable[[str], str], seconds: float) -> None:
        self.seconds = seconds
        self.folder, self._binary = folder, program(BINARIES[kind])
        self._servers: dict[int, contextlib.AbstractContextManager[Server]] = {}
        self._stack = contextlib.ExitStack()
        self._stack.callback(self._stop_all)
        self._repeating = threading.Event()

    def server(self, *options: str, port: int | None = None, wait: bool = True) -> Server:
        """Start a server in the place's folder; ``port`` is for one that comes back."""
        context = running(self._binary, self.folder, "--enable-debug-command", "yes", *options, port=port, wait=wait)
        server = context.__enter__()
        self._servers[server.port] = context
        return server

    def cluster(self) -> Cluster:
        """Start a cluster of three masters, with a replica each."""
        return self._stack.enter_context(Cluster(self._binary, self.folder))

    def stop(self, server: Server) -> None:
        """Kill a server."""
        self._servers.pop(server.port).__exit__(None, None, None)

    def proxy(self, server: Server) -> Proxy:
        proxy = Proxy(server.port)
        self._stack.callback(proxy.close)
        return proxy

    def admin(self, server: Server) -> redis.Redis:
        """A client that does not tolerate much and never repeats anything."""
        client = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0), socket_timeout=5)
        self._stack.callback(client.close)
        return client

    def until_answers(self, server: Server) -> None:
        """Wait until a server answers, as whoever operates it would."""
        until_s = time.monotonic() + self.seconds + 20
        while time.monotonic() < until_s:
            client = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0), socket_timeout=0.1)
            with contextlib.closing(client), contextlib.suppress(redis.RedisError):
                if client.ping():
                    return
            self._repeating.wait(0.01)
        raise AssertionError("the server does not answer again")

    def repeat(self, action: Callable[[], object], every_s: float) -> Callable[[], None]:
        """Do something again and again, in a thread, until the returned function is called."""
        ended = threading.Event()

        def work() -> None:
            action()
            while not ended.wait(every_s):
                action()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()

        def end() -> None:
            ended.set()
            thread.join(60)

        self._stack.callback(end)
        return end

    def close(self) -> None:
        self._stack.close()

    def _stop_all(self) -> None:
        while self._servers:
            self._servers.popitem()[1].__exit__(None, None, None)


@dataclass(frozen=True)
class Fault:
    """A fault and what it may do.

    ``total``: while it lasts no decision has the store. ``paths``: those that may be decided without it. ``refuses``: the server says
    no and does nothing, so that whoever is decided without the store was not charged. ``forgets``: so often
    counters may be lost, which gives a fresh budget each time; None where that is without number. ``absent``: it is there from the start. ``names``: how looking up the
    store's name fails. ``seconds``: how long it lasts, where that is not for the test to choose. ``deadline_ms``: of a decision. ``ends_itself``: it does
    when its seconds are over, whether or not whoever ends it is in time.
    """

    name: str
    play: Callable[[Place], Play]
    total: bool = True
    paths: tuple[str, ...] = ("/local", "/open", "/closed", "/all")
    refuses: bool = False
    forgets: int | None = 0
    absent: bool = False
    names: str = ""
    seconds: float | None = None
    deadline_ms: int = DEADLINE_MS
    ends_itself: bool = False


def url(port: int, host: str = "127.0.0.1", deadline_ms: int = DEADLINE_MS, scheme: str = "redis") -> str:
    return f"{scheme}://{host}:{port}?timeout_ms={deadline_ms}&keys=plain"


def client_pause(place: Place) -> Play:
    server = place.server()
    admin = place.admin(server)
    yield url(server.port)
    admin.execute_command("CLIENT", "PAUSE", int(place.seconds * 1_000), "ALL")
    yield None
    place.until_answers(server)
    yield None


def sigstop(place: Place) -> Play:
    server = place.server()
    yield url(server.port)
    os.kill(server.pid, signal.SIGSTOP)
    yield None
    os.kill(server.pid, signal.SIGCONT)
    yield None


def asleep(place: Place) -> Play:
    server = place.server()
    sleeper = redis.Redis(port=server.port)
    yield url(server.port)
    thread = threading.Thread(target=sleeper.execute_command, args=("DEBUG", "SLEEP", place.seconds))
    thread.start()
    yield None
    thread.join()
    sleeper.close()
    yield None


def late_replies(place: Place) -> Play:
    server = place.server()
    proxy = place.proxy(server)
    yield url(proxy.port)
    proxy.delay_s = 2
    yield None
    proxy.delay_s = 0
    yield None


def out_of_memory(place: Place) -> Play:
    server = place.server("--maxmemory-policy", "noeviction")
    admin = place.admin(server)
    yield url(server.port)
    admin.config_set("maxmemory", 1)
    yield None
    admin.config_set("maxmemory", 0)
    yield None


def read_only(place: Place) -> Play:
    server = place.server()
    admin, nobody = place.admin(server), free_port_now()
    yield url(server.port)
    admin.execute_command("REPLICAOF", "127.0.0.1", nobody)
    yield None
    admin.execute_command("REPLICAOF", "NO", "ONE")
    yield None


def master_down(place: Place) -> Play:
    server = place.server("--replica-serve-stale-data", "no")
    admin, nobody = place.admin(server), free_port_now()
    yield url(server.port)
    admin.execute_command("REPLICAOF", "127.0.0.1", nobody)
    yield None
    admin.execute_command("REPLICAOF", "NO", "ONE")
    yield None


def loading(place: Place) -> Play:
    server = place.server()
    admin = place.admin(server)
    keys = max(int(place.seconds * 1_000), 1)
    admin.execute_command("DEBUG", "POPULATE", keys, "filler", 100)
    admin.save()
    yield url(server.port)
    place.stop(server)
    # A millisecond a key; between them it answers that it is loading.
    slow = ("--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024")
    server = place.server(*slow, port=server.port, wait=False)
    yield None
    place.until_answers(server)
    yield None


def cluster_down(place: Place) -> Play:
    server = place.server("--cluster-enabled", "yes", "--cluster-port", str(free_port_now()))
    admin = place.admin(server)

    def wait_for(state: str) -> None:
        until_s = time.monotonic() + 60
        while f"cluster_state:{state}" not in str(admin.execute_command("CLUSTER", "INFO")):
            assert time.monotonic() < until_s, f"the cluster does not become {state}"
            threading.Event().wait(0.01)

    admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
    wait_for("ok")
    yield url(server.port, scheme="redis+cluster")
    # Some of the slots belong to nobody: then a cluster serves none.
    admin.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 100)
    wait_for("fail")
    yield None
    admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 100)
    wait_for("ok")
    yield None


def cluster_failover(place: Place) -> Play:
    cluster = place.cluster()
    yield url(cluster.ports[0], scheme="redis+cluster")
    for master in cluster.masters():
        cluster.fail_over(master)
    yield None
    yield None


def master_killed(place: Place) -> Play:
    cluster = place.cluster()
    yield url(cluster.ports[-1], scheme="redis+cluster")
    victim = cluster.masters()[0]
    replica = cluster.replica_of(victim)
    cluster.kill(victim)
    yield None
    until(lambda: (cluster.ask(replica, "ROLE") or [b""])[0] == b"master", "the replica is not promoted")
    yield None


def password_set(place: Place) -> Play:
    server = place.server()
    admin = place.admin(server)
    yield url(server.port)
    admin.config_set("requirepass", "secret")
    admin.client_kill_filter(_type="normal", skipme=True)
    yield None
    admin.config_set("requirepass", "")
    yield None


def poisoned_key(place: Place) -> Play:
    server = place.server()
    admin = place.admin(server)
    yield url(server.port, deadline_ms=PATIENT_MS)

    def poison() -> None:
        for key in admin.scan_iter(match="*:closed:*"):
            # In one step: a check between the two would make the key anew.
            admin.pipeline(transaction=True).delete(key).lpush(key, "poison").execute()

    poison()
    yield None
    for key in admin.scan_iter(match="*:closed:*"):
        admin.delete(key)
    yield None


def again_and_again(command: str, every_s: float, place: Place) -> Play:
    server = place.server()
    admin = place.admin(server)
    yield url(server.port, deadline_ms=PATIENT_MS)
    end = place.repeat(getattr(admin, command), every_s)
    yield None
    end()
    yield None


script_flush = partial(again_and_again, "script_flush", 0.02)
flush_all = partial(again_and_again, "flushall", 0.2)


def half_open(place: Place) -> Play:
    server = place.server()
    proxy = place.proxy(server)
    yield url(proxy.port)
    proxy.swallowing = True
    yield None
    proxy.swallowing = False
    yield None


def stalled(place: Place) -> Play:
    server = place.server()
    proxy = place.proxy(server)
    yield url(proxy.port)
    proxy.passing.clear()
    yield None
    proxy.passing.set()
    yield None


def replies_cut(place: Place) -> Play:
    server = place.server()
    proxy = place.proxy(server)
    yield url(proxy.port)
    proxy.cut_replies = 1 << 40
    yield None
    proxy.cut_replies = 0
    yield None


def refused(place: Place) -> Play:
    server = place.server()
    yield url(server.port)
    place.stop(server)
    yield None
    place.server(port=server.port)
    yield None


def restarted(place: Place) -> Play:
    server = place.server()
    yield url(server.port)
    place.stop(server)
    place.server(port=server.port)
    yield None
    yield None


def absent_at_start(place: Place) -> Play:
    port = free_port_now()
    yield url(port)
    yield None
    place.server(port=port)
    yield None


def connecting_hangs(place: Place) -> Play:
    server = place.server()
    yield url(server.port)
    place.stop(server)
    # A listener whose queue is full: the system drops what else wants to connect.
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", server.port))
    listener.listen(0)
    queued = [socket.socket() for _ in range(4)]
    for waiting in queued:
        waiting.setblocking(False)
        waiting.connect_ex(("127.0.0.1", server.port))
    yield None
    for end in (*queued, listener):
        end.close()
    place.server(port=server.port)
    yield None


def busy(place: Place) -> Play:
    server = place.server("--lua-time-limit", "10")
    admin = place.admin(server)
    yield url(server.port)
    program = ("redis-cli", "-p", str(server.port), "EVAL", "while true do end", "0")
    endless = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield None
    admin.script_kill()
    endless.wait(60)
    yield None


def too_many_clients(place: Place) -> Play:
    server = place.server()
    admin = place.admin(server)
    yield url(server.port)
    admin.config_set("maxclients", 1)
    admin.client_kill_filter(_type="normal", skipme=True)
    yield None
    admin.config_set("maxclients", 1_000)
    yield None


def name_lookup(place: Place) -> Play:
    # The names of the process under load are looked up by itself, see there.
    server = place.server()
    yield url(server.port, "redis.test")
    yield None
    yield None


FAULTS = (
    Fault("client-pause", client_pause, ends_itself=True),
    Fault("sigstop", sigstop),
    Fault("asleep-for-2-s", asleep, seconds=2, ends_itself=True),
    Fault("replies-after-2-s", late_replies),
    Fault("oom", out_of_memory, refuses=True),
    Fault("readonly", read_only, refuses=True),
    Fault("masterdown", master_down, refuses=True),
    Fault("loading", loading, forgets=1, ends_itself=True),
    Fault("clusterdown", cluster_down, refuses=True),
    # A master that takes over has what was replicated to it.
    Fault("cluster-failover", cluster_failover, total=False, forgets=1, seconds=1),
    Fault("master-killed", master_killed, total=False, forgets=1, seconds=1),
    Fault("noauth", password_set, refuses=True),
    Fault("wrongtype", poisoned_key, total=False, paths=("/closed", "/all"), forgets=1, deadline_ms=PATIENT_MS),
    Fault("script-flush", script_flush, total=False, paths=(), deadline_ms=PATIENT_MS),
    Fault("flushall", flush_all, total=False, paths=(), forgets=None, deadline_ms=PATIENT_MS),
    Fault("half-open", half_open),
    Fault("stalled", stalled),
    Fault("replies-cut", replies_cut),
    Fault("refused", refused, forgets=1),
    Fault("restarted", restarted, total=False, forgets=1, seconds=0.2),
    Fault("absent-at-start", absent_at_start, absent=True),
    Fault("connecting-hangs", connecting_hangs, forgets=1),
    Fault("busy", busy, refuses=True, seconds=2),
    Fault("maxclients", too_many_clients, refuses=True),
    Fault("name-unknown", name_lookup, absent=True, names="fail"),
    Fault("name-lookup-hangs", name_lookup, absent=True, names="hang"),
)
