"""What is sent every second or so beside the decisions, in the same packets, so that it costs no round trip of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from sluicegate.bounds import REDIS_RIDER_RETRY_US

__all__ = ["NEVER_US", "Rider", "Riders", "Words"]

Words: TypeAlias = tuple[bytes | str, ...]
"""A command as it is sent.

Its numbers are text. hiredis turns numbers into text itself, but where a signal handler raises in that moment (a time limit, Ctrl-C), it
does not look, and the process crashes.
"""


NEVER_US: Final = 1 << 62
"""The ``due_us`` of a rider that is never sent."""


class Rider(Protocol):
    """A command that is sent along with a decision once in ``every_us``. ``due_us``: monotonic time of the next one.

    ``key`` says which server it belongs to. ``learn`` gets its reply, which is no error, and sets ``due_us``. What it raises, only StoreError,
    fails the decisions that were sent with it.
    """

    due_us: int

    @property
    def every_us(self) -> int: ...

    @property
    def key(self) -> bytes: ...

    def words(self) -> Words: ...

    def learn(self, reply: object, now_us: int) -> None: ...


class Riders:
    """Which riders are due. ``next_us``: before this monotonic time none is. Safe from any thread: two threads may send one twice, which harms nothing."""

    __slots__ = ("_riders", "next_us")

    def __init__(self, riders: Sequence[Rider]) -> None:
        self._riders = tuple(riders)
        self.next_us = 0

    def take(self, now_us: int, here: Callable[[bytes], bool]) -> list[Rider]:
        """Those that are due and ``here``, by their key; they count as sent, and are due again soon where no reply is learned."""
        found = []
        for rider in self._riders:
            if now_us >= rider.due_us and here(rider.key):
                rider.due_us = now_us + REDIS_RIDER_RETRY_US
                found.append(rider)
        self.settle()
        return found

    def left_behind(self, now_us: int) -> bool:
        """Whether one found no decision to ride along with for a whole interval."""
        return any(now_us >= rider.due_us + rider.every_us for rider in self._riders)

    def hurry(self) -> None:
        """Have every rider sent with the next decision; one that never is due stays at home."""
        for rider in self._riders:
            if rider.due_us < NEVER_US:
                rider.due_us = 0
        self.settle()

    def settle(self) -> None:
        """After riders have learned: find out when the next is due."""
        self.next_us = min(rider.due_us for rider in self._riders)
