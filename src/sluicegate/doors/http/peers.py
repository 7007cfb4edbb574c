"""The other processes that serve the same listener: what one of them has to ask them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sluicegate.doors.http.respond import Reply

__all__ = ["OPERATED_PATHS", "OPERATION_PATHS", "PEER_PATHS", "Peers"]

OPERATION_PATHS = {
    "read": "/v1/counters/read",
    "grant": "/v1/counters/grant",
    "reset": "/v1/counters/reset",
    "refund": "/v1/refund",
    "explain": "/v1/explain",
}
"""Where a node answers each operation that a rules service asks of it."""

OPERATED_PATHS = frozenset(OPERATION_PATHS.values())

PEER_PATHS = frozenset({"/livez", "/readyz", "/healthz", "/metrics", "/v1/refund"})
"""What each of them answers to the others."""


class Peers(Protocol):
    """The connection of a client reaches one process, which is to answer for all. Methods are called on the loop's thread."""

    def scrape(
        self, own: Callable[[], tuple[str, bytes]], answer: Callable[[str, bytes], None], *, accept: str = ""
    ) -> None:
        """Give ``answer`` content type and exposition of all, once, before it returns or later; ``own`` gives those of this one.

        ``accept``: what the others are to be asked for to get the same format; empty: nothing is said.
        """
        ...

    async def refund(self, body: bytes) -> Reply | None:
        """The answer of the one that knows the receipt in ``body``; None where none of those that answer in time does."""
        ...
