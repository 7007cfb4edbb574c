"""The limiter's answer to one request.

Most callers ask a decision only whether the request may proceed, so that is all ``Engine.conclude`` works out. The
description (which rule, how much remains, when to come back) is computed from the store's answer on first use and
kept; the answer never changes, so when it is computed makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from sluicegate.algorithms.verdict import Outcome, Verdict
from sluicegate.clock import US_PER_MS
from sluicegate.errors import InternalError
from sluicegate.limiter.degraded import FallbackAnswer
from sluicegate.limiter.listed import Listed, refusal_of
from sluicegate.limiter.plan import Plan
from sluicegate.stores.base import Answer, Counter, Receipt

__all__ = ["Decision", "RuleResult", "Summary", "summarize"]


# What is on the path of every described decision: an enum member costs a lookup through its class, and a named tuple made by
# its own constructor twice as much as one made by tuple's.
_ALLOWED = Outcome.ALLOWED
_DENIED = Outcome.DENIED
_NEVER_FITS = Outcome.NEVER_FITS
_UNDECIDED = Outcome.UNDECIDED
_new_tuple = tuple.__new__


class RuleResult(NamedTuple):
    """What one matching rule said. ``shadow`` results never refuse a request.

    ``rule``: the rule's name, ``name#1``, ``name#2`` where its quota has several parts. ``limit``: capacity of the counter.
    ``window_us``: its window or drain time. Times are microseconds.
    """

    rule: str
    outcome: Outcome
    limit: int
    remaining: int
    retry_after_us: int | None
    reset_after_us: int
    delay_us: int
    window_us: int
    algorithm: str
    shadow: bool
    degraded: str | None = None
    """What decided in the place of the store: "local", "sticky", "open", "closed" or "handover"; None where the store did."""

    @property
    def refuses(self) -> bool:
        """True where this result alone refuses the request.

        A rule that could not be decided refuses unless its verdict says "no wait" (``retry_after_us`` 0): that is how a
        failure policy tells a closed rule from an open one.
        """
        if self.shadow or self.outcome is _ALLOWED:
            return False
        return self.outcome is not _UNDECIDED or self.retry_after_us != 0


class Summary(NamedTuple):
    """The description of a decision as a whole; the fields of ``Decision`` by the same names.

    ``verdicts``: what the results are made of, one per charge.
    """

    outcome: Outcome
    decisive: RuleResult | None
    retry_after_us: int | None
    reset_after_us: int
    delay_us: int
    refusal: str | None
    verdicts: tuple[Verdict, ...]


class Decision(msgspec.Struct, frozen=True, gc=False, eq=False):
    """Immutable and complete. True in a boolean context when the request may proceed.

    Equal when everything it says is equal; hashable. It can be pickled and copied (the store's answer stays behind).

    ``allowed``: the request may proceed, after ``delay_us``. ``degraded``: the store failed and a failure policy decided.
    ``decision_id``: what a refund needs, where the caller asked for a receipt.
    """

    allowed: bool
    plan: Plan
    answer: Answer | None = None
    """The store's answer; None where the store was not asked, and in a copy that was pickled."""
    degraded: bool = False
    decision_id: str | None = None
    _summary: Summary | None = None
    _results: tuple[RuleResult, ...] | None = None

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def version(self) -> int:
        """The version of the rule set that decided."""
        return self.plan.version

    @property
    def listed(self) -> Listed | None:
        """The entry of the allow or the block list that decided, before any rule; None where none did.

        ``rule`` is ``block:ip`` (or ``api_key``, ``user``, ``tenant``) where it refused, None where it let the request pass.
        """
        return self.plan.listed

    @property
    def outcome(self) -> Outcome:
        """Of the request: NEVER_FITS where a refusing rule can never admit it, UNDECIDED where ``refusal`` is "store"."""
        return self.summary.outcome

    @property
    def decisive(self) -> RuleResult | None:
        """The result that ``rule``, ``limit`` and ``remaining`` are taken from."""
        return self.summary.decisive

    @property
    def rule(self) -> str | None:
        """The first enforced rule that refused, else the one with the smallest absolute remaining.

        None where no enforced rule was charged; then ``limit`` and ``remaining`` are None too and no rate headers are sent.
        """
        decisive = self.summary.decisive
        return None if decisive is None else decisive.rule

    @property
    def limit(self) -> int | None:
        """Capacity of the counter of ``rule``."""
        decisive = self.summary.decisive
        return None if decisive is None else decisive.limit

    @property
    def remaining(self) -> int | None:
        """Tokens left in the counter of ``rule`` (>= 0)."""
        decisive = self.summary.decisive
        return None if decisive is None else decisive.remaining

    @property
    def retry_after_us(self) -> int | None:
        """0 when allowed; the maximum over the refusing rules; None when this cost can never pass."""
        return self.summary.retry_after_us

    @property
    def reset_after_us(self) -> int:
        """When allowed: until the counter of ``rule`` is full again (bucket) or its window ends.

        When refused: equal to ``retry_after_us``, 0 when that is None.
        """
        return self.summary.reset_after_us

    @property
    def delay_us(self) -> int:
        """How long the caller must hold the request before it proceeds; 0 unless a leaky bucket matched."""
        return self.summary.delay_us

    @property
    def results(self) -> tuple[RuleResult, ...]:
        """One result per charge, in order of evaluation, shadow rules included."""
        results = self._results
        if results is None:
            results = _results(self.plan, self.summary.verdicts, self.answer)
            force_setattr(self, "_results", results)
        return results

    @property
    def refusal(self) -> str | None:
        """None, "rate" (429) or "store" (503: a fail-closed rule could not be decided)."""
        return self.summary.refusal

    @property
    def summary(self) -> Summary:
        """All of the description but ``results``, at once."""
        summary = self._summary
        if summary is None:
            summary = summarize(self.plan, self.answer, self.allowed)
            if type(self.answer) is FallbackAnswer:
                summary = _marked(self.plan, summary, self.answer.how)
            # Two threads may both get here; they store equal values.
            force_setattr(self, "_summary", summary)
        return summary

    def receipts(self) -> tuple[Receipt, ...]:
        """The charges made for this decision; empty for a refusal, a peek and a pickled copy."""
        return () if self.answer is None else self.answer.receipts()

    def to_dict(self) -> dict[str, object]:
        """For JSON. Times are milliseconds, rounded up, so that obeying them is never too early."""
        summary = self.summary
        document: dict[str, object] = {
            "allowed": self.allowed,
            "outcome": summary.outcome.value,
            "rule": self.rule,
            "limit": self.limit,
            "remaining": self.remaining,
            "retry_after_ms": _ms(summary.retry_after_us),
            "reset_ms": _ms(summary.reset_after_us),
            "delay_ms": _ms(summary.delay_us),
            "rules": [_result_dict(result) for result in self.results],
            "tier": self.plan.tier,
            "version": self.version,
            "degraded": self.degraded,
            "refusal": summary.refusal,
        }
        if self.listed is not None:
            document["listed"] = {"list": self.listed.list, "kind": self.listed.kind, "source": self.listed.source}
        if self.decision_id is not None:
            document["decision_id"] = self.decision_id
        return document

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Decision):
            return NotImplemented
        return self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())

    def __repr__(self) -> str:
        summary = self.summary
        words = [f"rule={self.rule!r}"]
        if summary.decisive is not None:
            words.append(f"remaining={self.remaining}/{self.limit}")
        if not self.allowed:
            words.append(f"retry_after_us={summary.retry_after_us}")
        if summary.delay_us:
            words.append(f"delay_us={summary.delay_us}")
        if self.degraded:
            words.append("degraded")
        return f"<Decision {summary.outcome.value} {' '.join(words)} version={self.version}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        plan = Plan([], self.plan.tier, self.plan.version, (), self.plan.listed)
        return _restore, (self.allowed, plan, self.degraded, self.decision_id, self.summary, self.results)

    def __copy__(self) -> Decision:
        return self

    def __deepcopy__(self, memo: object) -> Decision:
        return self

    def _value(self) -> tuple[object, ...]:
        plan = self.plan
        told = (self.allowed, self.summary, self.results, self.degraded, self.decision_id)
        return (*told, plan.tier, plan.version, plan.listed)


def summarize(plan: Plan, answer: Answer | None, allowed: bool) -> Summary:
    """Describe an answer: refusing rules first, else the tightest rule (see ``Decision``).

    Of the results only the deciding one is made: most callers ask for no other.
    """
    verdicts = () if answer is None else answer.verdicts()
    if not allowed:
        return _summarize_refusal(plan, verdicts)
    # What is unidentified here belongs to shadow rules, or the request would not be allowed.
    tightest: Counter | None = None
    found = _UNIDENTIFIED
    delay_us = 0
    for (counter, _, _), verdict in zip(plan.charges, verdicts):  # noqa: B905 - as long by contract; strict costs time here
        outcome, remaining, _, _, held_us = verdict
        if counter[3] or outcome is not _ALLOWED:
            continue
        if tightest is None or remaining < found[1]:
            tightest, found = counter, verdict
        if held_us:
            delay_us = max(delay_us, held_us)
    if tightest is None:
        return _new_tuple(Summary, (_ALLOWED, None, 0, 0, delay_us, None, verdicts))
    return _new_tuple(Summary, (_ALLOWED, _result(tightest, found), 0, found[3], delay_us, None, verdicts))


def _summarize_refusal(plan: Plan, verdicts: tuple[Verdict, ...]) -> Summary:
    first: RuleResult | None = None
    retry_after_us: int | None = 0
    charges, told = plan.charges, verdicts
    if plan.unidentified:
        charges = [*((counter, "", 0) for counter in plan.unidentified), *charges]
        told = (*(_UNIDENTIFIED for _ in plan.unidentified), *verdicts)
    if plan.listed is not None:
        counter, verdict = refusal_of(plan.listed)
        charges, told = [(counter, "", 0)], (verdict,)
    for (counter, _, _), verdict in zip(charges, told):  # noqa: B905 - as long by contract; strict costs time here
        outcome, _, wait_us, _, _ = verdict
        # ``RuleResult.refuses``, without making one.
        if counter[3] or outcome is _ALLOWED or (outcome is _UNDECIDED and wait_us == 0):
            continue
        if first is None:
            first = _result(counter, verdict)
        if wait_us is None:
            retry_after_us = None
        elif retry_after_us is not None and wait_us > retry_after_us:
            retry_after_us = wait_us
    if first is None:
        raise InternalError("a request was refused, but no rule refuses it")
    outcome, refusal = _NEVER_FITS if retry_after_us is None else _DENIED, "rate"
    if first.outcome is _UNDECIDED:
        outcome, refusal = _UNDECIDED, "store"
    return _new_tuple(Summary, (outcome, first, retry_after_us, retry_after_us or 0, 0, refusal, verdicts))


def _results(plan: Plan, verdicts: tuple[Verdict, ...], answer: Answer | None) -> tuple[RuleResult, ...]:
    if plan.listed is not None and plan.listed.blocked:
        return (_result(*refusal_of(plan.listed)),)
    results = [_result(counter, _UNIDENTIFIED) for counter in plan.unidentified]
    for charge, verdict in zip(plan.charges, verdicts, strict=True):
        results.append(_result(charge[0], verdict))
    if type(answer) is FallbackAnswer:
        for place, word in enumerate(answer.how, len(plan.unidentified)):
            results[place] = results[place]._replace(degraded=word)
    return tuple(results)


def _marked(plan: Plan, summary: Summary, how: Sequence[str | None]) -> Summary:
    """The summary, its deciding result marked with what decided it."""
    decisive = summary.decisive
    if decisive is None:
        return summary
    words = {charge[0].name: word for charge, word in zip(plan.charges, how, strict=True)}
    return summary._replace(decisive=decisive._replace(degraded=words.get(decisive.rule)))


_UNIDENTIFIED = Verdict(Outcome.NEVER_FITS, 0, None, 0)


def _result(counter: Counter, verdict: Verdict) -> RuleResult:
    spec = counter[1]
    outcome, remaining, retry_after_us, reset_after_us, delay_us = verdict
    return _new_tuple(
        RuleResult,
        (
            counter[0],
            outcome,
            spec.capacity,
            remaining,
            retry_after_us,
            reset_after_us,
            delay_us,
            spec.window_us,
            spec.algorithm,
            counter[3],
            None,
        ),
    )


def _result_dict(result: RuleResult) -> dict[str, object]:
    document: dict[str, object] = {
        "rule": result.rule,
        "outcome": result.outcome.value,
        "limit": result.limit,
        "remaining": result.remaining,
        "retry_after_ms": _ms(result.retry_after_us),
    }
    if result.shadow:
        document["shadow"] = True
    if result.degraded is not None:
        document["degraded"] = result.degraded
    return document


def _ms(us: int | None) -> int | None:
    """Milliseconds, rounded up; None stays None."""
    return None if us is None else -(-us // US_PER_MS)


def _restore(
    allowed: bool,
    plan: Plan,
    degraded: bool,
    decision_id: str | None,
    summary: Summary,
    results: tuple[RuleResult, ...],
) -> Decision:
    return Decision(allowed, plan, None, degraded, decision_id, summary, results)
