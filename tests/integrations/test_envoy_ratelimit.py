"""A real Envoy in front of a real sluicegate, with the configuration that is shipped, by the example of docs/grpc.md."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "grpc.md").read_text()
SHIPPED = (ROOT / "integrations" / "envoy" / "ratelimit.yaml").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
RULES = next(text for language, text in BLOCKS if language == "yaml")
PASSED, REFUSED = (text for language, text in BLOCKS if language == "text")
PATIENT = ("timeout: 0.02s ", "timeout: 5s ")

Start = Callable[..., Any]


def read_fields(text: str) -> dict[str, str]:
    """The header lines of a block."""
    lines = text.partition("\n\n")[0].splitlines()
    return dict(line.split(": ", 1) for line in lines if ": " in line)


@pytest.fixture
def envoy(require_program: Callable[[str], str]) -> str:
    """The program, of this environment or of the machine."""
    here = Path(sys.executable).parent / "envoy"
    return str(here) if here.exists() else require_program("envoy")


@pytest.fixture
def processes() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start programs; what still runs at the end is stopped."""
    with contextlib.ExitStack() as stack:

        def start(*command: str, **options: Any) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(command, **options)
            stack.callback(stop, process)
            return process

        yield start


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process politely, or else at once."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)
    if process.stdout is not None:
        process.stdout.close()


class Hello(asyncio.Protocol):
    """Answers each request that Envoy sends, which come one at a time and whole."""

    def __init__(self, made: list[Hello]) -> None:
        made.append(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


@pytest.fixture
async def upstream() -> AsyncIterator[int]:
    """A backend that says hello; its port."""
    made: list[Hello] = []
    server = await asyncio.get_running_loop().create_server(lambda: Hello(made), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for each in made:
        each.transport.abort()
    # The loop closes what was aborted in its next turns.
    await asyncio.sleep(0.01)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield listener.getsockname()[1]


class Pair:
    """Envoy and sluicegate, running."""

    def __init__(self, limiter: subprocess.Popen[bytes], client: httpx.AsyncClient, admin: httpx.AsyncClient) -> None:
        self.limiter = limiter
        self.client = client
        self.admin = admin

    async def get(self, key: str | None = "k1") -> httpx.Response:
        return await self.client.get("/", headers={} if key is None else {"X-Api-Key": key})

    async def stat(self, name: str) -> int:
        """One of Envoy's counters about rate limits."""
        text = (await self.admin.get("/stats", params={"filter": rf"\.ratelimit\.{name}$"})).text
        return sum(int(line.rsplit(": ", 1)[1]) for line in text.splitlines())

    async def until_stat(self, name: str, value: int) -> None:
        """Wait until a counter is as large; Envoy merges those of its threads a moment later."""
        async with asyncio.timeout(60):
            while await self.stat(name) < value:
                await asyncio.sleep(0.1)


@pytest.fixture
async def pair(
    envoy: str,
    processes: Callable[..., subprocess.Popen[bytes]],
    upstream: int,
    tmp_path: Path,
    free_port: Callable[[], int],
) -> AsyncIterator[Callable[..., Awaitable[Pair]]]:
    """Start both: ``pair(rules, *replacements of the shipped configuration, store=...)``."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(rules: str = RULES, *changes: tuple[str, str], store: str = "memory://") -> Pair:
            (tmp_path / "rules.yaml").write_text(rules)
            command = [sys.executable, "-m", "sluicegate", "serve", "--rules", "rules.yaml", "--api", "127.0.0.1:0"]
            limiter = processes(
                *command, "--grpc", "127.0.0.1:0", "--store", store, cwd=tmp_path, stdout=subprocess.PIPE
            )
            assert limiter.stdout is not None
            lines = [limiter.stdout.readline().split() for _ in range(2)]
            listeners = {line[0]: line[1] for line in lines}
            rls = listeners[b"grpc"].rpartition(b":")[2].decode()
            front, admin = free_port(), free_port()
            text = SHIPPED
            ports = (("10000", str(front)), ("9901", str(admin)), ("8000", str(upstream)), ("8082", rls))
            for old, new in (*((f"port_value: {old}}}", f"port_value: {new}}}") for old, new in ports), *changes):
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            (tmp_path / "envoy.yaml").write_text(text)
            with (tmp_path / "envoy.log").open("wb") as log:
                processes(
                    envoy, "-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "-l", "warn",
                    cwd=tmp_path, stdout=log, stderr=log,
                )  # fmt: skip
            clients = [
                await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60))
                for port in (front, admin)
            ]
            made = Pair(limiter, *clients)
            await healthy(made, tmp_path / "envoy.log")
            return made

        yield start


async def healthy(made: Pair, log: Path) -> None:
    """Wait until Envoy is ready and has found its rate limit service healthy."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(httpx.TransportError):
                found = (await made.admin.get("/clusters")).text
                if (await made.admin.get("/ready")).status_code == 200 and re.search(
                    r"^sluicegate::.*::health_flags::healthy$", found, re.MULTILINE
                ):
                    return
            await asyncio.sleep(0.05)
            assert "critical" not in log.read_text(), log.read_text()


async def test_the_example(pair: Callable[..., Awaitable[Pair]]) -> None:
    """Five requests pass and the sixth is refused, with the fields and the body that the page prints."""
    both = await pair(RULES, PATIENT)
    answers = [await both.get() for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    first, last = answers[0], answers[5]
    assert {name: first.headers[name] for name in read_fields(PASSED)} == read_fields(PASSED)
    assert first.text == "hello"
    told = read_fields(REFUSED)
    wait = int(last.headers["retry-after"])
    assert 1 <= wait <= 12
    assert last.headers["x-ratelimit-reset"] == last.headers["retry-after"]
    for name in told.keys() - {"retry-after", "x-ratelimit-reset"}:
        assert last.headers.get_list(name) == [told[name]], name
    body = json.loads(last.content)
    assert (body["type"], body["retry-after"]) == (
        "https://iana.org/assignments/http-problem-types#quota-exceeded",
        wait,
    )
    assert body["violated-policies"] == ["per-key"]
    assert (await both.get("k2")).headers["x-ratelimit-remaining"] == "4"
    without = await both.get(None)
    assert (without.status_code, "x-ratelimit-limit" in without.headers) == (200, False)


async def test_the_service_is_gone(pair: Callable[..., Awaitable[Pair]]) -> None:
    """Without an answer requests pass, and Envoy counts them."""
    both = await pair(RULES, PATIENT)
    assert (await both.get()).headers["x-ratelimit-remaining"] == "4"
    stop(both.limiter)
    assert both.limiter.returncode == 0
    for _ in range(10):
        answer = await both.get()
        assert (answer.status_code, "x-ratelimit-limit" in answer.headers) == (200, False)
    await both.until_stat("failure_mode_allowed", 10)


CLOSED = RULES.replace("    quota: 5/minute\n", "    quota: 5/minute\n    on_store_failure: closed\n")


async def test_the_store_is_gone_and_a_rule_fails_closed(
    pair: Callable[..., Awaitable[Pair]], free_port: Callable[[], int]
) -> None:
    """Envoy's failure mode decides: by the shipped configuration the request passes, with ``failure_mode_deny`` it is 503."""
    deny = ("failure_mode_deny: false", "failure_mode_deny: true\n                      status_on_error: {code: 503}")
    both = await pair(CLOSED, PATIENT, deny, store=f"redis://127.0.0.1:{free_port()}")
    assert [(await both.get()).status_code for _ in range(3)] == [503] * 3
    await both.until_stat("error", 3)


@pytest.mark.measured
async def test_the_store_is_slow(pair: Callable[..., Awaitable[Pair]], silent: int) -> None:
    """A decision that takes longer than Envoy waits is no decision: the request passes after Envoy's 20 ms, not after the store's time."""
    both = await pair(CLOSED, store=f"redis://127.0.0.1:{silent}?timeout_ms=5000")
    loop = asyncio.get_running_loop()
    before_s = loop.time()
    answer = await both.get()
    assert (answer.status_code, "x-ratelimit-limit" in answer.headers) == (200, False)
    assert loop.time() - before_s < 4
    await both.until_stat("failure_mode_allowed", 1)


def test_the_page_shows_what_is_shipped() -> None:
    """Every field of the service's answer that the page names is read by the tests above, and Envoy's default deadline is in the file."""
    assert PATIENT[0] in SHIPPED
    assert set(read_fields(PASSED)) < set(read_fields(REFUSED))
