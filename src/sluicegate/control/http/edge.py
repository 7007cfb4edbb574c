"""What every request passes first and every answer last: an id, a bound on how many are at work, faults of ours, counts."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import MutableMapping
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluicegate.bounds import API_REQUESTS_MAX, REQUEST_ID_CHARS_MAX
from sluicegate.control.http.context import Context
from sluicegate.control.http.problems import problem

__all__ = ["Edge", "request_id_of"]

_LOG: Final = logging.getLogger("sluicegate.control")
_ID: Final = "sluicegate.request_id"
_FREE: Final = frozenset({"/livez", "/readyz", "/healthz", "/metrics"})
_NO_OPERATION: Final = "none"
_ONCE: Final = (b"authorization", b"content-type", b"if-match", b"x-reason")
"""Fields of a head that are one value: of two, a proxy in front and we might believe different ones."""


def request_id_of(scope: MutableMapping[str, Any]) -> str:
    """The id of a request: the one it came with, or one that was made."""
    found: str = scope[_ID]
    return found


class Edge:
    """Middleware around everything else. A request beyond ``API_REQUESTS_MAX`` at work gets 503; health is always told."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        numbers = self._context.numbers
        answer = _Answer(scope, send)
        if numbers.at_work >= API_REQUESTS_MAX and scope["path"] not in _FREE:
            numbers.overloaded += 1
            refusal = problem(503, f"{API_REQUESTS_MAX} requests are at work", headers={"Retry-After": "1"})
            await refusal(scope, receive, answer)
            return
        fault = _ambiguous(scope)
        if fault:
            await problem(400, fault, headers={"Connection": "close"})(scope, receive, answer)
            return
        numbers.at_work += 1
        try:
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            # The server ends, and has waited for as long as it was told to. What was not kept until now never will be.
            if not self._context.closing.is_set():
                raise
            if not answer.status:
                await problem(503, "the service ends", headers={"Connection": "close"})(scope, receive, answer)
        except Exception:  # noqa: BLE001 - the last place where it can be answered and counted
            numbers.internal_errors += 1
            _LOG.exception("internal_error", extra={"fields": {"request_id": request_id_of(scope)}})
            if not answer.status:
                await problem(500, "a fault of the rules service; its log has it under the request id")(
                    scope, receive, answer
                )
        finally:
            numbers.at_work -= 1
            key = (getattr(scope.get("route"), "operation_id", None) or _NO_OPERATION, answer.status)
            numbers.requests[key] = numbers.requests.get(key, 0) + 1


def _ambiguous(scope: Scope) -> str:
    """What could be understood in two ways in the head of a request; "" where nothing can."""
    names = [name for name, _ in scope["headers"]]
    if b"transfer-encoding" in names and b"content-length" in names:
        return "the head has both Content-Length and Transfer-Encoding"
    twice = next((name for name in _ONCE if names.count(name) > 1), None)
    return "" if twice is None else f"the head has {twice.decode().title()} twice"


class _Answer:
    """Sends an answer with the headers that all have. ``status`` is 0 until it begins."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.status = 0
        self._send = send
        given = Headers(scope=scope).get("x-request-id", "")
        fit = 0 < len(given) <= REQUEST_ID_CHARS_MAX and given.isascii() and given.isprintable() and " " not in given
        scope[_ID] = self._id = given if fit else secrets.token_hex(8)

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = self._id
            headers["X-Content-Type-Options"] = "nosniff"
            headers.setdefault("Cache-Control", "no-store")
        await self._send(message)
