"""The Redis store keeps the contract of stores, on Redis 7 and on Valkey 9."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sluicegate.clock import ManualClock
from sluicegate.stores.base import Store
from sluicegate.stores.redis import RedisStore
from sluicegate.testing import StoreContract


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _store(self, open_store: Callable[[ManualClock], RedisStore]) -> None:
        self.clock = ManualClock()
        self.store = open_store(self.clock)

    def setup_method(self) -> None:
        """The store is made by a fixture."""

    def teardown_method(self) -> None:
        """The store is closed by a fixture."""

    def new_store(self, clock: ManualClock) -> Store:
        raise NotImplementedError(clock)
