"""Many processes on one counter at once: what is admitted is the limit, not one more and not one less.

Each of eight processes has fifty connections. All of a process's calls are sent before the first reply is read; the processes begin
together, at a moment agreed upon. The server's answers carry the server's time, and each process says when its calls began and
ended by the machine's monotonic clock, so the test can prove that calls of several processes were under way at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

PROCESSES = 8
CALLS = 50
ROUNDS = 3
LIMIT = 100

PROGRAM = """
import asyncio, json, sys, time
from sluicegate.algorithms import FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore

url, rounds, calls, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
YEAR = 365 * 86_400_000_000
SPECS = {
    "token_bucket": TokenBucket(limit, 1, 86_400_000_000),
    "leaky_bucket": LeakyBucket(limit, 1, 86_400_000_000, nodelay=True),
    "fixed_window": FixedWindow(limit, 10 * YEAR),
    "sliding_window": SlidingWindow(limit, 10 * YEAR),
    "strict": SlidingWindow(limit, 10 * YEAR, sub_windows=6),
    "sliding_log": SlidingLog(limit, YEAR),
}

def counter(name, spec):
    return Counter(name, spec, counter_prefix("race", name, spec.algorithm, spec.shape))

async def main():
    store = RedisStore(url)
    wide = counter("wide", TokenBucket(100_000, 1, 3_600_000_000))
    async def one(request):
        answer = await store.adecide_one(request)
        return answer.admitted
    await asyncio.gather(*(store.adecide_one([(wide, "warm", 0)], peek=True) for _ in range(calls)))
    print("ready", flush=True)
    for line in sys.stdin:
        start = float(line)
        found = {}
        name, _, number = "", "", 0
        for place, (name, spec) in enumerate(SPECS.items()):
            for number in range(rounds):
                tight = counter(name + str(number), spec)
                other = counter("other" + name + str(number), TokenBucket(100_000, 1, 3_600_000_000))
                request = [(other, "s", 1), (tight, "s", 1), (wide, "s" + name + str(number), 1)]
                at = start + 0.08 * (place * rounds + number)
                await asyncio.sleep(max(at - time.monotonic() - 0.002, 0))
                while time.monotonic() < at:
                    pass
                began = time.monotonic()
                admitted = await asyncio.gather(*(one(request) for _ in range(calls)))
                found[name + str(number)] = [sum(admitted), began, time.monotonic()]
        left = {}
        for key in found:
            request = [(counter("other" + key, TokenBucket(100_000, 1, 3_600_000_000)), "s", 0), (wide, "s" + key, 0)]
            answer = await store.adecide_one(request, peek=True)
            left[key] = [verdict.remaining for verdict in answer.verdicts()]
        print(json.dumps({"found": found, "left": left}), flush=True)
        break
    await store.aclose()

asyncio.run(main())
"""


def race(url: str) -> list[dict[str, Any]]:
    """What each process says of its calls."""
    arguments = [sys.executable, "-c", PROGRAM, url.replace("5000", "20000"), str(ROUNDS), str(CALLS), str(LIMIT)]
    processes = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        start = time.monotonic() + 0.2
        for process in processes:
            process.stdin.write(f"{start}\n")
            process.stdin.flush()
        return [json.loads(process.communicate(timeout=50)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


@pytest.mark.slow
def test_exactly_the_limit_is_admitted(server) -> None:
    """400 calls at once on a limit of 100 admit exactly 100, for every algorithm, and a refused call charges nobody."""
    said = race(server.url)
    names = list(said[0]["found"])
    assert len(names) == 6 * ROUNDS
    together = []
    for name in names:
        assert sum(process["found"][name][0] for process in said) == LIMIT, name
        spans = [process["found"][name][1:] for process in said]
        # So many processes had calls under way at the moment the last of them began, or when any other did.
        together.append(max(sum(began <= moment < ended for began, ended in spans) for moment, _ in spans))
    assert min(together) >= 2, together
    assert sum(together) / len(together) >= 4, together
    # The last process to finish saw all charges: one per admitted call in both wide counters.
    for name in names:
        assert min(process["left"][name][0] for process in said) == 100_000 - LIMIT
        assert min(process["left"][name][1] for process in said) == 100_000 - LIMIT
