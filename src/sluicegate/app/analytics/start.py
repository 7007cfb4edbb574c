"""Analytics of one process put together: a recorder on its limiter, a sink by its settings, and the flusher between them."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from sluicegate.analytics.embedded import EmbeddedHome, EmbeddedSink
from sluicegate.analytics.home import Sink
from sluicegate.analytics.offenders.names import Names, load_secrets
from sluicegate.app.analytics.flusher import Flusher
from sluicegate.app.analytics.homes import HOME_FILE
from sluicegate.app.analytics.settings import AnalyticsSettings
from sluicegate.bounds import NODE_NAME_CHARS_MAX
from sluicegate.clock import Clock, SystemClock
from sluicegate.errors import ConfigurationError, MissingExtra
from sluicegate.limiter.limiter import Limiter
from sluicegate.limiter.recording import Recorder

__all__ = ["node_name", "recorded", "recording"]

_LOG: Final = logging.getLogger("sluicegate.analytics")


def recording(
    limiter: Limiter,
    settings: AnalyticsSettings,
    data: Path,
    clock: Clock,
    *,
    node: str = "",
    worker: int | None = None,
    follow: bool = True,
) -> Flusher | None:
    """A flusher of what ``limiter`` decides from now on, to be started; None where the settings say "off".

    ``node``: its name; "": the machine's. ``worker``: its number among several processes. ``follow``: see ``Recorder``.
    Raises ConfigurationError for settings that cannot be used, and MissingExtra. That a broker or a disk is away is none: it may come.
    """
    if settings.goes_to == "off":
        return None
    sink = _sink(settings, data, clock)
    name_of = _names(settings, data)
    recorder = Recorder(clock, name_of=name_of, follow=follow)
    limiter.record(recorder)
    return Flusher(recorder, sink, clock, node_name(node, worker))


def node_name(node: str, worker: int | None) -> str:
    """What a process is called in what it tells: without its number, so that a restart is no new node."""
    name = node or socket.gethostname() or "node"
    return name[: NODE_NAME_CHARS_MAX - 8] if worker is None else f"{name[: NODE_NAME_CHARS_MAX - 8]}-{worker}"


@contextlib.contextmanager
def recorded(
    limiter: Limiter,
    data: Path | str = ".sluicegate",
    *,
    settings: AnalyticsSettings | None = None,
    node: str = "",
    clock: Clock | None = None,
) -> Iterator[Flusher | None]:
    """For who uses the library: what ``limiter`` decides inside is told to the home in ``data``. At the end the rest is told, within seconds.

    Several processes may use one directory. Raises ConfigurationError.
    """
    folder = Path(data)
    chosen = settings or AnalyticsSettings()
    flusher = recording(limiter, chosen, folder, clock or SystemClock(), node=node, follow=False)
    if flusher is None:
        yield None
        return
    flusher.start()
    try:
        yield flusher
    finally:
        flusher.stop()
        limiter.record(None)


def _names(settings: AnalyticsSettings, data: Path) -> Callable[[str], str]:
    if settings.subjects == "plain":
        return str
    try:
        return Names(load_secrets(data, file=settings.secret_file))
    except ConfigurationError as error:
        if settings.mode != "auto" or settings.secret_file is not None:
            raise
        # Nobody asked for it by name, so it keeps nobody from serving; what is told then tells nobody who it was.
        _LOG.warning("analytics_secret_not_kept", extra={"fields": {"error": str(error)}})
        return Names((secrets.token_bytes(32),))


def _sink(settings: AnalyticsSettings, data: Path, clock: Clock) -> Sink:
    if settings.kafka is None:
        return EmbeddedSink(EmbeddedHome(data / HOME_FILE, settings.retention), clock)
    from sluicegate.analytics.kafka.settings import TOPIC, KafkaSettings, read_properties

    properties = {} if settings.kafka_config is None else read_properties(settings.kafka_config)
    wanted = KafkaSettings(settings.kafka, settings.kafka_topic or TOPIC, properties=properties)
    try:
        from sluicegate.analytics.kafka.sink import KafkaSink
    except ModuleNotFoundError as error:
        raise MissingExtra("kafka", "telling decisions to Kafka") from error
    return KafkaSink(wanted, clock)
