"""Telling nodes over Redis that something has changed, after it has. Nodes ask by themselves, so what is lost here costs seconds, not rules."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from sluicegate.bounds import PUSH_TIMEOUT_S
from sluicegate.errors import MissingExtra
from sluicegate.rules.feed import Revisions, redis_channel
from sluicegate.stores.redis.settings import RedisSettings

if TYPE_CHECKING:
    import redis.asyncio

__all__ = ["RedisPublisher", "redis_client"]


class RedisPublisher:
    """Publishes on one Redis, any server of a cluster, or the master that Sentinels name. Connects when there is something to tell.

    ``url``: as for a store. Raises ConfigurationError for a bad one, MissingExtra without the extra ``redis``.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self._channel = redis_channel(namespace)
        self._client = redis_client(RedisSettings.from_url(url))

    async def publish(self, revisions: Revisions) -> None:
        """Raises what the connection raises, and TimeoutError after ``PUSH_TIMEOUT_S``."""
        async with asyncio.timeout(PUSH_TIMEOUT_S):
            await self._client.publish(self._channel, msgspec.json.encode(revisions))

    async def ping(self) -> None:
        """Raises as ``publish`` where Redis gives no answer."""
        async with asyncio.timeout(PUSH_TIMEOUT_S):
            await self._client.ping()

    async def close(self) -> None:
        """Give the connection back."""
        await self._client.aclose()


def redis_client(settings: RedisSettings) -> redis.asyncio.Redis:
    """A client that connects when it is used; raises MissingExtra.

    It waits for answers without end, so that callers bound each call themselves: with a timeout of its own it sends by ``wait_for``, which in
    Python 3.11 loses a cancellation that comes together with what it waits for.
    """
    try:
        import redis.asyncio
        import redis.asyncio.sentinel
    except ModuleNotFoundError as error:
        raise MissingExtra("redis", "telling nodes over Redis") from error
    options: dict[str, Any] = {
        "db": settings.db,
        "username": settings.username,
        "password": settings.password,
        "socket_timeout": None,
        "socket_connect_timeout": PUSH_TIMEOUT_S,
    }
    if settings.path is not None:
        return redis.asyncio.Redis(unix_socket_path=settings.path, **options)
    if settings.tls:
        options |= {"ssl": True, "ssl_ca_certs": settings.ca_certs}
    if settings.service is not None:
        logins = {"username": settings.sentinel_username, "password": settings.sentinel_password}
        seeds = [(seed.host, seed.port) for seed in settings.seeds]
        made: Any = redis.asyncio.sentinel.Sentinel  # has no types of its own
        found: redis.asyncio.Redis = made(seeds, sentinel_kwargs=logins, **options).master_for(settings.service)
        return found
    return redis.asyncio.Redis(host=settings.host, port=settings.port, **options)
