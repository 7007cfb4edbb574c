"""From decisions and errors to answers: the same whether the decision was there at once or came later."""

from __future__ import annotations

from sluicegate.clock import Clock
from sluicegate.doors.headers import RateHeaders
from sluicegate.doors.http.answers import check_document, check_status
from sluicegate.doors.http.bad_json import BadJson
from sluicegate.doors.http.respond import Reply, json_reply, problem_reply
from sluicegate.doors.http.schema import Check
from sluicegate.doors.http.stats import HttpStats
from sluicegate.doors.problem import FieldError, problem, temporary_reduced_capacity
from sluicegate.doors.refusals import Refusals
from sluicegate.errors import InvalidRequest, ReceiptUnknown, StoreError
from sluicegate.limiter.decision import Decision

__all__ = ["Replies", "store_down"]


class Replies:
    """Writes answers and counts what was bad about requests."""

    def __init__(self, headers: RateHeaders, stats: HttpStats, clock: Clock, refusals: Refusals) -> None:
        self._refusals = refusals
        self._headers = headers
        self._stats = stats
        self._clock = clock

    def decided(self, check: Check, decision: Decision) -> Reply:
        """The answer to one check."""
        status = check_status(decision, check)
        lines = self._headers.block(decision, self._clock.now_us() if self._headers.needs_now else 0).decode("ascii")
        if status == 503:
            return problem_reply(503, temporary_reduced_capacity(decision), lines)
        return json_reply(status, check_document(decision, check, self._refusals).encode(), lines)

    def item(self, check: Check, decision: Decision) -> str:
        """The answer to one item of a batch, its status included."""
        status = check_status(decision, check)
        if status == 503:
            return temporary_reduced_capacity(decision).decode()
        return f'{{"status":{status},{check_document(decision, check, self._refusals)[1:]}'

    def batch(self, texts: list[str]) -> Reply:
        """The answer to a batch."""
        self._stats.batch_items += len(texts)
        return json_reply(200, f"[{','.join(texts)}]".encode())

    @staticmethod
    def refunded(counters: int) -> Reply:
        """The answer to a refund."""
        return json_reply(200, b'{"refunded":%d}' % counters)

    def refused_request(self, error: InvalidRequest) -> Reply:
        """The answer to a request that cannot be decided, or to a refund by a receipt that is none."""
        if isinstance(error, ReceiptUnknown):
            return problem_reply(404, problem(404, str(error), [FieldError.of(error.field, error.message)]))
        return problem_reply(400, self.bad(error))

    def bad(self, error: InvalidRequest) -> bytes:
        """The problem document of a bad request or item."""
        self._stats.bad_requests["json" if isinstance(error, BadJson) else "field"] += 1
        detail = str(error) if error.field else error.message
        return problem(400, detail, [FieldError.of(error.field, error.message)])


def store_down(error: StoreError) -> Reply:
    """The answer where no failure policy has taken the decision over: the store is closed or full, with nothing charged."""
    return problem_reply(503, problem(503, f"the counters are out of reach: {error}"), "Retry-After: 1\r\n")
