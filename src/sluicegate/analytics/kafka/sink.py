"""What a node hands its batches to where they go by Kafka.

A batch is held here from the moment it is taken until all replicas have it. An attempt that fails is followed by another with the same
bytes: whether the first arrived after all cannot be known, and who reads them counts an id once. So nothing that was taken is
given up while the node runs, except a batch that the cluster never takes (too large). When too much is held, no more is taken.

At the end what is not acknowledged is counted as lost. Of that part the broker may have written something and not said so.
"""

from __future__ import annotations

import functools
import logging
from collections import OrderedDict
from typing import Any, Final

from sluicegate.analytics.home import Parcel, SinkFull, SinkStats
from sluicegate.analytics.kafka.client import Complaints, describe, library, made, producer_properties
from sluicegate.analytics.kafka.settings import KafkaSettings
from sluicegate.bounds import KAFKA_MESSAGE_BYTES_MAX, KAFKA_UNACKNOWLEDGED_BYTES_MAX, KAFKA_UNACKNOWLEDGED_MAX
from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import AnalyticsError

__all__ = ["KafkaSink"]

_LOG: Final = logging.getLogger("sluicegate.kafka")

_NEVER: Final = frozenset(
    {library.KafkaError.MSG_SIZE_TOO_LARGE, library.KafkaError.INVALID_MSG_SIZE, library.KafkaError.INVALID_RECORD}
)
"""What the cluster says of a batch that it never takes."""

_POLL_S: Final = 0.1


class KafkaSink:
    """A ``Sink`` that produces to a topic, with the node's name as key: the batches of a node are in one partition, in their order.

    Raises ConfigurationError for properties that the client library does not take. That no broker answers is no error: it may come.
    ``message_timeout_ms``: of one attempt (None: KAFKA_MESSAGE_TIMEOUT_MS, or what the properties say).
    """

    name = "kafka"

    def __init__(self, settings: KafkaSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._complaints = Complaints("producer")
        self._producer = self._made()
        self._held: OrderedDict[str, Parcel] = OrderedDict()
        self._again: OrderedDict[str, None] = OrderedDict()
        """Of those held, the ones whose last attempt failed."""
        self._held_bytes = 0
        self._closed = False
        self._stats = SinkStats()

    @property
    def stats(self) -> SinkStats:
        return self._stats

    @property
    def held(self) -> int:
        """Batches taken and not acknowledged yet."""
        return len(self._held)

    def offer(self, parcel: Parcel) -> None:
        """Take a batch; one that is held already is taken once. Raises SinkFull, and AnalyticsError for one that no broker would take."""
        self._producer.poll(0)
        size = len(parcel.encoded)
        if self._closed:
            raise AnalyticsError("the Kafka sink is closed", transient=False)
        if size > KAFKA_MESSAGE_BYTES_MAX - _OVERHEAD_BYTES:
            raise AnalyticsError(
                f"a batch of {size} bytes is more than Kafka takes ({KAFKA_MESSAGE_BYTES_MAX})", transient=False
            )
        if parcel.batch.id in self._held:
            return
        if len(self._held) >= KAFKA_UNACKNOWLEDGED_MAX or self._held_bytes + size > KAFKA_UNACKNOWLEDGED_BYTES_MAX:
            raise SinkFull(f"{len(self._held)} batches ({self._held_bytes} bytes) wait for Kafka to acknowledge them")
        self._held[parcel.batch.id] = parcel
        self._held_bytes += size
        self._produce(parcel)

    def tick(self) -> None:
        """Read acknowledgements, and try again what failed."""
        self._producer.poll(0)
        if self._complaints.fatal:
            self._begin_anew()
        for known in list(self._again):
            if not self._produce(self._held[known]):
                break

    def flush(self, timeout_s: float) -> None:
        """Wait until all is acknowledged, or for ``timeout_s``; what is not by then is given up, counted and told in the log."""
        until_us = self._clock.monotonic_us() + int(timeout_s * US_PER_S)
        while self._held:
            self.tick()
            left_s = (until_us - self._clock.monotonic_us()) / US_PER_S
            if left_s <= 0:
                break
            # Not flush(): a batch whose attempt fails meanwhile is tried again while there is time.
            self._producer.poll(min(_POLL_S, left_s))
        if self._held:
            self._give_up()

    def close(self) -> None:
        """Give up what is left, and let the connections go."""
        if self._closed:
            return
        self._closed = True
        if self._held:
            self._give_up()
        self._producer.poll(0)

    def _made(self) -> Any:
        self._complaints.fatal = ""
        return made(library.Producer, producer_properties(self._settings) | {"error_cb": self._complaints})

    def _produce(self, parcel: Parcel) -> bool:
        """Begin an attempt; False where the client library has no room for it just now."""
        known = parcel.batch.id
        report = functools.partial(self._reported, known, self._producer)
        try:
            self._producer.produce(self._settings.topic, parcel.encoded, parcel.batch.node.encode(), on_delivery=report)
        except BufferError:
            self._again[known] = None
            return False
        except library.KafkaException as error:
            self._failed(known, error.args[0])
            return True
        self._again.pop(known, None)
        return True

    def _reported(self, known: str, producer: Any, error: Any, _message: Any) -> None:
        """What became of an attempt. Called by the client library from within ``poll`` and ``purge``."""
        if producer is not self._producer or known not in self._held:
            return  # of a producer that was let go, or of a batch that was given up
        if error is not None:
            self._failed(known, error)
            return
        parcel = self._let_go(known)
        self._complaints.over()
        self._stats.batches += 1
        self._stats.decisions += parcel.batch.decided
        self._stats.last_us = self._clock.now_us()

    def _failed(self, known: str, error: Any) -> None:
        self._stats.errors += 1
        if error.code() in _NEVER:
            parcel = self._let_go(known)
            self._lost(parcel)
            _LOG.error(
                "kafka_batch_refused",
                extra={"fields": {"batch": known, "bytes": len(parcel.encoded), "error": describe(error)}},
            )
            return
        self._complaints(error)
        self._again[known] = None

    def _let_go(self, known: str) -> Parcel:
        parcel = self._held.pop(known)
        self._again.pop(known, None)
        self._held_bytes -= len(parcel.encoded)
        return parcel

    def _lost(self, parcel: Parcel) -> None:
        self._stats.lost_batches += 1
        self._stats.lost_decisions += parcel.batch.decided

    def _give_up(self) -> None:
        count, decisions = len(self._held), 0
        while self._held:
            parcel = self._let_go(next(iter(self._held)))
            decisions += parcel.batch.decided
            self._lost(parcel)
        # Without this the client library would go on trying what is counted as lost.
        self._producer.purge()
        self._producer.poll(0)
        _LOG.error("kafka_batches_lost", extra={"fields": {"batches": count, "decisions": decisions}})

    def _begin_anew(self) -> None:
        """A producer that cannot go on (its sequence is broken) is replaced; what it had not delivered is tried again by the new one."""
        _LOG.error("kafka_producer_replaced", extra={"fields": {"error": self._complaints.fatal}})
        old, self._producer = self._producer, self._made()
        old.purge()
        self._again = OrderedDict.fromkeys(self._held)


_OVERHEAD_BYTES: Final = 1_024
"""Of a message around its value: the key, and what the protocol adds."""
