"""What a store is asked about the parts of counters that a region has: the protocol between brokers and a region's store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from sluicegate.errors import StoreError
from sluicegate.stores.base import Counter

__all__ = ["PartStep", "PartStore", "PartView"]


class PartStep(NamedTuple):
    """One look at a counter that stands by its own numbers, and the change that goes with it.

    ``counter``: a ``standing`` one, with the numbers it is to have. ``record`` None: nothing is changed. Otherwise the record is written and
    the counter given its numbers in one step, if the record there is ``expected`` (b"": none) and the server still lives the ``life``
    that is named. What is left in the counter is not changed by that, but for what exceeds its new capacity; a counter that is not there
    has ``left`` tokens (a window: its limit). ``admitted``, ``refused``: tokens since this process last said so, which are added up.
    """

    counter: Counter
    subject: str
    record: bytes | None = None
    expected: bytes = b""
    life: str = ""
    left: int = 0
    admitted: int = 0
    refused: int = 0


class PartView(NamedTuple):
    """What was found, after the change where one was made (``written``).

    ``capacity``: that by which the counter decides, 0 where there is no counter. ``differs``: its numbers are others than those of the step.
    ``used``, ``left``, ``out``: tokens used (of a window: that count in it), left, and granted as leases that have not ended (of a bucket; a
    window's are used). ``admitted``, ``refused``: sums of what all processes said. ``life``: the server's incarnation.
    """

    written: bool
    differs: bool
    capacity: int
    used: int
    left: int
    out: int
    admitted: int
    refused: int
    record: bytes
    now_us: int
    life: str


@runtime_checkable
class PartStore(Protocol):
    """An optional ability of a store: keeping a record beside a counter that changes with it in one step."""

    def parts(self, steps: Sequence[PartStep]) -> list[PartView | StoreError]:
        """Each step on its counter, atomic for itself; a StoreError in the place of each that got no answer, which may have been done."""
        ...
