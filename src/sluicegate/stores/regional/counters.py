"""What stands for a counter in a region's store."""

from __future__ import annotations

from sluicegate.algorithms.spec import OnChange
from sluicegate.stores.base import Counter
from sluicegate.stores.keys import beside_prefix
from sluicegate.stores.regional.units import part_of

__all__ = ["Moving", "standing"]

_MEMO_MAX = 64
_WORD = "region"


class Moving:
    """One shared counter whose parts are lent: the whole's ``counter``, its ``subject``, and the counter in a store by the units it has.

    It stands under a key of its own, so that it is never taken for the counter of a service without regions.
    """

    __slots__ = ("_by_units", "counter", "key", "subject")

    def __init__(self, counter: Counter, subject: str) -> None:
        self.counter = counter
        self.subject = subject
        self.key = counter.prefix + subject
        self._by_units: dict[int, Counter] = {}

    def with_units(self, mask: int) -> Counter:
        """The counter with these units, the same object each time: what is known of a counter in a store is known by its identity."""
        found = self._by_units.get(mask)
        if found is None:
            if len(self._by_units) >= _MEMO_MAX:
                self._by_units.clear()
            found = self._by_units[mask] = standing(self.counter, mask)
        return found


def standing(counter: Counter, mask: int) -> Counter:
    """A counter that goes by the numbers it was given; those of these units where it is not there."""
    prefix = beside_prefix(counter.prefix, counter.spec.algorithm, counter.spec.shape, _WORD)
    return counter._replace(spec=part_of(counter.spec, mask), prefix=prefix, on_change=OnChange.KEEP, standing=True)
