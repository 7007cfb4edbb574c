"""The rules service on a socket: uvicorn, without its own ideas of signals and log lines, and with bounds on what strangers can hold open."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from typing import Any, Final

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from sluicegate.bounds import API_CONNECTIONS_MAX, API_HEAD_BYTES_MAX, API_HEAD_S_MAX, LISTEN_BACKLOG
from sluicegate.control.http.context import Context
from sluicegate.control.http.problems import problem

__all__ = ["ControlServer"]

Factory = Callable[[], asyncio.Protocol]

_IDLE_S: Final = 75
"""How long a connection may wait for its next request; longer than what proxies and clients keep theirs for."""


class ControlServer:
    """Serves an application of ``build_app`` on a socket that is bound and does not listen yet.

    ``over``: puts TLS under the protocols of a listener; None: without.
    """

    def __init__(self, app: FastAPI, sock: socket.socket, *, over: Callable[[Factory], Factory] | None = None) -> None:
        self._context: Context = app.state.context
        self._sock = sock
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=API_CONNECTIONS_MAX,
            timeout_keep_alive=_IDLE_S,
            h11_max_incomplete_event_size=API_HEAD_BYTES_MAX,
            backlog=LISTEN_BACKLOG,
        )
        config.load()
        if over is not None:
            # uvicorn makes a protocol for each connection by calling this with what it shares among them.
            config.http_protocol_class = lambda **shared: over(lambda: _Protocol(**shared))()  # type: ignore[assignment]
        self._config = config
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen; requests are served when this returns."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._sock]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait([self._task, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            await self._task

    def stop_waiting(self) -> None:
        """``/readyz`` says no from now on, and long polls end."""
        self._context.closing.set()

    async def close(self, timeout_s: float) -> None:
        """Accept no more, let requests in flight finish for that long, then cut them off."""
        self.stop_waiting()
        self._config.timeout_graceful_shutdown = max(1, round(timeout_s))
        self._server.should_exit = True
        if self._task is not None:
            await self._task

    def cut(self) -> None:
        """Wait for nobody any more."""
        self._server.force_exit = True


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the business of whoever runs the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class _Protocol(H11Protocol):
    """A connection whose requests have ``API_HEAD_S_MAX`` seconds for their heads."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._head is None:
            # What came is a part of the next head.
            self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        """As a problem document, like everything else."""
        told = problem(400, f"this is not HTTP: {msg}", headers={"Connection": "close"})
        status = h11.Response(status_code=400, headers=told.raw_headers, reason=b"Bad Request")
        for event in (status, h11.Data(data=bytes(told.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _wait_for_head(self) -> None:
        self._head = self.loop.call_later(API_HEAD_S_MAX, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
