"""One viral key on a cluster of eight masters: its calls do not pile up on the master that has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from real_clusters import Cluster, binary_of

from sluicegate.algorithms import Precision, TokenBucket
from sluicegate.clock import US_PER_S, SystemClock
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.near.settings import NearSettings
from sluicegate.stores.near.store import NearStore
from sluicegate.stores.redis import RedisStore

MASTERS = 8
SPEC = TokenBucket(1_000_000, 1_000_000, US_PER_S)
PREFIX = counter_prefix("default", "r", SPEC.algorithm, SPEC.shape)
VIRAL = "user:viral"


@pytest.fixture
def eight(tmp_path: Path, require_program: Callable[[str], str]) -> Iterator[Cluster]:
    """Eight masters without replicas."""
    with Cluster(binary_of("redis", require_program), tmp_path, masters=MASTERS, replicas=False) as found:
        yield found


def calls(cluster: Cluster) -> list[int]:
    """The scripts that each master has run."""
    found = []
    for port in cluster.masters():
        stats = cluster.client(port).info("commandstats")
        found.append(sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval")))
    return found


def load(nodes: list[NearStore], counter: Counter, count: int, source: Random) -> None:
    """Requests of which nine in ten are of the viral client, over all nodes."""
    for number in range(count):
        subject = VIRAL if source.random() < 0.9 else f"user:{source.randrange(20_000)}"
        assert nodes[number % len(nodes)].decide_one([(counter, subject, 1)]).admitted


def is_spread(node: NearStore, precision: Precision) -> bool:
    """Whether a node decides the viral client's counter by leases, or by parts."""
    with node._lock:
        if precision is Precision.AUTO:
            return (node.front.leases.used(PREFIX + VIRAL) or 0) > 0
        return node.hot.splits.using(PREFIX + VIRAL, node.now_us()) is not None


@pytest.mark.measured
@pytest.mark.slow
@pytest.mark.parametrize("precision", [Precision.EXACT, Precision.AUTO, Precision.SPLIT])
def test_no_master_has_twice_the_mean(eight: Cluster, precision: Precision) -> None:
    """A client with nine tenths of all traffic: its master has seven times the mean when asked each time, and at most twice by leases or parts."""
    counter = Counter("r", SPEC, PREFIX, precision=precision)
    eight.empty()
    # Plain keys have the same slots in each run.
    url = eight.url + "&keys=plain"
    nodes = [NearStore(RedisStore(url), NearSettings(), SystemClock()) for _ in range(2)]
    source = Random(8)
    try:
        if precision is not Precision.EXACT:
            end = time.monotonic() + 60
            while not all(is_spread(node, precision) for node in nodes):
                assert time.monotonic() < end, "the viral client was not found"
                load(nodes, counter, 100, source)
        before = calls(eight)
        load(nodes, counter, 20_000, source)
        made = [after - sooner for after, sooner in zip(calls(eight), before, strict=True)]
    finally:
        for node in nodes:
            node.close()
    ratio = max(made) * MASTERS / sum(made)
    if precision is Precision.EXACT:
        assert ratio > 6, made
    else:
        assert ratio <= 2, made
