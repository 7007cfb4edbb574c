"""Requests per second of ``/v1/check``: this server beside a bare ASGI app under uvicorn, in one run on one core each.

    python bench/http_check.py [--seconds 3] [--rounds 2]

Both servers are pinned to one core and the load generator to another (where there are two). Every request is an inline
token bucket check of one of 10,000 keys. The peer does what is needed and nothing more: the body decoded by msgspec, one
bucket in a dict, the answer encoded by msgspec; no validation, no rate headers, no bound on its memory. Each run follows a
second of warming up. Rounds alternate between the servers and the best of each counts, so that what else runs on the
machine hits both alike. The load comes from wrk with 64 connections where it is installed, else from a small generator in
this file, which is slower than the servers and therefore understates the ratio.

Printed: requests a second, and requests per second of processor time of the server, which other work on the machine changes
much less and which is what a core of its own would give; the ratio of both to uvicorn's; and checks a second in batches of
64, once where nearly every check passes and once where nearly all are refused. A ``unique head`` row repeats the single
check with a header field that differs in every request, which the memo of request heads cannot know.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from _report import of_rates, of_ratios, tell

KEYS = 10_000
BATCH = 64
CONNECTIONS = 64
WARM_UP_S = 1
PLENTY = {"algorithm": "token_bucket", "capacity": 1_000_000, "refill_per_sec": 1_000_000}
SCARCE = {"algorithm": "token_bucket", "capacity": 100, "refill_per_sec": 10}

LUA = """
local bodies = {}
for line in io.lines("%s") do bodies[#bodies + 1] = line end
local i = 0
function init(args)
  wrk.method = "POST"
  wrk.path = "%s"
  wrk.headers["Content-Type"] = "application/json"
end
function request()
  i = i %% #bodies + 1
  if %s then wrk.headers["X-Request-Id"] = i .. "-" .. math.random(1000000000) end
  return wrk.format(nil, nil, nil, bodies[i])
end
"""

PEER = """
import msgspec, time
class Policy(msgspec.Struct):
    algorithm: str
    capacity: int
    refill_per_sec: float
class Check(msgspec.Struct):
    key: str
    policy: Policy
    cost: int = 1
decode = msgspec.json.Decoder(Check).decode
encode = msgspec.json.Encoder().encode
buckets = {}
async def app(scope, receive, send):
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    check = decode(body)
    now = time.monotonic()
    capacity, rate, cost = check.policy.capacity, check.policy.refill_per_sec, check.cost
    tokens, then = buckets.get(check.key, (capacity, now))
    tokens = min(capacity, tokens + (now - then) * rate)
    allowed = tokens >= cost
    if allowed:
        tokens -= cost
    buckets[check.key] = (tokens, now)
    wait = (capacity - tokens) / rate if allowed else (cost - tokens) / rate
    answer = encode({"allowed": allowed, "remaining": int(tokens), "limit": capacity, "reset_ms": int(wait * 1000) + 1})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200 if allowed else 429, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
"""

OURS = """
import asyncio, gc, sys, uvloop
from sluicegate.clock import SystemClock
from sluicegate.doors.http.door import HttpDoor
from sluicegate.doors.listen import Address, open_listener
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.model import RuleSet
async def main():
    clock = SystemClock()
    limiter = Limiter.from_rules(RuleSet(rules=()), clock=clock)
    door = HttpDoor(limiter, clock=clock, ready=lambda: (True, {}), metrics=lambda: ("text/plain", b""))
    listener = await open_listener(Address.parse("127.0.0.1:0"), door.protocol_factory)
    gc.collect()
    gc.freeze()  # as `sluicegate` does when it has started
    print(listener.address.port, flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


def bodies(policy: dict[str, object], batch: int) -> list[str]:
    """Every key once, as single checks or in batches, in an order that is the same on every run."""
    checks = [
        json.dumps(
            {"key": f"user:{i * 7919 % KEYS}:POST:/api/v1/shorten", "cost": 1, "policy": policy}, separators=(",", ":")
        )
        for i in range(KEYS)
    ]
    if batch == 1:
        return checks
    return [f"[{','.join(checks[i : i + batch])}]" for i in range(0, KEYS - batch + 1, batch)]


@contextlib.contextmanager
def server(code: str, folder: Path, core: int | None) -> Iterator[tuple[int, int]]:
    """Run one of the servers on its core; gives its port and process."""
    pin = ["taskset", "-c", str(core)] if core is not None else []
    if code is PEER:
        (folder / "peer.py").write_text(PEER)
        options = [
            "--app-dir",
            str(folder),
            "--port",
            "0",
            "--http",
            "httptools",
            "--loop",
            "uvloop",
            "--no-access-log",
        ]
        command = [*pin, sys.executable, "-m", "uvicorn", "peer:app", *options, "--log-level", "info"]
    else:
        command = [*pin, sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            found = re.search(r"127\.0\.0\.1:(\d+)|^(\d+)$", line)
            if found:
                yield int(found[1] or found[2]), process.pid
                return
        raise SystemExit(f"a server did not start: {command}")
    finally:
        process.terminate()
        process.wait(10)


def wrk(port: int, path: str, lines: list[str], seconds: int, core: int | None, folder: Path, unique: bool) -> float:
    """Requests per second by wrk. Answers other than 200 and 429, and broken sockets, end the run."""
    (folder / "bodies.txt").write_text("\n".join(lines) + "\n")
    (folder / "load.lua").write_text(LUA % (folder / "bodies.txt", path, "true" if unique else "false"))
    pin = ["taskset", "-c", str(core)] if core is not None else []
    command = [*pin, "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(folder / "load.lua")]
    out = subprocess.run([*command, f"http://127.0.0.1:{port}"], check=True, capture_output=True, text=True).stdout
    if "Socket errors" in out:
        raise SystemExit(out)
    found = re.search(r"Requests/sec:\s+([\d.]+)", out)
    assert found is not None
    return float(found[1])


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, where the system tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def small_load(port: int, path: str, lines: list[str], seconds: int) -> float:
    """The same load without wrk."""
    return asyncio.run(clients(port, path, lines, seconds))


async def clients(port: int, path: str, lines: list[str], seconds: int) -> float:
    """Requests per second of 64 clients that wait for each answer."""
    requests = [f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(b)}\r\n\r\n{b}".encode() for b in lines]
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    done = 0

    async def client(at: int) -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while loop.time() < end_s:
            writer.write(requests[at % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert found is not None
            await reader.readexactly(int(found[1]))
            at += CONNECTIONS
            done += 1
        writer.close()

    await asyncio.gather(*(client(i) for i in range(CONNECTIONS)))
    return done / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    pinned = len(cores) > 1 and shutil.which("taskset") is not None
    server_core, load_core = (cores[0], cores[1]) if pinned else (None, None)
    has_wrk = shutil.which("wrk") is not None
    runs = [
        ("uvicorn", PEER, "/v1/check", bodies(PLENTY, 1), False),
        ("sluicegate", OURS, "/v1/check", bodies(PLENTY, 1), False),
        ("sluicegate, unique head", OURS, "/v1/check", bodies(PLENTY, 1), True),
        ("batch of 64, passing", OURS, "/v1/check/batch", bodies(PLENTY, BATCH), False),
        ("batch of 64, refused", OURS, "/v1/check/batch", bodies(SCARCE, BATCH), False),
    ]
    walls: dict[str, list[float]] = {title: [] for title, *_ in runs}
    cpus: dict[str, list[float]] = {title: [] for title, *_ in runs}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(options.rounds):
            for title, code, path, lines, unique in runs:
                with server(code, folder, server_core) as (port, pid):
                    load = partial(wrk, core=load_core, folder=folder, unique=unique) if has_wrk else small_load
                    load(port, path, lines, WARM_UP_S)
                    used_s = cpu_s(pid)
                    rate = load(port, path, lines, options.seconds)
                    used_s = cpu_s(pid) - used_s
                per_cpu = rate * options.seconds / used_s if used_s else 0.0
                walls[title].append(rate)
                cpus[title].append(per_cpu)
    print(f"load: {'wrk' if has_wrk else 'built-in generator'}, {CONNECTIONS} connections; pinned: {pinned}")
    for title, each in walls.items():
        rate, per_cpu = max(each), max(cpus[title])
        checks = (
            f"{rate * BATCH:>12,.0f} checks/s{per_cpu * BATCH:>14,.0f} per CPU s" if title.startswith("batch") else ""
        )
        print(f"{title:<26}{rate:>10,.0f} requests/s{per_cpu:>10,.0f} per CPU s{checks}")
    figures = [
        of_ratios("/v1/check: times the requests of uvicorn, per CPU second", cpus["sluicegate"], cpus["uvicorn"], 2.0),
        of_ratios("/v1/check: times the requests of uvicorn, per second", walls["sluicegate"], walls["uvicorn"], 2.0),
        of_ratios(
            "/v1/check, unique heads: times the requests of uvicorn, per CPU second",
            cpus["sluicegate, unique head"],
            cpus["uvicorn"],
        ),
    ]
    for title in ("batch of 64, passing", "batch of 64, refused"):
        for unit, rates in (("checks per CPU second", cpus), ("checks per second", walls)):
            figures.append(of_rates(f"{title}: {unit}", [rate * BATCH for rate in rates[title]], "", 1_000_000))
    tell(figures)


if __name__ == "__main__":
    main()
