"""What ``sluicegate replay --record`` does with the decisions of a log: they go into the embedded home, at the log's own times."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from sluicegate.analytics.model import Span
from sluicegate.analytics.offenders import Names, load_secrets
from sluicegate.app.analytics.homes import HOME_FILE, open_home
from sluicegate.bounds import EMBEDDED_HOME_BATCHES
from sluicegate.clock import US_PER_S
from sluicegate.errors import ConfigurationError
from sluicegate.events import Batch
from sluicegate.replaying import Recording, Report
from sluicegate.rules.digest import digest_of
from sluicegate.rules.model import RuleSet

__all__ = ["Record"]

_MINUTE_US = 60 * US_PER_S


class Record:
    """One recording of a replay. ``plain``: clients are told as themselves, not as digests. Raises ConfigurationError."""

    def __init__(self, rules: RuleSet, data: Path, *, plain: bool) -> None:
        self._data = data
        try:
            data.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--data: cannot use {str(data)!r}: {error.strerror}") from error
        name_of: Callable[[str], str] = str if plain else Names(load_secrets(data))
        self._home = open_home(data)
        self._waiting: list[Batch] = []
        self.recording = Recording(digest_of(rules).encode(), rules.version, name_of, self._keep)

    def _keep(self, batch: Batch) -> None:
        self._waiting.append(batch)
        if len(self._waiting) >= EMBEDDED_HOME_BATCHES:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._home.ingest(waiting)

    def end(self, report: Report) -> str:
        """Keep the rest, and say what was recorded and what to do next. Raises AnalyticsError."""
        self._flush()
        span = Span(max(0, report.first_us), max(0, report.last_us) + 1).in_cells_of(60)
        try:
            held = sum(row.decisions for row in self._home.requests(span))
        finally:
            self._home.close()
        made = self.recording
        minutes = "1 minute" if made.batches == 1 else f"{made.batches:,} minutes"
        text = f"recorded {made.decisions:,} decisions, {minutes}, in {self._data / HOME_FILE}"
        if held > made.decisions:
            text += f" (with what else is there of that time, {held:,}; for this log alone take an empty --data)"
        hours = -(-span.length_us // (60 * _MINUTE_US))
        window = f"{span.length_us // _MINUTE_US}m" if hours < 3 else f"{hours}h"
        last = datetime.fromtimestamp(span.until_us // US_PER_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"{text}\nnext: sluicegate top --data {shlex.quote(str(self._data))} --at {last} --window {window}"
