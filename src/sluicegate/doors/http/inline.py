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
from sluicegate.limiter.calls import Singles
from sluicegate.limiter.limiter import Limiter
from sluicegate.stores.base import Single

__all__ = ["InlineDecider", "each_of", "single_of", "texts_of"]


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
        return single_of(check, single, now_us, degraded=degraded)

    def alike(self, batch: PlainBatch) -> list[str]:
        """The JSON text of each answer, its status included, in order; one call of the store."""
        policy, keys, cost = batch
        if not policy.holds:
            briefs = self._limiter.decide_alike(policy.counter, keys, cost)
            if briefs is not None:
                return _texts(policy, briefs)
        return self.many(each_of(batch))

    def many(self, checks: Sequence[PlainCheck]) -> list[str]:
        """The same for checks of any policies and costs."""
        return texts_of(checks, self._limiter.decide_counters([check.charge for check in checks]))


def each_of(batch: PlainBatch | list[PlainCheck]) -> list[PlainCheck]:
    """The checks of a batch, one by one."""
    if isinstance(batch, PlainBatch):
        policy, keys, cost = batch
        return [PlainCheck(policy, key, cost) for key in keys]
    return batch


def single_of(check: PlainCheck, single: Single, now_us: int, *, degraded: bool) -> tuple[Brief, str]:
    """The numbers of one check's answer, and its JSON text."""
    policy, _, cost = check
    admitted, state = single
    if isinstance(state, Verdict):
        _, remaining, retry_us, reset_us, delay_us = state
    else:
        _, remaining, retry_us, reset_us, delay_us = policy.counter.spec.verdict(state, now_us, cost, admitted)
    wait_us = reset_us if admitted else retry_us
    text = inline_text(admitted, remaining, policy.texts.limit, wait_us, _more(policy, delay_us, degraded))
    return (admitted, remaining, wait_us), text


def texts_of(checks: Sequence[PlainCheck], answers: Singles) -> list[str]:
    """The JSON text of each answer, its status included. Those that a fallback decided, whose verdicts are plain ones, are marked as degraded."""
    now_us, singles, degraded = answers
    texts: list[str] = []
    for check, single in zip(checks, singles, strict=True):
        _, text = single_of(check, single, now_us, degraded=degraded and type(single[1]) is Verdict)
        texts.append(f'{{"status":{200 if single[0] else 429},{text[1:]}')
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
