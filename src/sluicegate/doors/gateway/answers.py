"""Answers of the gateway's own."""

from __future__ import annotations

from http import HTTPStatus

from sluicegate.doors.problem import CONTENT_TYPE

__all__ = ["answer", "connection_line", "framing_of_length"]

_CLOSE = b"Connection: close\r\n"
_KEEP = b"Connection: keep-alive\r\n"
_START = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


def connection_line(minor: int, *, keep: bool) -> bytes:
    """What is said of the client connection after this answer; nothing where the version implies it."""
    if keep:
        return b"" if minor else _KEEP
    return _CLOSE


def framing_of_length(length: int | None) -> bytes:
    """``Content-Length``, or nothing."""
    return b"" if length is None else b"Content-Length: %d\r\n" % length


def answer(status: int, document: bytes, fields: bytes, *, bodiless: bool, content_type: str = CONTENT_TYPE) -> bytes:
    """A complete answer, by default a problem document. ``fields``: further ready lines. ``bodiless``: it answers HEAD."""
    return b"".join(
        (
            _START[status],
            b"Content-Type: ",
            content_type.encode(),
            b"\r\nCache-Control: no-store\r\n",
            framing_of_length(len(document)),
            fields,
            b"\r\n",
            b"" if bodiless else document,
        )
    )
