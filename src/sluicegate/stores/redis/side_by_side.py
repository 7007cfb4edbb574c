"""Several operations as one: what they send goes out together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sluicegate.errors import StoreError
from sluicegate.stores.redis.calls import Steps, Undo
from sluicegate.stores.redis.packing import Command

__all__ = ["side_by_side", "undoing"]

R = TypeVar("R")


def side_by_side(operations: Sequence[Steps[R]]) -> Steps[list[R | StoreError]]:
    """Run operations in rounds; each round sends what all that are not done yield. Gives the result of each, or its StoreError."""
    results: list[Any] = [None] * len(operations)
    waiting: list[tuple[int, Sequence[Command]]] = []

    def go_on(place: int, replies: Sequence[Any] | None) -> None:
        operation = operations[place]
        try:
            waiting.append((place, next(operation) if replies is None else operation.send(replies)))
        except StopIteration as done:
            results[place] = done.value
        except StoreError as error:
            results[place] = error

    for place in range(len(operations)):
        go_on(place, None)
    while waiting:
        under_way, waiting = waiting, []
        replies = yield [command for _, commands in under_way for command in commands]
        first = 0
        for place, commands in under_way:
            go_on(place, replies[first : first + len(commands)])
            first += len(commands)
    return results


def undoing(steps: Steps[R]) -> Steps[R]:
    """The same operation, of which all that it sends takes something back."""
    try:
        commands = next(steps)
        while True:
            commands = steps.send((yield Undo(commands)))
    except StopIteration as done:
        result: R = done.value
        return result
