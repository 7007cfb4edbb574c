"""Several processes' leases on a real server: what passes in all is within the limit, and little less."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from sluicegate.algorithms import FixedWindow, Precision, Spec, TokenBucket
from sluicegate.clock import SystemClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.near.store import NearStore
from sluicegate.stores.redis import RedisStore

pytestmark = pytest.mark.slow

SECOND = 1_000_000
PER_S = 2_000
TURNS = 4


class Load:
    """Threads with a near store each, that ask for about twice the limit together; ``hits`` are when each request that passed began."""

    def __init__(self, url: str, spec: Spec, stores: int = 3) -> None:
        prefix = counter_prefix("test", "rule", spec.algorithm, spec.shape)
        self.counter = Counter("rule", spec, prefix, precision=Precision.LEASED)
        self.nears = [NearStore(RedisStore(url), NearSettings(), SystemClock()) for _ in range(stores)]
        self.hits: list[float] = []
        self.errors: list[StoreError] = []
        self._lock = threading.Lock()

    def run(self, length_s: float, meanwhile: Callable[[], None] | None = None) -> None:
        end = time.monotonic() + length_s
        threads = [threading.Thread(target=self._ask, args=(near, end)) for near in self.nears]
        for thread in threads:
            thread.start()
        if meanwhile is not None:
            time.sleep(length_s / 2)
            meanwhile()
        for thread in threads:
            thread.join()

    def _ask(self, near: NearStore, end: float) -> None:
        mine: list[float] = []
        while (began := time.monotonic()) < end:
            for _ in range(14):
                try:
                    if near.decide_one([(self.counter, "*", 1)]).admitted:
                        mine.append(began)
                except StoreError as error:
                    self.errors.append(error)
            time.sleep(max(began + 0.01 - time.monotonic(), 0))
        with self._lock:
            self.hits += mine

    def close(self) -> None:
        for near in self.nears:
            near.close()


def until_enough(load_once: Callable[[], bool]) -> None:
    """Load until there was enough of it: how much is asked in so many seconds is for the machine to say. What must not happen must not happen in any turn."""
    assert any(load_once() for _ in range(TURNS)), "too little passed, or was leased, each time"


@pytest.mark.parametrize("name", ["redis", "valkey"])
@pytest.mark.parametrize("event", ["none", "new life"])
def test_the_limit_holds_on_a_real_server(
    servers: Any, require_program: Callable[[str], str], name: str, event: str
) -> None:
    """With real threads and clocks no more passes than the bucket's bound; another life of the server in between adds nothing."""
    spec = TokenBucket(PER_S, PER_S, SECOND)

    def load_once() -> bool:
        server = servers.empty(name, require_program)

        def new_life() -> None:
            with contextlib.closing(server.client()) as client:
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                client.execute_command("REPLICAOF", "NO", "ONE")

        with contextlib.closing(Load(server.url, spec)) as load:
            began = time.monotonic()
            load.run(4, new_life if event == "new life" else None)
            passed_s = time.monotonic() - began
        assert len(load.hits) <= spec.most_admitted(int(passed_s * SECOND))
        enough = event != "none" or len(load.hits) >= 0.7 * min(PER_S * 4, 4_200 * 4 / 2)
        assert not load.errors or event != "none"
        return enough and sum([near.stats.leased for near in load.nears]) > 500

    until_enough(load_once)


@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_a_window_holds_on_a_real_server(servers: Any, require_program: Callable[[str], str], name: str) -> None:
    """Windows of a second, whose leases end with them: no more passes than one limit for each window that was touched."""
    spec = FixedWindow(PER_S, SECOND)

    def load_once() -> bool:
        server = servers.empty(name, require_program)
        with contextlib.closing(Load(server.url, spec)) as load:
            first = int(time.time())
            load.run(4)
            windows = int(time.time()) - first + 1
        assert len(load.hits) <= windows * PER_S
        return len(load.hits) > 0.5 * 4 * PER_S and sum([near.stats.leased for near in load.nears]) > 500

    until_enough(load_once)
