"""Which server a command goes to, and where it goes next when a server says that it is not the one.

Keys are put into *groups*: counters of one group can be decided in one command. One server has one group, 0; a cluster has its hash
slots. Everything here is called on the way of a decision, from any thread or event loop, and must not block; what takes time is an ``Errand``
that the router starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sluicegate.stores.base import Request
from sluicegate.stores.redis.node import Node

__all__ = ["SEVERAL", "Move", "Router", "SingleRouter"]

SEVERAL = -1
"""The group of a request whose counters are in several groups."""


class Move(NamedTuple):
    """Where a command is sent instead. ``asking``: with ASKING before it, on the same connection."""

    node: Node
    asking: bool = False


class Router(Protocol):
    """Knows the servers. ``ready``: it knows enough to be asked for groups; False only before ``prepare`` succeeded once."""

    @property
    def ready(self) -> bool: ...

    def prepare(self, deadline_us: int) -> None:
        """Become ready, until the monotonic ``deadline_us``. Blocks, in an errand of the store; raises StoreError."""
        ...

    def group_of(self, request: Request) -> int:
        """The group of all counters of a request; ``SEVERAL`` where they have none in common. The secret of the keys is known."""
        ...

    def group_of_key(self, key: str | bytes) -> int:
        """The group of a key."""
        ...

    def node_of(self, group: int) -> Node:
        """The server that decides for a group. Raises StoreError where none is known."""
        ...

    def nodes(self) -> Sequence[Node]:
        """The servers known, for warming, for health and for closing."""
        ...

    def after_error(self, node: Node, group: int, text: str) -> Move | None:
        """Where a command goes after the error reply ``text``, whose meaning is that nothing was done; None: the caller gets the error.

        Called for every error reply but NOSCRIPT; takes note of what the reply says of the servers.
        """
        ...

    def after_failure(self, node: Node) -> None:
        """A call failed for lack of the server: no connection, no answer, or it is down and nothing was sent. Rate limited inside."""
        ...

    def tick(self, now_us: int) -> None:
        """Called about once a second, at a monotonic time, while the store is used: for what no reply gives a sign of."""
        ...

    def close(self) -> None:
        """Close every node."""
        ...


class SingleRouter:
    """One server, or one name behind which the server may change."""

    __slots__ = ("_node", "_nodes")

    ready = True

    def __init__(self, node: Node) -> None:
        self._node = node
        self._nodes = (node,)

    def prepare(self, deadline_us: int) -> None:
        """Nothing is to be learned."""

    def group_of(self, request: Request) -> int:  # noqa: ARG002
        return 0

    def group_of_key(self, key: str | bytes) -> int:  # noqa: ARG002
        return 0

    def node_of(self, group: int) -> Node:  # noqa: ARG002
        return self._node

    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def after_error(self, node: Node, group: int, text: str) -> Move | None:  # noqa: ARG002
        return None

    def after_failure(self, node: Node) -> None:
        """There is no other server to turn to."""

    def tick(self, now_us: int) -> None:
        """There is nothing to look after."""

    def close(self) -> None:
        self._node.close()
