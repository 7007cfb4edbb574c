"""What follows from the flags of a server."""

from __future__ import annotations

import pytest

from sluicegate.app.settings import Settings, default_store, is_embedded
from sluicegate.errors import ConfigurationError


def test_default_store_is_one_that_all_workers_share() -> None:
    """One worker keeps its counters in memory; several share a store that is started for them."""
    assert (default_store(1), default_store(2)) == ("memory://", "embedded://")


@pytest.mark.parametrize(("url", "embedded"), [("embedded://", True), ("EMBEDDED:", True), ("redis://embedded", False)])
def test_embedded_is_known_by_its_scheme(url: str, embedded: bool) -> None:
    """Only the scheme counts."""
    assert is_embedded(url) is embedded


def test_supervisor_is_for_several_processes() -> None:
    """Several workers have a supervisor, and so has a store that has to be started; one process with any other store has none."""
    assert Settings(workers=2, store="redis://h").supervised
    assert Settings(store="embedded://").supervised
    assert not Settings().supervised
    assert not Settings(store="redis://h").supervised


def test_workers_are_nodes() -> None:
    """The local limits divide by the number of workers at least, by more where more nodes are said to be there.  # P51"""
    assert Settings(workers=4, store="redis://h").nodes_min == 4
    assert Settings(workers=4, store="redis://h", nodes=3).nodes_min == 4
    assert Settings(nodes=3).nodes_min == 3


def test_memory_is_for_one_worker() -> None:
    """Several workers with memories of their own are refused however the settings are made.  # P64"""
    with pytest.raises(ConfigurationError, match="each worker would admit the whole limit"):
        Settings(workers=2)


@pytest.mark.parametrize("jitter_s", [-1.0, 0.5, 3_601.0])
def test_jitter_is_whole_seconds(jitter_s: float) -> None:
    """Retry-After has whole seconds, and so has what is added to it; more than an hour is a mistake."""
    with pytest.raises(ConfigurationError, match=r"retry_jitter must be whole seconds, 0 to 3600, got"):
        Settings(retry_jitter_s=jitter_s)
    assert Settings(retry_jitter_s=30.0).retry_jitter_s == 30


def test_nginx_is_refused_with_what_it_understands() -> None:
    """403 and 401 are what auth_request takes for a refusal, 429 is for programs in nginx; anything else would be a fault to it."""
    assert Settings(authz_nginx_deny_status=401).authz_nginx_deny_status == 401
    with pytest.raises(ConfigurationError, match="authz_nginx_deny_status must be one of 403, 401, 429, got 503"):
        Settings(authz_nginx_deny_status=503)
