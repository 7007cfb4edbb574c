"""Stable blocks: which messages of a partition are put into the home together.

A home may be told of a block twice: the process can die between the insert and the commit of its offsets. The second time it must be the
same block, because that is what a database recognises. Sizes and times differ from one reading to the next, so the end of a block is
written down before its insert: in the metadata of the committed offset, at which the partition is read again. Whoever reads it next
finds the end there and makes the same block.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluicegate.bounds import KAFKA_BLOCK_BATCHES_MAX, KAFKA_BLOCK_BYTES_MAX
from sluicegate.events import Batch

__all__ = ["Block", "Lane", "Piece", "intended", "intent", "token_of"]

_INTENT: Final = re.compile(r"sluicegate block until (\d{1,19})")


class Piece(NamedTuple):
    """A message as it was read. ``value`` b"" where it had none."""

    offset: int
    value: bytes
    key: bytes | None = None


@dataclass(slots=True)
class Block:
    """Messages ``first`` to ``last`` of a partition, put into the home together.

    ``written_down``: the committed offset tells where it ends. ``kept``: the home has it, and its end is to be committed.
    ``batches``: what its messages hold, those that hold none left out; None until they are decoded.
    """

    partition: int
    pieces: tuple[Piece, ...]
    written_down: bool = False
    kept: bool = False
    batches: list[tuple[Piece, Batch]] | None = None

    @property
    def first(self) -> int:
        return self.pieces[0].offset

    @property
    def last(self) -> int:
        return self.pieces[-1].offset


def intent(last: int) -> str:
    """The metadata of an offset at which a block begins that ends with ``last``."""
    return f"sluicegate block until {last}"


def intended(metadata: str | None) -> int | None:
    """The end of the block that was begun; None where none was."""
    found = _INTENT.fullmatch(metadata or "")
    return int(found[1]) if found else None


def token_of(topic: str, block: Block, batches: list[Batch]) -> str:
    """The same for the same messages, wherever and whenever they are read, and for no others.

    Offsets alone would not do: a topic that was deleted and made again counts from 0 once more.
    """
    digest = hashlib.sha256("\n".join(batch.id for batch in batches).encode()).hexdigest()[:16]
    return f"{topic}/{block.partition}/{block.first}-{block.last}/{digest}"


class Lane:
    """What was read of one partition and is not in the home yet.

    ``known``: whether what was committed for it has been asked; before that no block is made.
    """

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.known = False
        self.block: Block | None = None
        self.bytes = 0
        self._next: int | None = None
        self._end: int | None = None
        self._pieces: deque[Piece] = deque()
        self._since_us = 0

    @property
    def position(self) -> int | None:
        """The first offset that is not in the home; None where it is not known."""
        if self.block is not None and not self.block.kept:
            return self.block.first
        return self._pieces[0].offset if self._pieces else self._next

    def committed(self, offset: int | None, metadata: str | None) -> None:
        """What the group has committed; None where nothing."""
        self.known = True
        self._next = offset
        self._end = None if offset is None else intended(metadata)

    def add(self, piece: Piece, now_us: int) -> None:
        """The next message."""
        if not self._pieces:
            self._since_us = now_us
        self._pieces.append(piece)
        self.bytes += len(piece.value)

    def seal(self, now_us: int, linger_us: int, *, hurry: bool = False) -> tuple[Block | None, int]:
        """The block to be put into the home next, and how many offsets are missing before and in it, told once.

        A block that was made stays until ``done``. None while there are too few messages and, unless ``hurry``, too little time has passed.
        """
        if self.block is not None or not self.known or not self._pieces:
            return self.block, 0
        count = self._due(now_us, linger_us, hurry=hurry)
        if count == 0:
            return None, 0
        pieces = tuple(self._pieces.popleft() for _ in range(count))
        self._since_us = now_us
        self.block = Block(self.partition, pieces, written_down=pieces[-1].offset == self._end)
        missing = self._missing(pieces)
        self._next, self._end = self.block.last + 1, None
        return self.block, missing

    def done(self) -> None:
        """The block is in the home and committed."""
        assert self.block is not None
        self.bytes -= sum(len(piece.value) for piece in self.block.pieces)
        self.block = None

    def _due(self, now_us: int, linger_us: int, *, hurry: bool) -> int:
        """How many of the pieces are a block now; 0: none yet."""
        if self._next is not None and self._pieces[0].offset < self._next:
            self._next = self._end = None  # the topic was made anew, or its end was lost
        if self._end is not None:
            if self._pieces[0].offset <= self._end:
                begun = sum(piece.offset <= self._end for piece in self._pieces)
                return begun if self._pieces[-1].offset >= self._end else 0
            self._end = None  # nothing of it is left
        size = 0
        for count, piece in enumerate(self._pieces):
            size += len(piece.value)
            if count and (count >= KAFKA_BLOCK_BATCHES_MAX or size > KAFKA_BLOCK_BYTES_MAX):
                return count
        return len(self._pieces) if hurry or now_us - self._since_us >= linger_us else 0

    def _missing(self, pieces: tuple[Piece, ...]) -> int:
        expected = pieces[0].offset if self._next is None else self._next
        return pieces[-1].offset + 1 - expected - len(pieces)
