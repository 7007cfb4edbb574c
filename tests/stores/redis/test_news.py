"""News between processes that share a Redis: heard soon, never waited for, and nothing depends on them."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
import redis
from real_clusters import until
from real_servers import BINARIES, running

from sluicegate.algorithms import TokenBucket
from sluicegate.bounds import REDIS_NEWS_BYTES_MAX, REDIS_NEWS_NAMES_MAX, REDIS_NEWS_PENDING_MAX
from sluicegate.stores.base import Counter, NewsStore
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore

SPEC = TokenBucket(1, 1, 3_600_000_000)
RULE = Counter("api", SPEC, counter_prefix("news", "api", SPEC.algorithm, SPEC.shape))
OTHER = Counter("api", SPEC, counter_prefix("another", "api", SPEC.algorithm, SPEC.shape))
CHANNEL = "rl1:news:0"
SUBJECT = "user:1"
KEY = RULE.prefix + SUBJECT
ONE = ((RULE, SUBJECT, 1),)
SOON_S = 10.0
"""How long a busy machine may take for what takes milliseconds."""


class Ear:
    """Hears the news of a store."""

    def __init__(self, store: RedisStore) -> None:
        self._turn = threading.Condition()
        self._heard: list[Sequence[int] | None] = []
        self.store = store
        self.end = store.subscribe(self._hear)

    def _hear(self, names: Sequence[int] | None) -> None:
        with self._turn:
            self._heard.append(names)
            self._turn.notify_all()

    def take(self, count: int = 1) -> list[Sequence[int] | None]:
        """The next news, so many of them."""
        with self._turn:
            assert self._turn.wait_for(lambda: len(self._heard) >= count, SOON_S), self._heard
            found, self._heard = self._heard[:count], self._heard[count:]
            return found

    def names(self) -> set[int]:
        """All names that have been heard, after waiting for the first."""
        with self._turn:
            assert self._turn.wait_for(lambda: bool(self._heard), SOON_S)
            found, self._heard = self._heard, []
        assert None not in found
        return {name for names in found if names for name in names}

    @property
    def silent(self) -> bool:
        return not self._heard


Listen = Callable[..., Ear]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Makes a process's store of a URL, connected and listening; it is closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(url: str) -> Ear:
            store = RedisStore(url)
            stack.callback(store.close)
            assert store.warm()
            ear = Ear(store)
            assert ear.take() == [None]
            return ear

        yield make


@pytest.fixture
def teller(server) -> Iterator[RedisStore]:
    """Another process's store, whose client 1 has used its token."""
    store = RedisStore(server.url)
    assert store.decide_one(ONE).admitted
    yield store
    store.close()


def threads() -> list[str]:  # The news threads of this process.
    return [thread.name for thread in threading.enumerate() if thread.name == "sluicegate news"]


# ---------------------------------------------------------------------- what is told


def test_a_redis_store_is_a_news_store(teller: RedisStore) -> None:
    """Whoever stands in front of a store finds the ability by its protocol."""
    assert isinstance(teller, NewsStore)


def test_whoever_gives_back_says_so(server, teller: RedisStore, listen: Listen) -> None:
    """A refund, a grant and a reset by one process are heard by another, under the counter's name, and what is only said is, too."""
    ear = listen(server.url)
    name = ear.store.news_name(KEY)
    assert teller.news_name(KEY) == name
    assert not teller.decide_one(ONE).admitted
    assert ear.silent
    assert teller.grant(ONE) == [1]
    assert ear.names() == {name}
    answer = teller.decide_one(ONE)
    assert teller.refund(answer.receipts()) == 1
    assert ear.names() == {name}
    assert teller.reset([(RULE, SUBJECT)]) == 1
    assert ear.names() == {name}
    teller.publish([KEY, RULE.prefix + "user:2"])
    assert ear.names() == {name, ear.store.news_name(RULE.prefix + "user:2")}


async def test_coroutines_that_give_back_say_so(server, teller: RedisStore, listen: Listen) -> None:
    """The same of ``arefund``, ``agrant`` and ``areset``; closing waits until what was told is sent."""
    ear = listen(server.url)
    name = ear.store.news_name(KEY)
    assert await teller.agrant(ONE) == [1]
    assert ear.names() == {name}
    answer = await teller.adecide_one(ONE)
    assert await teller.arefund(answer.receipts()) == 1
    assert ear.names() == {name}
    assert await teller.areset([(RULE, SUBJECT)]) == 1
    await teller.aclose()
    assert ear.names() == {name}


def test_what_a_refused_request_takes_back_is_not_told(cluster, listen: Listen) -> None:
    """On a cluster a refused request undoes what its other counters were charged; that is no news, and costs others no question."""
    ear = listen(cluster.url)
    store = RedisStore(cluster.url)
    one = Counter("one", TokenBucket(9, 1, 3_600_000_000), counter_prefix("news", "one", SPEC.algorithm, SPEC.shape))
    # Not refused the first time: what refuses is looked at before the others are charged from then on.
    for _ in range(4):
        store.decide_one([(one, "user:1", 1), (RULE, "user:2", 1)])
    assert store.stats.undone > 0
    assert (store.stats.news_sent, ear.silent) == (0, True)
    store.close()


def test_namespaces_and_databases_do_not_disturb_each_other(server, teller: RedisStore, listen: Listen) -> None:
    """A counter of the same rule and client in another namespace has another name, and another database another channel."""
    ear, elsewhere = listen(server.url), listen(server.url.replace("?", "/3?"))
    assert ear.store.news_name(OTHER.prefix + SUBJECT) != ear.store.news_name(KEY)
    teller.publish([OTHER.prefix + SUBJECT])
    assert ear.names() == {teller.news_name(OTHER.prefix + SUBJECT)}
    assert elsewhere.silent


def test_names_are_made_of_keys_in_which_nobody_can_be_read(server, teller: RedisStore) -> None:
    """A name is the beginning of the SHA-256 of the key in the store, so that other programs can make it, and holds the client as a digest only."""
    key = teller.key(RULE, SUBJECT)
    assert SUBJECT not in key
    assert teller.news_name(KEY) == int.from_bytes(sha256(key.encode()).digest()[:8])
    assert teller.news_name("a name of another form") != teller.news_name("another one")


def test_many_counters_are_several_messages_and_too_many_are_one(server, teller: RedisStore, listen: Listen) -> None:
    """What is told together is bounded: beyond ten thousand counters it says "any counter may pass"."""
    ear = listen(server.url)
    teller.publish(f"{RULE.prefix}user:{number}" for number in range(2 * REDIS_NEWS_NAMES_MAX + 1))
    found = ear.take(3)
    assert [len(names or ()) for names in found] == [REDIS_NEWS_NAMES_MAX, REDIS_NEWS_NAMES_MAX, 1]
    teller.publish(f"{RULE.prefix}user:{number}" for number in range(REDIS_NEWS_PENDING_MAX + 1))
    assert ear.take() == [None]
    teller.publish([KEY])
    assert ear.names() == {teller.news_name(KEY)}


@pytest.mark.measured
def test_telling_waits_for_nobody(server, proxy) -> None:
    """A store that hangs, or is closed, costs whoever tells nothing."""
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}?timeout_ms=5000")
    store.decide_one(ONE)
    proxy.swallowing = True
    began_s = time.monotonic()
    for _ in range(100):
        store.publish([KEY])
    assert time.monotonic() - began_s < 1
    store.close()
    store.publish([KEY])
    assert (time.monotonic() - began_s < 3, store.stats.news_sent) == (True, 0)


def test_a_program_that_resets_and_ends_is_heard(server, teller: RedisStore, listen: Listen) -> None:
    """Closing a store, as a command does at once, waits until its news are sent."""
    ear = listen(server.url)
    teller.reset([(RULE, SUBJECT)])
    teller.close()
    assert ear.names() == {ear.store.news_name(KEY)}


# ---------------------------------------------------------------------- what is heard


@pytest.mark.parametrize("message", [b"", b"2", b"x" * 9, b"1abc", b"1" * 8, b"\xff" * 4_000], ids=len)
def test_messages_of_strangers_are_left_alone(server, teller: RedisStore, listen: Listen, message: bytes) -> None:
    """Whatever else is said on the channel is counted and changes nothing."""
    ear = listen(server.url)
    with contextlib.closing(server.client()) as client:
        client.publish(CHANNEL, message)
    teller.publish([KEY])
    assert ear.take() == [[ear.store.news_name(KEY)]]
    assert ear.store.stats.news_ignored == 1


def test_a_message_that_is_too_long_is_not_kept(server, teller: RedisStore, listen: Listen) -> None:
    """The connection is given up before a stranger's message fills the memory; then anything may have been missed."""
    ear = listen(server.url)
    with contextlib.closing(server.client()) as client:
        client.publish(CHANNEL, b"1" + bytes(8 * REDIS_NEWS_BYTES_MAX))
    assert ear.take() == [None]
    assert ear.store.stats.news_failed == 1
    teller.publish([KEY])
    assert ear.names() == {ear.store.news_name(KEY)}


def test_a_fault_of_one_who_hears_makes_nobody_deaf(
    server, teller: RedisStore, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the others are told."""

    def faulty(names: Sequence[int] | None) -> None:
        raise RuntimeError(f"a fault of ours: {names}")

    first = listen(server.url)
    first.store.subscribe(faulty)
    second = Ear(first.store)
    for ear in (first, second):
        teller.publish([KEY])
        assert ear.names() == {teller.news_name(KEY)}
    assert "a fault of ours" in caplog.text


def test_another_secret_means_other_names(server, listen: Listen) -> None:
    """After a flush all take over another secret; what was known under the names before is forgotten with the first news."""
    ear = listen(server.url)
    with contextlib.closing(server.client()) as client:
        client.set("rl1:key_secret", b"made:0123456789")
    ear.store._core.riders.hurry()
    ear.store.decide_one(ONE)
    ear.store.publish([KEY])
    assert ear.take(2) == [None, [ear.store.news_name(KEY)]]


def test_listening_ends_with_the_last_who_hears(server, listen: Listen) -> None:
    """Whoever ends hears nothing more; the thread ends with the last, and a new one begins with the next."""
    first = listen(server.url)
    second = Ear(first.store)
    first.end()
    first.store.publish([KEY])
    assert second.names() == {first.store.news_name(KEY)}
    assert first.silent
    second.end()
    until(lambda: threads() == [], "the thread goes on")
    third = Ear(first.store)
    assert third.take() == [None]
    first.store.close()
    until(lambda: threads() == [], "the thread goes on")


def test_a_store_that_nobody_uses_is_not_kept_alive_by_its_news(server) -> None:
    """Who forgets to close a store keeps neither a thread nor a connection."""
    store = RedisStore(server.url)
    store.warm()
    told = threading.Event()
    store.subscribe(lambda names: told.set())
    assert told.wait(SOON_S)
    store._core.router.node_of(0).links.close_idle()
    del store
    until(lambda: gc.collect() >= 0 and threads() == [], "the thread goes on")


# ---------------------------------------------------------------------- connections that end


def test_a_connection_that_is_cut_is_made_again(server, teller: RedisStore, listen: Listen) -> None:
    """After a cut anything may have been missed, which is said when news are heard again."""
    ear = listen(server.url)
    for cuts in (1, 2):
        with contextlib.closing(server.client()) as client:
            assert client.client_kill_filter(_type="pubsub") >= 1
        assert ear.take() == [None]
        assert ear.store.stats.news_failed == cuts
    teller.publish([KEY])
    assert ear.names() == {ear.store.news_name(KEY)}


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_a_server_that_is_started_again(
    kind: str, tmp_path: Path, require_program: Callable[[str], str], listen: Listen
) -> None:
    """While it is away nothing is said; when it is back, that anything may have been missed, and news go on."""
    binary = require_program(BINARIES[kind])
    with running(binary, tmp_path) as before:
        ear = listen(before.url)
    until(lambda: ear.store.stats.news_failed >= 2, "the listener does not notice")
    assert ear.silent
    with running(binary, tmp_path, port=before.port):
        assert ear.take() == [None]
        until(ear.store.warm, "the store does not come back")
        ear.store.publish([KEY])
        assert ear.names() == {ear.store.news_name(KEY)}


@pytest.mark.measured
def test_a_server_that_hangs_is_noticed(server, proxy, monkeypatch: pytest.MonkeyPatch, listen: Listen) -> None:
    """A connection that says nothing is asked for a sign of life, and given up without one: a firewall that forgot it tells nobody."""
    monkeypatch.setattr("sluicegate.stores.redis.news_listener.REDIS_NEWS_LIFE_US", 100_000)
    monkeypatch.setattr("sluicegate.stores.redis.news_listener._LOOK_US", 50_000)
    ear = listen(f"redis://127.0.0.1:{proxy.port}?timeout_ms=5000")
    began_s = time.monotonic()
    while time.monotonic() - began_s < 0.5:
        assert ear.store.stats.news_failed == 0
        time.sleep(0.05)
    proxy.swallowing = True
    until(lambda: ear.store.stats.news_failed >= 1, "the listener does not notice")
    proxy.swallowing = False
    assert ear.take() == [None]


@pytest.mark.parametrize("rights", ["resetchannels +publish +subscribe", "allchannels -publish -subscribe"])
def test_news_that_are_forbidden(server, listen: Listen, caplog: pytest.LogCaptureFixture, rights: str) -> None:
    """Without the rights all else works, the log says what is missing, once, and a number grows."""
    with contextlib.closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~rl1:*", "+@all", *rights.split())
    store = RedisStore(server.url.replace("redis://", "redis://limited:pw@"))
    try:
        heard = threading.Event()
        with caplog.at_level(logging.WARNING):
            store.decide_one(ONE)
            store.subscribe(lambda names: heard.set())
            until(lambda: store.stats.news_failed >= 1, "nothing was tried")
            assert store.reset([(RULE, SUBJECT)]) == 1
            until(lambda: store.stats.news_failed >= 2, "nothing was told")
        assert store.decide_one(ONE).admitted
        assert not heard.is_set()
        assert store.news_failing
        assert [record.name for record in caplog.records if "+publish +subscribe &rl1:*" in record.getMessage()] == [
            "sluicegate.store"
        ]
        assert store.health()[0].state == "up"
    finally:
        store.close()
        with contextlib.closing(server.client()) as client:
            client.execute_command("ACL", "DELUSER", "limited")


def test_the_documented_rights_are_enough(server, listen: Listen) -> None:
    """A user with the rights that the manual names, and no others, tells and hears."""
    page = (Path(__file__).parents[3] / "docs" / "redis.md").read_text()
    news = next(line for line in page.splitlines() if "&rl1:*" in line).split("`")[1]
    rights = next(line for line in page.splitlines() if line.startswith("    ~rl1:*")).split()
    with contextlib.closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "resetchannels", *rights, *news.split())
    try:
        ear = listen(server.url.replace("redis://", "redis://limited:pw@"))
        ear.store.decide_one(ONE)
        assert ear.store.reset([(RULE, SUBJECT)]) == 1
        assert ear.names() == {ear.store.news_name(KEY)}
        ear.store.close()
    finally:
        with contextlib.closing(server.client()) as client:
            client.execute_command("ACL", "DELUSER", "limited")


# ---------------------------------------------------------------------- processes


def test_a_forked_child_listens_anew(server, teller: RedisStore, listen: Listen) -> None:
    """A child hears by a connection of its own, from the first use of its store on, and its parent goes on."""
    ear = listen(server.url)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        good = False
        with contextlib.suppress(BaseException):
            ear.store._core.riders.hurry()
            ear.store.decide_one(ONE)
            heard = ear.take() == [None]
            os.write(writes, b"1")
            good = heard and ear.names() == {ear.store.news_name(KEY)}
        os._exit(0 if good else 1)
    assert os.read(reads, 1) == b"1"
    teller.publish([KEY])
    assert os.waitpid(child, 0)[1] == 0
    assert ear.names() == {ear.store.news_name(KEY)}


@pytest.mark.measured
def test_a_program_that_listens_ends_at_once(server) -> None:
    """Neither the thread nor its connection keeps a program alive that did not close its store."""
    program = f"""
import threading
from sluicegate.stores.redis import RedisStore
store = RedisStore({server.url!r})
store.warm()
told = threading.Event()
store.subscribe(lambda names: told.set())
assert told.wait(60)
print("up", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        began_s = time.monotonic()
        assert process.wait(SOON_S) == 0
    # Threads under way are waited for: 1.5 seconds where they do not end.
    assert time.monotonic() - began_s < 1.2


# ---------------------------------------------------------------------- several servers


def test_every_server_of_a_cluster_passes_on_what_one_hears(cluster, listen: Listen) -> None:
    """Wherever a process tells and another listens, and whichever slot the counter is in."""
    ears = [listen(cluster.url) for _ in range(3)]
    names = {ears[0].store.news_name(f"{RULE.prefix}user:{number}") for number in range(20)}
    for number in range(20):
        ears[number % 3].store.publish([f"{RULE.prefix}user:{number}"])
    for ear in ears:
        found: set[int] = set()
        while not found >= names:
            found |= ear.names()
        assert found == names


@pytest.mark.slow
def test_the_server_of_a_cluster_that_was_listened_to_dies(own_cluster, listen: Listen) -> None:
    """Another one is listened to, and anything may have been missed."""
    ear = listen(own_cluster.url)
    listener = ear.store._core.news._listener
    assert listener is not None
    assert listener._link is not None
    own_cluster.kill(int(listener._link.address.rpartition(":")[2]))
    assert ear.take() == [None]
    own_cluster.wait_whole()
    until(lambda: _told(ear), "no news are heard")


def _told(ear: Ear) -> bool:
    """Whether what is told is heard, by now."""
    ear.store.publish([KEY])
    time.sleep(0.1)
    return not ear.silent and ear.store.news_name(KEY) in {name for names in ear.take() if names for name in names}


@pytest.mark.slow
def test_news_go_on_after_a_failover(service, listen: Listen) -> None:
    """The new master is listened to, and the rest is said to have been missed; the one before is left, though it lives."""
    ear, teller = listen(service.url()), listen(service.url())
    service.wait_replicated()
    service.fail_over()
    until(lambda: service.named() == service.replica.port, "no failover")

    def used() -> bool:
        for one in (ear, teller):
            one.store._core.riders.hurry()
            with contextlib.suppress(Exception):
                one.store.decide_one([(RULE, "user:7", 0)], peek=True)
        return not (ear.silent or teller.silent)

    until(used, "the listener stays with the old master")
    until(lambda: _told(ear), "no news are heard")


def test_news_over_tls_and_with_a_password(
    start_redis, free_port: Callable[[], int], authority, listen: Listen
) -> None:
    """The connection for news signs in and speaks TLS as all others do."""
    certificate, key = authority.issue("server")
    port = free_port()
    start_redis(
        "--tls-port", str(port), "--tls-key-file", str(key), "--tls-cert-file", str(certificate),
        "--tls-ca-cert-file", str(authority.path), "--tls-auth-clients", "no", "--requirepass", "secret",
    )  # fmt: skip
    ear = listen(f"rediss://:secret@127.0.0.1:{port}/2?timeout_ms=5000&ca_certs={authority.path}")
    for number in range(40):
        ear.store.publish([f"{RULE.prefix}user:{number}"])
        assert ear.store.news_name(f"{RULE.prefix}user:{number}") in ear.names()
    client = redis.Redis(port=port, password="secret", ssl=True, ssl_ca_certs=str(authority.path))
    with contextlib.closing(client):
        assert client.pubsub_numsub("rl1:news:2") == [(b"rl1:news:2", 1)]
