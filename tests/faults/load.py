"""The load while a fault happens: checks at a steady rate, of a limiter in this process or of a server.

Reads its settings, one JSON object, from the first line of its input, says ``ready``, begins at the line ``go`` and ends at ``stop``; then it writes one JSON
object to the file ``result`` and says ``done``. Its times are microseconds of the machine's monotonic clock, so that they can be compared with when
the fault began and ended.

``checks`` are of the event loop, ``calls`` of a thread that waits for each answer (of a limiter only): rows ``[began, latency, path, flags]``.
``ticks``: when the loop ran, how late, for how long the machine had this process wait for a processor, and the server, where there is one.
``sizes``: when, resident bytes, threads, open files of the process that decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Any, Protocol

from sluicegate.limiter import Limiter
from sluicegate.limiter.decision import Decision
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

TICK_S = 0.005
SIZES_EVERY = 10
BURST_MAX = 50
"""A loop that was held up does not send more than so many checks at once to catch up."""

ALLOWED, DEGRADED, UNAVAILABLE, WRONG, TOLD_UP, TOLD_DOWN = 1, 2, 4, 8, 16, 32
HOST = "redis.test"
CONNECTIONS = 64
"""Connections to the server; a check takes one that is idle."""


def now_us() -> int:
    return time.monotonic_ns() // 1_000


class Rows:
    """Rows of four numbers. Their memory is there from the beginning, so that only the limiter's can grow."""

    def __init__(self, most: int) -> None:
        self._cells = array("q", bytes(most * 4 * 8))
        self._most, self._used = most, 0

    def add(self, *row: int) -> None:
        place = self._used
        if place < self._most:
            self._cells[place * 4 : place * 4 + 4] = array("q", row)
            self._used = place + 1

    def table(self) -> list[list[int]]:
        return [list(self._cells[place * 4 : place * 4 + 4]) for place in range(self._used)]


class Names:
    """What looking up ``HOST`` gives: an error, or nothing for a long time, until the fault is over."""

    def __init__(self, how: str) -> None:
        self._how, self._plain = how, socket.getaddrinfo
        self.healed = threading.Event()
        socket.getaddrinfo = self._look_up  # type: ignore[assignment]

    def _look_up(self, host: Any, *rest: Any, **more: Any) -> Any:
        if host not in (HOST, HOST.encode()):
            return self._plain(host, *rest, **more)
        if not self.healed.is_set():
            if self._how == "hang":
                self.healed.wait(3)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._plain("127.0.0.1", *rest, **more)


def without_store(how: Iterable[str | None]) -> bool:
    """Whether a decision was made without the store, by what its rules say; a hand-over after an outage has the store."""
    return any(word not in (None, "handover") for word in how)


def told_by(ready: dict[str, Any]) -> int:
    """What ``/readyz`` says of the store's servers."""
    down = [server for server in ready["servers"] if server["state"] == "down"]
    if not down:
        return TOLD_UP
    return TOLD_DOWN if ready["degraded_since"] and all(server["error"] for server in down) else WRONG


class Decider(Protocol):
    """Who is asked. ``pid``: the process that decides."""

    pid: int | str

    def check(self, path: str) -> Awaitable[tuple[int, int]]:
        """(flags, when it was asked) of one check."""
        ...

    def call(self, path: str) -> int | None:
        """The flags of one check, from a thread that waits; None where there is no such way."""
        ...

    async def open(self) -> None:
        """Make ready on the running event loop."""
        ...

    async def close(self) -> None: ...


class InProcess:
    """A limiter in this process."""

    pid: int | str = "self"

    def __init__(self, settings: dict[str, Any]) -> None:
        # Every check asks the store, so that every check meets the fault.
        ruleset = load_rules(settings["rules"].encode(), "rules.yaml")
        self._limiter = Limiter.from_rules(ruleset, settings["url"], near=None)

    async def check(self, path: str) -> tuple[int, int]:
        began_us = now_us()
        return self._flags(await self._limiter.acheck(Facts(path=path, user="async"))), began_us

    def call(self, path: str) -> int | None:
        return self._flags(self._limiter.check(Facts(path=path, user="sync")))

    def _flags(self, decision: Decision) -> int:
        unavailable = not decision.allowed and decision.refusal == "store"
        degraded = decision.degraded and without_store(result.degraded for result in decision.results)
        return ALLOWED * decision.allowed + DEGRADED * degraded + UNAVAILABLE * unavailable

    async def open(self) -> None:
        """Nothing is to be made ready: connections are made by need."""

    async def close(self) -> None:
        await self._limiter.aclose()


class OverHttp:
    """A server of its own, asked over HTTP; each tenth request asks whether it is ready."""

    def __init__(self, settings: dict[str, Any]) -> None:
        folder = Path(settings["result"]).parent
        (folder / "rules.yaml").write_text(settings["rules"])
        arguments = ["serve", "--rules", str(folder / "rules.yaml"), "--store", settings["url"]]
        arguments += ["--api", "127.0.0.1:0", "--data", str(folder), "--no-leases", "--no-deny-cache"]
        with (folder / "server.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sluicegate", *arguments], stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.pid: int | str = self._process.pid
        self._port = 0
        while not self._port:
            line = self._process.stdout.readline()
            assert line, "the server ended"
            found = re.match(r"api +http://127\.0\.0\.1:(\d+)", line)
            self._port = int(found[1]) if found else 0
        self._idle: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()
        self._asked = 0

    async def open(self) -> None:
        for _ in range(CONNECTIONS):
            self._idle.put_nowait(await asyncio.open_connection("127.0.0.1", self._port))

    async def check(self, path: str) -> tuple[int, int]:
        self._asked += 1
        reader, writer = await self._idle.get()
        body = b'{"facts":{"path":"%s","user":"async"}}' % path.encode()
        began_us, told = now_us(), 0
        if self._asked % 10 == 0:
            # In front of the check, on the same connection: an answer that waited for the store would be late itself.
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
            status, document = await self._answer(reader)
            told = told_by(document) if status == 200 else WRONG
        writer.write(b"POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        status, document = await self._answer(reader)
        self._idle.put_nowait((reader, writer))
        if status not in (200, 429, 503):
            return WRONG, began_us
        unavailable = status == 503
        degraded = unavailable or without_store(result.get("degraded") for result in document["rules"])
        return told + ALLOWED * (status == 200) + DEGRADED * degraded + UNAVAILABLE * unavailable, began_us

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        assert length is not None, head
        return int(head[9:12]), json.loads(await reader.readexactly(int(length[1])))

    def call(self, path: str) -> int | None:
        return None

    async def close(self) -> None:
        for _ in range(CONNECTIONS):
            self._idle.get_nowait()[1].close()
        self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class Load:
    def __init__(self, decider: Decider, settings: dict[str, Any]) -> None:
        self._decider = decider
        self._paths: list[str] = settings["paths"]
        self._rate, seconds_max = settings["rate"], settings["seconds_max"]
        self._checks = Rows(int(self._rate * seconds_max * 1.2))
        self._calls = Rows(int(100 * seconds_max))
        self._ticks = Rows(int(seconds_max / TICK_S))
        self._sizes = Rows(int(seconds_max / TICK_S / SIZES_EVERY) + 1)
        self._stop = threading.Event()
        self._pending: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, object]:
        await self._decider.open()
        caller = threading.Thread(target=self._call)
        watcher = asyncio.create_task(self._watch())
        caller.start()
        began_s, sent = time.monotonic(), 0
        while not self._stop.is_set():
            due = min(int((time.monotonic() - began_s) * self._rate) - sent, BURST_MAX)
            for number in range(sent, sent + due):
                task = asyncio.create_task(self._check(number % len(self._paths)))
                self._pending.add(task)
                task.add_done_callback(self._pending.discard)
            sent += due
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*self._pending)
        await watcher
        await asyncio.to_thread(caller.join)
        await self._decider.close()
        tables = {"checks": self._checks, "calls": self._calls, "ticks": self._ticks, "sizes": self._sizes}
        return {name: rows.table() for name, rows in tables.items()}

    async def _check(self, place: int) -> None:
        flags, began_us = await self._decider.check(self._paths[place])
        self._checks.add(began_us, now_us() - began_us, place, flags)

    def _call(self) -> None:
        number = 0
        while not self._stop.wait(0.02):
            number += 1
            place = number % len(self._paths)
            began_us = now_us()
            flags = self._decider.call(self._paths[place])
            if flags is None:
                return
            self._calls.add(began_us, now_us() - began_us, place, flags)

    async def _watch(self) -> None:
        pid = self._decider.pid
        own, server = Delays("self"), Delays(pid) if pid != "self" else None
        number = 0
        while not self._stop.is_set():
            due_us = now_us() + int(TICK_S * 1e6)
            await asyncio.sleep(TICK_S)
            seen_us = now_us()
            self._ticks.add(seen_us, max(seen_us - due_us, 0), own.more_us(), 0 if server is None else server.more_us())
            if number % SIZES_EVERY == 0:
                threads, files = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("task", "fd"))
                self._sizes.add(seen_us, resident_bytes(pid), threads, files)
            number += 1

    def stop(self) -> None:
        self._stop.set()


class Delays:
    """For how long the threads of a process were ready to run and the machine had no processor for them.

    All threads: one that waits for its turn may hold the lock that the loop waits for.
    """

    def __init__(self, pid: int | str) -> None:
        self._folder = Path(f"/proc/{pid}/task")
        self._seen: dict[str, int] = {}
        self.more_us()

    def more_us(self) -> int:
        """How much was added since the last call."""
        before, self._seen = self._seen, {}
        for thread in os.listdir(self._folder):
            # A thread may end in between.
            with contextlib.suppress(OSError), open(self._folder / thread / "schedstat", "rb") as file:
                self._seen[thread] = int(file.read().split()[1]) // 1_000
        return sum(delay - before.get(thread, 0) for thread, delay in self._seen.items())


def resident_bytes(pid: int | str) -> int:
    with open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    names = Names(settings["names"]) if settings["names"] else None
    with contextlib.ExitStack() as stack:
        decider: Decider
        if settings["server"]:
            decider = OverHttp(settings)
            stack.callback(decider.kill)
        else:
            decider = InProcess(settings)
        load = Load(decider, settings)

        def obey() -> None:
            for line in sys.stdin:
                if line == "heal\n" and names is not None:
                    names.healed.set()
                if line == "stop\n":
                    # A check that never ends is seen by whoever reads the log, instead of being waited for.
                    faulthandler.dump_traceback_later(30, exit=True)
                    load.stop()

        print("ready", flush=True)
        assert sys.stdin.readline() == "go\n"
        threading.Thread(target=obey, daemon=True).start()
        # As the server does it: what was made at the start is not looked at again by the collector.
        gc.collect()
        gc.freeze()
        if settings["loop"] == "uvloop":
            import uvloop

            found = uvloop.run(load.run())
        else:
            found = asyncio.run(load.run())
    with open(settings["result"], "w") as file:
        json.dump(found, file)
    print("done", flush=True)


main()
