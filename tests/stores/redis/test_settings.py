"""URLs of Redis stores."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluicegate.bounds import REDIS_TIMEOUT_MS
from sluicegate.clock import ManualClock
from sluicegate.errors import ConfigurationError
from sluicegate.stores.redis import RedisSettings, RedisStore
from sluicegate.stores.redis.addresses import Address
from sluicegate.stores.redis.layout import Layout
from sluicegate.stores.redis.settings import SCHEMES
from sluicegate.stores.urls import open_store


def cluster(*seeds: tuple[str, int], **more: object) -> RedisSettings:
    """Settings with several servers to begin with."""
    return RedisSettings(host=seeds[0][0], port=seeds[0][1], seeds=tuple(Address(*seed) for seed in seeds), **more)


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
        ("redis://u:p%5B%23%3F%2C%40@h:1", RedisSettings(host="h", port=1, username="u", password="p[#?,@")),
        ("redis://h?nodes=12", RedisSettings(host="h", nodes_min=12)),
        ("redis://h?layout=plain", RedisSettings(host="h")),
        ("redis://h?layout=packed&expected_clients=100", RedisSettings(host="h", layout=Layout(1))),
        ("redis://h?expected_clients=10000001&layout=packed", RedisSettings(host="h", layout=Layout(100_001))),
        (
            "redis://h?layout=packed&expected_clients=1&moving_from=plain",
            RedisSettings(host="h", layout=Layout(1), moving_from=Layout(0)),
        ),
        ("redis://h?moving_from=packed&moving_from_clients=500", RedisSettings(host="h", moving_from=Layout(5))),
        ("redis+cluster://h?layout=packed&expected_clients=9", cluster(("h", 6_379), layout=Layout(1))),
        ("valkey://h:7000/3", RedisSettings(host="h", port=7_000, db=3)),
        ("valkeys://h", RedisSettings(host="h", tls=True)),
        ("valkey+unix:///r.sock", RedisSettings(path="/r.sock")),
        ("redis+cluster://a,b:7001", cluster(("a", 6_379), ("b", 7_001))),
        ("redis+cluster://h:7000,h:7001,h:7000/", cluster(("h", 7_000), ("h", 7_001))),
        ("redis+cluster://u:p@[::1]:7000,[::1]:7001", cluster(("::1", 7_000), ("::1", 7_001), username="u", password="p")),
        ("redis+cluster://h,[2001:db8::1],[::1]:2/0", cluster(("h", 6_379), ("2001:db8::1", 6_379), ("::1", 2))),
        ("rediss+cluster://:p%2C@h?ca_certs=/ca", cluster(("h", 6_379), password="p,", tls=True, ca_certs="/ca")),
        ("valkeys+cluster://h?timeout_ms=9&nodes=2", cluster(("h", 6_379), tls=True, timeout_ms=9, nodes_min=2)),
        ("redis+sentinel://h/main", cluster(("h", 26_379), service="main")),
        ("redis+sentinel://u:p@a,[::1]:9/my%2Fmain/3", cluster(
            ("a", 26_379), ("::1", 9), service="my/main", db=3, username="u", password="p")),
        ("rediss+sentinel://a/main?db=3", cluster(("a", 26_379), service="main", db=3, tls=True)),
        ("valkey+sentinel://:x@a/main?sentinel_username=s&sentinel_password=y%26", cluster(
            ("a", 26_379), service="main", password="x", sentinel_username="s", sentinel_password="y&")),
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
        ("redis://u:secret@h:99999", "port: want 1 to 65535"),
        ("redis://u:secret@[::1", "host: cannot be read"),
        ("redis://u:secret@[::1]7000", "host: cannot be read"),
        ("redis://u:secret@[::g]:7000", "no IPv6 address"),
        ("redis://u:secret@::1:7000", "host: cannot be read"),
        ("redis://u:secret@h:port", "port: want 1 to 65535"),
        ("redis://u:secret", "port: want 1 to 65535"),
        ("redis://u:1/secret@h", "write / in a user or password as %2F"),
        ("redis://u:1?secret@h", "no such parameter, only"),
        ("redis://u:secret#1@h", "takes no fragment"),
        ("redis://a,b", "takes one"),
        ("redis://a b", "a name or an address is missing"),
        ("redis://u:secret@a..b", "can be no name"),
        ("redis+cluster://u:secret@h," + "x" * 64, "can be no name"),
        ("redis://h?nodes=0", "nodes: want a whole number from 1 to 100000, got '0'"),
        ("redis://h?sentinel_password=secret", "no parameter 'sentinel_password'"),
        ("redis+cluster://u:secret@", "needs at least one"),
        ("redis+cluster://u:secret@a,,b", "a name or an address is missing"),
        ("redis+cluster://u:secret@a/1", "a cluster has only database 0, got 1"),
        ("redis+cluster://u:secret@a?db=2", "a cluster has only database 0, got 2"),
        ("redis+cluster://" + ",".join(f"h{n}" for n in range(129)), "at most 128 hosts, got 129"),
        ("redis+sentinel://u:secret@a,b", "needs the name of the service"),
        ("redis+sentinel://u:secret@a/main/x", "db: want a whole number"),
        ("redis+sentinel://u:secret@a/main/1?db=1", "db is given twice"),
        ("redis+sentinel://u:secret@a:26379/main?sentinel_password=secret&sentinel_password=x", "given twice"),
        ("redis+cluster+x://u:secret@h", "want redis://, rediss://"),
        ("redis:u:secret@h", "want redis://, rediss://"),
        ("redis://h:0", "port: want 1 to 65535"),
        ("redis://u:secret@h/x", "db: want a whole number"),
        ("redis://u:secret@h/1?db=2", "db is given twice"),
        ("redis://u:secret@h?timeout=5", "no parameter 'timeout', only"),
        ("redis://u:secret@h?timeout_ms=0", "timeout_ms: want a whole number from 1 to 60000, got '0'"),
        ("redis://u:secret@h?timeout_ms=1&timeout_ms=2", "timeout_ms is given twice"),
        ("redis://u:secret@h?timeout_ms=" + "9" * 5_000, "timeout_ms: want"),
        ("redis://u:secret@h?keys=clear", "keys: want digest or plain"),
        ("redis://u:secret@h?layout=dense", "layout: want plain or packed, got 'dense'"),
        ("redis://u:secret@h?layout=packed", "a whole number from 1 to 10000000000, which is missing"),
        ("redis://u:secret@h?layout=packed&expected_clients=0", "needs expected_clients"),
        ("redis://u:secret@h?layout=packed&expected_clients=1e7", "got '1e7'"),
        ("redis://u:secret@h?expected_clients=5", "expected_clients is for layout=packed only"),
        ("redis://u:secret@h?layout=packed&expected_clients=5&keys=plain", "keys=plain is for layout=plain only"),
        (
            "redis://u:secret@h?moving_from=packed&moving_from_clients=5&keys=plain",
            "keys=plain is for layout=plain only",
        ),
        ("redis://u:secret@h?moving_from=packed", "moving_from=packed needs moving_from_clients"),
        ("redis://u:secret@h?moving_from=plain&moving_from_clients=5", "is for moving_from=packed only"),
        ("redis://u:secret@h?moving_from_clients=5", "is for moving_from=packed only"),
        ("redis://u:secret@h?moving_from=plain", "moving_from: this is the layout already"),
        (
            "redis+cluster://u:secret@h?layout=packed&expected_clients=5&moving_from=plain",
            "moving_from is for one server",
        ),
        ("redis://u:x@h?key_secret=secret", "key_secret: want 16 to 1024 bytes, got 6"),
        ("redis://u:secret@h?ca_certs=x", "ca_certs is for TLS (rediss://...) only"),
        ("redis+unix://u:secret@h/run/r.sock", "absolute path"),
        ("redis+unix://", "absolute path"),
        ("redis+unix:///run/%00x", "absolute path"),
        ("redis+unix:///" + "x" * 200, "at most 107 bytes"),
        ("http://u:secret@h", "want redis://"),
    ],
)
def test_what_is_refused(url: str, words: str) -> None:
    """What is wrong is named, and neither user nor password nor secret is shown."""
    with pytest.raises(ConfigurationError) as caught:
        RedisSettings.from_url(url)
    assert words in str(caught.value)
    assert "secret" not in re.sub(r"key_secret|\w*sentinel_password", "", str(caught.value))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_authorities_that_cannot_be_used_are_a_mistake(content: bytes | None, tmp_path: Path) -> None:
    """A file of certificates that is absent or holds none is named at once: no connection would ever be made."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"ca_certs: cannot use '{re.escape(str(path))}': "):
        RedisStore(f"rediss://h?ca_certs={path}")


def test_nothing_secret_is_shown() -> None:
    """Neither settings nor stores show credentials."""
    settings = RedisSettings.from_url("redis://u:hidden1@[::1]:7000?key_secret=hidden2-hidden2-hidden2")
    sentinel = RedisSettings.from_url("redis+sentinel://u:hidden1@[::1]:1,h:2/main?sentinel_password=hidden2")
    assert "hidden" not in repr(sentinel) + sentinel.address
    assert sentinel.address == "[::1]:1,h:2/main"
    store = RedisStore(settings)
    for text in (repr(settings), str(settings), repr(store), settings.address):
        assert "hidden" not in text
    assert settings.address == "[::1]:7000"
    store.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_open_store(scheme: str) -> None:
    """``open_store`` opens a Redis store by every scheme there is, also while no server is there."""  # T80
    path = "/nowhere/s" if "unix" in scheme else "127.0.0.1:1" + ("/main" if "sentinel" in scheme else "")
    store = open_store(f"{scheme}://{path}?timeout_ms=9", ManualClock(), warm=scheme in ("redis", "redis+cluster"))
    assert isinstance(store, RedisStore)
    assert store.settings == RedisSettings.from_url(f"{scheme}://{path}?timeout_ms=9")
    store.close()


def test_settings_of_one_server_of_many() -> None:
    """A server of a cluster, the master behind Sentinels and a Sentinel have the URL's settings, each with its own credentials."""  # P56 T85
    cluster = RedisSettings.from_url("rediss+cluster://u:p@a:1,b:2?timeout_ms=70&ca_certs=/ca")
    assert cluster.is_cluster
    node = cluster.at(Address("::1", 3))
    assert not node.is_cluster
    assert (node.address, node.username, node.password) == ("[::1]:3", "u", "p")
    assert (node.tls, node.ca_certs, node.timeout_ms) == (True, "/ca", 70)
    found = RedisSettings.from_url("redis+sentinel://u:p@a:1/main/3?sentinel_username=s&sentinel_password=q")
    assert not found.is_cluster
    sentinel = found.of_sentinel(Address("b", 4))
    assert (sentinel.address, sentinel.handshake()) == ("b:4", [(b"AUTH", "s", "q")])
    master = found.at(Address("b", 4))
    assert (master.address, master.handshake()) == ("b:4", [(b"AUTH", "u", "p"), (b"SELECT", "3")])
