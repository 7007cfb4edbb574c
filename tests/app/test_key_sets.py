"""When key sets of token issuers are fetched, and how."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sluicegate.app.demo import DemoBackend
from sluicegate.app.key_sets import KeySets, fetch
from sluicegate.clock import US_PER_S, ManualClock
from sluicegate.doors.listen import Address, open_listener
from sluicegate.limiter.limiter import Limiter
from sluicegate.rules.load import load_rules

RULES = """\
version: 1
identity:
  user: {jwt: {jwks: "https://issuer.example/keys", claim: sub}}
rules:
  - {name: api, per: [user], quota: 5/minute}
"""
KEYS = json.dumps(
    {"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}
)


class Issuer:
    """Answers fetches, or fails."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        self.down = False

    def get(self, url: str) -> bytes:
        self.fetched.append(url)
        if self.down:
            raise OSError("connection refused")
        return KEYS.encode()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter.from_rules(load_rules(RULES, "rules"), clock=clock)


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def key_sets(limiter: Limiter, clock: ManualClock, issuer: Issuer) -> KeySets:
    return KeySets(lambda: limiter.resolver, clock, issuer.get)


def test_fetched_once_then_when_old(key_sets: KeySets, clock: ManualClock, issuer: Issuer) -> None:
    """A key set is fetched before it is needed, and again after ten minutes."""
    assert key_sets.due
    key_sets.refresh()
    assert issuer.fetched == ["https://issuer.example/keys"]
    assert not key_sets.due
    clock.advance(599 * US_PER_S)
    assert not key_sets.due
    clock.advance(US_PER_S)
    assert key_sets.due


def test_failed_fetch_is_tried_again_at_a_distance(key_sets: KeySets, clock: ManualClock, issuer: Issuer) -> None:
    """An issuer that is down is asked again after half a minute, not at once and not only after ten minutes."""
    issuer.down = True
    key_sets.refresh()
    assert not key_sets.due
    clock.advance(30 * US_PER_S)
    assert key_sets.due
    issuer.down = False
    key_sets.refresh()
    clock.advance(30 * US_PER_S)
    assert not key_sets.due


def test_new_rules_are_fetched_for_at_once(key_sets: KeySets, limiter: Limiter) -> None:
    """A rule edit that names an issuer does not wait for the next round."""
    key_sets.refresh()
    limiter.apply(load_rules(RULES.replace("/keys", "/other"), "rules", version=2))
    assert key_sets.due


def test_rules_without_an_issuer_fetch_nothing(clock: ManualClock, issuer: Issuer) -> None:
    """Where no rule asks for tokens there is nothing to do."""
    limiter = Limiter.from_quota("5/minute", clock=clock)
    assert not KeySets(lambda: limiter.resolver, clock, issuer.get).due


@pytest.fixture
async def server() -> AsyncIterator[str]:
    """The URL of a small HTTP server."""
    listener = await open_listener(Address("127.0.0.1", 0), DemoBackend().protocol)
    yield listener.address.url
    listener.close()


async def test_fetch_gets_the_document(server: str) -> None:
    """``fetch`` gives the bytes of a 200."""
    document = await asyncio.to_thread(fetch, f"{server}/api/keys")
    assert json.loads(document)["path"] == "/api/keys"


@pytest.mark.parametrize("path", ["/nothing", "/login"])
async def test_fetch_refuses_other_answers(server: str, path: str) -> None:
    """Any other status is an error with its number."""
    with pytest.raises(OSError, match="status 40"):
        await asyncio.to_thread(fetch, f"{server}{path}")


async def test_fetch_from_something_else_is_an_error() -> None:
    """A server that does not speak HTTP is an error of the fetch, not of the program."""

    def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError):
            await asyncio.to_thread(fetch, f"http://127.0.0.1:{port}/keys")


@pytest.mark.parametrize("scheme", ["file", "ftp", "data"])
def test_fetch_knows_http_only(scheme: str, tmp_path: Path) -> None:
    """A URL of another kind is an error, also one that would name a local file."""
    (tmp_path / "keys").write_text("{}")
    with pytest.raises(OSError, match="not an http or https URL"):
        fetch(f"{scheme}://{tmp_path}/keys")
