"""The master behind Redis Sentinels, and how it is found out that another server has become it.

The Sentinels are asked before the first decision, then on signs of change (the master is not reached, or says that it takes no writes), and
every second while the store is used. The last is for a failover that leaves the old master running: for some seconds it takes writes that
will be lost, and nothing that it answers shows it. A thread of its own asks; decisions go on meanwhile.

A server is believed to be the master only when it says so itself: a Sentinel may not have heard of the last failover yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluicegate.bounds import PORT_MAX, REDIS_SENTINEL_ASK_MS, REDIS_SENTINEL_CHECK_US
from sluicegate.clock import US_PER_MS, Clock
from sluicegate.errors import StoreError
from sluicegate.stores.base import Request
from sluicegate.stores.locks import Locked
from sluicegate.stores.redis.addresses import Address
from sluicegate.stores.redis.errand import Errand
from sluicegate.stores.redis.link import Link, ReplyError, packed
from sluicegate.stores.redis.node import Node, Surroundings
from sluicegate.stores.redis.router import Move
from sluicegate.stores.redis.settings import RedisSettings
from sluicegate.stores.redis.slots import Refresh

__all__ = ["MasterFinder", "SentinelRouter"]

_CHANGED = frozenset(("LOADING", "MASTERDOWN", "READONLY"))
"""First words of replies that are a sign of change: another server is the master, or soon will be."""


class SentinelRouter(Locked):
    """The ``Router`` of one master, which changes. Safe from any thread; a forked child begins with the master known."""

    __slots__ = (
        "_checked_us",
        "_closed",
        "_find",
        "_finding",
        "_gone",
        "_node",
        "_refresh",
        "_settings",
        "_surroundings",
        "_unknown",
    )

    def __init__(self, settings: RedisSettings, surroundings: Surroundings) -> None:
        self._settings = settings
        self._surroundings = surroundings
        self._find = MasterFinder(settings, surroundings.clock)
        self._unknown = Node(settings, surroundings)
        """Stands for the master until one is known, and is never sent anything."""
        self._node: Node | None = None
        self._gone: Node | None = None
        """The master before: whoever was given it may be about to use it, so it is closed at the next look."""
        self._closed = False
        self._finding = Errand("sentinel", self._look)
        super().__init__()

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self._refresh = Refresh()
        self._checked_us = 0

    @property
    def ready(self) -> bool:
        """Whether a master was ever found."""
        return self._node is not None

    def prepare(self, deadline_us: int) -> None:
        """Find the master, until the monotonic ``deadline_us``. Raises StoreError."""
        self._use(self._find(deadline_us))

    def group_of(self, request: Request) -> int:  # noqa: ARG002
        return 0

    def group_of_key(self, key: str | bytes) -> int:  # noqa: ARG002
        return 0

    def node_of(self, group: int) -> Node:  # noqa: ARG002
        """The master. Raises StoreError where none is known yet."""
        if self._node is None:
            raise StoreError(f"no master of {self._settings.address} is known")
        return self._node

    def nodes(self) -> Sequence[Node]:
        return (self._node or self._unknown,)

    def after_error(self, node: Node, group: int, text: str) -> Move | None:  # noqa: ARG002
        """The error is the caller's; a server that takes no writes is a sign of change."""
        if text.split(" ", 1)[0] in _CHANGED:
            self._sign_of_change()
        return None

    def after_failure(self, node: Node) -> None:  # noqa: ARG002
        """A replica may have taken over."""
        self._sign_of_change()

    def tick(self, now_us: int) -> None:
        """Have the Sentinels asked, where that was not done for ``REDIS_SENTINEL_CHECK_US``."""
        if now_us - self._checked_us >= REDIS_SENTINEL_CHECK_US:
            self._sign_of_change()

    def _sign_of_change(self) -> None:
        refresh = self._refresh
        refresh.want()
        if not self._closed and refresh.due(self._surroundings.clock.monotonic_us()):
            self._finding.start()

    def _look(self) -> None:
        """Ask who is the master. In a thread of its own."""
        clock, refresh = self._surroundings.clock, self._refresh
        now_us = clock.monotonic_us()
        if self._closed or not refresh.due(now_us):
            return
        refresh.begin(now_us)
        found = False
        try:
            self._use(self._find(now_us + 4 * REDIS_SENTINEL_ASK_MS * US_PER_MS))
            found = True
        except StoreError:
            # Whoever decides is told by the server it asks; the next sign has it tried again.
            return
        finally:
            self._checked_us = now_us
            refresh.end(found=found)

    def _use(self, master: Address) -> None:
        """Go to this master from now on, and let go of the one before."""
        self._surroundings.stats.refreshes += 1
        settings = self._settings.at(master)
        with self._lock:
            gone, self._gone = self._gone, None
            before = self._node
            if not self._closed and (before is None or before.address != settings.address):
                self._node, self._gone = Node(settings, self._surroundings), before
        if gone is not None:
            gone.close()

    def close(self) -> None:
        """Close the connections to the master and to the Sentinel."""
        with self._lock:
            self._closed = True
        self._find.close()
        for node in (self._node, self._gone):
            if node is not None:
                node.close()


class MasterFinder(Locked):
    """Says where the master of ``settings.service`` is. Blocks; safe from any thread, one at a time.

    The connection to a Sentinel is kept: it is asked every second.
    """

    __slots__ = ("_clock", "_link", "_order", "_settings", "_sure")

    def __init__(self, settings: RedisSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._order = settings.seeds
        self._sure: Address | None = None
        super().__init__()

    def _renew_lock(self) -> None:
        # The parent's connection is not ours; closing our copy of the socket sends nothing.
        super()._renew_lock()
        self._link: Link | None = None

    def __call__(self, deadline_us: int) -> Address:
        """Ask one Sentinel after the other, the one that knew last first, until the monotonic ``deadline_us``. Raises StoreError."""
        with self._lock:
            clock = self._clock
            problem = StoreError(f"no Sentinel of {self._settings.address} answers in time")
            for sentinel in self._order:
                now_us = clock.monotonic_us()
                if now_us >= deadline_us:
                    break
                try:
                    return self._ask_sentinel(sentinel, min(deadline_us, now_us + REDIS_SENTINEL_ASK_MS * US_PER_MS))
                except StoreError as error:
                    problem = error
                    self._hang_up()
            raise problem

    def close(self) -> None:
        """Close the connection to the Sentinel."""
        with self._lock:
            self._hang_up()

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ask_sentinel(self, sentinel: Address, deadline_us: int) -> Address:
        settings = self._settings.of_sentinel(sentinel)
        if self._link is None:
            self._link = Link(settings, deadline_us, self._clock)
        words = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self._settings.service or "")
        master = self._address_in(self._ask(self._link, settings, words, deadline_us), sentinel)
        if master != self._sure:
            self._check_role(self._settings.at(master), deadline_us)
            self._sure = master
        self._order = (sentinel, *(other for other in self._settings.seeds if other != sentinel))
        return master

    def _address_in(self, reply: Any, sentinel: Address) -> Address:
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
        link = Link(master, deadline_us, self._clock)
        try:
            reply = self._ask(link, master, (b"ROLE",), deadline_us)
        finally:
            link.close()
        if not (isinstance(reply, list) and reply and reply[0] == b"master"):
            raise StoreError(f"Redis at {master.address} is not the master that a Sentinel says it is")

    def _ask(self, link: Link, settings: RedisSettings, words: tuple[bytes | str, ...], deadline_us: int) -> Any:
        try:
            (reply,) = link.exchange(packed([words]), 1, deadline_us, self._clock)
        except OSError as error:
            what = "does not answer in time" if isinstance(error, TimeoutError) else f"is lost ({error})"
            raise StoreError(f"Redis at {settings.address} {what}") from None
        if isinstance(reply, ReplyError):
            raise StoreError(f"Redis at {settings.address} answers {str(reply)[:200]!r}")
        return reply
