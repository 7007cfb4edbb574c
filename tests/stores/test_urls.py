"""Store URLs."""

from __future__ import annotations

import pytest

from sluicegate.bounds import MEMORY_COUNTERS_MAX
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.stores.memory import MemoryStore
from sluicegate.stores.urls import open_store


@pytest.mark.parametrize(
    "url, max_counters",
    [
        ("memory://", MEMORY_COUNTERS_MAX),
        ("memory:///", MEMORY_COUNTERS_MAX),
        ("MEMORY://", MEMORY_COUNTERS_MAX),
        ("memory://?max_counters=5000", 5_000),
    ],
)
def test_memory(url: str, max_counters: int) -> None:
    """``memory://`` opens a memory store on the given clock, bounded as asked."""
    clock = ManualClock()
    store = open_store(url, clock)
    assert isinstance(store, MemoryStore)
    assert store.max_counters == max_counters
    assert store.clock is clock


@pytest.mark.parametrize(
    "url, words",
    [
        ("redis+cluster://user:secret@h:7000,[::1]:7001/1", "only database 0"),
        ("redis+sentinel://user:secret@h:26379", "needs the name of the service"),
        ("redis+clutser://user:secret@h", "'redis+clutser' (did you mean redis+cluster://?)"),
        ("redi://user:secret@h", "'redi' (did you mean redis://?); want memory://, embedded://, redis://"),
        ("valky://h", "did you mean valkey://?"),
        ("embeded://", "did you mean embedded://?"),
        ("embedded://", "is started by a server"),
        ("postgres://host/db", "'postgres'"),
        ("memory", "want memory://"),
        ("", "want memory://"),
        ("memory://host", "takes no host"),
        ("memory://?max_countres=5", "no parameter 'max_countres', only max_counters"),
        ("memory://?max_counters=", "whole number, got ''"),
        ("memory://?max_counters=-5", "whole number, got '-5'"),
        ("memory://?max_counters=1e6", "whole number, got '1e6'"),
        ("memory://?max_counters=0", "max_counters: want 1 to"),
        ("memory://?max_counters=5&max_counters=6", "given twice"),
        ("memory://?max_counters=" + "9" * 5_000, "max_counters: want 1 to"),
        ("memory://[", "not a URL"),
    ],
)
def test_what_is_refused(url: str, words: str) -> None:
    """Anything else is a configuration error that says what is wrong and never shows credentials."""
    with pytest.raises(ConfigurationError) as caught:
        open_store(url, ManualClock())
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_every_scheme_is_named() -> None:
    """Whoever misspells a scheme, or gives none, reads all that there are."""
    for url in ("redi://x", "", "memory://["):
        with pytest.raises(ConfigurationError) as caught:
            open_store(url, ManualClock())
        for scheme in ("memory", "embedded", "redis", "rediss", "redis+unix", "redis+cluster", "redis+sentinel"):
            assert f"{scheme}://" in str(caught.value)
        assert "valkey in the place of redis" in str(caught.value)
