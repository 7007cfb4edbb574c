"""A part of a memory store's table: an index of keys, and their counters in columns.

Columns instead of one object per counter, for two reasons. Changing a list item is the cheapest write Python has, and it is
done once per charge. And a list is one object for the garbage collector however long it is: with an object per counter,
a million counters would make each full collection pause the process for a tenth of a second.
"""

from __future__ import annotations

from sluicegate.algorithms.spec import Spec, State

__all__ = ["Place", "Segment"]


class Segment:
    """Counters by key. A slot is a counter's place in the columns; it is used once and given up with the segment.

    ``states``, ``specs``: the state and the spec it was written under, both None in a slot whose counter has gone.
    ``born_us``: store time of the counter's creation. ``slot_of``: ``index.get``, bound once.
    """

    __slots__ = ("born_us", "index", "slot_of", "specs", "states")

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.slot_of = self.index.get
        self.states: list[State | None] = []
        self.specs: list[Spec | None] = []
        self.born_us: list[int] = []

    def add(self, key: str, state: State, spec: Spec, born_us: int) -> None:
        """Put in a key that is not there."""
        self.index[key] = len(self.states)
        self.states.append(state)
        self.specs.append(spec)
        self.born_us.append(born_us)

    def pop(self) -> tuple[str, State, Spec, int]:
        """Take out the counter that was put in last; the segment must not be empty."""
        key, slot = self.index.popitem()
        return key, *self._clear(slot)

    def take(self, key: str) -> tuple[State, Spec, int] | None:
        """Take out ``key``; None where it is not there."""
        slot = self.index.pop(key, None)
        return None if slot is None else self._clear(slot)

    def _clear(self, slot: int) -> tuple[State, Spec, int]:
        state, spec = self.states[slot], self.specs[slot]
        assert spec is not None
        self.states[slot] = self.specs[slot] = None
        return state, spec, self.born_us[slot]


class Place:
    """Where a counter was found. ``valid`` is False once it was moved or forgotten."""

    __slots__ = ("segment", "slot")

    def __init__(self, segment: Segment, slot: int) -> None:
        self.segment = segment
        self.slot = slot

    @property
    def valid(self) -> bool:
        """Whether the counter is still there."""
        return self.segment.specs[self.slot] is not None

    @property
    def state(self) -> State:
        """The counter's state now."""
        return self.segment.states[self.slot]

    @property
    def spec(self) -> Spec:
        """The spec the state was written under."""
        spec = self.segment.specs[self.slot]
        assert spec is not None
        return spec

    @property
    def born_us(self) -> int:
        """Store time of the counter's creation."""
        return self.segment.born_us[self.slot]

    def set(self, state: State, spec: Spec) -> None:
        """Write the counter where it is."""
        self.segment.states[self.slot] = state
        self.segment.specs[self.slot] = spec
