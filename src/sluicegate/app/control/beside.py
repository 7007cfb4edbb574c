"""The rules service beside the nodes that ``up`` runs: a process of its own, which none of them waits for.

What outlives it is here, in the process that starts it: the directory of the start with its lock, and the two listening sockets, so that who asks while it
is started again waits instead of being refused. Nodes ask over the private one, a Unix socket, whatever TLS the other one has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final, TextIO

from sluicegate.app import logs
from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.control.taken import edited_since
from sluicegate.app.default_rules import rules_path
from sluicegate.app.embedded import EmbeddedUrl
from sluicegate.app.feed.settings import NO_PUSH, FeedSettings
from sluicegate.app.settings import Settings, is_embedded
from sluicegate.app.tls import ListenerTls
from sluicegate.app.workers.directory import RunDirectory, control_socket, own_api_socket, store_socket
from sluicegate.app.workers.messages import ControlReady, Failed, StartControl, Stop, encode, from_worker
from sluicegate.app.workers.pacing import Pacing
from sluicegate.app.workers.process import describe, environment, interpreter_flags
from sluicegate.bounds import CONTROL_START_S, LISTEN_BACKLOG, WORKER_MESSAGE_BYTES_MAX, WORKER_STOP_MARGIN_S
from sluicegate.clock import Clock
from sluicegate.doors.listen import Address, bind, is_in_use, named
from sluicegate.errors import ConfigurationError

__all__ = ["ServiceBeside", "is_control_installed", "opened_beside"]

_MODULE: Final = "sluicegate.app.control.child"
_PACKAGES: Final = ("sqlalchemy", "alembic", "aiosqlite", "fastapi", "uvicorn")


def is_control_installed() -> bool:
    """Whether everything that a rules service needs is installed: the extra ``control``."""
    return all(find_spec(package) is not None for package in _PACKAGES)


class ServiceBeside:
    """The process. ``directory``: of the start; its private socket is in there."""

    def __init__(
        self,
        settings: ControlSettings,
        copy: Path | None,
        directory: RunDirectory,
        sockets: tuple[socket.socket, socket.socket],
        clock: Clock,
        out: TextIO,
    ) -> None:
        self.directory = directory
        self.restarts = 0
        self._settings = settings
        self._copy = copy
        self._sockets = sockets
        self._pacing = Pacing(clock)
        self._out = out
        self._process: asyncio.subprocess.Process | None = None
        self._reader = asyncio.StreamReader()
        self._writer: asyncio.StreamWriter | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._announced = False
        self._is_ready = False

    def start(self) -> None:
        """Begin to start it, and to start it again whenever it ends; returns at once."""
        self._keeping = asyncio.ensure_future(self._keep())

    async def stop(self, limit_s: float) -> None:
        """Let it finish what is in flight; after ``limit_s`` seconds it is ended."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        process = self._process
        if process is None or self._writer is None:
            await self._end()
            return
        self._tell(Stop())
        try:
            async with asyncio.timeout(limit_s):
                if not self._is_ready:
                    # It may have made the first token meanwhile, and would not make another one.
                    with contextlib.suppress(ConfigurationError, OSError):
                        self._told(await self._first_word())
                await process.wait()
        except TimeoutError:
            logs.event(logging.WARNING, "control_killed", pid=process.pid)
        await self._end()

    async def _keep(self) -> None:
        while True:
            self._pacing.born()
            status = await self._live()
            pause_s = self._pacing.died()
            logs.event(logging.ERROR, "control_ended", how=describe(status), restart_in_s=pause_s)
            await asyncio.sleep(pause_s)
            self.restarts += 1

    async def _live(self) -> int:
        """One life of the process, from its start to its end; returns its exit status."""
        try:
            await self._spawn()
            self._told(await self._first_word())
        except (ConfigurationError, OSError) as error:
            # It is tried again, at the pace of what cannot live; the nodes go on by what they have.
            logs.event(logging.ERROR, "control_not_started", error=str(error))
            await self._end()
        except Exception:  # noqa: BLE001
            # A fault of ours must not leave the service without anybody who starts it again.
            logs.LOGGER.exception("control_watch_failed")
            await self._end()
        status = 0 if self._process is None else await self._process.wait()
        await self._end()
        return status

    async def _spawn(self) -> None:
        self._is_ready = False
        ours, theirs = socket.socketpair()
        descriptors = [held.fileno() for held in self._sockets]
        with contextlib.ExitStack() as undo, theirs:
            undo.callback(ours.close)
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *interpreter_flags(), "-m", _MODULE, str(theirs.fileno()),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno(), *descriptors],
                # The terminal's Ctrl-C is for this process: the nodes still need the service while they drain.
                start_new_session=True, env=environment(),
            )  # fmt: skip
            undo.pop_all()
        self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=WORKER_MESSAGE_BYTES_MAX)
        listener, private = descriptors
        self._tell(StartControl(self._settings, listener, private, self._copy))

    async def _first_word(self) -> ControlReady:
        try:
            async with asyncio.timeout(CONTROL_START_S):
                line = await self._reader.readline()
        except TimeoutError:
            raise ConfigurationError(f"the rules service was not ready after {CONTROL_START_S:g} s") from None
        except ValueError:
            line = b""
        message = from_worker(line) if line else Failed("it ended before it was ready")
        if isinstance(message, Failed):
            raise ConfigurationError(message.reason)
        assert isinstance(message, ControlReady), "what a rules service says"
        return message

    def _told(self, message: ControlReady) -> None:
        assert self._process is not None, "it has said something"
        self._is_ready = True
        logs.event(logging.INFO, "control_started", pid=self._process.pid, control=self._url)
        lines = [] if self._announced else [f"{'control':<8} {self._url}"]
        self._announced = True
        if message.token is not None:
            lines.append(f"{'token':<8} {message.token} (of the first admin; it is shown this once)")
        with contextlib.suppress(OSError):
            print("".join(f"{line}\n" for line in lines), end="", file=self._out, flush=True)

    @property
    def _url(self) -> str:
        return self._settings.listen.url_of(self._settings.scheme)

    def _tell(self, message: StartControl | Stop) -> None:
        if self._writer is not None:
            self._writer.write(encode(message))

    async def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@contextlib.asynccontextmanager
async def opened_beside(
    settings: Settings, clock: Clock, out: TextIO
) -> AsyncIterator[tuple[Settings, ServiceBeside | None]]:
    """The service of ``settings.control``, to be started when the nodes listen, and the settings of its nodes. None: there is none, or it was spared.

    At the end it is stopped. Raises ConfigurationError for an address, a file or a directory that cannot be used.
    """
    control = settings.control
    if control is None:
        yield settings, None
        return
    async with contextlib.AsyncExitStack() as stack:
        try:
            with named("control"):
                listener = await bind(control.listen)
        except ConfigurationError as error:
            if not settings.control_by_default or not is_in_use(error):
                raise
            yield replace(settings, control=None), None
            return
        stack.enter_context(listener)
        if control.listen.path is not None:
            stack.callback(Path(control.listen.path).unlink, missing_ok=True)
        else:
            control = replace(control, listen=Address(control.listen.host, listener.getsockname()[1]))
        if control.tls is not None:
            # Read again by the process that serves with them; what is wrong is said here, where it ends the start.
            ListenerTls("control", control.tls, clock)
        directory = RunDirectory(settings.data)
        stack.callback(directory.close)
        path = control_socket(directory.path)
        private = stack.enter_context(await bind(Address(path=str(path))))
        for sock in (listener, private):
            sock.listen(LISTEN_BACKLOG)
        rules = rules_path(replace(settings, feed=None))
        assert rules is not None, "without a rules service there is a file"
        token = secrets.token_urlsafe(32)
        # Several processes have a store that the service asks itself, and nodes with an API token are asked with it.
        is_asked = settings.supervised or control.node_api_token is not None
        own_api = None if is_asked else own_api_socket(directory.path)
        store = control.store
        if is_embedded(settings.store):
            store = EmbeddedUrl.parse(settings.store).on(store_socket(directory.path))
        told = replace(control, node_token=token, own_api=own_api, store=store)
        copy = rules.absolute() if told.rules is None else None
        beside = ServiceBeside(told, copy, directory, (listener, private), clock, out)
        limit_s = settings.drain_delay_s + settings.drain_timeout_s + WORKER_STOP_MARGIN_S
        stack.push_async_callback(beside.stop, limit_s)
        feed = FeedSettings(
            url=f"unix:{path}", token=token, push=NO_PUSH, node=settings.node_name, wait_s=0,
            prefer_first=_is_edited(rules, settings.data), first_watched=True,
            # The socket is of this start; what is kept is for the next one.
            kept_as=f"up {control.db or ''}",
        )  # fmt: skip
        yield replace(settings, rules=rules, feed=feed, control=told), beside


def _is_edited(rules: Path, data: Path) -> bool:
    try:
        return edited_since(rules, data)
    except ConfigurationError:
        # Whoever reads it next says what is wrong.
        return True
