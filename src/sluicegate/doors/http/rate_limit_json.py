"""``POST /json``: Envoy's rate limit service in JSON, where envoyproxy/ratelimit has it.

200 OK, 429 over the limit, 400 for what cannot be decided, 500 for a fault of ours: as there. One thing differs: counters that are out of reach while
a rule fails closed are 503 here; there that is 400 as well, which blames who asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sluicegate.doors.grpc.calls import INVALID_ARGUMENT, UNAVAILABLE
from sluicegate.doors.grpc.json_form import is_over_limit, request_of_json, response_as_json
from sluicegate.doors.grpc.service import Services
from sluicegate.doors.http.faults import fault_reply
from sluicegate.doors.http.replies import Replies
from sluicegate.doors.http.respond import json_reply, problem_reply
from sluicegate.doors.http.site import Answer
from sluicegate.doors.http.stats import HttpStats
from sluicegate.doors.problem import problem
from sluicegate.errors import InvalidRequest

__all__ = ["JSON_PATH", "RateLimitJson"]

JSON_PATH: Final = "/json"
_STATUS: Final = {INVALID_ARGUMENT: 400, UNAVAILABLE: 503}


class _Call:
    """A call of the service whose answer is given as JSON (see ``grpc.calls.Call``)."""

    __slots__ = ("_answer", "_stats")

    def __init__(self, answer: Answer, stats: HttpStats) -> None:
        self._answer = answer
        self._stats = stats

    def answer(self, message: bytes) -> None:
        try:
            reply = json_reply(429 if is_over_limit(message) else 200, response_as_json(message))
        except Exception:  # noqa: BLE001 - a fault of ours must not leave the client without an answer
            reply = fault_reply(self._stats, JSON_PATH)
        self._answer(reply)

    def fail(self, code: int, detail: str) -> None:
        status = _STATUS.get(code, 500)
        self._stats.internal_errors += status == 500
        self._answer(problem_reply(status, problem(status, detail), "Retry-After: 1\r\n" if status == 503 else ""))


class RateLimitJson:
    """The handler for ``Route.later``. ``services`` makes what decides, when it is first asked: most servers never are."""

    def __init__(self, services: Callable[[], Services], replies: Replies, stats: HttpStats) -> None:
        self._make = services
        self._services: Services | None = None
        self._replies = replies
        self._stats = stats

    def decide(self, body: bytes, answer: Answer) -> None:
        """``POST /json``."""
        services = self._services
        if services is None:
            services = self._services = self._make()
        try:
            services.should_rate_limit(request_of_json(body), _Call(answer, self._stats))
        except InvalidRequest as error:
            answer(self._replies.refused_request(error))
