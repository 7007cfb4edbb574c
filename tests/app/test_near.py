"""Servers that answer from leases and remembered refusals: real processes, a real Redis."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from sluicegate.algorithms import TokenBucket
from sluicegate.algorithms.leasing import LeaseAsk, LeaseGrant, LeaseTerms
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.stores.base import Counter, LeaseItem
from sluicegate.stores.keys import EVERYBODY, counter_prefix
from sluicegate.stores.redis import RedisStore
from sluicegate.stores.urls import open_store

pytestmark = pytest.mark.slow

Start = Callable[..., Any]

LIMIT = 10_000
RULES = f"""\
version: 1
rules:
  - name: everything
    quota: {LIMIT}/30d
  - name: login
    match: {{path: /login}}
    per: [ip]
    quota: 3/hour
"""
# A token comes back every four minutes: in a test none does.
SPEC = TokenBucket(LIMIT, LIMIT, 30 * 86_400 * US_PER_S)
EVERYTHING = Counter("everything", SPEC, counter_prefix("default", "everything", SPEC.algorithm, SPEC.shape))
TERMS = LeaseTerms(ttl_us=3_000_000)
LONG = ("--lease-ttl", "3s", "--lease-horizon", "1500ms")
"""Flags by which a process holds what it has for long enough to be seen with it."""


class Watcher:
    """Looks at the counter of everybody, as another process that uses the store."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def level(self) -> int:
        """Tokens that the store could give now."""
        answer = self._store.decide_one([(EVERYTHING, EVERYBODY, 1)], peek=True)
        return answer.verdicts()[0].remaining

    def out(self, terms: LeaseTerms = TERMS) -> int:
        """Tokens that are granted and not known to be spent."""
        (found,) = self._store.lease("watching", terms, [LeaseItem(EVERYTHING, EVERYBODY, LeaseAsk(settled=True))])
        assert isinstance(found, LeaseGrant)
        assert not found.lost
        return found.out


@pytest.fixture
def url(servers: Any, require_program: Callable[[str], str]) -> str:
    """A Redis with nothing in it."""
    found: str = servers.empty("redis", require_program).url
    return found


@pytest.fixture
def watcher(url: str) -> Iterator[Watcher]:
    """Looks at the counters in it."""
    store = open_store(url, SystemClock())
    assert isinstance(store, RedisStore)
    with contextlib.closing(store):
        yield Watcher(store)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The rules."""
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


def until(condition: Callable[[], bool], *, within_s: float = 60) -> None:
    """Wait until something is so."""
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.02)


def ask(server: Any, times: int, path: str = "/", client: httpx.Client | None = None) -> int:
    """Ask so often; how many were allowed."""
    allowed = 0
    for _ in range(times):
        facts = {"method": "GET", "path": path, "ip": "203.0.113.9"}
        answer = (client or server.client).post(f"{server.url('api')}/v1/check", json={"facts": facts})
        assert answer.status_code in (200, 429)
        assert answer.json()["degraded"] is False
        allowed += answer.status_code == 200
    return allowed


def metrics(server: Any) -> dict[tuple[str, str], float]:
    """The sum of each metric over workers, by name and the label ``answered``."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(server.client.get(f"{server.url('api')}/metrics").text):
        for sample in family.samples:
            key = (sample.name.removeprefix("sluicegate_"), sample.labels.get("answered", ""))
            found[key] = found.get(key, 0) + sample.value
    return found


def ask_until_leased(server: Any, by_lease: int = 50) -> int:
    """Ask until so many requests were answered by leases, which begin one lease after the store was first heard of; how many were allowed."""
    asked = 0
    ends = time.monotonic() + 60
    while metrics(server)["near_requests_total", "lease"] < by_lease:
        assert time.monotonic() < ends
        assert ask(server, 20) == 20
        asked += 20
    return asked


def served(start: Start, file: Path, url: str, *flags: str) -> Any:
    """A server on that Redis."""
    return start("serve", "--rules", str(file), "--api", "127.0.0.1:0", "--store", url, *flags)


@pytest.mark.measured
def test_a_server_answers_from_leases_and_says_so(start: Start, file: Path, url: str, watcher: Watcher) -> None:
    """Most requests of a counter of everybody cost no call; what is idle goes back by itself, and each number is in a scrape."""
    server = served(start, file, url)
    asked = ask_until_leased(server)
    before = metrics(server)
    assert ask(server, 200) == 200
    found = metrics(server)
    by_lease, by_store = found["near_requests_total", "lease"], found["near_requests_total", "store"]
    assert by_lease + by_store == asked + 200
    assert by_lease - before["near_requests_total", "lease"] > 150
    assert found["lease_tokens_granted_total", ""] >= by_lease
    assert found["lease_asks_total", ""] >= 1
    assert found["lease_failing", ""] == 0
    until(lambda: metrics(server)["leased_counters", ""] == 0)
    found = metrics(server)
    brought = found["lease_tokens_granted_total", ""] - found["lease_tokens_written_off_total", ""]
    assert brought - found["lease_tokens_returned_total", ""] == by_lease
    assert watcher.level() == LIMIT - asked - 200 - found["lease_tokens_written_off_total", ""]
    assert server.stop() == 0


@pytest.mark.measured
def test_a_refusal_is_repeated_without_a_call(start: Start, file: Path, url: str) -> None:
    """Of a client that hammers after its limit nearly all refusals cost no call."""
    server = served(start, file, url)
    assert ask(server, 3, "/login") == 3
    asked = metrics(server)["near_requests_total", "store"]
    assert ask(server, 200, "/login") == 0
    found = metrics(server)
    # The first refusal is the store's, and it is asked again once a second.
    assert found["near_requests_total", "denial"] >= 150
    assert found["near_requests_total", "store"] - asked <= 50
    assert found["deny_cache_entries", ""] >= 1
    # Who remembers refusals listens to what others give back.
    until(lambda: metrics(server)["store_news_failing", ""] == 0)
    assert server.stop() == 0


def test_what_is_held_goes_back_at_the_end(start: Start, file: Path, url: str, watcher: Watcher) -> None:
    """A server that is told to stop gives back all that it held: nothing is out, and the store has every token that was not used."""
    server = served(start, file, url, *LONG)
    allowed = ask_until_leased(server)
    assert watcher.level() < LIMIT - allowed
    assert server.stop() == 0
    assert watcher.level() == LIMIT - allowed
    assert watcher.out() == 0


def test_what_a_killed_process_held_is_written_off(start: Start, file: Path, url: str, watcher: Watcher) -> None:
    """After SIGKILL nothing is credited, neither at once nor when the leases have ended; then nothing is out any more."""
    server = served(start, file, url, *LONG)
    allowed = ask_until_leased(server)
    server.process.kill()
    server.process.wait(60)
    level, out = watcher.level(), watcher.out()
    assert 0 < LIMIT - level - allowed <= out
    until(lambda: watcher.out() == 0)
    assert watcher.level() == level


def test_without_leases_every_check_asks(start: Start, file: Path, url: str, watcher: Watcher) -> None:
    """Switched off, nothing is ever out and there is nothing to tell."""
    server = served(start, file, url, "--no-leases", "--no-deny-cache")
    assert ask(server, 50) == 50
    assert watcher.level() == LIMIT - 50
    assert not any(name.startswith(("near_", "lease")) for name, _ in metrics(server))
    assert server.stop() == 0


def test_each_worker_holds_for_itself(start: Start, file: Path, url: str, watcher: Watcher) -> None:
    """Two workers are two holders, whose numbers one scrape sums up; both give back when the server is told to stop."""
    server = served(start, file, url, "--workers", "2", *LONG)
    busy: set[str] = set()
    allowed = 0
    ends = time.monotonic() + 60
    # The kernel spreads connections, so it may take some until both have enough to do.
    while len(busy) < 2:
        assert time.monotonic() < ends
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(8) as pool:
            clients = [stack.enter_context(httpx.Client(timeout=60)) for _ in range(8)]
            allowed += sum(pool.map(lambda client: ask(server, 25, client=client), clients))
        text = server.client.get(f"{server.url('api')}/metrics").text
        busy = {
            sample.labels["worker"]
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "sluicegate_lease_tokens_granted_total" and sample.value
        }
    assert busy == {"1", "2"}
    assert watcher.level() < LIMIT - allowed
    assert server.stop(timeout_s=30) == 0
    assert watcher.level() == LIMIT - allowed
    assert watcher.out() == 0


def test_a_right_that_leases_lack_is_told(
    start: Start, file: Path, start_redis: Callable[..., Any], free_port: Callable[[], int]
) -> None:
    """Where the store's user may not read what leases need, every check is decided by the store, and log and metrics say so until it may."""
    port = free_port()
    start_redis("--port", str(port), "--user", "limits", "on", ">pass", "~*", "&*", "+@all", "-info")
    server = served(start, file, f"redis://limits:pass@127.0.0.1:{port}?timeout_ms=5000")

    def asked_until(said: Callable[[], bool]) -> None:
        ends = time.monotonic() + 60
        while not said():
            assert time.monotonic() < ends
            assert ask(server, 10) == 10

    def logged(event: str) -> list[dict[str, Any]]:
        return [one for one in server.events() if one["event"] == event]

    asked_until(lambda: bool(logged("leases_failing")))
    (told,) = logged("leases_failing")
    assert "the store's user lacks a right that a script needs" in told["error"]
    assert "pass" not in server.err.read_text()
    found = metrics(server)
    assert (found["lease_failing", ""], found["near_requests_total", "lease"]) == (1, 0)
    with contextlib.closing(redis.Redis(port=port)) as client:
        client.execute_command("ACL", "SETUSER", "limits", "+info")
    asked_until(lambda: metrics(server)["near_requests_total", "lease"] > 0)
    until(lambda: len(logged("leases_answer")) == 1)
    assert metrics(server)["lease_failing", ""] == 0
    assert server.stop() == 0
