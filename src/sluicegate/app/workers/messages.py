"""What the supervisor and a worker say to each other: one JSON object a line, over a socket pair that nobody else has."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec

from sluicegate.app.control.settings import ControlSettings
from sluicegate.app.settings import Settings
from sluicegate.bounds import WORKER_MESSAGE_BYTES_MAX
from sluicegate.errors import InternalError

__all__ = [
    "ControlReady",
    "Failed",
    "FromSupervisor",
    "FromWorker",
    "Ready",
    "Restarts",
    "Start",
    "StartControl",
    "Stop",
    "encode",
    "from_supervisor",
    "from_worker",
    "next_line",
]


class Restarts(msgspec.Struct, tag=True, frozen=True):
    """How often each worker (by its number) and the embedded store were started again; those never restarted may be absent."""

    workers: dict[int, int] = {}
    store: int = 0


class Start(msgspec.Struct, tag=True, frozen=True):
    """The first message to a worker. ``sockets``: listening Unix sockets it inherits, descriptor by role."""

    worker: int
    workers: int
    settings: Settings
    directory: Path
    sockets: dict[str, int]
    restarts: Restarts


class StartControl(msgspec.Struct, tag=True, frozen=True):
    """The first message to a rules service that is started beside nodes.

    ``listener``: descriptor of the socket at ``settings.listen``, which it inherits; ``private``: of one without TLS, for those nodes.
    ``copy``: a rules file that follows the database; None: there is none.
    """

    settings: ControlSettings
    listener: int
    private: int
    copy: Path | None


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Drain and exit; with ``force``, cut off what is left."""

    force: bool = False


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Every listener of the worker is open; ``listeners`` are names and URLs, in order."""

    listeners: list[tuple[str, str]]


class ControlReady(msgspec.Struct, tag=True, frozen=True):
    """The rules service answers. ``token``: of the first admin, where one was made now."""

    token: str | None


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The process cannot start, and ends; ``reason`` is for the operator."""

    reason: str


FromSupervisor: TypeAlias = Start | StartControl | Stop | Restarts
FromWorker: TypeAlias = Ready | ControlReady | Failed


def _encode_other(value: Any) -> str:
    if isinstance(value, Path | Fraction):
        return str(value)
    raise InternalError(f"a message to a worker holds a {type(value).__name__}, which has no form in JSON")


def _decode_other(kind: type, value: Any) -> Any:
    if kind is Path or kind is Fraction:
        return kind(value)
    raise InternalError(f"a message to a worker has a field of the kind {kind!r}, which has no form in JSON")


_encoder = msgspec.json.Encoder(enc_hook=_encode_other)
_from_supervisor: msgspec.json.Decoder[FromSupervisor] = msgspec.json.Decoder(FromSupervisor, dec_hook=_decode_other)
_from_worker: msgspec.json.Decoder[FromWorker] = msgspec.json.Decoder(FromWorker)


def encode(message: FromSupervisor | FromWorker) -> bytes:
    """The message as one line."""
    return _encoder.encode(message) + b"\n"


def from_supervisor(line: bytes) -> FromSupervisor:
    """The message of one line."""
    return _from_supervisor.decode(line)


def from_worker(line: bytes) -> FromWorker:
    """The message of one line."""
    return _from_worker.decode(line)


def next_line(lines: BinaryIO) -> bytes:
    """The next message on a channel as it came, empty where the channel is closed."""
    try:
        return lines.readline(WORKER_MESSAGE_BYTES_MAX)
    except OSError:
        return b""
