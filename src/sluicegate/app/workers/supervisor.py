"""The first process: it starts workers, starts them again when they end, and ends with them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from sluicegate.app import logs
from sluicegate.app.announce import announce
from sluicegate.app.control.beside import ServiceBeside, opened_beside
from sluicegate.app.default_rules import rules_path
from sluicegate.app.demo import DemoBackend
from sluicegate.app.embedded import EmbeddedStore
from sluicegate.app.server import log_loop_fault
from sluicegate.app.settings import Settings, is_embedded
from sluicegate.app.signals import StopRequests
from sluicegate.app.workers.directory import RunDirectory
from sluicegate.app.workers.messages import FromSupervisor, Restarts, Start, Stop
from sluicegate.app.workers.pacing import Pacing
from sluicegate.app.workers.ports import Ports
from sluicegate.app.workers.process import WorkerProcess, describe
from sluicegate.bounds import LISTEN_BACKLOG, WORKER_STOP_MARGIN_S
from sluicegate.clock import Clock, SystemClock
from sluicegate.doors.listen import Address, open_listener
from sluicegate.errors import ConfigurationError, MissingExtra, SluicegateError
from sluicegate.rules.watched import RulesFile

__all__ = ["Supervisor", "run_workers"]

_FORCED = 1


def run_workers(settings: Settings, *, out: TextIO | None = None, clock: Clock | None = None) -> int:
    """Serve with ``settings.workers`` processes until told to stop; returns the exit status, raises ConfigurationError.

    ``out`` (None: standard output) gets one line per listener when all workers are ready.
    """
    if not sys.platform.startswith("linux"):
        raise ConfigurationError(
            "several workers and the embedded store need Linux; use --workers 1 and another --store"
        )
    logs.configure(settings.log_format)
    return asyncio.run(_supervise(settings, out or sys.stdout, clock or SystemClock()))


async def _supervise(settings: Settings, out: TextIO, clock: Clock) -> int:
    asyncio.get_running_loop().set_exception_handler(log_loop_fault)
    requests = StopRequests()
    requests.listen()
    async with contextlib.AsyncExitStack() as stack:
        settings, service = await stack.enter_async_context(opened_beside(settings, clock, out))
        supervisor = Supervisor(settings, clock, stack, service)
        starting = asyncio.ensure_future(supervisor.start(out))
        stopping = asyncio.ensure_future(requests.stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        if not starting.cancelled():
            starting.result()
        await stopping
        return await supervisor.stop(requests)


class Supervisor:
    """Everything that the processes of one server share. What is opened is closed by ``stack``, in reverse order."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        stack: contextlib.AsyncExitStack,
        service: ServiceBeside | None = None,
    ) -> None:
        self._given = settings
        self._service = service
        self._settings = settings
        """What the workers are told: addresses, store and upstreams as they were found."""
        self._clock = clock
        self._stack = stack
        self._ports = Ports()
        self._store: EmbeddedStore | None = None
        self._directory = Path()
        self._running: dict[int, WorkerProcess] = {}
        self._spawning: set[asyncio.Future[WorkerProcess]] = set()
        self._restarts: dict[int, int] = {}
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self, out: TextIO) -> None:
        """Open what is shared, start all workers, say where they listen. Raises ConfigurationError; the stack undoes what was done."""
        given = self._given
        path = rules_path(given)
        ruleset = None if path is None else RulesFile(path, self._clock).load()
        if self._service is None:
            directory = RunDirectory(given.data)
            self._stack.callback(directory.close)
        else:
            directory = self._service.directory
        self._directory = directory.path
        self._stack.callback(self._ports.close)
        wanted = {"gateway": given.gateway, "api": given.api, "health": given.health, "grpc": given.grpc}
        await self._ports.take(wanted, LISTEN_BACKLOG, ("grpc",) if given.grpc_by_default else ())
        demo = await self._open_demo()
        store = await self._open_store()
        found = self._ports.addresses.get
        self._settings = replace(
            given, control=None, rules=path, upstreams=demo or given.upstreams, store=store,
            gateway=found("gateway"), api=found("api"), health=found("health"), grpc=found("grpc"),
        )  # fmt: skip
        self._stack.push_async_callback(self._end)
        numbers = range(1, given.workers + 1)
        # The first one finds what is wrong; it is said once.
        listeners = (await (await self._spawn(1)).ready()).listeners
        others = await asyncio.gather(*(self._spawn(number) for number in numbers[1:]))
        await asyncio.gather(*(worker.ready() for worker in others))
        self._keepers += [asyncio.create_task(self._keep(number)) for number in numbers]
        if self._store is not None:
            self._keepers.append(asyncio.create_task(self._store.keep()))
        shown = [(name, url) for name, url in listeners if name != "private"] + [("demo", url) for url in demo]
        announce(out, given, shown, path, None if given.feed is not None and self._service is None else ruleset)
        if self._service is not None:
            self._service.start()
        logs.event(logging.INFO, "workers_started", workers=given.workers, **dict(shown))

    async def stop(self, requests: StopRequests) -> int:
        """Let all workers drain, then end those that are left; the exit status."""
        await self._stop_keeping()
        if not self._running:
            return 0
        self._tell(Stop())
        ended = asyncio.gather(*(worker.wait() for worker in self._running.values()))
        forced = asyncio.ensure_future(requests.force.wait())
        limit_s = self._given.drain_delay_s + self._given.drain_timeout_s + WORKER_STOP_MARGIN_S
        waited: set[asyncio.Future[Any]] = {ended, forced}
        await asyncio.wait(waited, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done() and requests.force.is_set():
            self._tell(Stop(force=True))
            await asyncio.wait({ended}, timeout=WORKER_STOP_MARGIN_S)
        forced.cancel()
        self._kill()
        statuses = await ended
        if any(statuses):
            return _FORCED
        logs.event(logging.INFO, "stopped", workers=len(statuses))
        return 0

    # ------------------------------------------------------------------ what is shared

    async def _open_demo(self) -> tuple[str, ...]:
        """One demo backend for all workers, where one is wanted, since it counts what reaches it; its URL."""
        if not self._given.demo:
            return ()
        listener = await open_listener(Address("127.0.0.1", 0), DemoBackend().protocol)
        self._stack.callback(listener.close)
        return (listener.address.url,)

    async def _open_store(self) -> str:
        """Start the embedded store, where it is wanted; the URL of the store."""
        url = self._given.store
        if not is_embedded(url):
            return url
        try:
            self._store = EmbeddedStore(url, self._directory, self._clock, self._tell_restarts)
        except MissingExtra as error:
            if self._given.workers == 1:
                raise
            raise ConfigurationError(
                f"--workers {self._given.workers}: {error}. Without a store that processes share, each worker would admit the whole limit; "
                "redis://... is such a store too (--store), and --workers 1 needs none"
            ) from error
        self._stack.push_async_callback(self._store.stop)
        await self._store.start()
        return self._store.url

    # ------------------------------------------------------------------ workers

    async def _spawn(self, number: int) -> WorkerProcess:
        """Start one worker. Who waits for it may be cancelled; the worker is known all the same, so that it is ended."""
        task = asyncio.ensure_future(self._spawn_known(number))
        self._spawning.add(task)
        task.add_done_callback(self._spawning.discard)
        return await asyncio.shield(task)

    async def _spawn_known(self, number: int) -> WorkerProcess:
        sockets = {name: held.fileno() for name, held in self._ports.sockets.items()}
        start = Start(number, self._given.workers, self._settings, self._directory, sockets, self._counts())
        worker = self._running[number] = await WorkerProcess.spawn(start)
        return worker

    async def _keep(self, number: int) -> None:
        """Start a worker again whenever it ends, until cancelled."""
        pacing = Pacing(self._clock)
        while True:
            worker = self._running.get(number)
            how = "not started" if worker is None else describe(await worker.wait())
            self._running.pop(number, None)
            pause_s = pacing.died()
            logs.event(logging.ERROR, "worker_ended", worker=number, how=how, restart_in_s=pause_s)
            await asyncio.sleep(pause_s)
            self._restarts[number] = self._restarts.get(number, 0) + 1
            pacing.born()
            try:
                worker = await self._spawn(number)
                self._tell_restarts()
                await worker.ready()
                logs.event(logging.INFO, "worker_restarted", worker=number, pid=worker.pid)
            except (SluicegateError, OSError) as error:
                # It is tried again, at the pace of what cannot live.
                logs.event(logging.ERROR, "worker_not_started", worker=number, error=str(error))
                if number in self._running:
                    self._running[number].kill()

    def _counts(self) -> Restarts:
        return Restarts(dict(self._restarts), 0 if self._store is None else self._store.restarts)

    def _tell_restarts(self) -> None:
        self._tell(self._counts())

    def _tell(self, message: FromSupervisor) -> None:
        for worker in self._running.values():
            worker.tell(message)

    async def _stop_keeping(self) -> None:
        """From here on nothing is started again, and every process that was is known."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, *self._spawning, return_exceptions=True)
        self._keepers.clear()

    def _kill(self) -> None:
        for number, worker in self._running.items():
            if worker.kill():
                logs.event(logging.WARNING, "worker_killed", worker=number, pid=worker.pid)

    async def _end(self) -> None:
        """Whatever happened, no worker is left."""
        await self._stop_keeping()
        self._kill()
        await asyncio.gather(*(worker.wait() for worker in self._running.values()))
