"""What a door and a tracer know of each other: the context of a caller (W3C Trace Context), and how a request ended.

A door asks for a span only where the caller's trace is sampled, so that other requests cost nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, TypeAlias

__all__ = ["CallEnded", "Ended", "Parent", "Passage", "Tracer", "parent_of", "sampled_parent"]

_FIELD: Final = re.compile(rb"\r\ntraceparent:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_VALUE: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]*)?"
)


class Parent(NamedTuple):
    """The caller's span."""

    trace_id: int
    span_id: int


Ended: TypeAlias = Callable[[int, bytes], None]
"""Called once with the status and the body of the answer."""


CallEnded: TypeAlias = Callable[[int, str], None]
"""Called once with the status code of gRPC and the outcome: ``allowed``, ``refused`` or ``error``."""


class Passage(Protocol):
    """The span of a request that is passed on, and those of the attempts to do so; never waits and never raises."""

    def decided(self, outcome: str, rule: str | None) -> None:
        """``outcome``: ``allowed``, ``refused`` or ``undecided``."""
        ...

    def upstream(self) -> bytes:
        """It goes to an upstream now, perhaps again: the value of ``traceparent`` for it, which names the span of this attempt."""
        ...

    def ended(self, status: int) -> None:
        """With this answer; 0: without one, or with a part of it. What comes after the first call is ignored."""
        ...


class Tracer(Protocol):
    """Makes spans; never waits and never raises."""

    def begin(self, parent: Parent, method: str, route: str) -> Ended:
        """A request of a sampled trace begins. ``route``: one of a few names, never a path of a client."""
        ...

    def begin_call(self, parent: Parent, method: str) -> CallEnded:
        """The same for a call of gRPC; ``method``: the name of one that there is."""
        ...

    def passing(self, parent: Parent, method: str) -> Passage:
        """The same for a request that is to be passed on."""
        ...


def sampled_parent(head: bytes) -> Parent | None:
    """The caller's span by the field ``traceparent`` of a request's head; None where there is none, it is malformed or doubled, or its trace is not sampled."""
    found = _FIELD.findall(head)
    return parent_of(found[0]) if len(found) == 1 else None


def parent_of(value: bytes) -> Parent | None:
    """The same by the value of the field."""
    match = _VALUE.fullmatch(value)
    # Versions after 00 may have more behind the flags; 00 has not.
    if match is None or (match[1] == b"00" and match[5] is not None) or not int(match[4], 16) & 1:
        return None
    return Parent(int(match[2], 16), int(match[3], 16))
