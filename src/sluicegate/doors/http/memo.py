"""A bounded memo for pure functions of bytes.

Two generations: entries are written to ``young``; when it is full it becomes ``old`` and the previous ``old`` is dropped.
What is asked for again moves back to ``young``. So the memo holds at most twice its size, keeps what is in use, costs one
dict lookup on a hit, and a flood of new keys displaces it without ever pausing.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Memo"]

V = TypeVar("V")


class Memo(Generic[V]):
    """At most ``2 * size`` entries whose keys are at most ``key_bytes_max`` long; longer ones are not remembered.

    The fast way in is ``memo.young.get(key)``; on None ask ``recall``.
    """

    __slots__ = ("_key_bytes_max", "_old", "_size", "young")

    def __init__(self, size: int, key_bytes_max: int) -> None:
        self.young: dict[bytes, V] = {}
        self._old: dict[bytes, V] = {}
        self._size = size
        self._key_bytes_max = key_bytes_max

    def __len__(self) -> int:
        return len(self.young) + len(self._old)

    def recall(self, key: bytes) -> V | None:
        """The value from either generation, or None."""
        found = self.young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is not None:
                self.remember(key, found)
        return found

    def remember(self, key: bytes, value: V) -> None:
        """Keep ``value``, if its key is short enough to be worth it."""
        if len(key) > self._key_bytes_max:
            return
        if len(self.young) >= self._size:
            self._old = self.young
            self.young = {}
        self.young[key] = value
