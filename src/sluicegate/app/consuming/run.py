"""The life of a consuming process: connect, consume in a thread, answer about itself, finish the block, exit.

SIGTERM, SIGINT and SIGHUP begin the end: the turn under way is finished, what is in the home is committed, the group is left, and the process exits 0.
A second signal does not wait for that and exits 1; nothing is lost by it, the next consumer reads the block again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Final, TextIO

from sluicegate.analytics.home import Home
from sluicegate.analytics.kafka import Consumer, ConsumerStats
from sluicegate.analytics.kafka.consumer import Keep
from sluicegate.app import logs
from sluicegate.app.analytics.accuracy import AccuracyWatch
from sluicegate.app.analytics.homes import open_home
from sluicegate.app.consuming.health import HealthSite
from sluicegate.app.consuming.settings import ConsumingSettings
from sluicegate.app.server import log_loop_fault, loop_factory
from sluicegate.app.signals import StopRequests
from sluicegate.clock import US_PER_S, Clock, SystemClock
from sluicegate.doors.listen import Address, named, open_listener
from sluicegate.errors import AnalyticsError, ConfigurationError
from sluicegate.events import Batch

__all__ = ["keeper_of", "run_consuming"]

_FAILED: Final = 1
_PRUNE_EVERY_US: Final = 20 * US_PER_S


def run_consuming(settings: ConsumingSettings, *, out: TextIO | None = None, clock: Clock | None = None) -> int:
    """Consume until told to stop; the exit status. Raises ConfigurationError where it cannot start.

    ``out`` (None: standard output) gets a line for what is read, one for the home and one for the listener.
    """
    logs.configure(settings.log_format)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_consume(settings, clock or SystemClock(), out or sys.stdout))


def keeper_of(home: Home, clock: Clock) -> Keep:
    """Puts blocks into a home, and prunes it now and then where it does not do so by itself. Homes know batches by their ids and need no token."""
    pruned_us = clock.monotonic_us()

    def keep(_token: str, batches: Sequence[Batch]) -> None:
        nonlocal pruned_us
        home.ingest(batches)
        if clock.monotonic_us() - pruned_us >= _PRUNE_EVERY_US:
            pruned_us = clock.monotonic_us()
            # Whatever came of it, the block is in; what is old goes another time.
            with contextlib.suppress(AnalyticsError):
                home.prune(clock.now_us())

    return keep


async def _consume(settings: ConsumingSettings, clock: Clock, out: TextIO) -> int:
    asyncio.get_running_loop().set_exception_handler(log_loop_fault)
    requests = StopRequests()
    requests.listen()
    home = _home(settings)
    thread = None
    try:
        consumer = Consumer(settings.kafka, keeper_of(home, clock), clock, linger_s=settings.linger_s)
        accuracy = AccuracyWatch(home, clock, partial(_known_us, consumer.stats, clock))
        health = HealthSite(consumer.stats, clock, accuracy)
        async with _listening(settings.health, health) as address:
            thread = _Thread(consumer, asyncio.get_running_loop())
            accuracy.start()
            health.running = True
            _announce(out, settings, address)
            logs.event(logging.INFO, "started", kafka=settings.kafka.brokers, topic=settings.kafka.topic)
            ended = asyncio.ensure_future(thread.ended.wait())
            await requests.unless_stopped(asyncio.shield(ended))
            health.running = False
            thread.stop.set()
            await requests.unless_forced(asyncio.shield(ended))
            ended.cancel()
            await asyncio.to_thread(accuracy.stop)
            return _status(thread, requests)
    finally:
        # A thread that is still inside an insert has the home; it ends with the process.
        if thread is None or thread.ended.is_set():
            home.close()


def _known_us(stats: ConsumerStats, clock: Clock) -> int:
    """Up to when the home was told: what still waits in Kafka is not judged before it is there."""
    return stats.told_until_us if stats.lag and stats.told_until_us else clock.now_us()


def _status(thread: _Thread, requests: StopRequests) -> int:
    if thread.failure is not None:
        logs.LOGGER.error("consumer_failed", exc_info=thread.failure)
        return _FAILED
    if not thread.ended.is_set() or requests.force.is_set():
        return _FAILED
    logs.event(logging.INFO, "stopped")
    return 0


class _Thread:
    """Runs the consumer. ``ended`` is set on the loop when it has; ``failure``: why, where nobody asked for it."""

    def __init__(self, consumer: Consumer, loop: asyncio.AbstractEventLoop) -> None:
        self.ended = asyncio.Event()
        self.stop = threading.Event()
        self.failure: BaseException | None = None
        self._consumer = consumer
        self._loop = loop
        threading.Thread(target=self._run, name="consumer", daemon=True).start()

    def _run(self) -> None:
        try:
            self._consumer.run(self.stop.is_set)
        except BaseException as error:  # noqa: BLE001 - told by who waits for the end
            self.failure = error
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits
            self._loop.call_soon_threadsafe(self.ended.set)


def _home(settings: ConsumingSettings) -> Home:
    """The home, asked once: what will never work is said at once, what may work later is tried later."""
    home = open_home(settings.data, settings.clickhouse)
    try:
        if settings.clickhouse is None:
            settings.data.mkdir(parents=True, exist_ok=True)
            if not os.access(settings.data, os.W_OK):
                raise ConfigurationError(f"--data: cannot write to {str(settings.data)!r}")
        else:
            # The embedded one is made with its first batch, maybe by another process just now.
            home.status()
    except AnalyticsError as error:
        if not error.transient:
            home.close()
            raise ConfigurationError(str(error)) from error
        logs.event(logging.WARNING, "home_away", error=str(error))
    except OSError as error:
        raise ConfigurationError(f"--data: cannot use {str(settings.data)!r}: {error.strerror}") from error
    return home


@contextlib.asynccontextmanager
async def _listening(address: Address | None, health: HealthSite) -> AsyncIterator[Address | None]:
    if address is None:
        yield None
        return
    with named("health"):
        listener = await open_listener(address, health.protocol_factory)
    try:
        yield listener.address
    finally:
        listener.close()
        await health.drain()


def _announce(out: TextIO, settings: ConsumingSettings, health: Address | None) -> None:
    kafka = settings.kafka
    home = str(settings.data) if settings.clickhouse is None else settings.clickhouse
    lines = [f"{'kafka':<8} {kafka.brokers} topic {kafka.topic} group {kafka.group}", f"{'home':<8} {home}"]
    if health is not None:
        lines.append(f"{'health':<8} {health.url}")
    try:
        print("\n".join(lines), file=out, flush=True)
    except OSError as error:
        raise ConfigurationError(f"cannot write to standard output: {error.strerror}") from error
