"""What the engines and the services of the gRPC door know of each other: calls, their routes, and the status codes used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

__all__ = [
    "CODES",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "RESOURCE_EXHAUSTED",
    "UNAUTHENTICATED",
    "UNAVAILABLE",
    "UNIMPLEMENTED",
    "Call",
    "Handler",
    "Route",
    "grpc_message",
]

INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
UNAUTHENTICATED: Final = 16

CODES: Final = {
    0: "OK",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_EXHAUSTED: "RESOURCE_EXHAUSTED",
    UNIMPLEMENTED: "UNIMPLEMENTED",
    INTERNAL: "INTERNAL",
    UNAVAILABLE: "UNAVAILABLE",
    UNAUTHENTICATED: "UNAUTHENTICATED",
}
"""The names of the status codes that this door gives."""


class Call(Protocol):
    """One unary call that waits for its answer. Exactly one of the methods is to be called, once, on the loop's thread; neither raises."""

    def answer(self, message: bytes) -> None:
        """Answer with OK and this message."""
        ...

    def fail(self, code: int, detail: str) -> None:
        """Answer with a status code, which is one of ``CODES`` other than 0, and words for people."""
        ...


Handler: TypeAlias = Callable[[bytes, Call], None]
"""Called with the request message. May answer later. Raises InvalidRequest for a message that cannot be decided."""


class Route(NamedTuple):
    """One method. ``counts``: answers by status code. ``guarded``: it asks for the token where there is one."""

    name: str
    handler: Handler
    counts: dict[int, int]
    guarded: bool


def grpc_message(detail: str) -> str:
    """Words for people as the field ``grpc-message`` carries them: printable ASCII, everything else as ``%XX``."""
    return quote(detail, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
