"""A table in parts, for millions of entries in a process that must not pause.

A dict that grows is copied: one of a million entries holds up every thread for 100 ms and more. Sixty-one small ones grow one at a time,
and none of them for long. The number is prime, so that keys with a pattern (the addresses that end in .1) are spread, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

__all__ = ["SEGMENTS", "Numbered", "Segmented"]

SEGMENTS: Final = 61

K = TypeVar("K")
V = TypeVar("V")


class Segmented(Generic[K, V]):
    """A dict in parts. One access is as whole as an access to a dict, and the parts are never replaced."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: tuple[dict[K, V], ...] = tuple({} for _ in range(SEGMENTS))

    def part(self, key: K) -> dict[K, V]:
        """The part in which a key is, if it is anywhere."""
        return self.parts[hash(key) % SEGMENTS]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __bool__(self) -> bool:
        return any(self.parts)

    def __contains__(self, key: K) -> bool:
        return key in self.part(key)

    def __getitem__(self, key: K) -> V:
        return self.part(key)[key]

    def __setitem__(self, key: K, value: V) -> None:
        self.part(key)[key] = value

    def __delitem__(self, key: K) -> None:
        del self.part(key)[key]

    def get(self, key: K) -> V | None:
        """The value, or None where there is none."""
        return self.part(key).get(key)

    def pop(self, key: K) -> V | None:
        """Take a value out; None where there was none."""
        return self.part(key).pop(key, None)

    def items(self) -> Iterator[tuple[K, V]]:
        """All pairs, for who has the lock of the table."""
        for part in self.parts:
            yield from part.items()


class Numbered(Segmented[int, V]):
    """The same for whole numbers >= 0: ``parts[key % SEGMENTS]``, where who is in a hurry looks himself."""

    __slots__ = ()

    def part(self, key: int) -> dict[int, V]:
        """The part in which a key is, if it is anywhere."""
        return self.parts[key % SEGMENTS]
