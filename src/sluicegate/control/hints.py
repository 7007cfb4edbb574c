"""Being told that something has changed, over Redis or PostgreSQL, by whoever listens.

What is told is a hint and nothing more: it may be lost, late, twice, or in another order. After each connection the listener says that it does not know
what it missed, so whoever listens asks then; and it asks from time to time in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from sluicegate.bounds import PUSH_PING_S, PUSH_RETRY_S_MAX, PUSH_TIMEOUT_S
from sluicegate.control.push import redis_client
from sluicegate.errors import ConfigurationError, MissingExtra
from sluicegate.rules.feed import POSTGRES_CHANNEL, Revisions, redis_channel
from sluicegate.stores.redis.settings import SCHEMES, RedisSettings

__all__ = ["Backoff", "Hints", "Told", "hints_from"]

Told = Callable[[Revisions | None], None]
"""Called on the loop. None: something may have been missed."""

_POSTGRES = ("postgresql", "postgres")


def hints_from(url: str, namespace: str, random: Random) -> Hints:
    """A listener on the Redis or the PostgreSQL at ``url``. Raises ConfigurationError for another URL, MissingExtra for what is not installed."""
    scheme = url.partition("://")[0].lower()
    if scheme in _POSTGRES:
        return _PostgresHints(url, random)
    if scheme in SCHEMES:
        return _RedisHints(url, namespace, random)
    raise ConfigurationError("--control-push: want postgresql://... or a URL of Redis, as redis://HOST:PORT")


class Backoff:
    """Pauses between attempts, in seconds: random, up to ``least_s``, twice that and so on, up to ``most_s`` (full jitter, so that a fleet does not come back together)."""

    def __init__(self, random: Random, least_s: float, most_s: float) -> None:
        self._random = random
        self._least_s = least_s
        self._most_s = most_s
        self._limit_s = least_s

    def fail(self) -> float:
        """How long to pause after one more failure."""
        pause_s = self._random.uniform(0, self._limit_s)
        self._limit_s = min(self._most_s, self._limit_s * 2)
        return pause_s

    def succeed(self) -> None:
        """The next failure is a first one."""
        self._limit_s = self._least_s


class Hints(Protocol):
    """A listener. ``connected``: it listens now. ``error``: why it does not, None where it does. ``received`` counts hints."""

    connected: bool
    error: str | None
    received: int

    async def listen(self, told: Told) -> None:
        """Listen until cancelled, whatever happens to the connection."""
        ...


class _Listener:
    def __init__(self, random: Random) -> None:
        self.connected = False
        self.error: str | None = None
        self.received = 0
        self._told: Told = _ignore
        self._backoff = Backoff(random, 0.1, PUSH_RETRY_S_MAX)

    async def listen(self, told: Told) -> None:
        self._told = told
        try:
            while True:
                try:
                    await self._listen_once()
                except Exception as error:  # noqa: BLE001 - whatever it was, the next connection may do better
                    self.error = str(error) or type(error).__name__
                self.connected = False
                await asyncio.sleep(self._backoff.fail())
        finally:
            self.connected = False

    async def _listen_once(self) -> None:
        """Listen until the connection is lost; raises why."""
        raise AssertionError("each kind has its own")

    def _begun(self) -> None:
        self.connected, self.error = True, None
        self._backoff.succeed()
        self._told(None)

    def _received(self, payload: str | bytes) -> None:
        self.received += 1
        try:
            self._told(msgspec.json.decode(payload, type=Revisions))
        except (msgspec.DecodeError, msgspec.ValidationError):
            # Of another release, or somebody else's: worth a question.
            self._told(None)


class _RedisHints(_Listener):
    def __init__(self, url: str, namespace: str, random: Random) -> None:
        super().__init__(random)
        self._settings = RedisSettings.from_url(url)
        self._channel = redis_channel(namespace)
        # What is not installed is to be known now.
        redis_client(self._settings)

    async def _listen_once(self) -> None:
        client = redis_client(self._settings)
        pubsub: Any = client.pubsub()
        try:
            async with asyncio.timeout(PUSH_TIMEOUT_S):
                await pubsub.subscribe(self._channel)
            asked = False
            while True:
                # The client may make its connection again within the call.
                async with asyncio.timeout(PUSH_PING_S + PUSH_TIMEOUT_S):
                    message = await pubsub.get_message(timeout=PUSH_PING_S)
                if message is None:
                    if asked:
                        raise ConnectionError(f"nothing was heard for {2 * PUSH_PING_S} s")
                    asked = True
                    async with asyncio.timeout(PUSH_TIMEOUT_S):
                        await pubsub.ping()
                    continue
                asked = False
                if message["type"] == "subscribe":
                    # Also after a connection that the client made again by itself.
                    self._begun()
                elif message["type"] == "message":
                    self._received(message["data"])
        finally:
            await pubsub.aclose()
            await client.aclose()


class _PostgresHints(_Listener):
    def __init__(self, url: str, random: Random) -> None:
        super().__init__(random)
        self._url = url
        _asyncpg()
        try:
            urlsplit(url).port  # noqa: B018 - it is read when it is asked for
        except ValueError:
            # The reason would quote what stands in the port's place, which is half a password where that was not escaped.
            raise ConfigurationError(
                "--control-push: the port of the PostgreSQL is no number; write / and @ in a password as %2F and %40"
            ) from None

    async def _listen_once(self) -> None:
        lost = asyncio.Event()
        connection = await _asyncpg().connect(self._url, timeout=PUSH_PING_S)
        try:
            connection.add_termination_listener(lambda _connection: lost.set())
            await connection.add_listener(POSTGRES_CHANNEL, lambda *told: self._received(told[3]))
            self._begun()
            while True:
                try:
                    async with asyncio.timeout(PUSH_PING_S):
                        await lost.wait()
                    raise ConnectionError("the connection was lost")
                except TimeoutError:
                    await connection.execute("SELECT 1", timeout=PUSH_PING_S)
        finally:
            connection.terminate()


def _asyncpg() -> Any:
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        raise MissingExtra("postgres", "listening to PostgreSQL") from error
    return asyncpg


def _ignore(_revisions: Revisions | None) -> None:
    """Before anybody listens nothing is told."""
