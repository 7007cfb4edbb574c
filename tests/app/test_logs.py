"""Log lines: one object or one line per event, in UTC."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from sluicegate.app import logs


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    """The package's logger as it was before the test."""
    handlers, propagate = logs.LOGGER.handlers[:], logs.LOGGER.propagate
    yield
    logs.LOGGER.handlers[:] = handlers
    logs.LOGGER.propagate = propagate


def test_json_line_has_time_level_event_and_fields() -> None:
    """A line is one JSON object whose time is UTC in RFC 3339."""
    stream = io.StringIO()
    logs.configure("json", stream)
    logs.event(logging.WARNING, "rules_rejected", error="line 3:\nbad", version=2)
    line = stream.getvalue()
    assert line.count("\n") == 1
    content = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", content.pop("time"))
    assert content == {"level": "warning", "event": "rules_rejected", "error": "line 3:\nbad", "version": 2}


def test_auto_is_json_off_a_terminal() -> None:
    """What is not a terminal gets JSON."""
    stream = io.StringIO()
    logs.configure("auto", stream)
    logs.event(logging.INFO, "started")
    assert json.loads(stream.getvalue())["event"] == "started"


def test_plain_line_is_readable() -> None:
    """The plain form is one line of words, with the traceback of an error after it."""
    stream = io.StringIO()
    logs.configure("plain", stream)
    logs.event(logging.INFO, "rules_accepted", version=2)
    assert re.fullmatch(r"\d\d:\d\d:\d\d info rules_accepted version=2\n", stream.getvalue())
    try:
        raise ValueError("broken")
    except ValueError:
        logs.LOGGER.exception("fault")
    assert stream.getvalue().rstrip().endswith("ValueError: broken")
