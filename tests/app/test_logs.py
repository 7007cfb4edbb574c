"""Log lines: one object or one line per event, in UTC."""

from __future__ import annotations

import io
import json
import logging
import os
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


def test_full_pipe_loses_lines_and_never_waits() -> None:
    """Lines that a pipe has no room for are dropped and counted; a reader that comes back is told how many."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as stream:
        logs.configure("json", stream)
        for _ in range(2_000):
            logs.event(logging.ERROR, "rules_rejected", error="x" * 100)
        logs.event(logging.ERROR, "rules_rejected", error="x" * 100_000)
        received = reader.read(65_536)
        logs.event(logging.INFO, "stopped")
        received += reader.read(65_536)
    lines = received.splitlines()
    lost, stopped = json.loads(lines[-2]), json.loads(lines[-1])
    assert (lost["event"], stopped["event"]) == ("lines_lost", "stopped")
    assert lost["count"] == 2_001 - (len(lines) - 2)


def test_closed_stream_ends_nothing() -> None:
    """Where nobody reads any more the lines go nowhere."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        logs.configure("json", stream)
        logs.event(logging.INFO, "started")
    logs.event(logging.INFO, "stopped")


def test_line_that_was_cut_short_is_ended() -> None:
    """What follows a line that only partly found room begins on a line of its own."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as reader, os.fdopen(writing, "w") as stream:
        logs.configure("json", stream)
        logs.event(logging.ERROR, "rules_rejected", error="x" * 200_000)
        begun = reader.read(65_536)
        logs.event(logging.INFO, "stopped")
        rest = begun + reader.read(65_536)
    cut, lost, stopped = rest.splitlines()
    assert cut.startswith(b'{"time"')
    assert json.loads(lost)["count"] == 1
    assert json.loads(stopped)["event"] == "stopped"


def test_bound_fields_are_part_of_the_lines_inside() -> None:
    """What is bound around an event stands in its line, after the fields of every line and before its own, and not in later ones."""
    stream = io.StringIO()
    logs.configure("json", stream, worker=2)
    with logs.bound(trace_id="4bf92f3577b34da6a3ce929d0e0e4736", version=1):
        logs.event(logging.INFO, "rules_accepted", version=3)
    logs.event(logging.INFO, "stopped")
    inside, after = map(json.loads, stream.getvalue().splitlines())
    assert list(inside) == ["time", "level", "event", "worker", "trace_id", "version"]
    assert inside["version"] == 3
    assert list(after) == ["time", "level", "event", "worker"]


def test_a_field_cannot_break_its_line() -> None:
    """Line ends and what is no JSON value are part of one line's text."""
    stream = io.StringIO()
    logs.configure("json", stream)
    logs.event(logging.INFO, "started", path=os, text="a\r\nb\u2028c")
    assert len(stream.getvalue().split("\n")) == 2
    assert json.loads(stream.getvalue())["text"] == "a\r\nb\u2028c"
