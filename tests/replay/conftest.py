"""Rules, logs and replays of them, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sluicegate.replaying import Replay, Report, replay
from sluicegate.rules.load import load_rules
from sluicegate.rules.model import RuleSet

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@pytest.fixture
def rules() -> Callable[[str], RuleSet]:
    """A rule set of these rules, one flow mapping a line."""
    return lambda text: load_rules(
        "version: 1\nrules:\n" + "".join(f"  - {{{line}}}\n" for line in text.splitlines()), "r"
    )


@pytest.fixture
def line() -> Callable[..., str]:
    """One combined line, ``second`` after 2026-05-17 10:00:00 UTC."""

    def make(second: float, ip: str = "10.0.0.1", request: str = "GET / HTTP/1.1", user: str = "-") -> str:
        when = datetime(2026, 5, 17, 10, tzinfo=UTC) + timedelta(seconds=second)
        return f'{ip} - {user} [{when:%d/%b/%Y:%H:%M:%S +0000}] "{request}" 200 512 "-" "agent"'

    return make


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., str]:
    """Write a log of these lines; gives its name."""
    written = 0

    def write(lines: Iterable[str], name: str = "") -> str:
        nonlocal written
        written += 1
        path = tmp_path / (name or f"access-{written}.log")
        path.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8", errors="surrogateescape")
        return str(path)

    return write


@pytest.fixture
def replayed() -> Callable[..., Report]:
    """Replay logs by a rule set."""

    def run(
        ruleset: RuleSet, *logs: str, against: RuleSet | None = None, window_s: float = 120, **more: object
    ) -> Report:
        what = Replay(rules=ruleset, logs=logs, against=against, window_us=int(window_s * 1_000_000), **more)
        return replay(what, lambda _: None, lambda _: None)

    return run
