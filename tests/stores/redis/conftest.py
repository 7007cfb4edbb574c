"""The servers on which the Redis store is tested, and stores on them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from sluicegate.clock import Clock
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
