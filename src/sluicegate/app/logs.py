"""Log lines on standard error: JSON for machines, one plain line for a terminal.

There is no line per request: what happens to requests is in the metrics. Lines are about the life of the process
(start, rules accepted or rejected, drain, stop), so their number does not grow with traffic.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

__all__ = ["LOGGER", "JsonLines", "PlainLines", "configure", "event"]

LOGGER = logging.getLogger("sluicegate")


def event(level: int, name: str, **fields: Any) -> None:
    """Log one event: ``name`` is what happened, ``fields`` are what is known of it (JSON values, units in the names)."""
    LOGGER.log(level, name, extra={"fields": fields})


def configure(form: str = "auto", stream: TextIO | None = None) -> None:
    """Send log lines to ``stream`` (None: standard error) as ``json``, ``plain``, or ``auto``: plain on a terminal."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    plain = form == "plain" or (form == "auto" and stream.isatty())
    handler.setFormatter(PlainLines() if plain else JsonLines())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


class JsonLines(logging.Formatter):
    """One JSON object a line: ``time`` (UTC, RFC 3339), ``level``, ``event``, then the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        content = {"time": _utc(record), "level": record.levelname.lower(), "event": record.getMessage()}
        content |= getattr(record, "fields", {})
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, default=str, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """``12:00:00 info event field=value``, for reading as it happens; times are UTC."""

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        words = [_utc(record)[11:19], record.levelname.lower(), record.getMessage()]
        words += [f"{name}={value}" for name, value in fields.items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _utc(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
