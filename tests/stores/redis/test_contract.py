"""The Redis store keeps the contract of stores, on Redis 7 and on Valkey 9."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from sluicegate.clock import ManualClock
from sluicegate.stores.redis import RedisStore
from sluicegate.testing import AwaitedStore, StoreContract

pytestmark = pytest.mark.parametrize("server", ["redis", "valkey", "redis cluster", "valkey cluster"], indirect=True)


PACKED = "&layout=packed&expected_clients=300"


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _store(self, open_store: Callable[[ManualClock], RedisStore]) -> None:
        self.clock = ManualClock()
        self.store = open_store(self.clock)

    def setup_method(self) -> None:
        """The store is made by a fixture."""

    def teardown_method(self) -> None:
        """The store is closed by a fixture."""


class TestPackedRedisStore(StoreContract):
    """The same with counters of many clients in one hash."""

    @pytest.fixture(autouse=True)
    def _store(self, open_store: Callable[[ManualClock, str], RedisStore]) -> None:
        self.clock = ManualClock()
        self.store = open_store(self.clock, PACKED)

    def setup_method(self) -> None:
        """The store is made by a fixture."""

    def teardown_method(self) -> None:
        """The store is closed by a fixture."""


class TestAwaitedRedisStore(StoreContract):
    """The callbacks and coroutines of the same store, in both layouts."""

    @pytest.fixture(autouse=True, params=["", PACKED], ids=["plain", "packed"])
    def _store(self, server, request: pytest.FixtureRequest) -> Iterator[None]:
        self.clock = ManualClock()
        with asyncio.Runner() as runner:
            self.store = AwaitedStore(RedisStore(server.url + request.param, time_source=self.clock), runner)
            yield
            self.store.close()

    def setup_method(self) -> None:
        """The store is made by a fixture."""

    def teardown_method(self) -> None:
        """The store is closed by a fixture."""
