"""Answers that are due, for handlers whose answers take time."""

from __future__ import annotations

from typing import Protocol

from sluicegate.doors.http.respond import Reply
from sluicegate.doors.http.site import KnownHead

__all__ = ["Due", "Owner"]


class Owner(Protocol):
    """The connection to which an answer is due."""

    def answered(self, due: Due) -> None:
        """The answer is there."""
        ...


class Due:
    """An answer that is due; calling it gives the answer (see ``site.Answer``).

    ``head``: of its request; None where the answer belongs to no parsed request. ``last``: the connection ends with it. ``reply``: the
    answer; None while it is missing.
    """

    __slots__ = ("_owner", "head", "last", "reply")

    def __init__(self, owner: Owner, head: KnownHead | None, *, last: bool) -> None:
        self._owner = owner
        self.head = head
        self.last = last
        self.reply: Reply | None = None

    def __call__(self, reply: Reply) -> None:
        if self.reply is None:
            self.reply = reply
            if self.head is not None:
                counts = self.head.counts
                counts[reply[0]] = counts.get(reply[0], 0) + 1
            self._owner.answered(self)
