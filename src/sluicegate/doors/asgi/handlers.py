"""Frameworks that log with a traceback whatever nobody handles: refusals are handled, or clients could fill the log.

Quart is one. It is known by its table of error handlers, which takes one more; no framework is imported for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluicegate.doors.web.request import RequestLimits
from sluicegate.errors import InvalidRequest, RateLimited

__all__ = ["handle_refusals"]


def handle_refusals(app: Any, limits_of: Callable[[], RequestLimits | None]) -> None:
    """Let an application that has error handlers leave the answer to a refusal to the door.

    ``app``: an application, or its bound method ``asgi_app``. ``limits_of`` gives the limits of the request that is being served. What the
    application handles itself stays its own.
    """
    owner = getattr(app, "__self__", app)
    register, table = getattr(owner, "register_error_handler", None), getattr(owner, "error_handler_spec", None)
    if not callable(register) or not isinstance(table, dict) or getattr(owner, "_got_first_request", False):
        return

    async def leave(error: Exception) -> tuple[str, int]:
        limits = limits_of()
        if limits is None or not limits.stopped_by(error):
            raise error
        limits.left_to_door = True
        return "", 429

    known = table.get(None, {}).get(None, {})
    for kind in (RateLimited, InvalidRequest):
        if not any(parent in known for parent in kind.__mro__):
            register(kind, leave)
