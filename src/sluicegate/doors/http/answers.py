"""What ``/v1/check`` answers: a decision as JSON text. Times are milliseconds, rounded up."""

from __future__ import annotations

import msgspec

from sluicegate.clock import US_PER_MS
from sluicegate.doors.http.schema import Check
from sluicegate.doors.refusals import Refusals
from sluicegate.limiter.decision import Decision

__all__ = ["check_document", "check_status", "inline_text"]


def check_status(decision: Decision, check: Check) -> int:
    """200 or 429; 503 where a rule that fails closed could not be decided. A peek asks and is not refused: 200."""
    if decision.allowed:
        return 200
    if decision.refusal == "store":
        return 503
    return 200 if check.peek else 429


def check_document(decision: Decision, check: Check, refusals: Refusals) -> str:
    """The JSON object of one answer."""
    policy = check.policy
    if policy is None:
        document = decision.to_dict()
        if decision.refusal == "rate" and refusals.is_special(decision):
            _, content_type, body = refusals.reply(decision)
            document["respond"] = {"content_type": content_type, "body": body.decode()}
        return msgspec.json.encode(document).decode()
    limit = policy.texts.limit
    more = ""
    if policy.holds:
        more += f',"delay_ms":{-(-decision.delay_us // US_PER_MS)}'
    if decision.degraded:
        more += ',"degraded":true'
    if check.receipt:
        more += f',"decision_id":{msgspec.json.encode(decision.decision_id).decode()}'
    # Without a counter (the limiter is switched off) all of the limit is there.
    remaining = limit if decision.remaining is None else decision.remaining
    wait_us = decision.reset_after_us if decision.allowed else decision.retry_after_us
    return inline_text(decision.allowed, remaining, limit, wait_us, more)


def inline_text(allowed: bool, remaining: int, limit: int, wait_us: int | None, more: str = "") -> str:
    """The answer to an inline check.

    ``wait_us``: until the counter is full again, or on a refusal until this cost passes; None for never.
    ``more``: further members, each with its leading comma.
    """
    if wait_us is None:
        times = '"reset_ms":0,"retry_after_ms":null'
    else:
        wait_ms = -(-wait_us // US_PER_MS)
        times = f'"reset_ms":{wait_ms},"retry_after_ms":{0 if allowed else wait_ms}'
    verdict = "true" if allowed else "false"
    return f'{{"allowed":{verdict},"remaining":{remaining},"limit":{limit},{times}{more}}}'
