"""Health's Watch: calls that stay open and are told each change of a service's status.

Source: the health checking protocol of gRPC (grpc/health/v1/health.proto). A status is looked at now and then, not announced, so that nobody who
changes it has to know who watches; a change that is undone between two looks is not told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from sluicegate.bounds import GRPC_SERVICE_CHARS_MAX, GRPC_WATCHES_MAX
from sluicegate.doors.grpc.calls import DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, Call
from sluicegate.doors.grpc.codec import NOT_SERVING, decode_health, encode_health

__all__ = ["Watches"]


class _OpenCall(Call, Protocol):
    """A call that may be answered with more than one message."""

    deadline_s: float
    """Loop time after which its client does not wait any more."""

    @property
    def is_gone(self) -> bool:
        """Whether its client has given it up, or it has ended."""
        ...

    def tell(self, message: bytes) -> None:
        """Answer with this message and go on; nothing happens where it is gone."""
        ...

    def finish(self) -> None:
        """End it with OK; nothing happens where it is gone."""
        ...


class Watches:
    """The watches of one server. ``health``: the serving status of a service by its name."""

    def __init__(self, health: Callable[[str], int]) -> None:
        self._health = health
        self._told: dict[_OpenCall, tuple[str, int]] = {}

    def begin(self, message: bytes, call: Call) -> None:
        """The handler of ``Watch``: the status at once. Raises InvalidRequest for a message that is none."""
        service = decode_health(message)[:GRPC_SERVICE_CHARS_MAX]
        if len(self._told) >= GRPC_WATCHES_MAX:
            self.look()
        if len(self._told) >= GRPC_WATCHES_MAX:
            call.fail(RESOURCE_EXHAUSTED, f"at most {GRPC_WATCHES_MAX} watches at once")
            return
        self._tell(cast("_OpenCall", call), service, self._health(service))

    def look(self) -> None:
        """Tell what has changed since the last look, end those whose time is over, forget those that are gone."""
        if not self._told:
            return
        now_s = asyncio.get_running_loop().time()
        found: dict[str, int] = {}
        for call, (service, told) in tuple(self._told.items()):
            if now_s > call.deadline_s:
                del self._told[call]
                call.fail(DEADLINE_EXCEEDED, "the time to watch is over")
                continue
            if call.is_gone:
                del self._told[call]
                continue
            if service not in found:
                found[service] = self._health(service)
            if found[service] != told:
                self._tell(call, service, found[service])

    def end(self, calls: Iterable[Call], *, leaving: bool) -> None:
        """End those of these calls that watch, for their connection ends. ``leaving``: because the server does, which is told first."""
        for each in tuple(calls):
            call = cast("_OpenCall", each)
            last = self._told.pop(call, None)
            if last is not None:
                if leaving and last[1] != NOT_SERVING:
                    call.tell(encode_health(NOT_SERVING))
                call.finish()

    def _tell(self, call: _OpenCall, service: str, status: int) -> None:
        call.tell(encode_health(status))
        self._told[call] = service, status
