"""Admission by chance in real processes on a real server."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.testing.intervals import busiest

WORKER = Path(__file__).parent / "estimating.py"
PROCESSES = 3
RATE = 400


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "&layout=packed&expected_clients=1000"], ids=["plain", "packed"])
def test_processes_admit_the_rate_together(servers, require_program: Callable[[str], str], more: str) -> None:
    """Three processes offer a bit less than the limit, then many times that: they admit the limit, and at the jump no more than is stated."""
    server = servers.empty("redis", require_program)
    paced_s, fast_s = 4.0, 6.0
    # 1.2 times what is wanted of each, because pauses take longer than asked for.
    command = [sys.executable, str(WORKER), server.url + more, str(RATE), str(RATE * 2 // 5), str(paced_s), str(fast_s)]
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(PROCESSES)
        ]
        for worker in workers:
            stack.callback(worker.kill)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        begin_s = time.time() + 0.3
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{begin_s}\n")
            worker.stdin.flush()
        told = [json.loads(worker.communicate(timeout=60)[0]) for worker in workers]
    jump_ms = int((begin_s + paced_s) * 1_000)
    fast = sorted(time_ms for one in told for time_ms in one["fast"])
    asked = sum(one["asked"] for one in told)
    # They offered several times the limit, and steadily it is what they admitted.
    assert asked > 3 * RATE * fast_s
    steady = [time_ms for time_ms in fast if time_ms >= jump_ms + 1_000]
    assert 0.75 * RATE <= len(steady) / (fast_s - 1) <= 1.25 * RATE
    # 2 * rate * age + rate / 10 + 2 * processes, with an age of 0.2 s for a busy machine; and what chance adds.
    in_a_second = busiest([(time_ms, 1) for time_ms in fast], 1_000)
    assert in_a_second <= RATE + 2 * RATE * 0.2 + RATE / 10 + 2 * PROCESSES + 3 * RATE**0.5, in_a_second
    # While it was estimated nobody asked for a request: ten calls a second for each process, and those before it was hot.
    assert sum(one["calls"] for one in told) < asked / 3
