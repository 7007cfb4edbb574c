"""How the process is: what ``/readyz`` answers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sluicegate.app.feed.node import FeedNode
from sluicegate.app.store_watch import StoreWatch
from sluicegate.clock import US_PER_S, Clock
from sluicegate.rules.watched import RulesState

__all__ = ["Status"]


class Status:
    """Ready from the moment every listener is open until the process is told to stop.

    A bad rule file does not make a process unready: it goes on serving the last good rules, and the detail says so. Nor does a
    rules service that is away, nor a store that is out of reach: the failure policies of the rules decide, in this process as in every other that could be asked instead.
    """

    def __init__(
        self, rules: RulesState, source: str, store: StoreWatch, clock: Clock, feed: FeedNode | None = None
    ) -> None:
        self.started = False
        self.stopping = False
        self.worker: int | None = None
        """The number of this process among several workers; None where it is alone."""
        self.listeners: dict[str, str] = {}
        self._rules = rules
        self._source = source
        self._feed = feed
        self._store = store
        self._clock = clock
        self._started_us = clock.monotonic_us()

    @property
    def uptime_s(self) -> float:
        """Seconds since this object was made, which is when the process was composed."""
        return (self._clock.monotonic_us() - self._started_us) / US_PER_S

    @property
    def rules_error(self) -> str | None:
        """Why the rules, as they were given last, are not in service: here, or at the service that watches their file. None: they are."""
        return self._rules.error or (None if self._feed is None else self._feed.file_error)

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether new requests are welcome, and the detail that goes with the answer."""
        rules, feed = self._rules, self._feed
        loaded = datetime.fromtimestamp(rules.loaded_us / US_PER_S, UTC).isoformat(timespec="milliseconds")
        detail = {
            "ready": self.started and not self.stopping,
            "stopping": self.stopping,
            **({} if self.worker is None else {"worker": self.worker}),
            "rules": {
                "version": rules.version,
                "digest": rules.digest,
                "source": self._source if feed is None or not feed.has_rules else feed.source,
                "loaded": loaded.replace("+00:00", "Z"),
                "error": self.rules_error,
                "rejected": rules.rejected,
            },
            **({} if feed is None else {"control": feed.detail()}),
            **self._store.detail(),
            "uptime_s": round(self.uptime_s, 3),
            "listeners": self.listeners,
        }
        return self.started and not self.stopping, detail
