"""What ``/v1/check`` answers: one decision as JSON text. Times are milliseconds, rounded up."""

from __future__ import annotations

import msgspec

from sluicegate.clock import US_PER_MS
from sluicegate.doors.http.schema import Check
from sluicegate.limiter.decision import Decision

__all__ = ["check_document", "check_status", "inline_text"]


def check_status(decision: Decision, check: Check) -> int:
    """200 or 429; 503 where a rule that fails closed could not be decided. A peek asks and is not refused: 200."""
    if decision.allowed:
        return 200
    if decision.refusal == "store":
        return 503
    return 200 if check.peek else 429


def check_document(decision: Decision, check: Check) -> str:
    """The JSON object of one answer."""
    policy = check.policy
    if policy is None:
        return msgspec.json.encode(decision.to_dict()).decode()
    text = inline_text(
        decision.allowed,
        decision.remaining or 0,
        policy.texts.limit,
        decision.reset_after_us,
        decision.retry_after_us,
        decision.delay_us if policy.holds else None,
    )
    more = ""
    if decision.degraded:
        more += ',"degraded":true'
    if check.receipt:
        more += f',"decision_id":{msgspec.json.encode(decision.decision_id).decode()}'
    return f"{text[:-1]}{more}}}" if more else text


def inline_text(
    allowed: bool, remaining: int, limit: int, reset_us: int, retry_us: int | None, delay_us: int | None
) -> str:
    """The answer to an inline check. ``delay_us`` None: its algorithm never delays, and the member is left out."""
    reset_ms = -(-reset_us // US_PER_MS)
    delay = "" if delay_us is None else f',"delay_ms":{-(-delay_us // US_PER_MS)}'
    if allowed:
        return f'{{"allowed":true,"remaining":{remaining},"limit":{limit},"reset_ms":{reset_ms},"retry_after_ms":0{delay}}}'
    retry = "null" if retry_us is None else -(-retry_us // US_PER_MS)
    return f'{{"allowed":false,"remaining":{remaining},"limit":{limit},"reset_ms":{reset_ms},"retry_after_ms":{retry}{delay}}}'
