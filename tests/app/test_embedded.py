"""The URL of the embedded store. Its life is tested with the servers that start it (tests/app/workers)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluicegate.app.embedded import EmbeddedStore, EmbeddedUrl
from sluicegate.bounds import EMBEDDED_MEMORY_MB, EMBEDDED_TIMEOUT_MS
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.stores.redis.settings import RedisSettings


def test_defaults() -> None:
    """Without parameters it has its own memory and its own deadline, longer than that of a store over a network."""
    url = EmbeddedUrl.parse("embedded://")
    assert url.max_memory_mb == EMBEDDED_MEMORY_MB
    settings = RedisSettings.from_url(url.on(Path("/run/a b?c#d%/s.sock")))
    assert (settings.path, settings.timeout_ms) == ("/run/a b?c#d%/s.sock", EMBEDDED_TIMEOUT_MS)


def test_parameters_are_passed_on() -> None:
    """What is not its own is the Redis store's, as given."""
    url = EmbeddedUrl.parse("embedded://?max_memory_mb=64&timeout_ms=5000&key_secret=0123456789abcdef%26x&keys=plain")
    assert url.max_memory_mb == 64
    settings = RedisSettings.from_url(url.on(Path("/s")))
    assert (settings.timeout_ms, settings.key_secret, settings.plain_keys) == (5_000, b"0123456789abcdef&x", True)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("embedded://host", "no host"),
        ("embedded:///path", "no host, path"),
        ("embedded://?max_memory_mb=1", "16 to"),
        ("embedded://?max_memory_mb=lots", "'lots'"),
        ("embedded://?max_memory_mb=64&max_memory_mb=65", "given twice"),
    ],
)
def test_mistakes_are_named(url: str, words: str) -> None:
    """What cannot be meant is refused with the field and the value."""
    with pytest.raises(ConfigurationError, match=words):
        EmbeddedUrl.parse(url)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("embedded://?foo=1", "no parameter 'foo'"),
        ("embedded://?key_secret=short", "key_secret: want 16"),
        ("embedded://?nodes=0", "nodes: want"),
        ("embedded://?db=1", "only database 0, got 1"),
    ],
)
def test_parameters_are_checked_before_anything_is_started(url: str, words: str, tmp_path: Path) -> None:
    """What the workers would refuse is refused by the supervisor, which starts neither a store nor a worker for it."""
    with pytest.raises(ConfigurationError, match=words):
        EmbeddedStore(url, tmp_path, ManualClock(), lambda: None)
    assert not list(tmp_path.iterdir())
