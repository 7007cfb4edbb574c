"""URLs of Redis stores."""

from __future__ import annotations

import pytest

from sluicegate.bounds import REDIS_TIMEOUT_MS
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.stores.redis import RedisSettings, RedisStore
from sluicegate.stores.urls import open_store


@pytest.mark.parametrize(
    "url, expected",
    [
        ("redis://", RedisSettings()),
        ("redis://10.0.0.1", RedisSettings(host="10.0.0.1")),
        ("REDIS://h:7000/3", RedisSettings(host="h", port=7_000, db=3)),
        ("redis://[::1]:7000", RedisSettings(host="::1", port=7_000)),
        ("redis://[2001:db8::1]/2", RedisSettings(host="2001:db8::1", db=2)),
        ("redis://:p%40s%2Fs@h", RedisSettings(host="h", password="p@s/s")),
        ("redis://u%3A1:p@h/0?timeout_ms=25", RedisSettings(host="h", username="u:1", password="p", timeout_ms=25)),
        ("rediss://h?ca_certs=/etc/ca.pem", RedisSettings(host="h", tls=True, ca_certs="/etc/ca.pem")),
        ("redis+unix:///run/r.sock?db=1", RedisSettings(path="/run/r.sock", db=1)),
        ("redis+unix://:p@/run/a%20b.sock", RedisSettings(path="/run/a b.sock", password="p")),
        ("redis://h?keys=plain", RedisSettings(host="h", plain_keys=True)),
        ("redis://h?key_secret=0123456789abcde%2B", RedisSettings(host="h", key_secret=b"0123456789abcde+")),
    ],
)  # fmt: skip
def test_what_a_url_says(url: str, expected: RedisSettings) -> None:
    """Host, port, socket, database, credentials and parameters are read, percent escapes undone."""  # P56
    assert RedisSettings.from_url(url) == expected
    assert RedisSettings().timeout_ms == REDIS_TIMEOUT_MS == 8


@pytest.mark.parametrize(
    "url, words",
    [
        ("redis://u:secret@h:99999", "cannot be read"),
        ("redis://u:secret@[::1", "cannot be read"),
        ("redis://u:secret@h:port", "cannot be read"),
        ("redis://h:0", "port: want 1 to 65535"),
        ("redis://u:secret@h/x", "db: want a whole number"),
        ("redis://u:secret@h/1?db=2", "db is given twice"),
        ("redis://u:secret@h?timeout=5", "no parameter 'timeout', only"),
        ("redis://u:secret@h?timeout_ms=0", "timeout_ms: want a whole number from 1 to 60000, got '0'"),
        ("redis://u:secret@h?timeout_ms=1&timeout_ms=2", "timeout_ms is given twice"),
        ("redis://u:secret@h?timeout_ms=" + "9" * 5_000, "timeout_ms: want"),
        ("redis://u:secret@h?keys=clear", "keys: want digest or plain"),
        ("redis://u:x@h?key_secret=secret", "key_secret: want 16 to 1024 bytes, got 6"),
        ("redis://u:secret@h?ca_certs=x", "ca_certs is for rediss:// only"),
        ("redis://u:secret@h#part", "takes no fragment"),
        ("redis+unix://u:secret@h/run/r.sock", "absolute path"),
        ("redis+unix://", "absolute path"),
        ("redis+unix:///" + "x" * 200, "at most 107 bytes"),
        ("http://u:secret@h", "want redis://"),
    ],
)
def test_what_is_refused(url: str, words: str) -> None:
    """What is wrong is named, and neither user nor password nor secret is shown."""
    with pytest.raises(ConfigurationError) as caught:
        RedisSettings.from_url(url)
    assert words in str(caught.value)
    assert "secret@" not in str(caught.value) and "secret'" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_nothing_secret_is_shown() -> None:
    """Neither settings nor stores show credentials."""
    settings = RedisSettings.from_url("redis://u:hidden1@[::1]:7000?key_secret=hidden2-hidden2-hidden2")
    store = RedisStore(settings)
    for text in (repr(settings), str(settings), repr(store), settings.address):
        assert "hidden" not in text
    assert settings.address == "[::1]:7000"
    store.close()


def test_open_store() -> None:
    """``open_store`` opens a Redis store by its URL, also while no server is there."""
    store = open_store("redis://127.0.0.1:1/2", ManualClock())
    assert isinstance(store, RedisStore)
    assert (store.settings.port, store.settings.db) == (1, 2)
    store.close()
