"""Reads batches from Kafka into a home: each at least once, and the home counts an id once.

One thread does everything. In each turn it reads, makes blocks of what is due, writes down where they end, puts them into the home and commits
their offsets, in this order; ``blocks`` tells why. While the home or Kafka is away partitions are paused and the turns go on, so the group sees
a live member and what is held stays bounded.

A partition that is handed to another member takes its unfinished block with it: the other reads it again from what was committed.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from sluicegate.analytics.kafka.blocks import Block, Lane, Piece, intent, token_of
from sluicegate.analytics.kafka.client import Complaints, consumer_properties, describe, library, made, wrong
from sluicegate.analytics.kafka.dead import DeadLetters
from sluicegate.analytics.kafka.settings import KafkaSettings
from sluicegate.analytics.kafka.stats import ConsumerStats
from sluicegate.bounds import (
    KAFKA_BACKOFF_MAX_S,
    KAFKA_BACKOFF_S,
    KAFKA_BLOCK_LINGER_S,
    KAFKA_HELD_BYTES_MAX,
    KAFKA_REQUEST_TIMEOUT_S,
)
from sluicegate.clock import US_PER_S, Clock
from sluicegate.errors import AnalyticsError, InvalidRequest
from sluicegate.events import Batch, decode

__all__ = ["Consumer", "Keep"]

_LOG: Final = logging.getLogger("sluicegate.kafka")

Keep = Callable[[str, Sequence[Batch]], None]
"""Puts batches into the home under a token: the same token is the same batches. Raises AnalyticsError while it cannot be reached."""

_UNKEEPABLE: Final = (ValueError, TypeError, ArithmeticError, LookupError)
"""What a home raises for batches that it cannot keep whoever asks; InvalidRequest is one of them."""

_READ_MAX: Final = 500
_TURN_S: Final = 0.2


class Consumer:
    """A member of the consumer group. Raises ConfigurationError for properties that the client library does not take.

    ``linger_s``: how long messages wait at most for others to fill their block. ``chance`` spreads the attempts of several consumers.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        keep: Keep,
        clock: Clock,
        *,
        linger_s: float = KAFKA_BLOCK_LINGER_S,
        chance: random.Random | None = None,
    ) -> None:
        self.stats = ConsumerStats()
        self._settings = settings
        self._keep = keep
        self._clock = clock
        self._linger_us = int(linger_s * US_PER_S)
        self._chance = chance or random.Random()  # noqa: S311  # spreads load; no secret
        self._complaints = Complaints("consumer")
        self._dead = DeadLetters(settings, clock, self.stats)
        self._lanes: dict[int, Lane] = {}
        self._paused = False
        self._attempts = 0
        self._not_before_us = 0
        self._client: Any = made(library.Consumer, consumer_properties(settings) | {"error_cb": self._complaints})

    def run(self, stopped: Callable[[], bool]) -> None:
        """Read until ``stopped``; the turn under way is finished then, and what is not in the home is left to whoever reads next.

        Raises AnalyticsError where the client library cannot go on.
        """
        self._client.subscribe(
            [self._settings.topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        try:
            while not stopped():
                self._turn()
        finally:
            self._client.close()

    def _turn(self) -> None:
        self._hold_back()
        self._take(self._client.consume(_READ_MAX, timeout=_TURN_S))
        if self._complaints.fatal:
            raise AnalyticsError(f"the Kafka consumer cannot go on: {self._complaints.fatal}", transient=False)
        if self._clock.monotonic_us() >= self._not_before_us:
            try:
                self._learn()
                worked = self._carry()
            except library.KafkaException as error:
                self._back_off("kafka", describe(error))
            except AnalyticsError as error:
                self.stats.home_errors += 1
                self._back_off("home", str(error))
            else:
                self._went_well(worked)
        self.stats.kafka_errors = self._complaints.count
        self.stats.partitions = len(self._lanes)
        self.stats.lag = self._lag()

    def _take(self, messages: Iterable[Any]) -> None:
        for message in messages:
            if message.error() is not None:
                self._complaints(message.error())
                continue
            lane = self._lanes.get(message.partition())
            if lane is None:
                continue  # handed over while it was on its way
            value = message.value() or b""
            lane.add(Piece(message.offset(), value, message.key()), self._clock.monotonic_us())
            self.stats.messages += 1
            self.stats.bytes += len(value)

    def _learn(self) -> None:
        """What was committed for the partitions that have just come."""
        unknown = [lane.partition for lane in self._lanes.values() if not lane.known]
        if not unknown:
            return
        asked = [library.TopicPartition(self._settings.topic, partition) for partition in unknown]
        for found in self._client.committed(asked, timeout=KAFKA_REQUEST_TIMEOUT_S):
            if found.error is not None:
                raise library.KafkaException(found.error)
            self._lanes[found.partition].committed(found.offset if found.offset >= 0 else None, found.metadata)

    def _carry(self) -> bool:
        """Put what is due into the home; whether anything was. Raises AnalyticsError or the library's KafkaException; what was done by then is committed."""
        blocks = self._due()
        fresh = [block for block in blocks if not block.written_down and not block.kept]
        if fresh:
            self._commit((block.partition, block.first, intent(block.last)) for block in fresh)
            for block in fresh:
                block.written_down = True
        try:
            for block in blocks:
                if not block.kept:
                    self._put(block)
        finally:
            kept = [block for block in blocks if block.kept]
            if kept:
                self._commit((block.partition, block.last + 1, "") for block in kept)
                for block in kept:
                    self._lanes[block.partition].done()
                self.stats.blocks += len(kept)
        return bool(blocks)

    def _due(self) -> list[Block]:
        now_us, hurry = self._clock.monotonic_us(), self._held_bytes() > KAFKA_HELD_BYTES_MAX
        blocks = []
        for lane in self._lanes.values():
            block, missing = lane.seal(now_us, self._linger_us, hurry=hurry)
            if missing > 0:
                self.stats.missing += missing
                fields = {"topic": self._settings.topic, "partition": lane.partition, "messages": missing}
                _LOG.error("kafka_messages_missing", extra={"fields": fields})
            if block is not None:
                blocks.append(block)
        return blocks

    def _put(self, block: Block) -> None:
        """Put one block into the home, and what the home cannot keep aside."""
        if block.batches is None:
            block.batches = list(self._decoded(block))
        batches = [batch for _, batch in block.batches]
        if batches:
            token = token_of(self._settings.topic, block, batches)
            try:
                self._keep(token, batches)
            except _UNKEEPABLE:
                self._put_each(block, token)
        self._dead.flush()
        block.kept = True
        self.stats.batches += len(block.batches)
        self.stats.decisions += sum(batch.decided for _, batch in block.batches)
        self.stats.last_us = self._clock.now_us()
        self.stats.told_until_us = max([self.stats.told_until_us, *(batch.until_us for batch in batches)])

    def _decoded(self, block: Block) -> Iterable[tuple[Piece, Batch]]:
        for piece in block.pieces:
            try:
                yield piece, decode(piece.value)
            except InvalidRequest as error:
                self._dead.put(block.partition, piece, str(error))

    def _put_each(self, block: Block, token: str) -> None:
        """One batch or several of a block cannot be kept: put in the others."""
        assert block.batches is not None
        reasons: dict[int, str] = {}
        for piece, batch in block.batches:
            try:
                self._keep(f"{token}/{piece.offset}", [batch])
            except _UNKEEPABLE as error:
                reasons[piece.offset] = f"the home cannot keep it: {type(error).__name__}: {error}"
        # Not before all the others are in: where the home goes away meanwhile all of it is done again.
        for piece, _ in block.batches:
            if piece.offset in reasons:
                self._dead.put(block.partition, piece, reasons[piece.offset])
        block.batches = [(piece, batch) for piece, batch in block.batches if piece.offset not in reasons]

    def _commit(self, offsets: Iterable[tuple[int, int, str]]) -> None:
        topic = self._settings.topic
        asked = [library.TopicPartition(topic, partition, offset, metadata) for partition, offset, metadata in offsets]
        for told in self._client.commit(offsets=asked, asynchronous=False):
            if told.error is not None:
                raise library.KafkaException(told.error)

    def _back_off(self, what: str, error: str) -> None:
        delay_s = min(KAFKA_BACKOFF_MAX_S, KAFKA_BACKOFF_S * 2**self._attempts) * self._chance.uniform(0.5, 1.0)
        # The exponent stays small: it grows no more when the longest delay is reached.
        self._attempts += KAFKA_BACKOFF_S * 2**self._attempts < KAFKA_BACKOFF_MAX_S
        self._not_before_us = self._clock.monotonic_us() + int(delay_s * US_PER_S)
        if self.stats.well:
            _LOG.warning(f"{what}_away", extra={"fields": {"error": error, "retry_after_s": round(delay_s, 3)}})
        self.stats.well = False

    def _went_well(self, worked: bool) -> None:
        if worked and not self.stats.well:
            _LOG.info("home_well_again", extra={"fields": {"attempts": self._attempts + 1}})
        if worked:
            self.stats.well, self._attempts = True, 0
            self._complaints.over()

    def _hold_back(self) -> None:
        """Pause what is read while it cannot be put anywhere; new partitions too."""
        held = self._held_bytes()
        limit = KAFKA_HELD_BYTES_MAX // 2 if self._paused else KAFKA_HELD_BYTES_MAX
        pause = held > limit or self._clock.monotonic_us() < self._not_before_us
        if pause != self._paused and self._lanes:
            change = self._client.pause if pause else self._client.resume
            change([library.TopicPartition(self._settings.topic, partition) for partition in self._lanes])
            self._paused = pause

    def _held_bytes(self) -> int:
        return sum(lane.bytes for lane in self._lanes.values())

    def _lag(self) -> int | None:
        lag = 0
        for lane in self._lanes.values():
            place = library.TopicPartition(self._settings.topic, lane.partition)
            low, high = self._client.get_watermark_offsets(place, cached=True)
            if high < 0 or not lane.known:
                return None
            lag += max(0, high - (low if lane.position is None else lane.position))
        return lag

    def _assigned(self, _client: Any, partitions: Sequence[Any]) -> None:
        for place in partitions:
            self._lanes[place.partition] = Lane(place.partition)
        self._paused = False  # the new ones are not, so all are paused once more where they must be
        _LOG.info("kafka_assigned", extra={"fields": {"partitions": sorted(place.partition for place in partitions)}})

    def _revoked(self, client: Any, partitions: Sequence[Any]) -> None:
        """The last moment in which they are ours; a block in the home whose commit failed gets another try."""
        kept = [lane.block for lane in self._lanes.values() if lane.block is not None and lane.block.kept]
        try:
            if kept:
                self._commit((block.partition, block.last + 1, "") for block in kept)
                for block in kept:
                    self._lanes[block.partition].done()
        except library.KafkaException as error:
            # Whoever is next reads the block again, and the home knows it.
            _LOG.warning("kafka_commit_failed", extra={"fields": {"error": describe(wrong("commit", error))}})
        self._lost(client, partitions)

    def _lost(self, _client: Any, partitions: Sequence[Any]) -> None:
        for place in partitions:
            self._lanes.pop(place.partition, None)
        _LOG.info("kafka_revoked", extra={"fields": {"partitions": sorted(place.partition for place in partitions)}})
