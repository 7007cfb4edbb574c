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
