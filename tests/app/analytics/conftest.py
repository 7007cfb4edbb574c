"""A limiter that is recorded, a sink that does what it is told, and the flusher between them on a clock that stands still."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from sluicegate.analytics.home import Parcel, SinkFull, SinkStats
from sluicegate.app.analytics.flusher import Flusher
from sluicegate.clock import ManualClock
from sluicegate.errors import AnalyticsError
from sluicegate.events import Batch, decode
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.recording import Recorder


@dataclass
class FakeSink:
    """Takes batches, unless ``full`` or ``broken``."""

    name: str = "fake"
    stats: SinkStats = field(default_factory=SinkStats)
    full: bool = False
    broken: bool = False
    parcels: list[Parcel] = field(default_factory=list)
    offered: list[bytes] = field(default_factory=list)
    flushed: list[float] = field(default_factory=list)
    closed: int = 0

    @property
    def batches(self) -> list[Batch]:
        return [decode(parcel.encoded) for parcel in self.parcels]

    def offer(self, parcel: Parcel) -> None:
        self.offered.append(parcel.encoded)
        if self.broken:
            raise AnalyticsError("it is broken", transient=False)
        if self.full:
            raise SinkFull("it is full")
        self.parcels.append(parcel)
        self.stats.batches += 1

    def tick(self) -> None:
        """Nothing is due."""

    def flush(self, timeout_s: float) -> None:
        self.flushed.append(timeout_s)

    def close(self) -> None:
        self.closed += 1


@dataclass
class Telling:
    """All of it. ``decide`` makes decisions of one client; each ``second`` the flusher tells."""

    clock: ManualClock
    limiter: Limiter
    sink: FakeSink
    flusher: Flusher

    def decide(self, times: int = 1) -> None:
        for _ in range(times):
            self.limiter.hit("client")

    def second(self, times: int = 0) -> None:
        self.decide(times)
        self.clock.advance(1_000_000)
        self.flusher.flush()


@pytest.fixture
def telling() -> Telling:
    """A limiter of 3 a minute, whose flusher has no thread."""
    clock = ManualClock()
    limiter = Limiter.from_quota("3/minute", clock=clock)
    recorder = Recorder(clock, name_of=str)
    limiter.record(recorder)
    sink = FakeSink()
    return Telling(clock, limiter, sink, Flusher(recorder, sink, clock, "node"))
