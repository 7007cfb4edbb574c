"""The store charges, and its reply never comes: the caller is decided by policy, and exactly one charge stands."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from real_servers import BINARIES, Proxy, free_port_now, running

from sluicegate.limiter import Decision, Limiter
from sluicegate.rules.facts import Facts
from sluicegate.rules.load import load_rules

LIMIT = 1_000
RULES = load_rules(
    b"""
version: 1
rules:
  - {name: all, scope: global, quota: 1000/year, algorithm: fixed_window, on_store_failure: open}
  - {name: client, per: [user], quota: 1000/year, algorithm: fixed_window, on_store_failure: open}
""",
    "rules.yaml",
)
FACTS = Facts(user="a")


def check(limiter: Limiter) -> list[Decision]:
    return [limiter.check(FACTS)]


def check_many(limiter: Limiter) -> list[Decision]:
    return limiter.check_many([FACTS, FACTS, FACTS])


async def acheck(limiter: Limiter) -> list[Decision]:
    return [await limiter.acheck(FACTS)]


async def acheck_at_once(limiter: Limiter) -> list[Decision]:
    return await asyncio.gather(*(limiter.acheck(FACTS) for _ in range(8)))


class Behind(NamedTuple):
    """A server, or a cluster of one, behind a proxy. ``url`` leads through the proxy, ``direct`` past it."""

    url: str
    direct: str
    proxy: Proxy


@contextlib.contextmanager
def behind_proxy(kind: str, binary: str, folder: Path) -> Iterator[Behind]:
    cluster = kind.endswith("cluster")
    port = free_port_now()
    proxy = Proxy(port)
    options: list[str] = []
    if cluster:
        # Clients of a cluster go where its servers say that they are.
        options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port_now())]
        options += ["--cluster-announce-port", str(proxy.port), "--cluster-announce-ip", "127.0.0.1"]
    with contextlib.closing(proxy), running(binary, folder, *options, port=port):
        if cluster:
            with contextlib.closing(redis.Redis(port=port)) as admin:
                admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
                until_s = time.monotonic() + 60
                while "cluster_state:ok" not in str(admin.execute_command("CLUSTER", "INFO")):
                    assert time.monotonic() < until_s
                    threading.Event().wait(0.02)
        more = "?timeout_ms=5000&keys=plain"
        scheme = "redis+cluster" if cluster else "redis"
        # Past the proxy it is a plain server, also where it is a cluster's only one.
        yield Behind(f"{scheme}://127.0.0.1:{proxy.port}{more}", f"redis://127.0.0.1:{port}{more}", proxy)


@pytest.fixture(scope="module")
def _places() -> Iterator[tuple[dict[str, Behind], contextlib.ExitStack]]:
    with contextlib.ExitStack() as stack:
        yield {}, stack


@pytest.fixture(params=["redis", "valkey", "redis-cluster", "valkey-cluster"])
def behind(
    request: pytest.FixtureRequest,
    _places: tuple[dict[str, Behind], contextlib.ExitStack],
    tmp_path: Path,
    require_program: Callable[[str], str],
) -> Behind:
    """Each kind of server behind its proxy."""
    places, stack = _places
    kind = request.param
    binary = require_program(BINARIES[kind.removesuffix("-cluster")])
    if kind not in places:
        places[kind] = stack.enter_context(behind_proxy(kind, binary, tmp_path))
    return places[kind]


def charged(url: str) -> dict[str, int]:
    """What stands in the counters, read past the proxy."""
    found = {}
    for rule in RULES.rules:
        # One counter a call: in a cluster they have different slots.
        with Limiter.from_rules(replace(RULES, rules=(rule,)), url) as limiter:
            decision = limiter.peek(FACTS)
            assert not decision.degraded
            found[rule.name] = LIMIT - (decision.remaining or 0)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("ask", [check, check_many, acheck, acheck_at_once])
def test_a_lost_reply_is_charged_once(behind, ask) -> None:
    """The reply is cut after the server has charged: nobody charges again, by any kind of call, on one server or a cluster."""  # P54
    url, direct, proxy = behind
    with asyncio.Runner() as runner, Limiter.from_rules(RULES, url, near=None) as limiter:

        def once() -> list[Decision]:
            return runner.run(ask(limiter)) if asyncio.iscoroutinefunction(ask) else ask(limiter)

        for _ in range(3):
            assert not any(decision.degraded for decision in once())
            before = charged(direct)
            proxy.cut_replies = 1
            found = once()
            assert proxy.cut_replies == 0
            answered = sum(not decision.degraded for decision in found)
            assert answered < len(found)
            assert all(decision.allowed for decision in found)
            for rule, now in charged(direct).items():
                # A call of one server is charged whole before its reply; calls at once may be several, of which the first is lost.
                least = answered if "cluster" in url or ask is acheck_at_once else len(found)
                assert least <= now - before[rule] <= len(found), rule
        runner.run(limiter.aclose())
