"""What a near store counts about itself."""

from __future__ import annotations

__all__ = ["NearStats"]


class NearStats:
    """Plain integers, readable at any time. Requests, peeks not included; each is counted once, but for the last three.

    ``leased``: passed by tokens held here. ``denied``: refused because the store's refusal was known, or
    because the tokens of a leased counter are fought for. ``never``: refused because their cost is above a limit. ``asked``: those that the store was asked.

    ``lapsed``: charges of leases that had ended when the store had decided the rest of the request, so it was asked for them too. ``undone``: charges of
    requests that were refused after that, given back; ``undo_failed``: those that could not be.
    """

    __slots__ = ("asked", "denied", "lapsed", "leased", "never", "undo_failed", "undone")

    def __init__(self) -> None:
        self.leased = 0
        self.denied = 0
        self.never = 0
        self.asked = 0
        self.lapsed = 0
        self.undone = 0
        self.undo_failed = 0

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}
