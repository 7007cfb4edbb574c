"""Answers: their parts as handlers give them, and their bytes on the wire."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus
from typing import Final, TypeAlias

from sluicegate.clock import US_PER_S
from sluicegate.doors import problem

__all__ = ["CONTINUE", "Reply", "date_line", "frame", "json_reply", "problem_reply"]

Reply: TypeAlias = tuple[int, str, bytes]
"""(status, header lines each closed by CRLF, body). Content-Length, Date and Connection are the protocol's."""

_NOT_MODIFIED: Final = 304

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_START: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}
_JSON: Final = "Content-Type: application/json\r\n"
_PROBLEM: Final = f"Content-Type: {problem.CONTENT_TYPE}\r\n"


def frame(reply: Reply, date: str, *, close: bool, http10: bool, bodiless: bool) -> bytes:
    """The whole response. ``bodiless``: the answer to HEAD, which has the length of the body it leaves out, as 304 has."""
    status, lines, body = reply
    connection = "Connection: close\r\n" if close else "Connection: keep-alive\r\n" if http10 else ""
    head = f"{_START[status]}{date}{lines}{connection}Content-Length: {len(body)}\r\n\r\n".encode("latin-1")
    return head if bodiless or status == _NOT_MODIFIED else head + body


def date_line(now_us: int) -> str:
    """The Date field for this wall time."""
    return f"Date: {formatdate(now_us // US_PER_S, usegmt=True)}\r\n"


def json_reply(status: int, body: bytes, lines: str = "") -> Reply:
    """A JSON answer; ``lines`` are further header lines."""
    return status, _JSON + lines, body


def problem_reply(status: int, body: bytes, lines: str = "") -> Reply:
    """A problem document (see ``doors.problem``)."""
    return status, _PROBLEM + lines, body
