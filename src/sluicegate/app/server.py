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
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol, TextIO

from sluicegate.app import logs
from sluicegate.app.announce import announce
from sluicegate.app.build import PRIVATE, Application, Listening, Role, build
from sluicegate.app.default_rules import rules_path
from sluicegate.app.settings import Settings
from sluicegate.app.signals import StopRequests
from sluicegate.app.tls import keep_tls_fresh
from sluicegate.app.workers.fleet import Fleet
from sluicegate.clock import Clock, SystemClock
from sluicegate.doors.listen import Address, is_in_use, open_listener
from sluicegate.errors import ConfigurationError
from sluicegate.rules.watched import POLL_INTERVAL_S, RulesFile

__all__ = ["Alone", "Surroundings", "log_loop_fault", "loop_factory", "run_server", "serve"]

_FORCED = 1


def run_server(settings: Settings, *, out: TextIO | None = None, clock: Clock | None = None) -> int:
    """Serve until told to stop; returns the exit status. Raises ConfigurationError where it cannot start.

    ``out`` (None: standard output) gets one line per listener when all are open.
    """
    logs.configure(settings.log_format)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve(settings, Alone(settings, out or sys.stdout), clock or SystemClock()))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's loop where it is installed; it is not made for every platform."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Surroundings(Protocol):
    """What a server process owes to whoever started it. Methods are called on the event loop, in this order."""

    fleet: Fleet | None
    """The workers of which this process is one; None where it is alone."""

    def begin(self, requests: StopRequests) -> None:
        """The loop runs; ``requests`` is how to stop it."""
        ...

    async def open(self, role: Role) -> Listening:
        """Open one listener; raises ConfigurationError."""
        ...

    def opened(self, application: Application, urls: list[tuple[str, str]]) -> None:
        """Every listener is open."""
        ...


class Alone:
    """A process that serves by itself: its listeners are its own, and it says where they are on ``out``. ``then`` is called when it has."""

    fleet: Fleet | None = None

    def __init__(self, settings: Settings, out: TextIO, then: Callable[[], None] | None = None) -> None:
        self._settings = settings
        self._out = out
        self._then = then

    def begin(self, requests: StopRequests) -> None:
        requests.listen()

    async def open(self, role: Role) -> Listening:
        return await role.open()

    def opened(self, application: Application, urls: list[tuple[str, str]]) -> None:
        path = None if application.rules is None else application.rules.path
        announce(self._out, self._settings, urls, path, application.limiter.ruleset)
        if self._then is not None:
            self._then()


async def serve(settings: Settings, surroundings: Surroundings, clock: Clock) -> int:
    """The life of one server process on the running loop; returns its exit status, raises ConfigurationError."""
    asyncio.get_running_loop().set_exception_handler(log_loop_fault)
    requests = StopRequests()
    surroundings.begin(requests)
    application = build(settings, rules_path(settings), clock, surroundings.fleet)
    background: list[asyncio.Task[None]] = []
    try:
        await application.store_watch.warm()
        if application.feed is not None:
            await requests.unless_stopped(application.feed.begin())
            if requests.stop.is_set():
                # It may have waited long for rules, and nothing was served yet.
                return 0
        if application.key_sets.due:
            # Before the first request, which may carry a token; an issuer that cannot be reached delays nobody for long.
            await asyncio.to_thread(application.key_sets.refresh)
        async with _listening(application, settings, surroundings) as listeners:
            schemes = {role.name: role.scheme for role in application.roles}
            urls = [
                (name, each.address.url_of(schemes.get(name, "http")))
                for name, each in listeners.items()
                # That of a process by itself is for the rules service beside it, which knows where it is.
                if name != PRIVATE or surroundings.fleet is not None
            ]
            application.status.listeners.update(urls)
            application.status.started = True
            if application.flusher is not None:
                application.flusher.start()
            if application.accuracy is not None:
                application.accuracy.start()
            surroundings.opened(application, urls)
            # What is here now stays; the collector need not look at it again in the middle of a request.
            gc.freeze()
            state = application.rules_state
            logs.event(logging.INFO, "started", version=state.version, digest=state.digest, **dict(urls))
            background.append(asyncio.create_task(_keep_rules(application, dict(urls))))
            background.append(asyncio.create_task(application.key_sets.keep_fresh()))
            background.append(asyncio.create_task(application.store_watch.keep_watching()))
            if application.tls:
                background.append(asyncio.create_task(keep_tls_fresh(application.tls)))
            await requests.stop.wait()
            return await _drain(application, settings, listeners, requests)
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        await application.close()


@contextlib.asynccontextmanager
async def _listening(
    application: Application, settings: Settings, surroundings: Surroundings
) -> AsyncIterator[dict[str, Listening]]:
    """Open every listener or none; all are closed at the end."""
    listeners: dict[str, Listening] = {}
    try:
        demo = application.demo
        if demo is not None:
            listeners["demo"] = await open_listener(Address("127.0.0.1", 0), demo.protocol)
            application.start_gateway([listeners["demo"].address.url])
        elif settings.gateway is not None:
            application.start_gateway(settings.upstreams)
        opened: dict[str, Listening] = {}
        for role in tuple(application.roles):
            try:
                opened[role.name] = listeners[role.name] = await surroundings.open(role)
            except ConfigurationError as error:
                if role.name != "grpc" or not settings.grpc_by_default or not is_in_use(error):
                    raise
                application.give_up(role)
        yield {**opened, **listeners}
    finally:
        for listener in listeners.values():
            listener.close()


async def _drain(
    application: Application, settings: Settings, listeners: dict[str, Listening], requests: StopRequests
) -> int:
    application.status.stopping = True
    await requests.unless_forced(asyncio.sleep(settings.drain_delay_s))
    for name, listener in listeners.items():
        # The demo backend stays for the requests that the gateway is still serving.
        if name != "demo":
            listener.close()
    drains = [role.connections.drain(settings.drain_timeout_s) for role in application.roles]
    finished = await requests.unless_forced(asyncio.gather(*drains))
    if requests.force.is_set():
        return _FORCED
    logs.event(logging.INFO, "stopped", cut_off=sum(finished))
    return 0


async def _keep_rules(application: Application, urls: dict[str, str]) -> None:
    """Keep the rules as their source has them, for as long as the process lives."""
    if application.feed is not None:
        node = application.feed.node
        node.listeners.update(urls)
        jobs = [node.run()]
        if application.feed.settings.first_watched and application.rules is not None:
            jobs.append(_watch_rules(application, application.rules, lambda: node.standing.heard))
        await asyncio.gather(*jobs)
    elif application.rules is not None:
        await _watch_rules(application, application.rules, lambda: False)


async def _watch_rules(application: Application, rules: RulesFile, ends: Callable[[], bool]) -> None:
    """Poll the rule file until ``ends``; reading and compiling happen beside the loop."""
    state = rules.state
    while not ends():
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


def log_loop_fault(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log what no task was waiting for."""
    logs.LOGGER.error(
        "internal_error", exc_info=context.get("exception"), extra={"fields": {"what": context["message"]}}
    )
