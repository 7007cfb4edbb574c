"""Whether it lives, whether it is ready, and its numbers. No token is needed, and nothing is told that would need one."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from sluicegate.bounds import CONTROL_READY_S
from sluicegate.control.errors import Unavailable
from sluicegate.control.http.answers import Health, ok
from sluicegate.control.http.context import Shared
from sluicegate.control.http.metrics import CONTENT_TYPE, exposition
from sluicegate.control.http.operations import Operations, ref

__all__ = ["HEALTH"]

HEALTH: Final = Operations("health", open=True)


@HEALTH.add("GET", "/livez", answer=Health)
async def _livez() -> Response:
    """The process answers."""
    return ok(Health("live"))


async def _ready(context: Shared) -> Response:
    failing = ["closing"] if context.closing.is_set() else []
    try:
        async with asyncio.timeout(CONTROL_READY_S):
            await context.service.ping()
    except (Unavailable, TimeoutError):
        failing.append("database")
    version = (await context.service.revisions()).ruleset
    # Why the background failed may name hosts of the operator; that is for the log.
    watch = None if context.service.watch.error is None else "failing"
    told = Health("unready" if failing else "ready", failing, version, watch)
    return ok(told, 503 if failing else 200)


_UNREADY: Final = {"application/json": {"schema": ref(Health)}}


@HEALTH.add("GET", "/readyz", answer=Health, unready=_UNREADY)
async def _readyz(context: Shared) -> Response:
    """The database answers, and the process is not about to end."""
    return await _ready(context)


@HEALTH.add("GET", "/healthz", answer=Health, unready=_UNREADY)
async def _healthz(context: Shared) -> Response:
    """The same as `/readyz`."""
    return await _ready(context)


@HEALTH.add("GET", "/metrics", answer={"text/plain": {"schema": {"type": "string"}}})
async def _metrics(context: Shared) -> Response:
    """Numbers for Prometheus."""
    return Response(exposition(context), media_type=None, headers={"Content-Type": CONTENT_TYPE})
