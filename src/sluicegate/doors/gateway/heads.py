"""Collecting a message head that arrives in pieces, within bounds and without reading a byte twice."""

from __future__ import annotations

import re

from sluicegate.doors.gateway.wire import Fault

__all__ = ["HeadBuffer"]

_BARE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_FIRST_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ\r")


class HeadBuffer:
    """Finds request heads in a stream. ``started``: part of a head has arrived."""

    __slots__ = ("_bytes_max", "_line_bytes_max", "_partial", "started")

    def __init__(self, bytes_max: int, line_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._line_bytes_max = line_bytes_max
        self._partial = bytearray()
        self.started = False

    def find(self, data: bytes, pos: int) -> tuple[bytes, bytes, int] | Fault | None:
        """Look for a head in ``data`` from ``pos`` on, after what was kept.

        Returns (data, head, position after it), where ``data`` is what to go on with; None when all was kept because more
        has to come.
        """
        if self._partial:
            kept = len(self._partial)
            self._partial += data[pos:] if pos else data
            if self._partial.find(b"\r\n\r\n", max(0, kept - 3)) < 0:
                return self._waiting(kept)
            data, pos = bytes(self._partial), 0
            self._partial.clear()
            self.started = False
        # Empty lines before a request line are ignored (RFC 9112, 2.2).
        while data.startswith(b"\r\n", pos):
            pos += 2
        end = data.find(b"\r\n\r\n", pos) + 4
        if end < 4:
            if pos == len(data):
                return None
            self._partial += data[pos:] if pos else data
            return self._waiting(0)
        if end - pos > self._bytes_max:
            return self._too_large()
        return data, (data if pos == 0 and end == len(data) else data[pos:end]), end

    def _waiting(self, kept: int) -> Fault | None:
        """An unfinished head: refuse now what can never become a valid one."""
        partial = self._partial
        self.started = True
        if partial[0] not in _FIRST_BYTES:
            return Fault(400, "bad_request_line", "this is not HTTP/1.1")
        if _BARE_LINE_FEED.search(partial, max(0, kept - 1)) is not None:
            return Fault(400, "bad_line_end", "a line does not end in CRLF")
        if len(partial) > self._line_bytes_max and partial.find(b"\n", 0, self._line_bytes_max + 2) < 0:
            return Fault(414, "line_too_long", f"the request line is longer than {self._line_bytes_max} bytes")
        if len(partial) > self._bytes_max:
            return self._too_large()
        return None

    def _too_large(self) -> Fault:
        return Fault(431, "head_too_large", f"the request head is larger than {self._bytes_max} bytes")
