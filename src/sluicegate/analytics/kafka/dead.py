"""Messages that no home can keep: put aside with the reason, so that they hold up nothing and are not gone."""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from sluicegate.analytics.kafka.blocks import Piece
from sluicegate.analytics.kafka.client import Complaints, library, made, producer_properties
from sluicegate.analytics.kafka.settings import KafkaSettings
from sluicegate.analytics.kafka.stats import ConsumerStats
from sluicegate.bounds import KAFKA_BACKOFF_MAX_S, KAFKA_REQUEST_TIMEOUT_S
from sluicegate.clock import US_PER_S, Clock

__all__ = ["DeadLetters"]

_LOG: Final = logging.getLogger("sluicegate.kafka")

_REASON_CHARS: Final = 500


class DeadLetters:
    """Writes to the topic of dead letters. Never raises and never holds up for long: what cannot be put there is counted and stands in the log.

    A letter has the value and the key of the message, and the headers ``reason``, ``topic``, ``partition`` and ``offset``. One that
    is read again after a crash is put there again, with the same headers.
    """

    def __init__(self, settings: KafkaSettings, clock: Clock, stats: ConsumerStats) -> None:
        self._settings = settings
        self._clock = clock
        self._stats = stats
        self._producer: Any = None
        self._pending = 0
        self._round = 0
        """Reports of letters of an earlier round come too late to count."""
        self._away_until_us = 0

    def put(self, partition: int, piece: Piece, reason: str) -> None:
        """Put a message aside; ``flush`` waits until it is there."""
        self._stats.dead += 1
        place = {"topic": self._settings.topic, "partition": partition, "offset": piece.offset}
        _LOG.warning(
            "kafka_dead_letter",
            extra={"fields": {**place, "bytes": len(piece.value), "reason": reason[:_REASON_CHARS]}},
        )
        if self._clock.monotonic_us() < self._away_until_us:
            self._stats.dead_unkept += 1
            return
        headers = [
            ("reason", reason[:_REASON_CHARS].encode("utf-8", "replace")),
            *((name, str(value).encode()) for name, value in place.items()),
        ]
        try:
            report = functools.partial(self._delivered, self._round)
            self._open().produce(self._settings.dead_topic, piece.value, piece.key, headers=headers, on_delivery=report)
            self._pending += 1
        except (BufferError, library.KafkaException):
            self._stats.dead_unkept += 1

    def flush(self) -> None:
        """Wait until all are written, or for a few seconds. Where that fails none is tried for a while."""
        if self._pending == 0:
            return
        self._producer.flush(KAFKA_REQUEST_TIMEOUT_S)
        if self._pending:
            self._stats.dead_unkept += self._pending
            self._pending = 0
            self._round += 1
            self._away()
            # So that what is counted as not kept is not tried any more.
            self._producer.purge()
            self._producer.poll(0)

    def _open(self) -> Any:
        if self._producer is None:
            properties = producer_properties(self._settings) | {"error_cb": Complaints("dead letters"), "linger.ms": 5}
            self._producer = made(library.Producer, properties)
        return self._producer

    def _delivered(self, begun: int, error: Any, _message: Any) -> None:
        if begun != self._round:
            return
        self._pending -= 1
        if error is not None:
            self._stats.dead_unkept += 1
            self._away()

    def _away(self) -> None:
        self._away_until_us = self._clock.monotonic_us() + int(KAFKA_BACKOFF_MAX_S * US_PER_S)
