"""Batches with known totals, homes that misbehave, and consumers that run beside the test."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from real_kafka import Broker

from sluicegate.analytics.home import Parcel
from sluicegate.analytics.kafka import Consumer, KafkaSettings, KafkaSink
from sluicegate.analytics.kafka.consumer import Keep
from sluicegate.clock import SystemClock
from sluicegate.errors import AnalyticsError
from sluicegate.events import SCHEMA_VERSION, Batch, RequestCount, batch_id, encode

BEGAN_US = 1_700_000_000_000_000
WAIT_S = 60


def batch_of(node: str, sequence: int, decisions: int = 1, *, incarnation: int = 1) -> Batch:
    """The batch of one second of a node."""
    at_us = BEGAN_US + sequence * 1_000_000
    counts = [RequestCount("api", "denied", "free", 3, decisions, 2 * decisions)]
    return Batch(SCHEMA_VERSION, batch_id(node, incarnation, sequence), node, at_us, at_us + 1_000_000, requests=counts)


def parcel_of(batch: Batch) -> Parcel:
    return Parcel(batch, encode(batch))


class CountingHome:
    """Counts every id once, as a home must, and remembers which batches came under which token."""

    def __init__(self) -> None:
        self.decisions: dict[str, int] = {}
        self.tokens: dict[str, list[str]] = {}
        self.calls: list[str] = []
        self.away = False
        self.refused: set[str] = set()
        self.delay_s = 0.0
        self._gate = threading.Lock()

    def keep(self, token: str, batches: Sequence[Batch]) -> None:
        if self.delay_s:
            time.sleep(self.delay_s)
        with self._gate:
            self.calls.append(token)
            if self.away:
                raise AnalyticsError("the home is away")
            ids = [batch.id for batch in batches]
            if self.refused.intersection(ids):
                raise OverflowError("too much for one column")
            assert self.tokens.setdefault(token, ids) == ids, "one token, two contents"
            self.decisions.update((batch.id, batch.decided) for batch in batches)

    @property
    def total(self) -> int:
        with self._gate:
            return sum(self.decisions.values())


class Running:
    """A consumer in a thread of its own."""

    def __init__(self, settings: KafkaSettings, keep: Keep, linger_s: float) -> None:
        self.consumer = Consumer(settings, keep, SystemClock(), linger_s=linger_s, chance=random.Random(1))
        self.failed: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def stats(self):
        return self.consumer.stats

    def _run(self) -> None:
        try:
            self.consumer.run(self._stop.is_set)
        except BaseException as error:
            self.failed = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the consumer does not stop"
        if self.failed is not None:
            raise self.failed


def until(holds: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {wait_s:g} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def wait_until() -> Callable[..., None]:
    return until


@pytest.fixture
def home() -> CountingHome:
    return CountingHome()


@pytest.fixture
def settings(kafka: Broker) -> KafkaSettings:
    """A topic of the test's own, with three partitions, and its dead letters."""
    topic = kafka.new_topic(3)
    kafka.new_topic(1, name=f"{topic}.dead")
    return KafkaSettings(
        kafka.address,
        topic,
        group=f"group-{topic}",
        properties={"reconnect.backoff.max.ms": "200", "linger.ms": "5"},
        session_timeout_ms=6_000,
    )


@pytest.fixture
def consume_with() -> Iterator[Callable[..., Running]]:
    """Begins a consumer; all are stopped at the end."""
    begun: list[Running] = []

    def begin(settings: KafkaSettings, keep: Keep, *, linger_s: float = 0.05) -> Running:
        begun.append(Running(settings, keep, linger_s))
        return begun[-1]

    yield begin
    for each in begun:
        each.stop()


@pytest.fixture
def consume(settings: KafkaSettings, consume_with: Callable[..., Running]) -> Callable[..., Running]:
    """Begins a consumer of the test's topic."""
    return partial(consume_with, settings)


@pytest.fixture
def sink(settings: KafkaSettings) -> Iterator[KafkaSink]:
    made = KafkaSink(settings, SystemClock())
    yield made
    made.close()


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    return batch_of


@pytest.fixture
def tell() -> Callable[..., int]:
    """Hands batches of several nodes to a sink, and gives the number of their decisions. ``flush``: waits until all are acknowledged."""

    def told(sink: KafkaSink, nodes: int, seconds: range, *, flush: bool = True) -> int:
        total = 0
        for sequence in seconds:
            for node in range(nodes):
                decisions = 1 + (node * 7 + sequence * 13) % 50
                sink.offer(parcel_of(batch_of(f"node-{node}", sequence, decisions)))
                total += decisions
        if flush:
            sink.flush(WAIT_S)
            assert sink.held == 0
        return total

    return told
