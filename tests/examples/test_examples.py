"""The examples do what their page says: in process for the details, and started as the page starts them."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("autocomplete", "fastapi_tiers", "url_shortener")
START_TIMEOUT_S = 60.0

Load = Callable[[str], ModuleType]


@pytest.fixture
def load() -> Load:
    """Import an example afresh, so that its counters are new."""

    def load_example(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / name / "app.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load_example


def client(module: ModuleType, peer: str = "198.51.100.66") -> httpx.AsyncClient:
    """A client of an example in this process, seen under the address ``peer``."""
    transport = httpx.ASGITransport(module.app, client=(peer, 40_000))
    return httpx.AsyncClient(transport=transport, base_url="http://example")


def check_refusal(answer: httpx.Response, rule: str) -> None:
    """A refusal names its rule and says when to come back."""
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.headers["X-RateLimit-Remaining"] == "0"
    assert answer.headers["X-RateLimit-Policy"].startswith(f"{rule};")


async def test_tiers(load: Load) -> None:
    """Strangers get 5 a minute per address, a paying key 20 from anywhere, and invented keys nothing of their own."""
    module = load("fastapi_tiers")
    async with client(module) as stranger, client(module, "203.0.113.9") as elsewhere:
        first = await stranger.get("/quotes/ACME")
        assert first.status_code == 200
        assert first.headers["X-RateLimit-Limit"] == "5"
        assert first.headers["X-RateLimit-Remaining"] == "4"
        assert first.json()["caller"] == "198.51.100.66"
        for number in range(4):
            assert (await stranger.get("/quotes/ACME", headers={"X-API-Key": str(number)})).status_code == 200
        check_refusal(await stranger.get("/quotes/ACME", headers={"X-API-Key": "another"}), "quotes")
        assert (await elsewhere.get("/quotes/ACME")).status_code == 200

        paid = {"X-API-Key": "paid-demo-key"}
        answers = [await (stranger if n % 2 else elsewhere).get("/quotes/X", headers=paid) for n in range(20)]
        assert {answer.status_code for answer in answers} == {200}
        assert answers[0].headers["X-RateLimit-Limit"] == "20"
        assert answers[0].json()["caller"] == "acme"
        check_refusal(await elsewhere.get("/quotes/X", headers=paid), "quotes")


async def test_quotas_per_user(load: Load) -> None:
    """Behind the proxy each user makes 5 links a minute; an address that cannot be shortened is refunded."""
    module = load("url_shortener")
    ann, bob = {"X-User-Id": "ann"}, {"X-User-Id": "bob"}
    async with client(module, "127.0.0.1") as proxy:
        for _ in range(10):
            assert (await proxy.post("/api/v1/shorten", headers=ann, json={"url": "ftp://x"})).status_code == 422
        for number in range(5):
            made = await proxy.post("/api/v1/shorten", headers=ann, json={"url": f"https://example.org/{number}"})
            assert made.status_code == 201
            assert made.headers["X-RateLimit-Remaining"] == str(4 - number)
        check_refusal(await proxy.post("/api/v1/shorten", headers=ann, json={"url": "https://x"}), "shorten#1")
        assert (await proxy.post("/api/v1/shorten", headers=bob, json={"url": "https://x"})).status_code == 201
        followed = await proxy.get(made.json()["short"])
        assert (followed.status_code, followed.headers["Location"]) == (307, "https://example.org/4")
        assert followed.headers["X-RateLimit-Policy"].startswith("follow;")
        assert (await proxy.get("/nowhere")).status_code == 404


async def test_users_cannot_be_invented(load: Load) -> None:
    """A stranger who names a new user with every request stays one address."""
    module = load("url_shortener")
    async with client(module) as stranger:
        statuses = [
            (
                await stranger.post("/api/v1/shorten", headers={"X-User-Id": f"u{n}"}, json={"url": "https://x"})
            ).status_code
            for n in range(8)
        ]
    assert statuses == [201] * 5 + [429] * 3


async def test_autocomplete(load: Load) -> None:
    """A burst passes, a stream does not, and a neighbour in the same /64 shares the counter."""
    module = load("autocomplete")
    async with (
        client(module, "2001:db8::1") as one,
        client(module, "2001:db8::ffff") as same,
        client(module, "2001:db8:0:1::1") as other,
    ):
        first = await one.get("/suggest", params={"q": "SH"})
        assert (first.status_code, first.json()) == (200, ["shadow", "ship", "shore"])
        assert first.headers["X-RateLimit-Limit"] == "20"
        statuses = [(await one.get("/suggest?q=s")).status_code for _ in range(60)]
        assert statuses[:19] == [200] * 19
        assert 429 in statuses
        refused = [
            answer for answer in [await same.get("/suggest?q=s") for _ in range(20)] if answer.status_code == 429
        ]
        check_refusal(refused[0], "suggest")
        assert refused[0].json()["title"] == "Quota Exceeded"
        assert (await other.get("/suggest?q=s")).status_code == 200
        assert (await other.get("/nothing")).status_code == 404


@contextmanager
def started(name: str) -> Iterator[str]:
    """Run an example by the command its page shows, on a free port; gives its address."""
    page = (EXAMPLES / "README.md").read_text()
    shown = re.search(rf"^\$ uvicorn (app:app --app-dir examples/{name} .*)$", page, re.MULTILINE)
    assert shown is not None
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", *shlex.split(shown[1]), "--port", "0"],
        cwd=EXAMPLES.parent,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        log = []
        for line in process.stderr:
            log.append(line)
            address = re.search(r"running on (http://127\.0\.0\.1:\d+)", line)
            if address:
                break
        else:
            pytest.fail("did not start:\n" + "".join(log))
        yield address[1]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=START_TIMEOUT_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()


REQUESTS = {
    "autocomplete": ("GET", "/suggest?q=s", None, {}),
    "fastapi_tiers": ("GET", "/quotes/ACME", None, {}),
    "url_shortener": ("POST", "/api/v1/shorten", {"url": "https://example.org/"}, {"X-User-Id": "ann"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_started_as_shown(name: str) -> None:
    """Started by the command of the page, a service answers with rate headers and in the end with 429."""
    method, path, body, headers = REQUESTS[name]
    with started(name) as address, httpx.Client(base_url=address, timeout=START_TIMEOUT_S) as user:
        first = user.request(method, path, json=body, headers=headers)
        assert first.is_success, first.text
        assert int(first.headers["X-RateLimit-Remaining"]) == int(first.headers["X-RateLimit-Limit"]) - 1
        answers = [user.request(method, path, json=body, headers=headers) for _ in range(80)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert int(refused[0].headers["Retry-After"]) >= 1


@pytest.mark.slow
def test_the_server_does_not_believe_forwarded_headers() -> None:
    """As the page starts it, uvicorn leaves the peer's address alone: rotating X-Forwarded-For buys nothing."""
    with started("fastapi_tiers") as address, httpx.Client(base_url=address, timeout=START_TIMEOUT_S) as user:
        statuses = [user.get("/quotes/ACME", headers={"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in range(8)]
    assert statuses == [200] * 5 + [429] * 3


def test_the_page_shows_every_example() -> None:
    """Each directory is on the page and under test."""
    directories = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())
    assert directories == sorted(NAMES)
    page = (EXAMPLES / "README.md").read_text()
    assert [name for name in NAMES if f"]({name})" not in page] == []
