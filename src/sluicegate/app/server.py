"""The life of a server process: compose, listen, serve, drain, exit.

SIGTERM, SIGINT and SIGHUP (a closed terminal) begin the end: ``/readyz`` turns to 503 at once, so that a load balancer looks elsewhere; for ``drain_delay_s``
everything goes on as before; then the listeners close, requests in flight finish, and the process exits 0. A second signal
cuts what is left and exits 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TextIO

from sluicegate.app import logs
from sluicegate.app.announce import announce
from sluicegate.app.build import Application, build
from sluicegate.app.rules_file import POLL_INTERVAL_S
from sluicegate.app.settings import Settings
from sluicegate.clock import Clock, SystemClock
from sluicegate.doors.listen import Address, Listener, open_listener
from sluicegate.errors import ConfigurationError

__all__ = ["run_server"]

_FORCED = 1

_ONE_REQUEST_S = 0.2
"""Signals this close together are one request to stop: a supervisor and a process group often deliver it twice."""


def run_server(settings: Settings, *, out: TextIO | None = None, clock: Clock | None = None) -> int:
    """Serve until told to stop; returns the exit status. Raises ConfigurationError where it cannot start.

    ``out`` (None: standard output) gets one line per listener when all are open.
    """
    logs.configure(settings.log_format)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(settings, out or sys.stdout, clock or SystemClock()))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed; it is not made for every platform."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _Signals:
    """Counts the requests to stop. ``stop`` is set by the first, ``force`` by the second."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stopped_s = 0.0
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # Under nohup SIGHUP is ignored, and stays so.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._arrived, number)

    def _arrived(self, number: signal.Signals) -> None:
        if not self.stop.is_set():
            logs.event(logging.INFO, "stop_requested", signal=number.name)
            self._stopped_s = self._loop.time()
            self.stop.set()
        elif self._loop.time() - self._stopped_s >= _ONE_REQUEST_S:
            logs.event(logging.WARNING, "stop_forced", signal=number.name)
            self.force.set()


async def _serve(settings: Settings, out: TextIO, clock: Clock) -> int:
    asyncio.get_running_loop().set_exception_handler(_log_loop_fault)
    signals = _Signals()
    application = build(settings, _rules_path(settings), clock)
    background: list[asyncio.Task[None]] = []
    try:
        if application.key_sets.due:
            # Before the first request, which may carry a token; an issuer that cannot be reached delays nobody for long.
            await asyncio.to_thread(application.key_sets.refresh)
        async with _listening(application, settings) as listeners:
            urls = [(name, listener.address.url) for name, listener in listeners.items()]
            application.status.listeners.update(urls)
            application.status.started = True
            announce(out, settings, urls, application.rules.path, application.ruleset)
            # What is here now stays; the collector need not look at it again in the middle of a request.
            gc.freeze()
            state = application.rules.state
            logs.event(logging.INFO, "started", version=state.version, digest=state.digest, **dict(urls))
            background.append(asyncio.create_task(_watch_rules(application)))
            background.append(asyncio.create_task(application.key_sets.keep_fresh()))
            await signals.stop.wait()
            return await _drain(application, settings, listeners, signals)
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await application.close()


@contextlib.asynccontextmanager
async def _listening(application: Application, settings: Settings) -> AsyncIterator[dict[str, Listener]]:
    """Open every listener or none; all are closed at the end."""
    listeners: dict[str, Listener] = {}
    try:
        demo = application.demo
        if demo is not None:
            listeners["demo"] = await open_listener(Address("127.0.0.1", 0), demo.protocol)
            application.start_gateway([listeners["demo"].address.url])
        elif settings.gateway is not None:
            application.start_gateway(settings.upstreams)
        opened: dict[str, Listener] = {}
        for role in application.roles:
            opened[role.name] = listeners[role.name] = await open_listener(role.address, role.protocol_factory)
        yield {**opened, **listeners}
    finally:
        for listener in listeners.values():
            listener.close()


async def _drain(
    application: Application, settings: Settings, listeners: dict[str, Listener], signals: _Signals
) -> int:
    application.status.stopping = True
    await _unless_forced(asyncio.sleep(settings.drain_delay_s), signals)
    for name, listener in listeners.items():
        # The demo backend stays for the requests that the gateway is still serving.
        if name != "demo":
            listener.close()
    drains = [role.connections.drain(settings.drain_timeout_s) for role in application.roles]
    finished = await _unless_forced(asyncio.gather(*drains), signals)
    if signals.force.is_set():
        return _FORCED
    logs.event(logging.INFO, "stopped", cut_off=sum(finished))
    return 0


async def _unless_forced(work: Any, signals: _Signals) -> Any:
    """The result of ``work``, or None where a second signal came first."""
    task = asyncio.ensure_future(work)
    forced = asyncio.ensure_future(signals.force.wait())
    await asyncio.wait({task, forced}, return_when=asyncio.FIRST_COMPLETED)
    forced.cancel()
    if task.done():
        return task.result()
    task.cancel()
    return None


async def _watch_rules(application: Application) -> None:
    """Poll the rule file for as long as the process lives; reading and compiling happen beside the loop."""
    rules, state = application.rules, application.rules.state
    while True:
        await asyncio.sleep(POLL_INTERVAL_S)
        version = state.version
        try:
            changed = await asyncio.to_thread(rules.poll, application.apply)
        except Exception:  # noqa: BLE001
            # A fault of ours in reading rules must not end the watch: the next edit may well be read.
            logs.LOGGER.exception("rules_watch_failed")
            continue
        if not changed:
            continue
        if state.error is not None:
            logs.event(logging.ERROR, "rules_rejected", serving=state.version, error=state.error)
        elif state.version != version:
            logs.event(logging.INFO, "rules_accepted", version=state.version, digest=state.digest)
        else:
            logs.event(logging.INFO, "rules_as_before", version=state.version, digest=state.digest)


def _log_loop_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    logs.LOGGER.error(
        "internal_error", exc_info=context.get("exception"), extra={"fields": {"what": context["message"]}}
    )


def _rules_path(settings: Settings) -> Path:
    """The rule file to serve: the one that was named, or ``data/rules.yaml``, written from the embedded rules if absent."""
    if settings.rules is not None:
        return settings.rules
    path = settings.data / "rules.yaml"
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), path.open("x") as file:
            file.write((Path(__file__).parent / "defaults.yaml").read_text())
    except OSError as error:
        raise ConfigurationError(f"cannot write {path}: {error.strerror}") from error
    return path
