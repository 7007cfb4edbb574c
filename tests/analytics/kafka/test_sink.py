"""The sink of a node: what it holds, what it gives up, and what it says of it. Mostly without a broker."""

from __future__ import annotations

import socket
import time

import pytest

from sluicegate.analytics.home import Parcel, SinkFull
from sluicegate.analytics.kafka import KafkaSettings, KafkaSink
from sluicegate.bounds import KAFKA_MESSAGE_BYTES_MAX, KAFKA_UNACKNOWLEDGED_BYTES_MAX, KAFKA_UNACKNOWLEDGED_MAX
from sluicegate.clock import ManualClock, SystemClock
from sluicegate.errors import AnalyticsError
from sluicegate.events import encode


@pytest.fixture
def nobody():
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def lonely(nobody):
    """A sink without a broker."""
    made = KafkaSink(KafkaSettings(nobody, properties={"message.timeout.ms": "1000"}), SystemClock())
    yield made
    made.close()


@pytest.fixture
def parcel(make_batch):
    def make(sequence: int, decisions: int = 1, *, size: int | None = None) -> Parcel:
        batch = make_batch("n", sequence, decisions)
        return Parcel(batch, encode(batch) if size is None else b"x" * size)

    return make


def test_offers_never_wait_for_a_broker(lonely, parcel) -> None:
    """A thousand batches are taken at once, and more than the bound are not: the caller keeps those."""
    began = time.monotonic()
    for sequence in range(KAFKA_UNACKNOWLEDGED_MAX):
        lonely.offer(parcel(sequence))
    with pytest.raises(SinkFull):
        lonely.offer(parcel(KAFKA_UNACKNOWLEDGED_MAX))
    assert time.monotonic() - began < 30
    assert lonely.held == KAFKA_UNACKNOWLEDGED_MAX


def test_bytes_are_bounded(lonely, parcel) -> None:
    """As are the bytes that wait."""
    size = KAFKA_MESSAGE_BYTES_MAX - 10_000
    for sequence in range(KAFKA_UNACKNOWLEDGED_BYTES_MAX // size):
        lonely.offer(parcel(sequence, size=size))
    with pytest.raises(SinkFull):
        lonely.offer(parcel(99, size=size))


def test_a_batch_is_held_once(lonely, parcel) -> None:
    """Offered again, it is the same batch."""
    lonely.offer(parcel(1))
    lonely.offer(parcel(1))
    assert lonely.held == 1


def test_a_batch_that_no_broker_takes(lonely, parcel) -> None:
    """It is refused for good, not held for ever."""
    with pytest.raises(AnalyticsError, match="more than Kafka takes") as caught:
        lonely.offer(parcel(1, size=KAFKA_MESSAGE_BYTES_MAX))
    assert not caught.value.transient
    assert lonely.held == 0


def test_a_bounded_end(lonely, parcel, caplog) -> None:
    """Without a broker ``flush`` ends when it was told to; what was not acknowledged is counted and told in the log."""
    for sequence in range(10):
        lonely.offer(parcel(sequence, 7))
    began = time.monotonic()
    lonely.flush(0.3)
    assert time.monotonic() - began < 20
    assert (lonely.stats.lost_batches, lonely.stats.lost_decisions, lonely.stats.batches) == (10, 70, 0)
    assert lonely.held == 0
    assert "kafka_batches_lost" in caplog.text


def test_failed_attempts_are_made_again(lonely, parcel, wait_until) -> None:
    """An attempt that runs out of time is no loss: the batch stays held and is tried again."""
    lonely.offer(parcel(1))

    def failed_twice() -> bool:
        lonely.tick()
        return lonely.stats.errors >= 2

    wait_until(failed_twice, "two attempts")
    assert lonely.held == 1
    assert lonely.stats.lost_batches == 0


def test_a_closed_sink_takes_nothing(nobody, parcel) -> None:
    """And what it held is lost and counted; closed twice is once."""
    sink = KafkaSink(KafkaSettings(nobody), ManualClock())
    sink.offer(parcel(1, 5))
    sink.close()
    sink.close()
    assert sink.stats.lost_decisions == 5
    with pytest.raises(AnalyticsError, match="closed"):
        sink.offer(parcel(2))


@pytest.mark.slow
def test_given_up_is_not_delivered_later(kafka, parcel, wait_until) -> None:
    """What is counted as lost at the end while the broker is away is not written when it comes back."""
    topic = kafka.new_topic(1)
    settings = KafkaSettings(kafka.address, topic, properties={"reconnect.backoff.max.ms": "200"})
    sink = KafkaSink(settings, SystemClock())
    sink.offer(parcel(1))
    sink.flush(60)
    kafka.stop()
    try:
        sink.offer(parcel(2))
        sink.flush(0.2)
    finally:
        kafka.start()
    assert (sink.stats.batches, sink.stats.lost_batches) == (1, 1)
    sink.offer(parcel(3))
    sink.flush(60)
    assert sink.stats.batches == 2
    assert kafka.offsets(topic) == [2]
    sink.close()


@pytest.mark.slow
def test_a_topic_that_comes_later(kafka, parcel, wait_until) -> None:
    """Batches wait for a topic that is not there yet."""
    settings = KafkaSettings(
        kafka.address,
        "made-later",
        properties={"topic.metadata.propagation.max.ms": "100", "topic.metadata.refresh.interval.ms": "200"},
    )
    sink = KafkaSink(settings, SystemClock())
    sink.offer(parcel(1))

    def failed() -> bool:
        sink.tick()
        return sink.stats.errors > 0

    wait_until(failed, "an attempt without the topic")
    kafka.new_topic(1, name="made-later")
    sink.flush(60)
    assert (sink.stats.batches, sink.stats.lost_batches) == (1, 0)
    sink.close()
