"""A request between its head and what becomes of it, while the decision is on its way.

The client's bytes are kept, which stops reading after the first ones, so a request costs no more memory than one read while
its counters are asked. The store has a deadline; that of this state only ends what a fault of ours would leave for ever.
"""

from __future__ import annotations

from collections.abc import Callable

from sluicegate.doors.gateway.context import Context
from sluicegate.doors.gateway.flow import Client
from sluicegate.doors.gateway.request import Request
from sluicegate.limiter.decision import Decision

__all__ = ["Deciding"]


class Deciding:
    """What the client's side of a flow is while nothing is decided (see ``flow.ClientSide``).

    ``decided`` is what the limiter calls. It may do so before it is ``awaited``, that is while it is asked: then ``decision`` is set and
    nothing else happens. ``go_on`` is called with a later decision, unless the client has left.
    """

    __slots__ = ("_client", "_context", "_go_on", "_lost", "accepts", "awaited", "decision", "request")

    def __init__(
        self, context: Context, client: Client, request: Request, go_on: Callable[[Request, Decision], None]
    ) -> None:
        self._context = context
        self._client = client
        self._go_on = go_on
        self._lost = False
        self.request = request
        self.decision: Decision | None = None
        self.awaited = False
        self.accepts = True
        context.stats.in_flight += 1

    def decided(self, decision: Decision) -> None:
        """Here it is."""
        self.decision = decision
        if self._lost:
            # What was charged stays charged, and counts as what it was.
            self._context.stats.count_decision(decision)
        elif self.awaited:
            self.end()
            self._go_on(self.request, decision)

    def end(self) -> None:
        """The request goes on as something else, or nowhere."""
        self._context.stats.in_flight -= 1

    def client_data(self, data: bytes) -> None:
        self._client.stash(data)

    def client_lost(self) -> None:
        """The request is not forwarded, whatever is decided."""
        self._lost = True
        self._context.stats.cancelled += 1
        self.request.ended(0)
        self.end()

    def client_full(self) -> None:
        """Nothing is written meanwhile."""

    def client_ready(self) -> None:
        """What comes next waits for the decision."""

    def expire(self) -> None:
        stats = self._context.stats
        stats.count(stats.timeouts, "decision")
        self._client.reset()
