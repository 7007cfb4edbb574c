"""Plain inline checks, decided and answered in bulk.

A check is *plain* when it is inline, charges, and asks for no receipt: nearly all of them. Such checks need neither a plan
nor a decision object; the store says for each (admitted, state), the spec says what that means, and the answer is text.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluicegate.algorithms.verdict import Brief, Verdict
from sluicegate.clock import US_PER_MS
from sluicegate.doors.http.answers import inline_text
from sluicegate.doors.http.policies import InlinePolicy
from sluicegate.doors.http.schema import PlainCheck
from sluicegate.doors.http.templates import PlainBatch
from sluicegate.limiter.calls import verdict_of
from sluicegate.limiter.limiter import Limiter

__all__ = ["InlineDecider"]


class InlineDecider:
    """Decides plain checks by a limiter. Raises StoreError where not even a fallback has an answer."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    def one(self, check: PlainCheck) -> tuple[Brief, str]:
        """The numbers of one check's answer, and its JSON text."""
        policy, key, cost = check
        limit = policy.texts.limit
        if not policy.holds:
            briefs = self._limiter.decide_alike(policy.counter, (key,), cost)
            if briefs is not None:
                admitted, remaining, wait_us = brief = briefs[0]
                return brief, inline_text(admitted, remaining, limit, wait_us)
        now_us, (single,), degraded = self._limiter.decide_counters((check.charge,))
        admitted = single[0]
        _, remaining, retry_us, reset_us, delay_us = verdict_of(check.charge, single, now_us)
        wait_us = reset_us if admitted else retry_us
        text = inline_text(admitted, remaining, limit, wait_us, _more(policy, delay_us, degraded))
        return (admitted, remaining, wait_us), text

    def alike(self, batch: PlainBatch) -> list[str]:
        """The JSON text of each answer, its status included, in order; one call of the store."""
        policy, keys, cost = batch
        if not policy.holds:
            briefs = self._limiter.decide_alike(policy.counter, keys, cost)
            if briefs is not None:
                return _texts(policy, briefs)
        return self.many([PlainCheck(policy, key, cost) for key in keys])

    def many(self, checks: Sequence[PlainCheck]) -> list[str]:
        """The same for checks of any policies and costs."""
        now_us, singles, degraded = self._limiter.decide_counters([check.charge for check in checks])
        texts: list[str] = []
        for (policy, _, cost), (admitted, state) in zip(checks, singles, strict=True):
            if degraded and type(state) is Verdict:
                _, remaining, retry_us, reset_us, delay_us = state
            else:
                _, remaining, retry_us, reset_us, delay_us = policy.counter.spec.verdict(state, now_us, cost, admitted)
            wait_us = reset_us if admitted else retry_us
            text = inline_text(admitted, remaining, policy.texts.limit, wait_us, _more(policy, delay_us, degraded))
            texts.append(f'{{"status":{200 if admitted else 429},{text[1:]}')
        return texts


def _texts(policy: InlinePolicy, briefs: Sequence[Brief]) -> list[str]:
    """``inline_text`` with a status, written out for bulk."""
    middle = policy.middle
    return [
        f'{{"status":429,"allowed":false,"remaining":{remaining}{middle}0,"retry_after_ms":null}}'
        if wait_us is None
        else f'{{"status":200,"allowed":true,"remaining":{remaining}{middle}{(wait_us + 999) // US_PER_MS},"retry_after_ms":0}}'
        if admitted
        else f'{{"status":429,"allowed":false,"remaining":{remaining}{middle}{(ms := f"{(wait_us + 999) // US_PER_MS}")},'
        f'"retry_after_ms":{ms}}}'
        for admitted, remaining, wait_us in briefs
    ]


def _more(policy: InlinePolicy, delay_us: int, degraded: bool) -> str:
    delay = f',"delay_ms":{-(-delay_us // US_PER_MS)}' if policy.holds else ""
    return f'{delay},"degraded":true' if degraded else delay
