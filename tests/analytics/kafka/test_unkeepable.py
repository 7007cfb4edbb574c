"""What no home can keep holds up nothing: it is put aside with the reason, or at least counted."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
from confluent_kafka import Consumer as Reader
from confluent_kafka import Producer
from real_kafka import Broker

from sluicegate.analytics.kafka import lag_of

pytestmark = pytest.mark.slow

BAD = (
    b"",
    b"not json",
    b"\xff\xfe",
    b"[" * 5_000,
    b'{"v":2,"id":"a","node":"a","at_us":0,"until_us":0}',
    b'{"v":1,"id":"a","node":"a","at_us":5,"until_us":0}',
    b'{"v":1,"id":"a","node":"a","at_us":-1,"until_us":0}',
    b'{"v":1,"id":"a","node":"a","at_us":0,"until_us":0,"requests":[{"decisions":1e400}]}',
    None,
)


def write(brokers: str, topic: str, values) -> None:
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    for value in values:
        producer.produce(topic, value, b"someone", partition=0)
    assert producer.flush(60) == 0


def letters(brokers: str, topic: str, count: int) -> list:
    reader = Reader(
        {"bootstrap.servers": brokers, "group.id": "letters", "auto.offset.reset": "earliest", "log_level": 0}
    )
    reader.subscribe([topic])
    found: list = []
    deadline = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} letters"
        found += reader.consume(count, timeout=0.2)
    reader.close()
    return found


def test_malformed_messages(settings, sink, tell, consume, home, wait_until) -> None:
    """Each is among the dead letters with reason and place; all good ones are in the home."""
    write(settings.brokers, settings.topic, BAD)
    made = tell(sink, 3, range(10))
    write(settings.brokers, settings.topic, BAD)
    running = consume(home.keep)
    wait_until(lambda: running.stats.dead == 2 * len(BAD), "all dead letters")
    wait_until(lambda: home.total == made, "all decisions in the home")
    wait_until(lambda: running.stats.lag == 0, "no lag")
    assert running.stats.dead_unkept == 0
    found = letters(settings.brokers, settings.dead_topic, 2 * len(BAD))
    assert [letter.value() or b"" for letter in found] == [value or b"" for value in BAD] * 2
    for letter in found:
        headers = dict(letter.headers())
        assert headers["topic"] == settings.topic.encode()
        assert headers["partition"] == b"0"
        assert headers["offset"].isdigit()
        assert headers["reason"]
        assert letter.key() == b"someone"


def test_a_batch_that_the_home_refuses(settings, sink, tell, consume, home, wait_until) -> None:
    """It alone is put aside; its company is kept, each under a token of its own."""
    home.refused = {"node-0/0000000000000001/3"}
    made = tell(sink, 1, range(10))
    running = consume(home.keep)
    wait_until(lambda: running.stats.batches == 9, "all others in the home")
    assert running.stats.dead == 1
    assert running.stats.decisions == home.total < made
    (letter,) = letters(settings.brokers, settings.dead_topic, 1)
    assert json.loads(letter.value())["id"] == "node-0/0000000000000001/3"
    assert b"too much for one column" in dict(letter.headers())["reason"]


def test_no_topic_for_dead_letters(settings, kafka: Broker, sink, tell, home, wait_until, consume_with) -> None:
    """They are counted and in the log, and the consumer goes on."""
    topic = kafka.new_topic(1)
    quick = {**settings.properties, "message.timeout.ms": "500"}
    alone = replace(settings, topic=topic, group=f"group-{topic}", properties=quick)
    write(settings.brokers, topic, BAD)
    running = consume_with(alone, home.keep)
    wait_until(lambda: running.stats.dead == running.stats.dead_unkept == len(BAD), "counted")
    wait_until(lambda: [place.lag for place in lag_of(alone)] == [0], "committed")


def test_messages_deleted_before_they_are_read(settings, kafka: Broker, sink, tell, consume, home, wait_until) -> None:
    """Their number is told, and the rest arrives."""
    made = tell(sink, 1, range(5))
    running = consume(home.keep)
    wait_until(lambda: home.total == made, "the first ones")
    wait_until(lambda: running.stats.lag == 0, "no lag")
    running.stop()
    tell(sink, 1, range(5, 15))
    ends = kafka.offsets(settings.topic)
    kafka.delete_before(settings.topic, [end - 2 if end else 0 for end in ends])
    again = consume(home.keep)
    wait_until(lambda: again.stats.batches == 2, "what is left")
    assert again.stats.missing == 8
    assert sorted(home.decisions, key=lambda name: int(name.rsplit("/", 1)[1]))[-2:] == [
        "node-0/0000000000000001/13",
        "node-0/0000000000000001/14",
    ]


def test_a_topic_that_was_made_anew(settings, kafka: Broker, sink, tell, consume, home, wait_until) -> None:
    """Offsets begin again, and what is new arrives under new tokens."""
    made = tell(sink, 1, range(8))
    running = consume(home.keep)
    wait_until(lambda: home.total == made, "the first ones")
    running.stop()
    kafka.delete(settings.topic)
    kafka.new_topic(3, name=settings.topic)
    made += tell(sink, 1, range(8, 12))
    again = consume(home.keep)
    wait_until(lambda: home.total == made, "the new ones")
    assert again.stats.missing == 0


def test_a_topic_that_comes_later(settings, kafka: Broker, home, make_batch, consume_with, wait_until) -> None:
    """A consumer waits for its topic."""
    later = replace(
        settings,
        topic="comes-later",
        group="comes-later",
        properties={"topic.metadata.refresh.interval.ms": "200", "reconnect.backoff.max.ms": "200"},
    )
    running = consume_with(later, home.keep)
    wait_until(lambda: running.stats.kafka_errors > 0, "a complaint")
    kafka.new_topic(2, name="comes-later")
    wait_until(lambda: running.stats.partitions == 2, "its partitions")
