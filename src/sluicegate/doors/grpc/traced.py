"""Calls that are spans: those of guarded methods whose ``traceparent`` says that their trace is sampled."""

from __future__ import annotations

from typing import Final

from sluicegate.doors.grpc.calls import INTERNAL, INVALID_ARGUMENT, Call, Route
from sluicegate.doors.tracing import CallEnded, Parent, Tracer
from sluicegate.errors import InvalidRequest

__all__ = ["traced"]

_OUTCOMES: Final = {b"\x08\x01": "allowed", b"\x08\x02": "refused"}
"""By how an answer of ShouldRateLimit begins: the field ``overall_code``, which is always first."""


class _TracedCall:
    """A call whose span ends with its answer."""

    def __init__(self, call: Call, ended: CallEnded) -> None:
        self._call = call
        self._ended = ended

    def answer(self, message: bytes) -> None:
        self._ended(0, _OUTCOMES.get(bytes(message[:2]), "error"))
        self._call.answer(message)

    def fail(self, code: int, detail: str) -> None:
        self._ended(code, "error")
        self._call.fail(code, detail)


def traced(route: Route, tracer: Tracer, parent: Parent) -> Route:
    """The same route for one call, which gets a span that begins when its request is complete."""

    def handle(message: bytes, call: Call) -> None:
        ended = tracer.begin_call(parent, route.name)
        try:
            route.handler(message, _TracedCall(call, ended))
        except BaseException as error:
            ended(INVALID_ARGUMENT if isinstance(error, InvalidRequest) else INTERNAL, "error")
            raise

    return route._replace(handler=handle)
