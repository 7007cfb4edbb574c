"""One server as this process sees it: its connections, its breaker, how it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, NamedTuple, TypeAlias

from sluicegate.bounds import REDIS_CONNECT_MS, REDIS_PROBE_MS
from sluicegate.clock import US_PER_MS, Clock
from sluicegate.errors import StoreError
from sluicegate.stores.base import ServerHealth
from sluicegate.stores.breaker import Breaker
from sluicegate.stores.redis.errand import Errand
from sluicegate.stores.redis.faults import fault_of
from sluicegate.stores.redis.link import Link, ReplyError, packed
from sluicegate.stores.redis.links import Links
from sluicegate.stores.redis.riders import Words
from sluicegate.stores.redis.settings import RedisSettings
from sluicegate.stores.redis.stats import RedisStats

__all__ = ["Greet", "Node", "Surroundings"]

_PROBE: Final = (b"EVAL", b"#!lua\nreturn 1", b"0")
"""A script that writes nothing but may: a server that takes no writes refuses it, as one that is loading or full does."""

_NOT_PROBED: Final = "no thread was to be had to probe it"


Greet: TypeAlias = "Callable[[Node, Link, int], None]"
"""Asks a server that has returned, on this connection until the monotonic deadline, what must be known before decisions. Raises OSError, StoreError."""


class Surroundings(NamedTuple):
    """What all servers of a store share. ``connected`` is told of every connection that is made."""

    clock: Clock
    random: Random
    stats: RedisStats
    greet: Greet
    connected: Callable[[], None]


class Node:
    """One server. Safe from any thread; a forked child makes connections of its own.

    ``settings``: how it is reached and called in messages.
    """

    __slots__ = (
        "_greet",
        "_probe_error",
        "_prober",
        "address",
        "breaker",
        "clock",
        "connected",
        "links",
        "settings",
        "stats",
    )

    def __init__(self, settings: RedisSettings, surroundings: Surroundings) -> None:
        self.settings = settings
        self.address = settings.address
        self.clock, random, self.stats, self._greet, self.connected = surroundings
        self.breaker = Breaker(self.clock, random)
        self.links = Links(self)
        self._prober = Errand("probe", self._probe)
        self._probe_error: str | None = _NOT_PROBED

    def __repr__(self) -> str:
        return f"Node({self.address!r}, {self.breaker.state})"

    @property
    def connect_us(self) -> int:
        """How long making a connection may take."""
        return max(REDIS_CONNECT_MS, self.settings.timeout_ms) * US_PER_MS

    def refusal(self) -> StoreError | None:
        """The error of a call that must not be sent now; None where it may. Has the server probed where that is due."""
        breaker = self.breaker
        if breaker.closed:
            return None
        self.stats.failed_fast += 1
        if breaker.take_probe():
            self.stats.probes += 1
            # Told when the errand has ended altogether: an earlier word would let the next probe be asked for while this one is in
            # its way, and nobody would report it.
            self._prober.start(self._probed)
        return StoreError(f"Redis at {self.address} is down and nothing was sent to it; last: {breaker.error}")

    def failed(self, began_us: int, error: str) -> None:
        """A call that began at the monotonic ``began_us`` was not answered, or by an error that speaks of the server."""
        breaker = self.breaker
        was_closed = breaker.closed
        breaker.failed(began_us, error)
        if was_closed and not breaker.closed:
            self.stats.breaker_opens += 1
            # What lies idle leads to the same server, and each would cost a timeout to find out.
            self.links.close_idle()

    def ask(self, commands: Sequence[Words], deadline_us: int) -> list[Any]:
        """The replies to plain commands, errors as ReplyError objects. Blocks until the monotonic ``deadline_us``; nothing is repeated.

        For errands; the breaker is not asked. Raises StoreError.
        """
        link = self.links.take(deadline_us)
        began_us = self.clock.monotonic_us()
        self.stats.calls += len(commands)
        try:
            replies = link.exchange(packed(commands), len(commands), deadline_us, self.clock)
            if not self.breaker.calm and not any(isinstance(reply, ReplyError) for reply in replies):
                self.breaker.succeeded()
            return replies
        except OSError as error:
            raise self.lost(began_us, error) from None
        finally:
            self.links.give(link)

    def lost(self, began_us: int, error: OSError) -> StoreError:
        """Take note of a call without a reply; returns what its caller gets."""
        self.stats.lost += 1
        found = self._unanswered(error)
        self.failed(began_us, str(found))
        return found

    def _unanswered(self, error: OSError) -> StoreError:
        what = "does not answer in time" if isinstance(error, TimeoutError) else f"is lost ({error})"
        return StoreError(f"Redis at {self.address} {what}")

    def health(self) -> ServerHealth:
        """How the server is."""
        breaker = self.breaker
        return ServerHealth(self.address, breaker.state, breaker.since_us, breaker.error)

    def close(self) -> None:
        """Close the connections that threads use."""
        self.links.close()

    def connect(self, deadline_us: int) -> Link:
        """Make a connection. Blocks; raises StoreError."""
        link = Link(self.settings, deadline_us, self.clock)
        self.stats.connects += 1
        self.connected()
        return link

    def _probe(self) -> None:
        error: str | None = "the probe ended early"
        try:
            now_us = self.clock.monotonic_us()
            link = self.connect(now_us + self.connect_us)
            try:
                deadline_us = self.clock.monotonic_us() + REDIS_PROBE_MS * US_PER_MS
                (reply,) = link.exchange(packed([_PROBE]), 1, deadline_us, self.clock)
                error = str(fault_of(str(reply), self.address)) if isinstance(reply, ReplyError) else None
                if error is None:
                    # A server that was started anew is empty: nothing is decided by it under what was known of the old one.
                    self._greet(self, link, deadline_us)
                # Kept only where it will be used: an outage has any number of probes.
                link.broken = error is not None
            except (StoreError, OSError):
                link.broken = True
                raise
            finally:
                self.links.adopt(link)
        except StoreError as failure:
            error = str(failure)
        except OSError as failure:
            error = str(self._unanswered(failure))
        finally:
            self._probe_error = error

    def _probed(self) -> None:
        """A probe has ended, or could not begin."""
        error, self._probe_error = self._probe_error, _NOT_PROBED
        self.breaker.probed(error)
