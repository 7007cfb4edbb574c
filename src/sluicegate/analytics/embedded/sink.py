"""``EmbeddedSink``: a node's batches, written to the embedded home."""

from __future__ import annotations

from typing import Final

from sluicegate.analytics.embedded.home import EmbeddedHome
from sluicegate.analytics.home import Parcel, SinkStats
from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import AnalyticsError

__all__ = ["EmbeddedSink"]

_PRUNE_EVERY_US: Final = 20 * US_PER_S


class EmbeddedSink:
    """See ``Sink``. A batch is kept when ``offer`` returns, so there is nothing to flush. Prunes every 20 s."""

    name = "embedded"

    def __init__(self, home: EmbeddedHome, clock: Clock) -> None:
        self.home = home
        self.stats = SinkStats()
        self._clock = clock
        self._pruned_us = clock.monotonic_us()

    def offer(self, parcel: Parcel) -> None:
        try:
            self.home.ingest([parcel.batch])
        except AnalyticsError:
            self.stats.errors += 1
            raise
        self.stats.batches += 1
        self.stats.decisions += parcel.batch.decided
        self.stats.last_us = self._clock.now_us()

    def tick(self) -> None:
        now_us = self._clock.monotonic_us()
        if now_us - self._pruned_us < _PRUNE_EVERY_US:
            return
        self._pruned_us = now_us
        try:
            self.home.prune(self._clock.now_us())
        except AnalyticsError:
            # Another process prunes, or the next time does.
            self.stats.errors += 1

    def flush(self, timeout_s: float) -> None:
        """Everything taken is kept already."""

    def close(self) -> None:
        self.home.close()
