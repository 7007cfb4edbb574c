"""From a log to lists of lines, whatever its size and however it is packed.

A log is read in pieces of bounded size, and an unpacked piece is bounded too, so a gzip file of a few kilobytes that
unpacks to terabytes takes time and no memory. A line of unbounded length is dropped while it is read.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from sluicegate.bounds import REPLAY_LINE_CHARS_MAX, REPLAY_READ_BYTES
from sluicegate.errors import ConfigurationError

__all__ = ["STANDARD_INPUT", "TOO_LONG", "Log", "line_batches"]

STANDARD_INPUT: Final = "-"

TOO_LONG: Final = "\n"
"""Stands for a line above ``REPLAY_LINE_CHARS_MAX``; no line holds a line end, so it is none of them."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_WBITS: Final = 31  # zlib: a gzip header, and the largest window
_BOM: Final = b"\xef\xbb\xbf"

# A UTF-8 character has four bytes at most, so a piece of a line longer than this is part of a line that is too long.
_LINE_BYTES_MAX: Final = 4 * REPLAY_LINE_CHARS_MAX


class Log:
    """One open log. ``name`` is a path, or ``-`` for standard input. ``size_bytes``: of the file as it lies there, 0 where that is not known.

    Raises ConfigurationError where it cannot be opened.
    """

    __slots__ = ("_stream", "name", "size_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.size_bytes = 0
        if name == STANDARD_INPUT:
            self._stream: BinaryIO = sys.stdin.buffer
            return
        path = Path(name)
        try:
            self._stream = path.open("rb")
            self.size_bytes = path.stat().st_size
        except OSError as error:
            raise ConfigurationError(f"cannot read {name}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if self.name != STANDARD_INPUT:
            self._stream.close()

    def pieces(self, progress: Callable[[int], None]) -> Iterator[bytes]:
        """The content, unpacked where it is gzip, in pieces of at most ``REPLAY_READ_BYTES``.

        ``progress`` is called with the number of bytes of each read. Raises ConfigurationError where the log cannot be
        read to its end.
        """
        raw = self._read(progress)
        first = b""
        for piece in raw:
            first += piece
            if len(first) >= len(_BOM):
                break
        if not first.startswith(_GZIP_MAGIC):
            yield first.removeprefix(_BOM)
            yield from raw
            return
        try:
            yield from _unpack(first, raw)
        except (zlib.error, EOFError) as error:
            raise ConfigurationError(f"cannot read {self.name}: damaged gzip data: {error}") from error

    def _read(self, progress: Callable[[int], None]) -> Iterator[bytes]:
        while True:
            try:
                piece = self._stream.read(REPLAY_READ_BYTES)
            except OSError as error:
                raise ConfigurationError(f"cannot read {self.name}: {error.strerror or error}") from error
            if not piece:
                return
            progress(len(piece))
            yield piece


def line_batches(pieces: Iterator[bytes]) -> Iterator[list[str]]:
    """All lines in order, without their ends, a list per piece; ``TOO_LONG`` in place of one that is too long.

    Bytes that are not UTF-8 become lone surrogates (``surrogateescape``). A last line without an end counts.
    """
    rest = b""
    dropped = False  # The line that ``rest`` belongs to is too long, and what was read of it is gone.
    for piece in pieces:
        end = piece.rfind(b"\n")
        if end >= 0:
            lines = (rest + piece[:end]).decode("utf-8", "surrogateescape").split("\n")
            if dropped:
                lines[0] = TOO_LONG
            if max(map(len, lines)) > REPLAY_LINE_CHARS_MAX:
                lines = [line if len(line) <= REPLAY_LINE_CHARS_MAX else TOO_LONG for line in lines]
            yield lines
            rest, dropped = piece[end + 1 :], False
        else:
            rest += piece
        if dropped or len(rest) > _LINE_BYTES_MAX:
            rest, dropped = b"", True
    if dropped:
        yield [TOO_LONG]
    elif rest:
        line = rest.decode("utf-8", "surrogateescape")
        yield [line if len(line) <= REPLAY_LINE_CHARS_MAX else TOO_LONG]


def _unpack(data: bytes, more: Iterator[bytes]) -> Iterator[bytes]:
    """The content of gzip members one after another; zeros after the last one are padding."""
    member = zlib.decompressobj(_GZIP_WBITS)
    while True:
        piece = member.decompress(data, REPLAY_READ_BYTES)
        if piece:
            yield piece
        if member.eof:
            data = member.unused_data.lstrip(b"\0")
            while not data:
                following = next(more, None)
                if following is None:
                    return
                data = following.lstrip(b"\0")
            member = zlib.decompressobj(_GZIP_WBITS)
            continue
        data = member.unconsumed_tail
        if not data and not piece:
            following = next(more, None)
            if following is None:
                raise EOFError("it ends too early")
            data = following
