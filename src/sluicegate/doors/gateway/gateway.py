"""The gateway: its parts put together, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from sluicegate.clock import Clock, SystemClock
from sluicegate.doors.connections import Connections
from sluicegate.doors.gateway.client import ClientConnection
from sluicegate.doors.gateway.context import Context, Decider
from sluicegate.doors.gateway.settings import Settings
from sluicegate.doors.gateway.stats import Stats
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.refusals import Refusals
from sluicegate.doors.tracing import Tracer

__all__ = ["Gateway"]


class Gateway:
    """An HTTP/1 reverse proxy that asks ``limiter`` before anything is asked of an upstream.

    ``upstreams``: one or more URLs (see ``target.Target``). ``headers``: the rate headers to send; None sends the
    default dialect. ``refusals``: what refused clients are told; None: by the rules, without jitter. ``tracer``: None: ``traceparent`` is passed on as it came. Raises ConfigurationError naming what cannot be used. It opens no listener: give ``protocol_factory``
    to ``doors.listen.open_listener``. Everything runs on one event loop's thread.
    """

    def __init__(
        self,
        limiter: Decider,
        upstreams: Sequence[str],
        headers: RateHeaders | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        refusals: Refusals | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._context = Context(
            limiter,
            upstreams,
            headers or RateHeaders(),
            settings or Settings(),
            clock or SystemClock(),
            refusals,
            tracer,
        )

    @property
    def protocol_factory(self) -> Callable[[], asyncio.Protocol]:
        """Makes the protocol of one client connection."""
        context = self._context
        return lambda: ClientConnection(context)

    @property
    def connections(self) -> Connections:
        """The live client connections; ``await connections.drain(timeout_s)`` lets requests in flight finish."""
        return self._context.clients

    @property
    def stats(self) -> Stats:
        """Live counters."""
        return self._context.stats

    @property
    def upstreams(self) -> dict[str, tuple[int, int, int, bool]]:
        """URL -> (open connections, requests in flight, requests waiting, left out at the moment)."""
        now_s = self._context.clients.now_s
        return {
            upstream.target.url: (
                upstream.open,
                upstream.outstanding,
                len(upstream.waiting),
                upstream.ejected_until_s > now_s,
            )
            for upstream in self._context.pool.upstreams
        }

    async def close(self) -> None:
        """Abort what is left: client connections, kept upstream connections, attempts. Drain first to be polite."""
        await self._context.clients.drain(0)
        await self._context.pool.close()
