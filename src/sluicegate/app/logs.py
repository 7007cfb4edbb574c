"""Log lines on standard error: JSON for machines, one plain line for a terminal.

There is no line per request: what happens to requests is in the metrics. Lines are about the life of the process
(start, rules accepted or rejected, drain, stop), so their number does not grow with traffic.

Writing never waits. A pipe whose reader has stopped would otherwise hold the event loop, and with it every request and the
signal to stop; lines that find no room are dropped, and their number is the next thing that is logged.
"""

from __future__ import annotations

import io
import json
import logging
import os
import select
import sys
from abc import abstractmethod
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from structlog.contextvars import bound_contextvars, get_contextvars
from structlog.processors import JSONRenderer
from structlog.typing import EventDict

__all__ = ["LOGGER", "JsonLines", "PlainLines", "bound", "configure", "event"]

LOGGER = logging.getLogger("sluicegate")


bound = bound_contextvars
"""``with bound(trace_id=...):`` these fields are part of every line that is logged inside, in this thread or task; values are what may be shown: no client's key."""


def event(level: int, name: str, **fields: Any) -> None:
    """Log one event: ``name`` is what happened, ``fields`` are what is known of it (JSON values, units in the names)."""
    LOGGER.log(level, name, extra={"fields": fields})


def configure(form: str = "auto", stream: TextIO | None = None, **fields: Any) -> None:
    """Send log lines to ``stream`` (None: standard error) as ``json``, ``plain``, or ``auto``: plain on a terminal.

    ``fields`` are part of every line.
    """
    stream = stream or sys.stderr
    handler = _NeverWaiting(stream)
    plain = form == "plain" or (form == "auto" and stream.isatty())
    handler.setFormatter(PlainLines(fields) if plain else JsonLines(fields))
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


class _NeverWaiting(logging.Handler):
    """Writes lines where there is room for them and counts the others."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lost = 0
        self._cut = b""
        """What ends a line that was written in part."""
        self._room: select.poll | None = None
        try:
            self._descriptor = stream.fileno()
        except (io.UnsupportedOperation, AttributeError):
            return  # in memory: always room
        self._room = select.poll()
        self._room.register(self._descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        if self._lost:
            fields = {"count": self._lost}
            notice = LOGGER.makeRecord(
                LOGGER.name, logging.WARNING, "", 0, "lines_lost", (), None, extra={"fields": fields}
            )
            if not self._write(f"{self.format(notice)}\n"):
                self._lost += 1
                return
            self._lost = 0
        if not self._write(f"{self.format(record)}\n"):
            self._lost += 1

    def _write(self, line: str) -> bool:
        """True where all of it was written. A pipe that is ready takes ``PIPE_BUF`` bytes at once."""
        try:
            if self._room is None:
                self._stream.write(line)
                return True
            data = self._cut + line.encode("utf-8", "backslashreplace")
            for start in range(0, len(data), select.PIPE_BUF):
                if not any(ready & select.POLLOUT for _, ready in self._room.poll(0)):
                    return False
                os.write(self._descriptor, data[start : start + select.PIPE_BUF])
                self._cut = b"\n"
        except (OSError, ValueError):  # the disk is full, the reader is gone, the stream is closed
            return False
        self._cut = b""
        return True


class _Lines(logging.Formatter):
    """``fields``: those of every line, before what is bound around the event (``bound``), before the event's own."""

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._fields = dict(fields or {})

    @abstractmethod
    def _render(self, logger: Any, method: str, event: EventDict) -> Any:
        """The text of an event; a processor as those of structlog."""

    def fields(self, record: logging.LogRecord) -> dict[str, Any]:
        """What is known of the event."""
        return self._fields | dict(sorted(get_contextvars().items())) | getattr(record, "fields", {})

    def format(self, record: logging.LogRecord) -> str:
        """The line, by the processors of ``structlog`` one after the other."""
        event: EventDict = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self.fields(record),
        }
        if record.exc_info:
            event["traceback"] = self.formatException(record.exc_info)
        return str(self._render(LOGGER, record.levelname.lower(), event))


class JsonLines(_Lines):
    """One JSON object a line: ``time`` (UTC, RFC 3339), ``level``, ``event``, then the event's fields."""

    _JSON: Final = JSONRenderer(serializer=json.dumps, default=str, ensure_ascii=False)

    def _render(self, logger: Any, method: str, event: EventDict) -> Any:
        return self._JSON(logger, method, event)


class PlainLines(_Lines):
    """``12:00:00 info event field=value``, for reading as it happens; times are UTC."""

    def _render(self, logger: Any, method: str, event: EventDict) -> Any:  # noqa: ARG002
        traceback = event.pop("traceback", None)
        words = [event.pop("time")[11:19], event.pop("level"), event.pop("event")]
        words += [f"{name}={value}" for name, value in event.items()]
        line = " ".join(words)
        return line if traceback is None else f"{line}\n{traceback}"


def _utc(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
