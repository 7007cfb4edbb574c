"""What a line that cannot be decided is called."""

from __future__ import annotations

__all__ = ["BadLine"]


class BadLine(Exception):
    """A line of a log that is no request. It is counted and shown, and ends nothing; it never leaves a replay."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
