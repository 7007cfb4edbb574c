"""What happens between the store and the server: lost replies, slow and absent servers, credentials, the key secret."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sluicegate.algorithms import TokenBucket
from sluicegate.clock import SystemClock
from sluicegate.errors import StoreError
from sluicegate.limiter import Limiter
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import counter_prefix
from sluicegate.stores.redis import RedisStore

BUCKET = TokenBucket(100, 1, 3_600_000_000)
COUNTER = Counter("rule", BUCKET, counter_prefix("wire", "rule", BUCKET.algorithm, BUCKET.shape))
ONE = ((COUNTER, "ip:192.0.2.1", 1),)

Open = Callable[..., RedisStore]


def left(store: RedisStore) -> int:
    """What is left in the counter."""
    return store.decide_one([(COUNTER, "ip:192.0.2.1", 0)], peek=True).verdicts()[0].remaining


def recovered(call: Callable[[], int]) -> int:
    """What the call gives once the server is used again, which takes two seconds at most."""
    until = time.monotonic() + 2
    while True:
        try:
            return call()
        except StoreError:
            assert time.monotonic() < until
            threading.Event().wait(0.005)


def test_a_lost_reply_costs_one_charge(open_store: Open, proxy) -> None:
    """The server charges, the reply is cut: the caller gets an error and exactly one cost has moved."""  # P54
    direct, store = open_store(), RedisStore(f"redis://127.0.0.1:{proxy.port}?timeout_ms=5000")
    store.warm()
    assert store.decide_one(ONE).admitted
    for lost in range(1, 3):
        proxy.cut_replies = 1
        with pytest.raises(StoreError, match="is lost") as caught:
            store.decide_one(ONE)
        assert caught.value.transient
        assert left(direct) == 99 - lost
    assert store.decide_one(ONE).verdicts()[0].remaining == 96
    store.close()


async def test_a_lost_reply_costs_one_charge_of_a_coroutine(open_store: Open, proxy) -> None:
    """The same for the asynchronous store."""  # P54
    direct, store = open_store(), RedisStore(f"redis://127.0.0.1:{proxy.port}?timeout_ms=5000")
    assert (await store.adecide_one(ONE)).admitted
    for lost in range(1, 3):
        proxy.cut_replies = 1
        with pytest.raises(StoreError, match="is lost"):
            await store.adecide_one(ONE)
        assert left(direct) == 99 - lost
    assert (await store.adecide_one(ONE)).verdicts()[0].remaining == 96
    await store.aclose()


@pytest.mark.measured
def test_a_stalled_server_is_given_up_at_the_deadline(open_store: Open, proxy) -> None:
    """Nothing comes back: the call fails after ``timeout_ms``, and the connection is not used again."""  # T81, T77
    open_store()
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}?timeout_ms=100")
    store.warm()
    proxy.passing.clear()
    clock = SystemClock()
    for _ in range(3):
        began_us = clock.monotonic_us()
        with pytest.raises(StoreError, match=r"in time|no connection") as caught:
            store.decide_one(ONE)
        assert caught.value.transient
        assert clock.monotonic_us() - began_us < 400_000
    proxy.passing.set()
    assert recovered(lambda: left(store)) <= 100
    store.close()


@pytest.mark.measured
async def test_a_stalled_server_is_given_up_by_a_coroutine(proxy) -> None:
    """The asynchronous call fails after ``timeout_ms`` too, and the event loop goes on meanwhile."""
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}?timeout_ms=150")
    await store.adecide_one(ONE)
    proxy.passing.clear()
    loop = asyncio.get_running_loop()
    began = loop.time()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticker = asyncio.create_task(tick())
    with pytest.raises(StoreError, match="in time"):
        await store.adecide_one(ONE)
    assert loop.time() - began < 0.5
    assert ticks >= 3
    ticker.cancel()
    proxy.passing.set()
    assert (await store.adecide_one(ONE)).admitted
    await store.aclose()


@pytest.mark.measured
async def test_a_late_event_loop_is_not_a_late_store(server) -> None:
    """Where the loop was held up past the deadline, the reply that lies in the socket is still taken."""
    store = RedisStore(server.url.replace("5000", "60"))
    await store.adecide_one(ONE)
    call = asyncio.create_task(store.adecide_one(ONE))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    threading.Event().wait(0.2)
    assert (await call).verdicts()[0].remaining == 98
    await store.aclose()


class LateClock(SystemClock):
    """A clock that jumps by a minute at its third reading from now."""

    def __init__(self) -> None:
        self.readings = -1_000

    def monotonic_us(self) -> int:
        self.readings += 1
        return super().monotonic_us() + (60_000_000 if self.readings >= 3 else 0)


def test_a_late_process_is_not_a_late_store(open_store: Open) -> None:
    """Where the process was held up between sending and receiving, the reply is still taken."""
    store = open_store()
    store.decide_one(ONE)
    (node,) = store._core.router.nodes()
    link = node.links.take(SystemClock().monotonic_us() + 1_000_000)
    clock = LateClock()
    deadline_us = clock.monotonic_us() + 1_000_000
    link._sock.sendall(b"PING\r\nPING\r\n")
    threading.Event().wait(0.05)
    clock.readings = 1
    assert link.exchange(b"", 2, deadline_us, clock) == [b"PONG", b"PONG"]
    node.links.give(link)


def test_connections_closed_while_idle_are_replaced(open_store: Open, server) -> None:
    """A server that closed idle connections, as one that restarted has, costs no decision."""
    store = open_store()
    store.decide_one(ONE)
    with contextlib.closing(server.client()) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    threading.Event().wait(0.03)
    assert store.decide_one(ONE).verdicts()[0].remaining == 98
    assert store.stats.connects == 2


def test_one_connection_serves_one_thread(open_store: Open) -> None:
    """Calls of a thread use one connection, made once; eight threads at once never get each other's replies."""
    store = open_store()
    for _ in range(20):
        store.decide_one(ONE)
    assert store.stats.connects == 1
    counters = [
        Counter(f"r{i}", TokenBucket(1_000 + i, 1, 3_600_000_000), counter_prefix("wire", f"r{i}", "token_bucket", "-"))
        for i in range(8)
    ]
    wrong: list[object] = []

    def work(counter: Counter) -> None:
        for i in range(100):
            remaining = store.decide_one([(counter, "s", 1)]).verdicts()[0].remaining
            if remaining != counter.spec.capacity - 1 - i:
                wrong.append((counter.name, i, remaining))

    threads = [threading.Thread(target=work, args=(counter,)) for counter in counters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.stats.connects <= 9


async def test_a_cancelled_call_does_not_shift_replies(server) -> None:
    """After a call was cancelled in flight the next one gets its own reply."""
    store = RedisStore(server.url)
    await store.adecide_one(ONE)
    for _ in range(5):
        call = asyncio.create_task(store.adecide_one(ONE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    counter = COUNTER._replace(prefix=counter_prefix("wire", "other", "token_bucket", "-"))
    assert (await store.adecide_one([(counter, "s", 7)])).verdicts()[0].remaining == 93
    await store.aclose()


def test_event_loops_have_connections_of_their_own(server) -> None:
    """One store serves one event loop after the other."""
    store = RedisStore(server.url)

    async def decide() -> int:
        try:
            return (await store.adecide_one(ONE)).verdicts()[0].remaining
        finally:
            await store.disconnect()

    assert [asyncio.run(decide()) for _ in range(3)] == [99, 98, 97]
    store.close()


def test_a_forked_child_connects_anew(open_store: Open) -> None:
    """Parent and child decide at the same time without reading each other's replies."""
    store = open_store()
    store.decide_one(ONE)
    child = os.fork()
    if child == 0:
        # Nothing of the test framework may run twice, so the child ends here.
        good = False
        with contextlib.suppress(BaseException):
            good = all(store.decide_one(ONE).admitted for _ in range(20)) and store.stats.connects == 2
        os._exit(0 if good else 1)
    for _ in range(20):
        store.decide_one(ONE)
    assert os.waitpid(child, 0)[1] == 0
    assert (left(store), store.stats.connects) == (59, 1)


@pytest.mark.measured
def test_a_server_that_is_absent_is_no_error_at_start() -> None:
    """A limiter opens without its store, decides by the failure policies, and uses the store once it is there."""  # T80
    began = time.monotonic()
    with Limiter.from_quota("2/minute", store="redis://127.0.0.1:1?timeout_ms=50") as limiter:
        decisions = [limiter.check("a") for _ in range(3)]
    assert [(d.allowed, d.degraded) for d in decisions] == [(True, True), (True, True), (False, True)]
    assert time.monotonic() - began < 3


async def test_limiter_on_both_ways(server) -> None:
    """``check``, ``acheck``, ``check_many``, ``peek``, ``refund`` and ``reset`` share one budget through the server."""
    with (
        Limiter.from_quota("5/hour", store=server.url) as limiter,
        Limiter.from_quota("5/hour", store=server.url) as other,
    ):
        first = await limiter.acheck("a", receipt=True)
        assert first.remaining == 4
        assert other.check("a").remaining == 3
        assert [d.remaining for d in other.check_many(["a", "a", "b"])] == [2, 1, 4]
        assert limiter.peek("a").remaining == 1
        assert limiter.refund(first) == 1
        assert (await other.acheck("a", peek=True)).remaining == 2
        assert other.hit("a")
        assert other.reset("a") == 1
        assert (await limiter.acheck("a")).remaining == 4
        assert limiter.stats.store_errors == other.stats.store_errors == 0
        await limiter.store.aclose()
        await other.store.aclose()


async def test_passwords_and_databases(start_redis) -> None:
    """A password with special characters is understood; a wrong one is an error that waiting does not cure."""
    server = start_redis("--requirepass", "p@ss:/w#rd")
    good = RedisStore(f"redis://:p%40ss%3A%2Fw%23rd@127.0.0.1:{server.port}/3?timeout_ms=5000")
    assert good.decide_one(ONE).verdicts()[0].remaining == 99
    other = RedisStore(f"redis+unix://:p%40ss%3A%2Fw%23rd@{server.path}?timeout_ms=5000&db=4")
    assert other.decide_one(ONE).verdicts()[0].remaining == 99
    for password in ("", ":wrong@"):
        bad = RedisStore(f"redis://{password}127.0.0.1:{server.port}?timeout_ms=5000")
        with pytest.raises(StoreError) as caught:
            bad.decide_one(ONE)
        assert not caught.value.transient
        assert "wrong" not in str(caught.value)
        bad.close()
        waiting = RedisStore(f"redis://{password}127.0.0.1:{server.port}?timeout_ms=5000")
        with pytest.raises(StoreError) as caught:
            await waiting.adecide_one(ONE)
        assert not caught.value.transient
        assert not await waiting.awarm()
        await waiting.aclose()
    waiting = RedisStore(f"redis://:p%40ss%3A%2Fw%23rd@127.0.0.1:{server.port}/3?timeout_ms=5000")
    assert await waiting.awarm()
    assert (await waiting.adecide_one(ONE)).verdicts()[0].remaining == 98
    await waiting.aclose()
    good.close()
    other.close()


def test_the_secret_is_shared(open_store: Open, server) -> None:
    """Stores agree on the secret that the first one made, and keys show no client."""
    stores = [open_store() for _ in range(3)]
    for store in stores:
        store.decide_one(ONE)
    assert {left(store) for store in stores} == {97}
    assert len({store.key(COUNTER, "ip:192.0.2.1") for store in stores}) == 1
    with contextlib.closing(server.client()) as client:
        assert not any(b"192.0.2.1" in key for key in client.scan_iter())


def test_plain_keys(open_store: Open, server) -> None:
    """``keys=plain`` writes subjects readable, between braces, and keeps no secret."""
    store = open_store(None, "&keys=plain")
    assert store.warm()
    store.decide_one(ONE)
    with contextlib.closing(server.client()) as client:
        assert sorted(client.keys()) == [b"rl1:nodes", b"rl1:wire:{ip:192.0.2.1}:rule:token_bucket:-:0"]


def test_a_given_secret_must_be_the_same_everywhere(open_store: Open) -> None:
    """A process with another secret, or with none, is refused instead of counting apart."""
    first = open_store(None, "&key_secret=0123456789abcdef")
    first.decide_one(ONE)
    second = open_store(None, "&key_secret=0123456789abcdef")
    assert second.decide_one(ONE).verdicts()[0].remaining == 98
    for more in ("&key_secret=another-secret-of-mine", ""):
        other = open_store(None, more)
        with pytest.raises(StoreError, match="key_secret") as caught:
            other.decide_one(ONE)
        assert not caught.value.transient
        assert "0123456789abcdef" not in str(caught.value)


@pytest.mark.parametrize("way", ["thread", "coroutine"])
async def test_another_secret_and_no_scripts(open_store: Open, server, way: str) -> None:
    """A server that lost its scripts too and is used with another secret by now decides nothing under the keys of the old one."""
    store = open_store(more="&key_secret=0123456789abcdef")
    assert await store.awarm()
    assert store.decide_one(ONE).admitted
    assert (await store.adecide_one(ONE)).admitted
    with contextlib.closing(server.client()) as client:
        client.flushall()
        client.script_flush()
        client.set("rl1:key_secret", "given:0000000000000000")
        store._core.riders.hurry()
        with pytest.raises(StoreError, match="another key_secret"):
            if way == "thread":
                store.decide_one(ONE)
            else:
                await store.adecide_one(ONE)
        assert not client.exists(store._core.packing.key(COUNTER, ONE[0][1]))
    await store.aclose()


def test_a_flushed_secret_comes_back(open_store: Open, server) -> None:
    """After a flush processes agree on one secret again, also with one that started in between."""
    old = open_store()
    old.decide_one(ONE)
    with contextlib.closing(server.client()) as client:
        client.flushall()
    new = open_store()
    new.decide_one(ONE)
    old._core.riders.hurry()
    old.decide_one(ONE)
    assert old.key(COUNTER, "x") == new.key(COUNTER, "x")
    assert old.decide_one(ONE).verdicts()[0].remaining == 98


def test_a_closed_limiter_leaves_no_connection(open_store: Open, server) -> None:
    """``close`` closes every connection of the store."""
    store = open_store()
    store.decide_one(ONE)
    with contextlib.closing(server.client()) as client:
        assert len(client.client_list()) == 2
        store.close()
        until = time.monotonic() + 60
        while len(client.client_list()) > 1:
            assert time.monotonic() < until


def test_a_server_that_became_a_replica_is_connected_anew(start_redis) -> None:
    """READONLY is a transient error, and the next call connects again, by name."""  # T76
    server = start_redis()
    store = RedisStore(server.url)
    store.decide_one(ONE)
    with contextlib.closing(server.client()) as client:
        client.replicaof("127.0.0.1", 1)
        with pytest.raises(StoreError, match="READONLY") as caught:
            store.decide_one(ONE)
        assert caught.value.transient
        client.replicaof("NO", "ONE")
    assert store.decide_one(ONE).verdicts()[0].remaining == 98
    assert store.stats.connects == 2
    store.close()


async def test_a_server_that_is_no_redis() -> None:
    """What answers in another language is an error like a lost connection, for threads and coroutines."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    store = RedisStore(f"redis://127.0.0.1:{port}?timeout_ms=5000&keys=plain")
    with pytest.raises(StoreError, match="no reply of a Redis"):
        await store.adecide_one(ONE)
    with pytest.raises(StoreError, match="no reply of a Redis"):
        await asyncio.to_thread(store.decide_one, ONE)
    await store.aclose()
    listener.close()
    await listener.wait_closed()


def test_without_the_extra() -> None:
    """Where hiredis is not installed, opening a Redis store names the extra to install."""
    program = (
        "import sys; sys.modules['hiredis'] = None\n"
        "from sluicegate import Limiter\n"
        "try: Limiter.from_quota('1/minute', store='redis://127.0.0.1')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.startswith("MissingExtra")
    assert "pip install 'sluicegate[redis]'" in printed


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A key and a certificate of its own for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    key_path, path = folder / "key.pem", folder / "cert.pem"
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key_path, path


async def test_tls(start_redis, free_port: Callable[[], int], tmp_path: Path) -> None:
    """``rediss://`` speaks TLS and verifies the server by ``ca_certs``; a server it cannot verify is not used."""
    key, certificate = _certificate(tmp_path)
    port = free_port()
    start_redis(
        "--tls-port", str(port), "--tls-key-file", str(key), "--tls-cert-file", str(certificate),
        "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
    )  # fmt: skip
    url = f"rediss://127.0.0.1:{port}/1?timeout_ms=5000"
    good = RedisStore(f"{url}&ca_certs={certificate}")
    assert good.decide_one(ONE).verdicts()[0].remaining == 99
    assert (await good.adecide_one(ONE)).verdicts()[0].remaining == 98
    await good.aclose()
    stranger = RedisStore(url)
    with pytest.raises(StoreError, match="no connection"):
        stranger.decide_one(ONE)
    with pytest.raises(StoreError, match="no connection"):
        await stranger.adecide_one(ONE)
    await stranger.aclose()


def test_tls_connections_that_lie_idle(start_redis, free_port: Callable[[], int], tmp_path: Path) -> None:
    """The tickets a TLS server sends after the handshake do not make an unused connection look as if it were closed."""
    key, certificate = _certificate(tmp_path)
    port = free_port()
    start_redis(
        "--tls-port", str(port), "--tls-key-file", str(key), "--tls-cert-file", str(certificate),
        "--tls-ca-cert-file", str(certificate), "--tls-auth-clients", "no",
    )  # fmt: skip
    store = RedisStore(f"rediss://127.0.0.1:{port}?timeout_ms=5000&keys=plain&ca_certs={certificate}")
    node = store._core.router.node_of(0)
    node.links.adopt(node.connect(node.clock.monotonic_us() + 5_000_000))
    threading.Event().wait(0.05)
    assert store.decide_one(ONE).verdicts()[0].remaining == 99
    assert store.stats.connects == 1
    store.close()
