"""A thread that takes each second what a limiter remembers, makes a batch of it and hands it to a sink.

Decisions do not know of it: they write into the recorder, and this thread reads from there. What a sink does not take at once waits in a
bounded queue; when that is full the oldest batch is dropped, and what it counted is told in the ``dropped`` of the next one.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter, deque
from typing import Final

from msgspec.structs import replace

from sluicegate.analytics.home import Parcel, Sink, SinkFull
from sluicegate.bounds import FLUSH_IDLE_S, FLUSH_QUEUE_BYTES_MAX, FLUSH_QUEUE_MAX, FLUSH_STOP_S
from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import AnalyticsError
from sluicegate.events import SCHEMA_VERSION, Batch, Dropped, batch_id, encode, sum_dropped
from sluicegate.limiter.recording import Recorder

__all__ = ["Flusher"]

_LOG: Final = logging.getLogger("sluicegate.analytics")
_NOTHING: Final = Dropped()


class Flusher:
    """Tells what ``recorder`` remembers to ``sink``, as node ``node``. ``start`` begins; ``stop`` tells the rest and ends.

    Numbers may be read from any thread. ``batches`` made, ``decisions`` told in them; ``dropped``: all that this process could not tell, by the kinds of
    ``events.Dropped``.
    """

    def __init__(self, recorder: Recorder, sink: Sink, clock: Clock, node: str) -> None:
        self.sink = sink
        self.node = node
        self.batches = 0
        self.decisions = 0
        self.dropped: Counter[str] = Counter()
        self.queued = 0
        self.queued_bytes = 0
        self._recorder = recorder
        self._clock = clock
        self._incarnation = secrets.randbits(64)
        self._sequence = 0
        self._waiting: deque[Parcel] = deque()
        self._untold = _NOTHING
        self._lost_told = (0, 0)
        self._since_us = self._idle_us = clock.now_us()
        self._failing = False
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._stop_us = 0

    def start(self) -> None:
        """Begin. Called once."""
        self._thread = threading.Thread(target=self._run, name="analytics", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = FLUSH_STOP_S) -> None:
        """Tell what is left and end, within about ``timeout_s``; what is not kept by then is counted as dropped and told in the log. Twice is once."""
        thread = self._thread
        if thread is None:
            return
        self._stop_us = self._clock.monotonic_us() + int(timeout_s * US_PER_S)
        self._ending.set()
        thread.join(timeout_s + 2)
        self._thread = None
        if thread.is_alive():
            _LOG.error("analytics_not_ended", extra={"fields": {"batches": self.queued}})

    @property
    def age_s(self) -> float | None:
        """Seconds since a batch was last acknowledged; None: never."""
        last_us = self.sink.stats.last_us
        return None if not last_us else max(0, self._clock.now_us() - last_us) / US_PER_S

    def flush(self) -> None:
        """Take and tell once; the thread does so each second. For who has no thread."""
        try:
            self._take(last=False)
            self._hand_over()
            self.sink.tick()
        except Exception as error:  # noqa: BLE001
            # A fault of ours, or of the disk below us, must not end the telling, and is no matter of those who ask.
            self._complain(error)

    def _run(self) -> None:
        while not self._ending.wait(self._pause_s()):
            self.flush()
        try:
            self._take(last=True)
            while self._waiting and not self._over():
                self._hand_over()
                if self._waiting:
                    threading.Event().wait(0.05)
            self.sink.flush(max(0, self._stop_us - self._clock.monotonic_us()) / US_PER_S)
        except Exception as error:  # noqa: BLE001
            self._complain(error)
        self._give_up()
        self.sink.close()

    def _pause_s(self) -> float:
        """Up to the next full second, so that a decision is told in the second in which it was made."""
        return (US_PER_S - self._clock.now_us() % US_PER_S) / US_PER_S

    def _over(self) -> bool:
        return self._clock.monotonic_us() >= self._stop_us

    def _take(self, *, last: bool) -> None:
        since_us, now_us = self._since_us, self._clock.now_us()
        # A clock that was set back: what happened since happened at once.
        self._since_us = now_us
        taken = self._recorder.take(min(since_us, now_us), now_us, last=last)
        untold = self._untold_now()
        quiet = taken.empty and untold == taken.dropped == _NOTHING
        if quiet and not last and now_us - self._idle_us < FLUSH_IDLE_S * US_PER_S:
            self._idle_us = min(self._idle_us, now_us)
            return
        if quiet:
            self._put(taken.batch(self.node, self._next_id(), untold), since_us=self._idle_us)
        else:
            if self._idle_us < taken.at_us:
                # That nothing happened is told by itself, and the counts of a second stay in their second.
                gap = Batch(SCHEMA_VERSION, self._next_id(), self.node, self._idle_us, taken.at_us, watch=taken.watch)
                self._put(gap)
            self._untold = _NOTHING
            self._put(taken.batch(self.node, self._next_id(), untold), taken.dropped)
        self._idle_us = now_us

    def _put(self, batch: Batch, told: Dropped = _NOTHING, since_us: int | None = None) -> None:
        """``told``: what the recorder says was dropped; the rest of what the batch says was counted when it happened."""
        if since_us is not None and since_us < batch.until_us:
            batch = replace(batch, at_us=since_us)
        self.batches += 1
        self.decisions += batch.decided
        self._count(told)
        try:
            encoded = encode(batch)
        except UnicodeEncodeError:
            # A name that is no text; what came with it is counted as not told.
            self._drop(Parcel(batch, b""))
            return
        self._waiting.append(Parcel(batch, encoded))
        self.queued_bytes += len(encoded)
        while len(self._waiting) > FLUSH_QUEUE_MAX or (self.queued_bytes > FLUSH_QUEUE_BYTES_MAX and self._waiting):
            self._drop(self._next())
        self.queued = len(self._waiting)

    def _hand_over(self) -> None:
        while self._waiting:
            parcel = self._waiting[0]
            try:
                self.sink.offer(parcel)
            except SinkFull as error:
                self._complain(error)
                return
            except AnalyticsError as error:
                self._complain(error)
                self._drop(self._next())
            else:
                self._next()
                if self._failing:
                    self._failing = False
                    _LOG.info("analytics_working", extra={"fields": {"sink": self.sink.name}})

    def _next(self) -> Parcel:
        parcel = self._waiting.popleft()
        self.queued_bytes -= len(parcel.encoded)
        self.queued = len(self._waiting)
        return parcel

    def _drop(self, parcel: Parcel) -> None:
        """Give a batch up. What it said was dropped before is said again by the next."""
        batch = parcel.batch
        gone = Dropped(batches=1, decisions=batch.decided, tokens=batch.tokens)
        self._count(gone)
        self._untold = sum_dropped(self._untold, sum_dropped(gone, batch.dropped))

    def _count(self, dropped: Dropped) -> None:
        for kind in Dropped.__struct_fields__:
            self.dropped[kind] += getattr(dropped, kind)

    def _untold_now(self) -> Dropped:
        """What the next batch has to say was dropped, what the sink took and lost included."""
        stats = self.sink.stats
        lost = (stats.lost_batches, stats.lost_decisions)
        gone = Dropped(batches=lost[0] - self._lost_told[0], decisions=lost[1] - self._lost_told[1])
        self._lost_told = lost
        self._count(gone)
        self._untold = sum_dropped(self._untold, gone)
        return self._untold

    def _next_id(self) -> str:
        self._sequence += 1
        return batch_id(self.node, self._incarnation, self._sequence - 1)

    def _complain(self, error: Exception) -> None:
        """Log what is wrong when it begins, not each second."""
        if self._failing:
            return
        self._failing = True
        if isinstance(error, AnalyticsError):
            _LOG.error("analytics_failing", extra={"fields": {"sink": self.sink.name, "error": str(error)}})
        else:
            _LOG.error("analytics_failing", exc_info=error, extra={"fields": {"sink": self.sink.name}})

    def _give_up(self) -> None:
        """At the end: what still waits, or was taken and never acknowledged."""
        while self._waiting:
            self._drop(self._next())
        gone = self._untold_now()
        if gone.batches:
            fields = {"batches": gone.batches, "decisions": gone.decisions}
            _LOG.error("analytics_dropped", extra={"fields": fields})
