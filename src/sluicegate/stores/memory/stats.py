"""What a memory store counts about itself."""

from __future__ import annotations

__all__ = ["MemoryStats"]


class MemoryStats:
    """Plain integers, written under the store's lock and readable at any time.

    ``decisions``: requests decided, peeks included. ``swept``: expired counters removed. ``evicted_live``: counters
    that still mattered and were removed because the store was full; any growth means ``max_counters`` is too small for
    the traffic. ``evicted_refusing``: how many of those were refusing, which happens only where nothing else is left.
    ``carried``: counters taken over by changed numbers. ``refunds``, ``grants`` and ``resets``: counters changed by those calls.
    """

    __slots__ = ("carried", "decisions", "evicted_live", "evicted_refusing", "grants", "refunds", "resets", "swept")

    def __init__(self) -> None:
        self.decisions = 0
        self.swept = 0
        self.evicted_live = 0
        self.evicted_refusing = 0
        self.carried = 0
        self.refunds = 0
        self.grants = 0
        self.resets = 0

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}
