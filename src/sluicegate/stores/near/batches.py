"""A batch of requests at a near store, step by step, without any input or output.

What a batch asks the store goes into one call. Request i is decided as if it had been charged before i + 1 was read: where a request lacks
tokens of a lease that an earlier one of the batch holds provisionally, those before it are decided first, in a call of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from sluicegate.errors import PartlyDecided, PartlyReached, StoreError
from sluicegate.stores.answer import answers_of
from sluicegate.stores.base import Answer, Receipt, Request
from sluicegate.stores.locks import Locked
from sluicegate.stores.near.front import Asking, Front

__all__ = ["Batch", "Steps", "answers_or_raise", "sent"]

Steps: TypeAlias = Generator[list[Request], Sequence[Answer] | StoreError, None]
"""Yields requests for the store behind, and is sent its answers or the StoreError it raised."""


class Batch:
    """The requests of a batch. ``results``: an answer, or why there is none, of each; complete when ``steps`` has ended.

    ``undo``: what is to be given back then. ``owner``: whose lock is held while the front decides, and no longer.
    """

    __slots__ = ("_front", "_now", "_owner", "_requests", "_results", "undo")

    def __init__(self, front: Front, owner: Locked, now: Callable[[], int], requests: Sequence[Request]) -> None:
        self._front = front
        self._owner = owner
        self._now = now
        self._requests = requests
        self._results: dict[int, Answer | StoreError] = {}
        self.undo: list[Receipt] = []

    @property
    def results(self) -> list[Answer | StoreError]:
        """In the order of the requests."""
        return [self._results[index] for index in range(len(self._requests))]

    def steps(self) -> Steps:
        """Decide the requests. Where the caller closes this early, what is held provisionally is put back."""
        front = self._front
        pending: list[tuple[int, Asking]] = []
        busy: set[int] = set()
        try:
            for index, request in enumerate(self._requests):
                begun = self._begin(request, busy if pending else None)
                if begun is None:
                    yield from self._flush(pending)
                    busy.clear()
                    begun = self._begin(request, None)
                assert begun is not None
                if isinstance(begun, Asking):
                    pending.append((index, begun))
                    busy.update([id(leased) for _, leased, _ in begun.spent])
                else:
                    self._results[index] = begun
            yield from self._flush(pending)
        except BaseException:
            with self._owner._lock:
                for _, asking in pending:
                    front.abandon(asking)
            raise

    def _begin(self, request: Request, busy: set[int] | None) -> Answer | Asking | None:
        with self._owner._lock:
            return self._front.begin(request, self._now(), busy)

    def _flush(self, pending: list[tuple[int, Asking]]) -> Steps:
        """Ask the store about these requests, once more where a lease has ended meanwhile; none is pending then."""
        front = self._front
        while pending:
            found = yield [asking.rest for _, asking in pending]
            answers = answers_of(found, len(pending)) if isinstance(found, StoreError) else found
            with self._owner._lock:
                now_us = self._now()
                again: list[tuple[int, Asking]] = []
                for (index, asking), answer in zip(pending, answers, strict=True):
                    result: Answer | StoreError | None
                    if isinstance(answer, StoreError):
                        result = front.failed(asking, answer, now_us)
                    else:
                        result = front.landed(asking, answer, now_us)
                    if result is None:
                        again.append((index, asking))
                    else:
                        self._results[index] = result
                        self.undo += asking.undo
                pending[:] = again


def answers_or_raise(results: Sequence[Answer | StoreError]) -> list[Answer]:
    """The answers, where there is one to each request; else the StoreError, or PartlyDecided where some have one."""
    fault: StoreError | None = None
    answers: list[Answer | StoreError | None] = []
    for result in results:
        if isinstance(result, StoreError):
            reached = isinstance(result, PartlyReached)
            fault = fault or (result.cause if isinstance(result, PartlyReached) else result)
            answers.append(result if reached else None)
        else:
            answers.append(result)
    if fault is None:
        return [result for result in results if not isinstance(result, StoreError)]
    if all(answer is None for answer in answers):
        raise fault
    raise PartlyDecided(fault, answers)


def sent(steps: Steps, found: Sequence[Answer] | StoreError) -> list[Request] | None:
    """What is asked next, None where the batch is decided."""
    try:
        return steps.send(found)
    except StopIteration:
        return None
