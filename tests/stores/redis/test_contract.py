"""The Redis store keeps the contract of stores, on Redis 7 and on Valkey 9."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest

from sluicegate.clock import ManualClock
from sluicegate.stores.base import Answer, Charge, Counter, Receipt, Request, Single
from sluicegate.stores.redis import AsyncRedisStore, RedisStore
from sluicegate.testing import StoreContract


pytestmark = pytest.mark.parametrize("server", ["redis", "valkey", "redis cluster", "valkey cluster"], indirect=True)


class TestRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _store(self, open_store: Callable[[ManualClock], RedisStore]) -> None:
        self.clock = ManualClock()
        self.store = open_store(self.clock)

    def setup_method(self) -> None:
        """The store is made by a fixture."""

    def teardown_method(self) -> None:
        """The store is closed by a fixture."""


class Awaited:
    """An AsyncRedisStore with the calls of a Store, each run to its end on one event loop."""

    def __init__(self, store: AsyncRedisStore, runner: asyncio.Runner) -> None:
        self.store = store
        self.run = runner.run

    def decide(self, requests: Sequence[Request], *, peek: bool = False) -> list[Answer]:
        return self.run(self.store.decide(requests, peek=peek))

    def decide_one(self, request: Request, *, peek: bool = False) -> Answer:
        return self.run(self.store.decide_one(request, peek=peek))

    def decide_singles(self, charges: Sequence[Charge], *, peek: bool = False) -> tuple[int, list[Single]]:
        return self.run(self.store.decide_singles(charges, peek=peek))

    def refund(self, receipts: Sequence[Receipt]) -> int:
        return self.run(self.store.refund(receipts))

    def reset(self, keys: Sequence[tuple[Counter, str]]) -> int:
        return self.run(self.store.reset(keys))

    def close(self) -> None:
        self.run(self.store.close())


class TestAsyncRedisStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _store(self, server: object) -> Iterator[None]:
        self.clock = ManualClock()
        with asyncio.Runner() as runner:
            self.store = Awaited(AsyncRedisStore(server.url, time_source=self.clock), runner)
            yield
            self.store.close()

    def setup_method(self) -> None:
        """The store is made by a fixture."""

    def teardown_method(self) -> None:
        """The store is closed by a fixture."""
