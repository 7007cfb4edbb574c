"""Bytes of memory per client: in Redis, in the plain and in the packed layout, and in a process that stands in front of it.

In Redis: the growth of ``used_memory`` divided by the clients, one token bucket of a free tier (100/minute) for each. ``--asked`` clients come through
the scripts that decide, in calls of 256 requests; their time is given to the scripts, so that no epoch ends meanwhile. The packed
layout is filled by as many clients as were expected, then asked again by half of them in the next epoch (each of their counters moves to
a hash of that epoch), then by the others; and filled by half and by twice as many as were expected.

``--written`` clients are written without the scripts: keys, fields, values and times to live of the same bytes, with digests drawn at random. That
takes a tenth of the time, and says what so many clients take together.

In a process: what ``tracemalloc`` counts for the refusals that are remembered and the counters that are leased.

    python bench/memory.py [--asked 1000000] [--written 10000000]
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import time
import tracemalloc
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from random import Random

import hiredis
import redis
from _report import Figure, number, table, tell
from _servers import cores, redis_server

from sluicegate.algorithms import Precision, TokenBucket
from sluicegate.bounds import REDIS_HASH_CLIENTS
from sluicegate.clock import ManualClock
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.near.denials import Denials
from sluicegate.stores.near.leases import Leases
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.redis.definitions import CounterForm
from sluicegate.stores.redis.layout import EPOCHS_S, PLAIN_LAYOUT, Layout, placing
from sluicegate.stores.redis.packing import Packing
from sluicegate.stores.redis.secret import Subjects

BATCH = 256
IN_FLIGHT = 16
GOAL_BYTES = 50.0
FREE = TokenBucket(100, 100, 60_000_000)
_HEAD = FREE.capacity.to_bytes(5, "little") + FREE.tokens.to_bytes(5, "little") + FREE.period_us.to_bytes(7, "little")
DENIALS, LEASES = 100_000, 10_000


class Filled:
    """A server, and a layout of counters in it."""

    def __init__(self, port: int, layout: Layout) -> None:
        self.layout = layout
        self.client = redis.Redis(port=port)
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.reader = hiredis.Reader()
        self.clock = ManualClock()
        # The beginning of an epoch: time does not pass.
        self.clock.set(self.clock.now_us() // (EPOCHS_S[0] * 1_000_000) * EPOCHS_S[0] * 1_000_000)
        subjects = Subjects(plain=False, secret=b"the secret of a benchmark", layout=layout)
        self.packing = Packing(subjects, self.clock, "here", self.clock)
        self.counter = Counter("free", FREE, counter_prefix("default", "free", FREE.algorithm, FREE.shape))
        for script in self.packing.scripts.loaded:
            self.client.script_load(script.text)
        self.empty = self.used()

    def used(self) -> int:
        """The server's memory, counters and all."""
        return int(self.client.info("memory")["used_memory"])

    def ask(self, first: int, count: int) -> None:
        """One request of each of these clients."""
        waiting = 0
        counter, decide = self.counter, self.packing.decide
        for start in range(first, first + count, BATCH):
            end = min(start + BATCH, first + count)
            command = decide([[(counter, f"user:{user}", 1)] for user in range(start, end)])
            self.socket.sendall(hiredis.pack_command(command.parts()))
            waiting += 1
            if waiting >= IN_FLIGHT:
                self.take(waiting // 2)
                waiting -= waiting // 2
        self.take(waiting)

    def write(self, clients: int, layout: Layout) -> None:
        """So many clients as the scripts would have written them, one use each."""
        form = self.packing.form(self.counter)
        now_us = self.clock.now_us()
        waiting = 0
        for words in _hashes(form, layout, clients, now_us) if layout.packed else _keys(form, clients, now_us):
            self.socket.sendall(hiredis.pack_command(words))
            waiting += 1
            if waiting >= 1_000:
                self.take(500)
                waiting -= 500
        self.take(waiting)

    def take(self, replies: int) -> None:
        """Read so many replies."""
        while replies:
            reply = self.reader.gets()
            if reply is False:
                self.reader.feed(self.socket.recv(1 << 16))
            elif isinstance(reply, Exception):
                raise reply
            else:
                replies -= 1

    def bytes_per_client(self, clients: int) -> float:
        """Of all that was filled."""
        return (self.used() - self.empty) / clients


def _keys(form: CounterForm, clients: int, now_us: int) -> Iterator[tuple[bytes, ...]]:
    """The commands of the plain layout."""
    head, tail = form.head.encode(), form.tail.encode()
    for _ in range(clients):
        digest = urlsafe_b64encode(os.urandom(16)).rstrip(b"=")
        state = struct.pack("<QI", now_us + FREE.period_us // FREE.tokens, 0) + b"\0"
        text = _HEAD + now_us.to_bytes(7, "little") + state
        yield (b"SET", head + b"{" + digest + b"}" + tail, text, b"PX", b"7200000")


def _hashes(form: CounterForm, layout: Layout, clients: int, now_us: int) -> Iterator[tuple[bytes, ...]]:
    """The commands of the packed layout: each client in a bucket drawn at random."""
    draw = Random(1)
    head, tail = form.frame
    numbers = placing(form.counter, layout, None)[1]
    seconds, value_head = numbers[0], numbers[2]
    assert isinstance(seconds, int)
    assert isinstance(value_head, bytes)
    epoch = now_us // (seconds * 1_000_000)
    base_us = (epoch - 2) * seconds * 1_000_000
    state = struct.pack("<II", now_us - base_us, now_us + FREE.period_us // FREE.tokens - base_us) + b"\0"
    sizes = [0] * layout.buckets
    for _ in range(clients):
        sizes[draw.randrange(layout.buckets)] += 1
    for bucket, size in enumerate(sizes):
        name = head + f"{{{layout.tag}{bucket}}}".encode() + tail + b"%d:%d" % (seconds, epoch)
        if size:
            yield (b"HSET", name, *[word for _ in range(size) for word in (os.urandom(8), value_head + state)])
            yield (b"PEXPIRE", name, b"1999000", b"NX")


@contextmanager
def filled(core: int | None, expected: int) -> Iterator[Filled]:
    """A new server in the layout for so many expected clients, 0 for the plain one."""
    layout = Layout(-(-expected // REDIS_HASH_CLIENTS)) if expected else PLAIN_LAYOUT
    with redis_server(core) as port:
        here = Filled(port, layout)
        with closing(here.client), closing(here.socket):
            yield here


def written(core: int | None, clients: int) -> list[Figure]:
    """Bytes per client in both layouts, written without the scripts."""
    figures = []
    for expected, what in ((0, "plain"), (clients, "packed")):
        began = time.monotonic()
        with filled(core, expected) as here:
            here.write(clients, here.layout)
            size = here.bytes_per_client(clients)
            print(
                f"{what}: {clients:,} clients written in {time.monotonic() - began:.0f} s: {here.client.dbsize():,} keys, "
                f"used_memory {here.used():,}, resident {here.client.info('memory')['used_memory_rss']:,}",
                flush=True,
            )
        goal = GOAL_BYTES if expected else None
        figures.append(
            Figure(f"Redis: {what}, {clients:,} clients written", size, "bytes", size, size, goal, at_most=True)
        )
    return figures


def in_redis(core: int | None, clients: int) -> list[Figure]:
    """Bytes per client in both layouts, through the scripts."""
    figures = []

    def note(what: str, value: float, goal: float | None = None) -> None:
        figures.append(Figure(f"Redis: {what}", value, "bytes", value, value, goal, at_most=True))

    began = time.monotonic()
    with filled(core, 0) as plain:
        plain.ask(0, clients)
        note(f"plain, {clients:,} clients", plain.bytes_per_client(clients))
    print(f"plain: filled in {time.monotonic() - began:.0f} s", flush=True)
    began = time.monotonic()
    with filled(core, clients) as packed:
        packed.ask(0, clients)
        note(f"packed, {clients:,} clients", packed.bytes_per_client(clients), GOAL_BYTES)
        print(f"packed: filled in {time.monotonic() - began:.0f} s, {packed.client.dbsize():,} hashes", flush=True)
        large = sum(
            packed.client.object("encoding", key) != b"listpack" for key in packed.client.scan_iter(count=1_000)
        )
        assert not large, f"{large} hashes are no small ones"
        packed.clock.advance(EPOCHS_S[0] * 1_000_000)
        packed.ask(0, clients // 2)
        note("packed, half of them in the next epoch", packed.bytes_per_client(clients), GOAL_BYTES)
        packed.ask(clients // 2, clients - clients // 2)
        note("packed, all of them in the next epoch", packed.bytes_per_client(clients), GOAL_BYTES)
    few = clients // 5
    for expected, what in ((2 * few, "half as many as were expected"), (few // 2, "twice as many as were expected")):
        with filled(core, expected) as other:
            other.ask(0, few)
            note(f"packed, {what}", other.bytes_per_client(few))
    return figures


def in_a_process() -> list[Figure]:
    """Bytes per refusal that is remembered and per counter that is leased, as many as a process keeps."""
    settings = NearSettings()
    prefix = counter_prefix("default", "free", FREE.algorithm, FREE.shape)
    counter = Counter("free", FREE, prefix, precision=Precision.LEASED)

    def refusals() -> Denials:
        denials = Denials(DENIALS, settings.trust_us, settings.terms)
        for user in range(DENIALS):
            denials.learn(f"{prefix}user:{user}", FREE, 1, 500_000, 1_000_000, denials.epoch, 1_001_000)
        return denials

    def leases() -> Leases:
        held = Leases(settings)
        for user in range(LEASES):
            assert held.find(counter, f"user:{user}", 1_000_000) is not None
        return held

    return [
        _traced(f"a process: a refusal that is remembered, {DENIALS:,} of them", refusals, DENIALS),
        _traced(f"a process: a counter that is leased, {LEASES:,} of them", leases, LEASES),
    ]


def _traced(what: str, make: Callable[[], object], count: int) -> Figure:
    tracemalloc.start()
    made = make()
    size = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    del made
    return Figure(what, size, "bytes", size, size)


def main() -> None:
    """Measure, print, tell the figures."""
    parser = argparse.ArgumentParser(description="bytes per client")
    parser.add_argument(
        "--asked", type=int, default=1_000_000, help="clients that come through the scripts (default %(default)s)"
    )
    parser.add_argument(
        "--written", type=int, default=10_000_000, help="clients that are written without them (default %(default)s)"
    )
    arguments = parser.parse_args()
    client, server = cores()
    if client is not None:
        os.sched_setaffinity(0, {client})
    figures = [*in_a_process(), *in_redis(server, arguments.asked), *written(server, arguments.written)]
    print(table([("bytes per client", ""), *((figure.name, number(figure.value)) for figure in figures)]))
    tell(figures)


if __name__ == "__main__":
    main()
