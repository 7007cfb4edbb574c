"""The chunked transfer coding (RFC 9112, section 7.1), read strictly.

Strict, because a lenient reading of a chunk line is how two servers come to disagree about where a request ends: sizes
are 1 to 15 hexadecimal digits with nothing around them, lines end in CRLF, extensions and trailer fields are bounded and
thrown away.
"""

from __future__ import annotations

import re
from typing import Final

from sluicegate.bounds import HTTP_CHUNK_LINE_BYTES_MAX, HTTP_TRAILER_BYTES_MAX
from sluicegate.doors.http.head import BadHead

__all__ = ["ChunkedBody"]

# A size, optionally followed by extensions: visible ASCII, spaces and tabs. No CR or LF can be in it.
_SIZE_LINE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER_LINE: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


class ChunkedBody:
    """Collects one body. ``done`` once the last chunk and the trailer section are read; then ``body`` is whole."""

    __slots__ = ("_chunk_left", "_limit", "_parts", "_size", "_state", "_trailer_bytes", "done")

    _SIZE, _DATA, _DATA_END, _TRAILER = range(4)

    def __init__(self, limit: int) -> None:
        self.done = False
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._state = self._SIZE
        self._chunk_left = 0
        self._trailer_bytes = 0

    @property
    def body(self) -> bytes:
        return b"".join(self._parts)

    def feed(self, data: bytes, pos: int) -> int:
        """Read on from ``pos``; returns the position up to which ``data`` is used up.

        What is left when not ``done`` is the beginning of a line; it is to be given again with more behind it.
        Raises BadHead with 400 for a malformed coding and 413 above the limit.
        """
        while not self.done:
            if self._state == self._DATA:
                piece = data[pos : pos + self._chunk_left]
                if not piece:
                    return pos
                self._parts.append(piece)
                self._chunk_left -= len(piece)
                pos += len(piece)
                if not self._chunk_left:
                    self._state = self._DATA_END
                continue
            stop = data.find(b"\n", pos, pos + HTTP_CHUNK_LINE_BYTES_MAX)
            if stop < 0:
                if len(data) - pos >= HTTP_CHUNK_LINE_BYTES_MAX:
                    raise BadHead(400, f"a chunk or trailer line is longer than {HTTP_CHUNK_LINE_BYTES_MAX} bytes")
                return pos
            line = data[pos : stop + 1]
            if line[-2:] != b"\r\n":
                raise BadHead(400, "a line of a chunked body does not end in CRLF")
            self._line(line[:-2])
            pos = stop + 1
        return pos

    def _line(self, line: bytes) -> None:
        if self._state == self._SIZE:
            self._begin_chunk(line)
        elif self._state == self._DATA_END:
            if line:
                raise BadHead(400, "a chunk is longer than its size says")
            self._state = self._SIZE
        elif not line:
            self.done = True
        else:
            self._trailer_bytes += len(line)
            if self._trailer_bytes > HTTP_TRAILER_BYTES_MAX or not _TRAILER_LINE.fullmatch(line):
                raise BadHead(400, f"the trailer is malformed or longer than {HTTP_TRAILER_BYTES_MAX} bytes")

    def _begin_chunk(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise BadHead(400, "a chunk size is not a hexadecimal number of at most 15 digits")
        self._chunk_left = int(match[1], 16)
        self._size += self._chunk_left
        if self._size > self._limit:
            raise BadHead(413, f"the body is larger than {self._limit} bytes")
        self._state = self._DATA if self._chunk_left else self._TRAILER
