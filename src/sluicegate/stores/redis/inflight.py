"""Commands of an event loop on their way, with whoever waits for their replies."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from sluicegate.errors import StoreError
from sluicegate.stores.base import Done, Request
from sluicegate.stores.redis.core import Core
from sluicegate.stores.redis.node import Node
from sluicegate.stores.redis.riders import Rider, Words

__all__ = ["AlongSide", "Batch", "Item", "Landed", "Outbound", "Sendable", "Single", "tell"]

Item: TypeAlias = tuple[Request, Done, float]
"""(request, whom to tell, the loop's time of its deadline)."""

Landed: TypeAlias = Callable[[Any], None]
"""What is called with the reply to a command or with its StoreError, once."""

_TRIES = 2


def tell(done: Callable[[Any], object], answer: Any) -> None:
    """Call ``done``. Should it raise against its contract, the loop is told, and the others who wait are not harmed."""
    try:
        done(answer)
    except Exception as error:  # noqa: BLE001
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a callback of a Redis store raised", "exception": error}
        )


class Sendable(Protocol):
    """What is sent as one command, as ``packing.Command`` is."""

    @property
    def keys(self) -> Sequence[str | bytes]: ...

    def parts(self) -> Words: ...

    def parts_in_full(self) -> Words: ...


class Outbound(ABC):
    """A command under way. ``node`` None: it goes to the server of ``group``; ``fault`` is what its reply is replaced by."""

    __slots__ = ("asking", "fault", "group", "in_full", "node", "resends")

    def __init__(self, group: int) -> None:
        self.group = group
        self.node: Node | None = None
        self.asking = False
        self.in_full = False
        self.resends = 0
        self.fault: StoreError | None = None

    @abstractmethod
    def words(self) -> Words:
        """The command as it is sent now. Raises where it cannot be packed."""

    @abstractmethod
    def deadline_s(self) -> float | None:
        """When the next of those that wait has waited long enough; None where nobody waits any more."""

    @abstractmethod
    def expire(self, now_s: float, error: StoreError) -> None:
        """Tell those whose deadline has passed."""

    @abstractmethod
    def extend(self, until_s: float) -> None:
        """Give those that wait until then at least."""

    @abstractmethod
    def landed(self, reply: Any) -> bool:
        """Tell those that wait; False where the command must be made and sent again."""

    @abstractmethod
    def fail(self, error: StoreError) -> None:
        """Tell those that wait that there is no reply."""


class Single(Outbound):
    """One command with one waiter."""

    __slots__ = ("_command", "_deadline_s", "_landed")

    def __init__(self, command: Sendable, group: int, landed: Landed, deadline_s: float) -> None:
        super().__init__(group)
        self._command = command
        self._landed: Landed | None = landed
        self._deadline_s = deadline_s

    def words(self) -> Words:
        return self._command.parts_in_full() if self.in_full else self._command.parts()

    def deadline_s(self) -> float | None:
        return None if self._landed is None else self._deadline_s

    def expire(self, now_s: float, error: StoreError) -> None:
        if now_s >= self._deadline_s:
            self.fail(error)

    def extend(self, until_s: float) -> None:
        self._deadline_s = max(self._deadline_s, until_s)

    def landed(self, reply: Any) -> bool:
        landed, self._landed = self._landed, None
        if landed is not None:
            tell(landed, reply)
        return True

    def fail(self, error: StoreError) -> None:
        self.landed(error)


class Batch(Outbound):
    """Requests of one group in one call of the script. Their deadlines ascend: they are in the order in which they came."""

    __slots__ = ("_command", "_core", "_guess_us", "_peek", "_requests", "_tries", "expired", "items")

    def __init__(self, core: Core, items: list[Item], group: int, *, peek: bool) -> None:
        super().__init__(group)
        self._core = core
        self.items = items
        self.expired = 0
        """So many of the first items are told already."""
        self._peek = peek
        self._requests = [item[0] for item in items]
        self._guess_us = 0
        self._tries = 0
        self._command: Sendable | None = None

    def words(self) -> Words:
        command = self._command
        if command is None:
            stats = self._core.stats
            stats.batches += 1
            stats.batched += len(self.items)
            command = self._command = self._core.packing.decide(self._requests, self._guess_us, peek=self._peek)
        return command.parts_in_full() if self.in_full else command.parts()

    def split(self) -> list[Batch]:
        """A batch for each request."""
        return [Batch(self._core, [item], self.group, peek=self._peek) for item in self.items]

    def left(self) -> list[Item]:
        """Those that wait; they are told by the caller from here on."""
        left = self.items[self.expired :]
        self.expired = len(self.items)
        return left

    @property
    def peek(self) -> bool:
        return self._peek

    def deadline_s(self) -> float | None:
        items, expired = self.items, self.expired
        return items[expired][2] if expired < len(items) else None

    def expire(self, now_s: float, error: StoreError) -> None:
        items = self.items
        while self.expired < len(items) and now_s >= items[self.expired][2]:
            done = items[self.expired][1]
            self.expired += 1
            tell(done, error)

    def extend(self, until_s: float) -> None:
        # Deadlines ascend, and still do.
        self.items = [(request, done, max(deadline_s, until_s)) for request, done, deadline_s in self.items]

    def landed(self, reply: Any) -> bool:
        guess_us, answers = self._core.packing.decided(self._requests, reply, peek=self._peek)
        if answers is None:
            self._tries += 1
            if self._tries < _TRIES:
                self._guess_us, self._command = guess_us, None
                return False
            self.fail(StoreError("Redis' time runs away from its calendar windows"))
            return True
        items = self.items
        if self.expired:
            answers = answers[self.expired :]
            items = self.left()
        else:
            self.expired = len(items)
        for (_, done, _), answer in zip(items, answers, strict=True):
            tell(done, answer)
        return True

    def fail(self, error: StoreError) -> None:
        for _, done, _ in self.left():
            tell(done, error)


class AlongSide(Outbound):
    """A rider; nobody waits for it. ``fails`` is told what fails the commands that were sent with it."""

    __slots__ = ("_core", "_fails", "_rider")

    def __init__(self, core: Core, rider: Rider, fails: Callable[[StoreError], None]) -> None:
        super().__init__(0)
        self._core = core
        self._rider = rider
        self._fails = fails

    def words(self) -> Words:
        return self._rider.words()

    def deadline_s(self) -> float | None:
        return None

    def expire(self, now_s: float, error: StoreError) -> None:
        """Nobody waits."""

    def extend(self, until_s: float) -> None:
        """Nobody waits."""

    def landed(self, reply: Any) -> bool:
        problem = self._core.learn(self._rider, reply)
        if problem is not None:
            self._fails(problem)
        return True

    def fail(self, error: StoreError) -> None:
        """It is due again by itself."""
