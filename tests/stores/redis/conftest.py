"""The servers on which the Redis store is tested, and stores on them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator
from random import Random
from typing import Self

import pytest

from sluicegate.clock import Clock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Request
from sluicegate.stores.redis import RedisStore


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest, servers, clusters, require_program: Callable[[str], str]):
    """Each of the two servers, empty. Modules whose tests need no more than its ``url`` ask for clusters too, by name."""
    name, _, kind = request.param.partition(" ")
    return (clusters if kind else servers).empty(name, require_program)


@pytest.fixture
def open_store(server) -> Iterator[Callable[..., RedisStore]]:
    """Makes stores on the server: ``open_store(time_source)``; they are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(time_source: Clock | None = None, more: str = "") -> RedisStore:
            store = RedisStore(server.url + more, time_source=time_source)
            stack.callback(store.close)
            return store

        yield make


@pytest.fixture
def proxy(server, start_proxy):
    """A proxy in front of the server."""
    return start_proxy(server.port)


@pytest.fixture
def open_here(cluster) -> Iterator[Callable[..., RedisStore]]:
    """Makes stores on the cluster; they are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(more: str = "", **options: object) -> RedisStore:
            store = RedisStore(cluster.url.replace("?timeout_ms=5000", more or "?timeout_ms=5000"), **options)
            stack.callback(store.close)
            return store

        yield make


class Load:
    """Threads that ask one thing after another until they are told to stop, and what they were told."""

    def __init__(self, store: RedisStore, requests: list[Request], threads: int = 6) -> None:
        self.store = store
        self.admitted: Tally[int] = Tally()
        self.refused = 0
        self.errors: list[StoreError] = []
        self.last_error_s = 0.0
        self._requests = requests
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(Random(number),)) for number in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    @property
    def asked(self) -> int:
        return self.admitted.total() + self.refused + len(self.errors)

    def wait_for(self, more: int) -> None:
        """Wait until so many more requests were answered."""
        target = self.asked + more
        end = time.monotonic() + 60
        while self.asked < target:
            assert time.monotonic() < end, (self.asked, target, self.errors[-1:])
            time.sleep(0.005)

    def _run(self, draw: Random) -> None:
        while not self._end.is_set():
            number = draw.randrange(len(self._requests))
            try:
                admitted = self.store.decide_one(self._requests[number]).admitted
            except StoreError as error:
                with self._lock:
                    self.errors.append(error)
                    self.last_error_s = time.monotonic()
                # As a caller does whose request was decided by a failure policy.
                time.sleep(0.002)
                continue
            with self._lock:
                if admitted:
                    self.admitted[number] += 1
                else:
                    self.refused += 1


@pytest.fixture
def hammer() -> type[Load]:
    """``hammer(store, requests)``: a load by threads, to be entered."""
    return Load
