"""Which server of a cluster a command goes to: single-server clusters, addresses, credentials, and a map that changes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest
import redis

from sluicegate.algorithms import FixedWindow
from sluicegate.clock import SystemClock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisSettings, RedisStore
from sluicegate.stores.redis.addresses import Address
from sluicegate.stores.redis.cluster import ClusterRouter
from sluicegate.stores.redis.node import Surroundings
from sluicegate.stores.redis.router import SEVERAL, Move
from sluicegate.stores.redis.secret import Subjects
from sluicegate.stores.redis.slots import SLOTS, SlotMap, slot_of
from sluicegate.stores.redis.stats import RedisStats

YEAR = 365 * 86_400_000_000
SPEC = FixedWindow(5, YEAR)
RULE = Counter("rule", SPEC, counter_prefix("router", "rule", SPEC.algorithm, SPEC.shape))
A, B, C = (Address(f"192.0.2.{number}", 7_000) for number in (1, 2, 3))


@pytest.fixture
def router() -> Iterator[ClusterRouter]:
    """A router of a cluster that nobody answers for, with plain subjects."""
    settings = RedisSettings.from_url("redis+cluster://127.0.0.1:1?timeout_ms=50")
    found = ClusterRouter(
        settings,
        Subjects(plain=True, secret=None),
        Surroundings(SystemClock(), Random(), RedisStats(), lambda *_: None, lambda: None),
    )
    yield found
    found.close()


def map_of(*ranges: tuple[int, int, Address]) -> SlotMap:
    return SlotMap.parse(
        [[first, last, [address.host.encode(), address.port]] for first, last, address in ranges], Address("h", 1)
    )


def test_before_the_map_is_known(router: ClusterRouter) -> None:
    """Without a map the router is not ready, says whom it will ask, and finds nobody for a slot."""
    assert not router.ready
    assert [node.address for node in router.nodes()] == ["127.0.0.1:1"]
    with pytest.raises(StoreError, match=r"no server of the cluster at 127\.0\.0\.1:1 has slot 7"):
        router.node_of(7)
    now_us = SystemClock().monotonic_us()
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1"):
        router.prepare(now_us + 1_000_000)
    assert not router.ready


def test_groups(router: ClusterRouter) -> None:
    """The group of a request is the slot of its counters, or SEVERAL; keys of riders have the slot of their whole name."""
    one, other = "user:1", "user:2"
    assert router.group_of([(RULE, one, 1)]) == router.slot_of(one) == slot_of("{user:1}")
    assert router.group_of([(RULE, one, 1), (RULE, f"{one}|path:/a", 1)]) == slot_of("{user:1}")
    assert router.group_of([(RULE, one, 1), (RULE, other, 1)]) == SEVERAL
    assert router.group_of_key(b"rl1:nodes") == router.group_of_key("rl1:nodes") == slot_of("rl1:nodes")


def test_moved_and_ask(router: ClusterRouter) -> None:
    """MOVED changes the slot for good, ASK sends one command elsewhere, other errors are the caller's."""
    router._take_over(map_of((0, SLOTS - 1, A)))
    asked = router.node_of(7)
    assert router.after_error(asked, 7, "MOVED 7 192.0.2.2:7000") == Move(router.node_of(7))
    assert router.node_of(7).address == str(B)
    assert router.node_of(8) is asked
    move = router.after_error(asked, 8, "ASK 8 192.0.2.3:7000")
    assert move is not None
    assert (move.node.address, move.asking) == (str(C), True)
    assert router.node_of(8) is asked
    for text in ("TRYAGAIN x", "CLUSTERDOWN x", "WRONGTYPE x", "MOVED 7 ?:7000"):
        assert router.after_error(asked, 7, text) is None


def test_servers_that_left_are_closed_with_the_next_map(router: ClusterRouter) -> None:
    """A server that is no longer in the map is not used, and closed one map later: a call may just have been given it."""
    router._take_over(map_of((0, 99, A), (100, SLOTS - 1, B)))
    left = router.node_of(5)
    stays = router.node_of(200)
    router._take_over(map_of((0, SLOTS - 1, B)))
    assert router.node_of(5) is stays
    assert [node.address for node in router.nodes()] == [str(B)]
    assert not left.links.closed
    router._take_over(map_of((0, SLOTS - 1, B)))
    assert left.links.closed
    assert not stays.links.closed
    router.close()
    assert stays.links.closed


def test_others_are_asked_first_each_time(router: ClusterRouter) -> None:
    """Each look begins with another server; those given up come after the names of the URL."""
    router._take_over(map_of((0, 99, A), (100, 199, B), (200, SLOTS - 1, C)))
    orders = [[node.address for node in router._whom_to_ask()] for _ in range(3)]
    assert {order[0] for order in orders} == {str(A), str(B), str(C)}
    assert all(order[3] == "127.0.0.1:1" for order in orders)
    down = router.node_of(5)
    while down.breaker.closed:
        down.failed(SystemClock().monotonic_us(), "gone")
    assert [node.address for node in router._whom_to_ask()][-1] == str(A)


@pytest.fixture
def lone_cluster(start_redis: Callable[..., object], free_port: Callable[[], int]) -> Callable[..., object]:
    """Starts a cluster of one server, which has all slots: ``lone_cluster(password, *options)``."""

    def start(password: str | None, *options: str) -> object:
        server = start_redis(
            "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-port", str(free_port()), *options,
        )  # fmt: skip
        client = redis.Redis(unix_socket_path=str(server.path), password=password)
        client.execute_command("CLUSTER ADDSLOTSRANGE", 0, SLOTS - 1)
        until = time.monotonic() + 60
        while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            assert time.monotonic() < until
            time.sleep(0.01)
        client.close()
        return server

    return start


def test_ipv6_and_a_server_that_does_not_know_its_address(lone_cluster: Callable[..., object]) -> None:
    """A cluster on an IPv6 address, whose server gives no host of its own, is the host of the URL (P56)."""
    server = lone_cluster(None, "--bind", "127.0.0.1 ::1")
    store = RedisStore(f"redis+cluster://[::1]:{server.port}?timeout_ms=5000")
    assert [store.decide_one([(RULE, "user:1", 1)]).admitted for _ in range(6)] == [True] * 5 + [False]
    assert store.decide_one([(RULE, "user:2", 1), (RULE, "user:3", 1)]).admitted
    assert [health.address for health in store.health()] == [f"[::1]:{server.port}"]
    store.close()


def test_credentials_are_used_on_every_server(lone_cluster: Callable[..., object]) -> None:
    """User and password of the URL sign in on the servers of the map too; without them the reason is told (T83)."""
    server = lone_cluster("p@ss,word", "--requirepass", "p@ss,word")
    store = RedisStore(f"redis+cluster://:p%40ss%2Cword@127.0.0.1:{server.port}?timeout_ms=5000")
    assert store.decide_one([(RULE, "user:1", 1), (RULE, "user:2", 1)]).admitted
    store.close()
    stranger = RedisStore(f"redis+cluster://127.0.0.1:{server.port}?timeout_ms=5000")
    with pytest.raises(StoreError, match="NOAUTH"):
        stranger.decide_one([(RULE, "user:1", 1)])
    stranger.close()


def test_a_forked_child_goes_on_by_the_same_map(cluster) -> None:
    """A child that was forked from a process with a store decides on connections of its own, and so does its parent after it."""
    store = RedisStore(cluster.url)
    request = [(RULE, "user:1", 1), (RULE, "user:2", 1)]
    assert store.decide_one(request).admitted
    child = os.fork()
    if not child:
        try:
            answers = [store.decide_one(request).admitted for _ in range(2)]
            os._exit(0 if answers == [True, True] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [store.decide_one(request).admitted for _ in range(3)] == [True, True, False]
    store.close()
