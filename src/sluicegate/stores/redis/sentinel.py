"""Where the master behind Redis Sentinels is, asked anew for every connection that is made.

A connection that is lost, or whose server says that it takes no writes, is not used again; the next one goes to the master of that moment.
A server is believed to be the master only when it says so itself: a Sentinel may not have heard of the last failover yet.
"""

from __future__ import annotations

from typing import Any

from sluicegate.bounds import PORT_MAX, REDIS_SENTINEL_ASK_MS
from sluicegate.clock import US_PER_MS, Clock
from sluicegate.errors import StoreError
from sluicegate.stores.redis.addresses import Address
from sluicegate.stores.redis.link import Link, ReplyError, packed
from sluicegate.stores.redis.settings import RedisSettings

__all__ = ["SentinelResolver"]


class SentinelResolver:
    """Gives the settings of the master of ``settings.service``. Safe from any thread; blocks."""

    __slots__ = ("_clock", "_order", "_settings")

    def __init__(self, settings: RedisSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._order = settings.seeds

    def __call__(self, deadline_us: int) -> RedisSettings:
        """Ask one Sentinel after the other, the one that knew last first, until the monotonic ``deadline_us``. Raises StoreError."""
        clock = self._clock
        problem = StoreError(f"no Sentinel of {self._settings.address} answers in time")
        for sentinel in self._order:
            now_us = clock.monotonic_us()
            if now_us >= deadline_us:
                break
            until_us = min(deadline_us, now_us + REDIS_SENTINEL_ASK_MS * US_PER_MS)
            try:
                master = self._settings.at(self._named_by(sentinel, until_us))
                self._check_role(master, until_us)
            except StoreError as error:
                problem = error
                continue
            self._order = (sentinel, *(other for other in self._settings.seeds if other != sentinel))
            return master
        raise problem

    def _named_by(self, sentinel: Address, deadline_us: int) -> Address:
        """The master as one Sentinel knows it."""
        words = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._settings.service or "")
        reply = self._ask(self._settings.of_sentinel(sentinel), words, deadline_us)
        if reply is None:
            raise StoreError(f"the Sentinel at {sentinel} knows no service {self._settings.service!r}", transient=False)
        try:
            host, port = reply
            address = Address(host.decode(), int(port))
        except (TypeError, ValueError, AttributeError):
            raise StoreError(f"what answers at {sentinel} is no Sentinel") from None
        if not address.host or not 1 <= address.port <= PORT_MAX:
            raise StoreError(f"the Sentinel at {sentinel} knows no address of {self._settings.service!r}")
        return address

    def _check_role(self, master: RedisSettings, deadline_us: int) -> None:
        reply = self._ask(master, (b"ROLE",), deadline_us)
        if not (isinstance(reply, list) and reply and reply[0] == b"master"):
            raise StoreError(f"Redis at {master.address} is not the master that a Sentinel says it is")

    def _ask(self, settings: RedisSettings, words: tuple[bytes | str | int, ...], deadline_us: int) -> Any:
        """The reply to one command, on a connection of its own."""
        link = Link(settings, deadline_us, self._clock)
        try:
            (reply,) = link.exchange(packed([words]), 1, deadline_us, self._clock)
        except OSError as error:
            what = "does not answer in time" if isinstance(error, TimeoutError) else f"is lost ({error})"
            raise StoreError(f"Redis at {settings.address} {what}") from None
        finally:
            link.close()
        if isinstance(reply, ReplyError):
            raise StoreError(f"Redis at {settings.address} answers {str(reply)[:200]!r}")
        return reply
