"""Which server of a cluster decides, and how that is found out anew.

The map of slots is asked for before the first decision, then on signs of change: a server says that a slot is elsewhere, is not reached,
or says that the cluster is down. That is done by a thread of its own, at most every ``REDIS_CLUSTER_REFRESH_US``, while decisions go on by the map
there is. So a replica that took over is found although its old master is given up, and no decision waits for it.

Only masters are asked for decisions. Another server is asked for the map each time, beginning with those that answer: one that was cut off
from the others still shows what it last knew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sluicegate.bounds import REDIS_CLUSTER_ASK_MS, SUBJECT_MEMO_MAX
from sluicegate.clock import US_PER_MS
from sluicegate.errors import StoreError
from sluicegate.stores.base import Request
from sluicegate.stores.locks import Locked
from sluicegate.stores.redis.addresses import Address
from sluicegate.stores.redis.errand import Errand
from sluicegate.stores.redis.link import ReplyError
from sluicegate.stores.redis.node import Node, Surroundings
from sluicegate.stores.redis.router import SEVERAL, Move
from sluicegate.stores.redis.secret import Subjects
from sluicegate.stores.redis.settings import RedisSettings
from sluicegate.stores.redis.slots import Refresh, SlotMap, redirect_of, slot_of

__all__ = ["ClusterRouter"]

_CHANGED = frozenset(("CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY"))
"""First words of replies that are a sign of change: another server may have the slot soon."""


class _TextSlots(dict[str, int]):
    """The slot of every subject's text in a key. A full memo is emptied."""

    def __missing__(self, text: str) -> int:
        if len(self) >= SUBJECT_MEMO_MAX:
            self.clear()
        slot = self[text] = slot_of(text)
        return slot


class ClusterRouter(Locked):
    """The ``Router`` of a cluster; a group is a hash slot. Safe from any thread; a forked child finds its servers by the same map."""

    __slots__ = (
        "_asked",
        "_closed",
        "_gone",
        "_map",
        "_nodes",
        "_refresh",
        "_refreshing",
        "_settings",
        "_slots",
        "_subjects",
        "_surroundings",
    )

    def __init__(self, settings: RedisSettings, subjects: Subjects, surroundings: Surroundings) -> None:
        self._settings = settings
        self._subjects = subjects
        self._surroundings = surroundings
        self._slots = _TextSlots()
        self._map = SlotMap()
        self._nodes: dict[Address, Node] = {}
        self._gone: list[Node] = []
        """Servers that left with the last map: whoever was given one may be about to use it, so they are closed with the next."""
        self._asked = 0
        self._closed = False
        self._refreshing = Errand("cluster map", self._look)
        super().__init__()

    def _renew_lock(self) -> None:
        super()._renew_lock()
        self._refresh = Refresh()

    @property
    def ready(self) -> bool:
        """Whether a map was ever found."""
        return bool(self._map.masters)

    def prepare(self, deadline_us: int) -> None:
        """Find the map, until the monotonic ``deadline_us``. Raises StoreError."""
        self._find_map(deadline_us)

    # ------------------------------------------------------------------ where things are

    def slot_of(self, subject: str) -> int:
        """The slot of a subject's counters, by the secret known now."""
        return self._slots[self._subjects.texts[subject]]

    def group_of(self, request: Request) -> int:
        """The slot of all counters of a request, or ``SEVERAL``."""
        slots, texts = self._slots, self._subjects.texts
        found = slots[texts[request[0][1]]]
        if len(request) > 1:
            for _, subject, _ in request:
                if slots[texts[subject]] != found:
                    return SEVERAL
        return found

    def group_of_key(self, key: str | bytes) -> int:
        """The slot of a key."""
        return slot_of(key)

    def node_of(self, group: int) -> Node:
        """The master of a slot. Raises StoreError where nobody is known to have it."""
        address = self._map.owner(group)
        if address is None:
            self._sign_of_change()
            raise StoreError(f"no server of the cluster at {self._settings.address} has slot {group}")
        return self._nodes.get(address) or self._node_at(address)

    def nodes(self) -> Sequence[Node]:
        """The masters known, else the servers that are asked first."""
        return [self._node_at(address) for address in self._map.masters or self._settings.seeds]

    # ------------------------------------------------------------------ signs of change

    def after_error(self, node: Node, group: int, text: str) -> Move | None:  # noqa: ARG002
        """MOVED and ASK name where the command goes; what else may pass soon is a sign to look for the map anew."""
        redirect = redirect_of(text, Address(node.settings.host, node.settings.port))
        if redirect is not None:
            if redirect.asking:
                return Move(self._node_at(redirect.address), asking=True)
            self._map.move(redirect.slot, redirect.address)
            self._sign_of_change()
            return Move(self._node_at(redirect.address))
        if text.split(" ", 1)[0] in _CHANGED:
            self._sign_of_change()
        return None

    def after_failure(self, node: Node) -> None:  # noqa: ARG002
        """A replica may have taken over."""
        self._sign_of_change()

    def tick(self, now_us: int) -> None:
        """A slot that moved says so itself when it is used."""

    def _sign_of_change(self) -> None:
        refresh = self._refresh
        refresh.want()
        if not self._closed and refresh.due(self._surroundings.clock.monotonic_us()):
            self._refreshing.start()

    # ------------------------------------------------------------------ the map

    def _look(self) -> None:
        """Find the map anew, where that is due. In a thread of its own."""
        clock = self._surroundings.clock
        if not self._closed and self._refresh.due(clock.monotonic_us()):
            try:
                self._find_map(clock.monotonic_us() + 4 * REDIS_CLUSTER_ASK_MS * US_PER_MS)
            except StoreError:
                # Whoever decides meets the same servers and is told; the next sign has it tried again.
                return

    def _find_map(self, deadline_us: int) -> None:
        clock = self._surroundings.clock
        refresh = self._refresh
        refresh.begin(clock.monotonic_us())
        found = False
        problem = StoreError(f"the cluster at {self._settings.address} is not reached in time")
        try:
            for node in self._whom_to_ask():
                now_us = clock.monotonic_us()
                if now_us >= deadline_us:
                    break
                try:
                    self._take_over(self._ask(node, min(now_us + REDIS_CLUSTER_ASK_MS * US_PER_MS, deadline_us)))
                except StoreError as error:
                    problem = error
                    continue
                found = True
                return
            raise problem
        finally:
            refresh.end(found=found)

    def _ask(self, node: Node, deadline_us: int) -> SlotMap:
        self._surroundings.stats.refreshes += 1
        (reply,) = node.ask([(b"CLUSTER", b"SLOTS")], deadline_us)
        if isinstance(reply, ReplyError):
            raise StoreError(f"Redis at {node.address} is no cluster that can be used: {str(reply)[:200]!r}")
        try:
            found = SlotMap.parse(reply, Address(node.settings.host, node.settings.port))
        except ValueError as error:
            raise StoreError(f"Redis at {node.address}: {error}") from None
        if not found.masters:
            raise StoreError(f"Redis at {node.address} knows no server that has a slot")
        return found

    def _whom_to_ask(self) -> Iterator[Node]:
        """Servers that answer first, another one at the front each time, then those given up, then by the names of the URL."""
        known = [self._node_at(address) for address in dict.fromkeys((*self._map.masters, *self._map.replicas))]
        self._asked += 1
        turn = self._asked % len(known) if known else 0
        known = known[turn:] + known[:turn]
        seeds = [self._node_at(address) for address in self._settings.seeds]
        order = (
            [node for node in known if node.breaker.closed]
            + seeds
            + [node for node in known if not node.breaker.closed]
        )
        yield from {id(node): node for node in order}.values()

    def _take_over(self, found: SlotMap) -> None:
        """Use a new map, and let go of servers that are no longer part of the cluster."""
        self._map = found
        kept = {*found.masters, *found.replicas, *self._settings.seeds}
        with self._lock:
            closing = self._gone
            self._gone = [self._nodes.pop(address) for address in list(self._nodes) if address not in kept]
        for node in closing:
            node.close()

    def _node_at(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            with self._lock:
                node = self._nodes.get(address)
                if node is None:
                    node = self._nodes[address] = Node(self._settings.at(address), self._surroundings)
        return node

    def close(self) -> None:
        """Close every node."""
        self._closed = True
        with self._lock:
            nodes = [*self._nodes.values(), *self._gone]
        for node in nodes:
            node.close()
