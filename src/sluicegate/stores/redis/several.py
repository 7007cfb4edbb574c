"""A request over several slots on an event loop: its parts ride along with whatever else goes to their slots.

So the parts of many requests that share a counter are one call of the script, as requests of one slot are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sluicegate.errors import StoreError
from sluicegate.stores.answer import StateAnswer
from sluicegate.stores.base import Answer, Done, Request
from sluicegate.stores.redis.calls import Steps
from sluicegate.stores.redis.composition import Composition
from sluicegate.stores.redis.faults import fault_of
from sluicegate.stores.redis.inflight import tell
from sluicegate.stores.redis.parts import ComposedAnswer, Part

__all__ = ["PartWaiter", "Several"]


class _Side(Protocol):
    """What is used of a ``LoopSide``."""

    def submit_part(self, request: Request, done: Done, group: int, deadline_s: float, *, peek: bool) -> None: ...

    def start(self, steps: Steps[Any], done: Callable[[Any], None], deadline_s: float) -> None: ...


class Several:
    """One request under way; ``done`` gets its answer or its StoreError, PartlyReached included."""

    __slots__ = ("_composition", "_deadline_s", "_done", "_missing", "_parts", "_peek", "_request", "_side")

    def __init__(
        self, side: _Side, composition: Composition, request: Request, done: Done, deadline_s: float, *, peek: bool
    ) -> None:
        self._side = side
        self._composition = composition
        self._request = request
        self._done = done
        self._deadline_s = deadline_s
        self._peek = peek
        self._parts: list[Part] = []
        self._missing = 0

    def begin(self) -> None:
        """Have the parts decided side by side."""
        parts = self._parts = self._composition.begin(self._request, peek=self._peek)
        self._missing = len(parts)
        submit, deadline_s = self._side.submit_part, self._deadline_s
        for part in parts:
            submit(part.request, PartWaiter(self, part), part.slot, deadline_s, peek=part.peek)

    def landed(self) -> None:
        """One more part has its answer or error."""
        self._missing -= 1
        if self._missing:
            return
        parts, peek = self._parts, self._peek
        shown = [
            (part.places, found)
            for part in parts
            if isinstance(found := part.found, StateAnswer) and found.admitted and part.peek is peek
        ]
        if len(shown) == len(parts):
            # The usual case: all pass.
            tell(self._done, ComposedAnswer(shown))
        else:
            self._side.start(self._composition.finish(self._request, parts, peek=peek), self._done, self._deadline_s)


class PartWaiter:
    """Takes the answer to one part."""

    __slots__ = ("_part", "_several")

    def __init__(self, several: Several, part: Part) -> None:
        self._several = several
        self._part = part

    def __call__(self, answer: Answer | StoreError) -> None:
        assert isinstance(answer, StateAnswer | StoreError)
        self._part.found = answer
        self._several.landed()

    def moving(self) -> None:
        """The part was not decided, because its keys are in two places."""
        self(fault_of("TRYAGAIN", "the slot's servers"))
