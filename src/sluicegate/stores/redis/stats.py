"""What a Redis store counts about itself."""

from __future__ import annotations

__all__ = ["RedisStats"]


class RedisStats:
    """Plain integers, readable at any time; under threads they may miss a few.

    ``calls``: commands that were sent (a batch is one). ``loads``: scripts sent in full because the server did not know them;
    growth means that its cache is flushed or that it restarts. ``lost``: calls without a reply (timeout, connection closed).
    ``errors``: error replies, among them requests that failed because of an unreadable key. ``connects``: connections made.
    """

    __slots__ = ("calls", "connects", "errors", "loads", "lost")

    def __init__(self) -> None:
        self.calls = 0
        self.connects = 0
        self.errors = 0
        self.loads = 0
        self.lost = 0

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}
