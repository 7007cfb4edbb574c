"""Two processes and a real Redis: what one of them gives back, the other one admits at once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from real_servers import BINARIES, running

from sluicegate.limiter import Limiter
from sluicegate.stores.near import NearSettings
from sluicegate.stores.redis.news import News

WORKER = Path(__file__).with_name("refused.py")
QUOTA = "1/day"
TRUSTED_US = 10_000_000
"""The longest there is: what helps sooner than that is the news."""
SOON_US = 100_000
ROUNDS = 15


class Other:
    """Another process; see ``refused.py``."""

    def __init__(self, url: str, trust_us: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.do(url=url, quota=QUOTA, trust_us=trust_us) is True

    def do(self, **order: object) -> Any:
        """Give an order and read its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """The next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the other process has ended"
        return json.loads(line)

    def end(self) -> None:
        """One that watches in vain does not end by itself."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., Other]]:
    """Starts another process on a store: ``start(url)``."""
    with contextlib.ExitStack() as stack:

        def begin(url: str, trust_us: int = TRUSTED_US) -> Other:
            found = Other(url, trust_us)
            stack.callback(found.end)
            return found

        yield begin


@pytest.fixture
def here() -> Iterator[Callable[[str], Limiter]]:
    """Makes this process's limiter."""
    with contextlib.ExitStack() as stack:

        def make(url: str) -> Limiter:
            limiter = Limiter.from_quota(QUOTA, store=url, near=NearSettings(trust_us=TRUSTED_US))
            stack.callback(limiter.close)
            return limiter

        yield make


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest, servers, require_program: Callable[[str], str]):
    """Each of the two servers, empty."""
    return servers.empty(request.param, require_program)


def now_us() -> int:
    return time.monotonic_ns() // 1_000


def until_admitted(other: Other, key: str, give_back: Callable[[], object]) -> tuple[int, int]:
    """(microseconds from the moment something is given back until the other process admits, calls of the store it made meanwhile)."""
    assert other.do(do="watch", key=key) == "watching"
    time.sleep(0.02)
    began_us = now_us()
    give_back()
    at_us, calls = other.answer()
    assert at_us >= began_us, "it was admitted before"
    return at_us - began_us, calls


def told(name: str, found: list[int]) -> None:
    """What was measured, for whoever reads the run."""
    found.sort()
    print(
        f"\n{name}: p50 {found[len(found) // 2] / 1e3:.1f} ms, p99 {found[-1 - len(found) // 100] / 1e3:.1f} ms, {len(found)} rounds"
    )


@pytest.mark.measured
@pytest.mark.parametrize("how", ["refund", "grant", "reset"])
def test_what_one_process_gives_back_another_admits_at_once(
    server, start: Callable[..., Other], here: Callable[[str], Limiter], how: str
) -> None:
    """Client refused in both processes; after a refund, a grant or a reset in one the other one admits within 100 ms, long before its trust ends."""
    limiter, other = here(server.url), start(server.url)
    found = []
    for number in range(ROUNDS):
        key = f"user:{number}"
        decision = limiter.check(key, receipt=True)
        assert decision.allowed
        assert not limiter.check(key).allowed
        assert other.do(do="ask", key=key) == 0
        given = {
            "refund": lambda: limiter.refund(decision),  # noqa: B023 - called in this round
            "grant": lambda: limiter.grant(key, 1),  # noqa: B023
            "reset": lambda: limiter.reset(key),  # noqa: B023
        }
        delay_us, calls = until_admitted(other, key, given[how])
        found.append(delay_us)
        # Once for what was told; and it is told that of the client before, too.
        assert calls <= 8
    told(how, found)
    assert statistics.median(found) < SOON_US
    assert max(found) < TRUSTED_US // 4


def test_one_who_gives_back_admits_at_once_himself(server, here: Callable[[str], Limiter]) -> None:
    """The process that gives something back waits for no news."""
    limiter = here(server.url)
    decision = limiter.check("user:1", receipt=True)
    for give_back in (
        lambda: limiter.refund(decision),
        lambda: limiter.grant("user:1", 1),
        lambda: limiter.reset("user:1"),
    ):
        assert not limiter.check("user:1").allowed
        asked = limiter.store.stats.calls  # type: ignore[attr-defined]
        assert not limiter.check("user:1").allowed
        assert limiter.store.stats.calls == asked, "it was not remembered"  # type: ignore[attr-defined]
        give_back()
        assert limiter.check("user:1").allowed


@pytest.mark.measured
def test_without_news_a_refusal_is_trusted_no_longer_than_said(
    server, start: Callable[..., Other], here: Callable[[str], Limiter]
) -> None:
    """A process that may not hear news admits within the second for which it trusts a refusal."""
    with contextlib.closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "deaf", "on", ">pw", "~rl1:*", "+@all", "resetchannels")
    try:
        limiter, other = here(server.url), start(server.url.replace("redis://", "redis://deaf:pw@"), trust_us=1_000_000)
        found = []
        for number in range(4):
            assert limiter.check(f"user:{number}").allowed
            assert other.do(do="ask", key=f"user:{number}") == 0
            delay_us, _ = until_admitted(other, f"user:{number}", lambda: limiter.reset(f"user:{number}"))  # noqa: B023
            found.append(delay_us)
        told("no news", found)
        assert max(found) < 1_000_000 + 1_000_000, "the machine had a second to look"
        assert max(found) > SOON_US, "somebody told"
    finally:
        with contextlib.closing(server.client()) as client:
            client.execute_command("ACL", "DELUSER", "deaf")


@pytest.mark.measured
def test_a_process_that_is_killed_when_it_has_given_back(
    server, start: Callable[..., Other], here: Callable[[str], Limiter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its news may be lost with it; then the others find out when their trust ends."""
    limiter, other = here(server.url), start(server.url, trust_us=1_000_000)
    assert limiter.check("user:1").allowed
    assert other.do(do="ask", key="user:1") == 0
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            # As if the process ended between the reset and the telling of it.
            monkeypatch.setattr(News, "publish", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            limiter.reset("user:1")
        os._exit(1)
    assert other.do(do="watch", key="user:1") == "watching"
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    began_us = now_us()
    at_us, _ = other.answer()
    assert at_us - began_us < 2_000_000


@pytest.mark.measured
@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_a_redis_that_was_started_again(
    kind: str,
    tmp_path: Path,
    require_program: Callable[[str], str],
    start: Callable[..., Other],
    here: Callable[[str], Limiter],
) -> None:
    """What it lost may pass again when the trust ends; news go on after it, and a refusal that it says then is believed."""
    binary = require_program(BINARIES[kind])
    with running(binary, tmp_path) as before:
        limiter, other = here(before.url), start(before.url, trust_us=1_000_000)
        assert limiter.check("user:1").allowed
        assert other.do(do="ask", key="user:1") == 0
    with running(binary, tmp_path, port=before.port):
        began_us = now_us()
        assert other.do(do="watch", key="user:1") == "watching"
        assert other.answer()[0] - began_us < 3_000_000
        # It heard that anything may have been missed, and hears what is told from then on.
        with contextlib.closing(redis.Redis(port=before.port)) as client:
            end_us = now_us() + 10_000_000
            while client.pubsub_numsub("rl1:news:0")[0][1] < 1:
                assert now_us() < end_us
                time.sleep(0.01)
        assert other.do(do="ask", key="user:1") == 0
        found = [until_admitted(other, "user:1", lambda: limiter.reset("user:1"))[0] for _ in range(5)]
        assert statistics.median(found) < SOON_US
