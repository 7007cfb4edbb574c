"""Message bodies: taking them off the wire piece by piece, and putting them on it again.

A decoder is fed what arrives and hands out payload as it comes; it never holds more than an unfinished chunk-size line
or trailer section. Chunked bodies are taken apart and framed again, so extensions end here and both sides of the gateway
agree about where the message ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from sluicegate.bounds import GATEWAY_CHUNK_LINE_BYTES_MAX, GATEWAY_HEAD_BYTES_MAX
from sluicegate.doors.gateway.wire import Fields, parse_fields

__all__ = ["ChunkedBody", "CloseBody", "Decoder", "FixedBody", "chunk", "last_chunk"]

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*+;[\t\x20-\x7e\x80-\xff]*+)?")


class Decoder(Protocol):
    """Reads one body. ``feed`` must not be called again once ``done`` or ``fault`` is set."""

    done: bool
    """The body is complete; what follows belongs to the next message."""
    fault: str | None
    """The framing is broken and nothing after it can be trusted."""

    @property
    def left(self) -> int | None:
        """Bytes still to come, None where the framing does not say."""
        ...

    def feed(self, data: bytes, pos: int) -> tuple[bytes, int]:
        """Payload found in ``data`` from ``pos`` on, and the position after what was used."""
        ...


class FixedBody:
    """A body of known length (``Content-Length``, >= 0)."""

    __slots__ = ("done", "fault", "left")

    def __init__(self, length: int) -> None:
        self.left = length
        self.done = length == 0
        self.fault: str | None = None

    def feed(self, data: bytes, pos: int) -> tuple[bytes, int]:
        available = len(data) - pos
        if available >= self.left:
            end = pos + self.left
            self.left = 0
            self.done = True
        else:
            end = len(data)
            self.left -= available
        return (data if pos == 0 and end == len(data) else data[pos:end]), end


class CloseBody:
    """A body that ends where the connection does; whoever sees the end sets ``done``."""

    __slots__ = ("done", "fault")

    left = None

    def __init__(self) -> None:
        self.done = False
        self.fault: str | None = None

    def feed(self, data: bytes, pos: int) -> tuple[bytes, int]:
        return (data[pos:] if pos else data), len(data)


class ChunkedBody:
    """A chunked body (RFC 9112, 7.1), without its tolerances: CRLF everywhere, sizes of at most 15 digits.

    ``trailers`` holds the trailer section once the body is done.
    """

    __slots__ = ("_left", "_line", "_step", "done", "fault", "trailers")

    left = None

    def __init__(self) -> None:
        self.done = False
        self.fault: str | None = None
        self.trailers: Fields = []
        self._left = 0
        self._line = b""
        self._step: Callable[[ChunkedBody, bytes, int, list[bytes]], int] = ChunkedBody._size

    def feed(self, data: bytes, pos: int) -> tuple[bytes, int]:
        pieces: list[bytes] = []
        end = len(data)
        while pos < end and not self.done and self.fault is None:
            pos = self._step(self, data, pos, pieces)
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), pos

    def _size(self, data: bytes, pos: int, _pieces: list[bytes]) -> int:
        line, pos = self._take_line(data, pos, GATEWAY_CHUNK_LINE_BYTES_MAX)
        if line is None:
            return pos
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            self.fault = "a chunk size is not valid"
            return pos
        self._left = int(match[1], 16)
        self._step = ChunkedBody._data if self._left else ChunkedBody._trailer
        return pos

    def _data(self, data: bytes, pos: int, pieces: list[bytes]) -> int:
        end = min(len(data), pos + self._left)
        pieces.append(data if pos == 0 and end == len(data) else data[pos:end])
        self._left -= end - pos
        if self._left == 0:
            self._step = ChunkedBody._data_end
        return end

    def _data_end(self, data: bytes, pos: int, _pieces: list[bytes]) -> int:
        line, pos = self._take_line(data, pos, 0)
        if line is not None:
            self._step = ChunkedBody._size
        return pos

    def _trailer(self, data: bytes, pos: int, _pieces: list[bytes]) -> int:
        # The section is kept whole in _line until its empty line has come: it is small and bounded.
        have = self._line + data[pos : pos + GATEWAY_HEAD_BYTES_MAX]
        if have.startswith(b"\r\n"):
            section, used = b"", 2
        else:
            end = have.find(b"\r\n\r\n")
            if end < 0:
                if len(have) > GATEWAY_HEAD_BYTES_MAX:
                    self.fault = "the trailer section is too large"
                self._line = have
                return min(len(data), pos + GATEWAY_HEAD_BYTES_MAX)
            section, used = have[: end + 2], end + 4
        used -= len(self._line)
        self._line = b""
        fields = parse_fields(section)
        if fields is None:
            self.fault = "a trailer field is not valid"
        else:
            self.trailers = fields
            self.done = True
        return pos + used

    def _take_line(self, data: bytes, pos: int, bytes_max: int) -> tuple[bytes | None, int]:
        """The line that ends in ``data`` without its CRLF, or None when it is not complete yet (or a fault)."""
        end = data.find(b"\n", pos, pos + bytes_max + 2)
        line = self._line + (data[pos:] if end < 0 else data[pos : end + 1])[: bytes_max + 2]
        if end < 0 and len(line) < bytes_max + 2 and not (bytes_max == 0 and line not in {b"", b"\r"}):
            self._line = line
            return None, len(data)
        self._line = b""
        if not line.endswith(b"\r\n") or len(line) > bytes_max + 2:
            self.fault = "a chunk is not framed by CRLF"
            return None, len(data)
        return line[:-2], end + 1


def chunk(payload: bytes) -> bytes:
    """One chunk of a chunked body; ``payload`` is not empty (an empty chunk would end the body)."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def last_chunk(trailers: Fields) -> bytes:
    """The end of a chunked body with these trailer fields."""
    if not trailers:
        return b"0\r\n\r\n"
    return b"0\r\n%b\r\n" % b"".join([b"%b: %b\r\n" % field for field in trailers])
