"""What a refused client is told, by every door.

A refusal by rate is 429, never 403 or 503, with ``application/problem+json``; a rule that fails closed while its counters are out of
reach is 503. A rule's ``respond`` changes the body, not the status:

    respond: challenge                     "challenge": true in the problem document, for a client that can prove itself
    respond: {template: ..., content_type: ...}   the text, with {rule}, {limit}, {remaining} and {retry_after_s} filled in

Only these four words in braces are replaced, so a template may be JSON; ``{retry_after_s}`` is ``null`` where waiting is useless.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from sluicegate.algorithms.verdict import Outcome, Verdict
from sluicegate.clock import US_PER_S
from sluicegate.doors.headers import seconds_up
from sluicegate.doors.problem import CONTENT_TYPE, problem, quota_exceeded, temporary_reduced_capacity
from sluicegate.errors import InvalidRequest
from sluicegate.limiter.decision import Decision, Summary
from sluicegate.limiter.engine import Engine

__all__ = [
    "CHALLENGE",
    "HasRules",
    "Refusals",
    "Reply",
    "Respond",
    "bad_request",
    "delayed",
    "refusal",
    "respond_of",
    "too_many_held",
]

Respond = str | Mapping[str, object]
CHALLENGE = "challenge"
_USUAL = "429"


class Reply(NamedTuple):
    """An answer of the door itself; rate headers and Retry-After are added to it as to every answer."""

    status: int
    content_type: str
    body: bytes


class HasRules(Protocol):
    """The part of a limiter that is looked at here."""

    @property
    def engine(self) -> Engine:
        """The compiled rules in service."""
        ...


class Refusals:
    """What the refused clients of a server are told. Safe to share between its doors.

    ``jitter_s``: they are told to come back up to this many whole seconds later than they may, so that those refused together do
    not come back together; 0: exactly then. ``random``: where the jitter comes from.
    """

    __slots__ = ("_jitter_s", "_limiter", "_random")

    def __init__(self, limiter: HasRules, jitter_s: int = 0, random: Random | None = None) -> None:
        self._limiter = limiter
        self._jitter_s = jitter_s
        self._random = random or Random()  # noqa: S311 -- spreads clients out; nothing is kept secret by it

    @property
    def rules(self) -> Engine:
        """What says how refusals look; another object after an edit of the rules."""
        return self._limiter.engine

    def told(self, decision: Decision) -> Decision:
        """The decision as it is told: a refusal later by the jitter, in header fields and body alike. Ask once per request."""
        if decision.allowed or not self._jitter_s:
            return decision
        return delayed(decision, self._random.randint(0, self._jitter_s))

    def is_special(self, decision: Decision) -> bool:
        """Whether the rule that refused wants another body than the usual one."""
        return respond_of(self._limiter, decision) != _USUAL

    def reply(self, told: Decision) -> Reply:
        """The answer to a refused request, by the rule that refused it."""
        return refusal(told, respond_of(self._limiter, told))


def respond_of(limiter: HasRules, decision: Decision) -> Respond:
    """What the rule that refused wants its answer to be."""
    try:
        return limiter.engine.rule_of(decision.rule or "").respond
    except KeyError:
        # A quota limiter, or rules that were replaced since.
        return _USUAL


def refusal(decision: Decision, respond: Respond = _USUAL) -> Reply:
    """The answer to a refused request."""
    if decision.refusal == "store":
        return Reply(503, CONTENT_TYPE, temporary_reduced_capacity(decision))
    if isinstance(respond, str):
        body = quota_exceeded(decision)
        if respond == CHALLENGE:
            body = msgspec.json.encode({**msgspec.json.decode(body), "challenge": True})
        return Reply(429, CONTENT_TYPE, body)
    text = str(respond["template"])
    for word, value in _words(decision).items():
        text = text.replace(word, value)
    content_type = str(respond["content_type"])
    if content_type.startswith("text/") and "charset" not in content_type:
        content_type += "; charset=utf-8"
    return Reply(429, content_type, text.encode())


def bad_request(error: InvalidRequest) -> Reply:
    """The answer to a request that cannot be decided, for instance because its path is too long."""
    return Reply(400, CONTENT_TYPE, problem(400, str(error)))


def delayed(decision: Decision, later_s: int) -> Decision:
    """A refusal that tells its client to come back ``later_s`` seconds later than it may, so that not all come back at once."""
    summary = decision.summary
    if summary.retry_after_us is None:
        return decision
    later_us = later_s * US_PER_S
    wait_us = summary.retry_after_us + later_us
    summary = summary._replace(retry_after_us=wait_us, reset_after_us=wait_us)
    # All that refuse by the same time, so that the longest of the waits that a dialect lists is the one of Retry-After.
    results = tuple(
        each._replace(retry_after_us=each.retry_after_us + later_us, reset_after_us=each.retry_after_us + later_us)
        if each.refuses and each.retry_after_us is not None
        else each
        for each in decision.results
    )
    return Decision(False, decision.plan, None, decision.degraded, decision.decision_id, summary, results)


def too_many_held(decision: Decision) -> Decision:
    """The refusal of a request that a leaky bucket would hold, where as many are held as may be."""
    delay_us = decision.delay_us
    results, verdicts = list(decision.results), list(decision.summary.verdicts)
    place = next(at for at, each in enumerate(results) if each.delay_us == delay_us and not each.shadow)
    results[place] = refusing = results[place]._replace(
        outcome=Outcome.DENIED, remaining=0, retry_after_us=delay_us, reset_after_us=delay_us, delay_us=0
    )
    # Results begin with those that no counter stands behind, verdicts do not; a copy that was pickled has none at all.
    if verdicts:
        verdicts[place - len(results)] = Verdict(Outcome.DENIED, 0, delay_us, delay_us)
    summary = Summary(Outcome.DENIED, refusing, delay_us, delay_us, 0, "rate", tuple(verdicts))
    return Decision(False, decision.plan, None, decision.degraded, None, summary, tuple(results))


def _words(decision: Decision) -> dict[str, str]:
    wait_us = decision.retry_after_us
    return {
        "{rule}": decision.rule or "",
        "{limit}": str(decision.limit),
        "{remaining}": str(decision.remaining),
        "{retry_after_s}": "null" if wait_us is None else str(max(1, seconds_up(wait_us))),
    }
