"""The life of a rules service: compose, listen, serve, drain, exit.

SIGTERM, SIGINT and SIGHUP begin the end: ``/readyz`` turns to 503 and long polls end at once; for ``drain_delay_s`` everything else goes
on as before; then the listener closes, requests in flight finish, and the process exits 0. A second signal cuts what is left and exits 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from sluicegate.app import logs
from sluicegate.app.control.away import needs_of
from sluicegate.app.control.copy import WorkingCopy
from sluicegate.app.control.file import OwningFile
from sluicegate.app.control.node_api import NodeApi, OwnNode
from sluicegate.app.control.settings import ControlSettings, database_url, node_networks
from sluicegate.app.control.traffic import traffic_kept
from sluicegate.app.server import log_loop_fault, loop_factory
from sluicegate.app.signals import StopRequests
from sluicegate.app.tls import ListenerTls, keep_tls_fresh
from sluicegate.clock import Clock, SystemClock
from sluicegate.control.errors import ControlError
from sluicegate.control.http.app import build_app
from sluicegate.control.http.settings import ApiSettings
from sluicegate.control.model import DEFAULT_NAMESPACE
from sluicegate.control.push import RedisPublisher
from sluicegate.control.server import ControlServer
from sluicegate.control.service import RulesService
from sluicegate.control.shared_counters import SharedCounters
from sluicegate.doors.listen import Address, bind, named
from sluicegate.errors import ConfigurationError
from sluicegate.stores.base import Store
from sluicegate.stores.urls import open_store

__all__ = ["opened", "run_control", "serve_control", "serve_on"]

_FORCED = 1


def run_control(settings: ControlSettings, *, out: TextIO | None = None, clock: Clock | None = None) -> int:
    """Serve until told to stop; returns the exit status. Raises ConfigurationError where it cannot start.

    ``out`` (None: standard output) gets one line for the listener when it is open, and the first admin's token where one is made.
    """
    logs.configure(settings.log_format)
    # What uvicorn has to say of faults goes where everything else does.
    logging.getLogger("uvicorn.error").handlers[:] = logs.LOGGER.handlers
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve_control(settings, clock or SystemClock(), out=out or sys.stdout))


async def serve_control(
    settings: ControlSettings, clock: Clock, *, out: TextIO, requests: StopRequests | None = None
) -> int:
    """The life of a rules service on the running loop. ``requests``: how to stop it; None: by signals."""
    asyncio.get_running_loop().set_exception_handler(log_loop_fault)
    if requests is None:
        requests = StopRequests()
        requests.listen()
    async with _bound(settings.listen) as (sock, address):

        def opened(token: str | None) -> None:
            _announce(out, settings, address, token)
            logs.event(logging.INFO, "started", control=address.url_of(settings.scheme))

        return await serve_on([(sock, True)], settings, clock, opened, requests)


async def serve_on(
    sockets: Sequence[tuple[socket.socket, bool]],
    settings: ControlSettings,
    clock: Clock,
    opened: Callable[[str | None], None],
    requests: StopRequests,
    copy: Path | None = None,
) -> int:
    """``serve_control`` on sockets that are bound; of each whether it has the TLS of the settings.

    ``opened`` is called when requests are answered, with the first admin's token where one was made. ``copy``: see ``WorkingCopy``.
    """
    tls = {} if settings.tls is None else {"control": ListenerTls("control", settings.tls, clock)}
    async with (
        _service(settings, clock) as (service, publisher),
        _counters(service, settings, clock) as store,
        traffic_kept(service, settings, clock),
    ):
        background: list[Callable[[], Coroutine[Any, Any, None]]] = [
            needed.keep_watching for needed in needs_of(service, publisher, store)
        ]
        if settings.rules is not None:
            file = OwningFile(settings.rules, settings.data, service)
            await file.take()
            background.append(file.keep_watching)
        elif copy is not None:
            follower = WorkingCopy(copy, settings.data, service)
            with _as_configuration():
                await follower.begin()
            background.append(follower.keep_watching)
        if tls:
            background.append(lambda: keep_tls_fresh(tls))
        # When nothing is left that may keep it from being shown: a later start makes no other one.
        made = await _first_token(service, settings.admin_token)
        app = build_app(service, ApiSettings(node_token=settings.node_token), clock)
        over = tls["control"].layer.over if tls else None
        servers = [ControlServer(app, sock, over=over if secure else None) for sock, secure in sockets]
        for server in servers:
            await server.start()
        opened(made)
        tasks = [asyncio.create_task(work()) for work in background]
        try:
            await requests.stop.wait()
            return await _drain(settings, servers, requests)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _first_token(service: RulesService, chosen: str | None) -> str | None:
    try:
        with named("admin-token"):
            return await service.tokens.bootstrap(chosen)
    except ControlError as error:
        raise ConfigurationError(f"--db: {error}") from error


@contextlib.asynccontextmanager
async def opened(db: str | None, data: Path, clock: Clock) -> AsyncIterator[RulesService]:
    """The service on its database, beside one that may be running, for one change by hand. Raises ConfigurationError."""
    url = database_url(db, data)
    with _as_configuration():
        service = await RulesService.open(url, clock, watched=False)
    async with service:
        yield service


@contextlib.asynccontextmanager
async def _service(
    settings: ControlSettings, clock: Clock
) -> AsyncIterator[tuple[RulesService, RedisPublisher | None]]:
    with named("push"):
        publisher = None if settings.push is None else RedisPublisher(settings.push, DEFAULT_NAMESPACE)
    try:
        url = database_url(settings.db, settings.data)
        with _as_configuration():
            service = await RulesService.open(url, clock, publisher=publisher)
        try:
            yield service, publisher
        finally:
            # A database that is away at the end keeps nobody from ending; what was acknowledged is in it.
            with contextlib.suppress(ControlError):
                await service.close()
    finally:
        if publisher is not None:
            await publisher.close()


@contextlib.asynccontextmanager
async def _counters(service: RulesService, settings: ControlSettings, clock: Clock) -> AsyncIterator[Store | None]:
    """The service reaches the counters of the nodes, as far as it was told how. Gives the store that they share, None where there is none."""
    async with contextlib.AsyncExitStack() as stack:
        store = None
        if settings.store is not None:
            with named("store"):
                store = open_store(settings.store, clock, warm=False, counted=False)
            shared = SharedCounters(store, service.ledger.database, service.snapshot, clock)
            stack.callback(shared.close)
            service.counters.store = shared
        if settings.node_api_token is not None:
            nodes: NodeApi | None = NodeApi(
                service.nodes, clock, settings.node_api_token, allow=node_networks(settings.node_api_allow)
            )
        elif settings.own_api is not None and settings.node_token is not None:
            nodes = OwnNode(service.nodes, clock, settings.node_token, settings.own_api)
        else:
            nodes = None
        if nodes is not None:
            stack.push_async_callback(nodes.close)
            service.counters.nodes = nodes
        yield store


@contextlib.asynccontextmanager
async def _bound(address: Address) -> AsyncIterator[tuple[socket.socket, Address]]:
    """A socket at an address, and the address it really has; the file of a Unix socket is removed at the end."""
    with named("control"):
        sock = await bind(address)
    try:
        yield sock, address if address.path is not None else Address(address.host, sock.getsockname()[1])
    finally:
        sock.close()
        if address.path is not None:
            Path(address.path).unlink(missing_ok=True)  # noqa: ASYNC240 - one local file, at the end


@contextlib.contextmanager
def _as_configuration() -> Iterator[None]:
    """What the database refuses before anything is served, as an error of whoever named it."""
    try:
        yield
    except (ControlError, ConfigurationError) as error:
        raise ConfigurationError(f"--db: {error}") from error


async def _drain(settings: ControlSettings, servers: Sequence[ControlServer], requests: StopRequests) -> int:
    for server in servers:
        server.stop_waiting()
    await requests.unless_forced(asyncio.sleep(settings.drain_delay_s))
    closing: asyncio.Future[Any] = asyncio.gather(*(server.close(settings.drain_timeout_s) for server in servers))
    # Shielded: who insists cuts what is in flight, and it is still closed in order.
    await requests.unless_forced(asyncio.shield(closing))
    if not closing.done():
        for server in servers:
            server.cut()
    await closing
    if requests.force.is_set():
        return _FORCED
    logs.event(logging.INFO, "stopped")
    return 0


def _announce(out: TextIO, settings: ControlSettings, address: Address, token: str | None) -> None:
    lines = [f"{'control':<8} {address.url_of(settings.scheme)}"]
    if token is not None:
        lines.append(f"{'token':<8} {token} (of the first admin; it is shown this once)")
    if settings.rules is not None:
        lines.append(f"{'rules':<8} {settings.rules.absolute()} (owns the rules; an edit is a version)")
    try:
        print("\n".join(lines), file=out, flush=True)
    except OSError as error:
        raise ConfigurationError(f"cannot write to standard output: {error.strerror}") from error
