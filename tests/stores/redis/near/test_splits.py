"""Split counters on real servers: what several stores admit together of one hot counter, at every moment, and where the calls go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Self

import pytest

from sluicegate.algorithms import FixedWindow, Precision, Spec, TokenBucket
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.near.store import NearStore
from sluicegate.stores.redis import RedisStore
from sluicegate.testing import worst_excess

NODES = 3
SUBJECT = "user:viral"
SETTINGS = NearSettings(hot_per_s=20, cold_per_s=10, cold_us=US_PER_S, denials_max=0)


@pytest.fixture(params=["redis", "redis packed", "redis cluster"])
def url(request: pytest.FixtureRequest, servers, clusters, require_program: Callable[[str], str]) -> str:
    """One server, the same with the packed layout, and a cluster of three masters; all empty."""
    name, _, kind = request.param.partition(" ")
    found: str = (clusters if kind == "cluster" else servers).empty(name, require_program).url
    return found + "&layout=packed&expected_clients=1000" if kind == "packed" else found


@pytest.fixture
def nodes(url: str) -> Iterator[list[NearStore]]:
    """Near stores that know nothing of each other but what the servers tell."""
    made = [NearStore(RedisStore(url), SETTINGS, SystemClock()) for _ in range(NODES)]
    try:
        yield made
    finally:
        for node in made:
            node.close()


class Crowd:
    """A thread for each node that asks at a pace, and what was admitted by the store's clock."""

    def __init__(self, nodes: list[NearStore], counter: Counter) -> None:
        self.hits: list[tuple[int, int]] = []
        self.by_parts = self.by_whole = 0
        self.errors: list[StoreError] = []
        self.pause_s = 0.0
        self._nodes = nodes
        self._request = [(counter, SUBJECT, 1)]
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(node,)) for node in nodes]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, node: NearStore) -> None:
        key = self._request[0][0].prefix + SUBJECT
        while not self._end.is_set():
            try:
                answer = node.decide_one(self._request)
            except StoreError as error:
                self.errors.append(error)
                return
            used = node.hot.splits.using(key, node.now_us()) is not None
            if answer.admitted:
                with self._lock:
                    self.hits.append((answer.now_us, 1))
                    self.by_parts += used
                    self.by_whole += not used
            if self.pause_s:
                time.sleep(self.pause_s)


def until(condition: Callable[[], bool], problem: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, problem
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [TokenBucket(640, 200, US_PER_S), FixedWindow(640, 3 * US_PER_S)], ids=lambda spec: spec.algorithm
)
def test_a_counter_is_split_and_whole_again_within_its_bound(nodes: list[NearStore], spec: Spec) -> None:
    """Three nodes hammer one counter, let go, and come back: no interval holds more than the limit and what comes back in one exchange."""
    prefix = counter_prefix("default", "r", spec.algorithm, spec.shape)
    counter = Counter("r", spec, prefix, precision=Precision.SPLIT)
    key = prefix + SUBJECT
    splits = [node.hot.splits for node in nodes]

    def split() -> bool:
        return all(one.using(key, node.now_us()) is not None for one, node in zip(splits, nodes, strict=True))

    with Crowd(nodes, counter) as crowd:
        until(split, "never split")
        seen = len(crowd.hits)
        until(lambda: len(crowd.hits) > seen + 300, "the parts admit nothing")
        crowd.pause_s = 0.3
        whole = crowd.by_whole
        until(lambda: crowd.by_whole > whole + 5, "never whole again")
        crowd.pause_s = 0.0
        until(split, "never split again")
    assert crowd.errors == []
    assert crowd.by_parts > 300
    hits = sorted(crowd.hits)
    # An exchange on this machine takes a few milliseconds; with all its cores taken, perhaps fifty.
    slack = spec.most_admitted(US_PER_S) // 20
    assert worst_excess(hits, lambda length_us: spec.most_admitted(length_us) + slack) is None
    # Nobody was refused for long: the counter was asked all the time, and admitted somebody in every window.
    assert max(later - sooner for (sooner, _), (later, _) in pairwise(hits)) < 4 * US_PER_S


@pytest.mark.slow
def test_calls_of_a_split_counter_spread_over_the_masters(clusters, require_program: Callable[[str], str]) -> None:
    """Whole, all calls for a counter go to the one master that has it; split, each of three masters gets between 15 and 55 % of them."""
    cluster = clusters.empty("redis", require_program)
    spec = TokenBucket(1_000_000, 1_000_000, US_PER_S)
    counter = Counter("r", spec, counter_prefix("default", "r", spec.algorithm, spec.shape), precision=Precision.SPLIT)
    node = NearStore(RedisStore(cluster.url), SETTINGS, SystemClock())

    def calls() -> list[int]:
        found = []
        for port in cluster.masters():
            stats = cluster.client(port).info("commandstats")
            found.append(sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval")))
        return found

    def ask(count: int) -> list[float]:
        before = calls()
        for _ in range(count):
            assert node.decide_one([(counter, SUBJECT, 1)]).admitted
        made = [after - sooner for after, sooner in zip(calls(), before, strict=True)]
        return [one / sum(made) for one in made]

    try:
        assert max(ask(SETTINGS.hot_per_s - 1)) > 0.9
        end = time.monotonic() + 60
        while node.hot.splits.using(counter.prefix + SUBJECT, node.now_us()) is None:
            assert time.monotonic() < end, "never split"
            node.decide_one([(counter, SUBJECT, 1)])
        shares = ask(1_000)
        assert all(0.15 < share < 0.55 for share in shares), shares
    finally:
        node.close()
