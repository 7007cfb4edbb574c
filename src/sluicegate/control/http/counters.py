"""Counters of the nodes, and why a request is decided as it is."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.bounds import CAPACITY_MAX
from sluicegate.control.counters import CounterChange, CountersAnswer, Question
from sluicegate.control.errors import Fault, Invalid
from sluicegate.control.http.answers import ok
from sluicegate.control.http.bodies import converted, read_data
from sluicegate.control.http.callers import Viewer, Writer, Writing
from sluicegate.control.http.context import Shared
from sluicegate.control.http.operations import Operations

__all__ = [
    "COUNTERS",
    "ExplainAnswer",
    "GrantOfTokens",
    "NodeExplanation",
    "RefundAnswer",
    "RefundOfDecision",
    "RequestToExplain",
    "ResetOfCounters",
    "WhichCounters",
]

COUNTERS: Final = Operations("counters")


class WhichCounters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counters: those that a request with these ``facts`` would be charged to, of all rules or of ``rule``; or those of a ``subject`` of a ``rule``.

    ``tier``: whose numbers a subject has; null: those that are known.
    """

    facts: dict[str, Any] | None = None
    rule: str | None = None
    subject: str | None = None
    tier: str | None = None


class GrantOfTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to give back: up to ``tokens`` of what each of the counters has used. Counters as in ``WhichCounters``."""

    tokens: int
    facts: dict[str, Any] | None = None
    rule: str | None = None
    subject: str | None = None
    tier: str | None = None
    reason: str = ""


class ResetOfCounters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counters to forget. As in ``WhichCounters``."""

    facts: dict[str, Any] | None = None
    rule: str | None = None
    subject: str | None = None
    tier: str | None = None
    reason: str = ""


class RefundOfDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decision made with a receipt."""

    decision_id: str
    reason: str = ""


class RefundAnswer(msgspec.Struct, frozen=True):
    """``node``: the one that had the receipt. ``refunded``: counters that got something back."""

    node: str
    refunded: int


class RequestToExplain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a request, as ``/v1/check`` of a node takes it."""

    facts: dict[str, Any]
    cost: int = 1


class NodeExplanation(msgspec.Struct, frozen=True):
    """``node`` "": by the store that all share. ``explanation`` as ``/v1/explain`` of a node answers it; null where there is an ``error``."""

    node: str
    error: str
    explanation: dict[str, Any] | None


class ExplainAnswer(msgspec.Struct, frozen=True):
    """One explanation of the shared store, or one of each node.

    ``unknown``: why this service does not know how the counters stand; "" where it does. What is explained is then what rules, lists, subjects and pauses
    say, and ``decision`` is that for a client who has used nothing.
    """

    nodes: list[NodeExplanation]
    unknown: str


_REFUSALS: Final = (409,)


@COUNTERS.add("POST", "/v1/counters/read", answer=CountersAnswer, body=WhichCounters, refusals=_REFUSALS)
async def _read_counters(request: Request, actor: Viewer, context: Shared) -> Response:
    """How counters stand. Charges nothing."""
    body = converted(await read_data(request), WhichCounters)
    return ok(await context.service.counters.read(actor, _question(body)))


@COUNTERS.add("POST", "/v1/counters/grant", answer=CountersAnswer, body=GrantOfTokens, refusals=_REFUSALS)
async def _grant_tokens(request: Request, actor: Writer, context: Shared, how: Writing) -> Response:
    """Give back some of what counters have used, never more than that; `given` says how much."""
    body = converted(await read_data(request), GrantOfTokens)
    if not 1 <= body.tokens <= CAPACITY_MAX:
        raise Invalid([Fault(f"tokens: want 1 to {CAPACITY_MAX}, got {body.tokens}", "/tokens")])
    change = CounterChange("grant", {**_question(body), "tokens": body.tokens})
    return ok(await context.service.counters.change(actor, change, **how.because(body.reason)))


@COUNTERS.add("POST", "/v1/counters/reset", answer=CountersAnswer, body=ResetOfCounters, refusals=_REFUSALS)
async def _reset_counters(request: Request, actor: Writer, context: Shared, how: Writing) -> Response:
    """Forget counters: they begin anew."""
    body = converted(await read_data(request), ResetOfCounters)
    change = CounterChange("reset", _question(body))
    return ok(await context.service.counters.change(actor, change, **how.because(body.reason)))


@COUNTERS.add("POST", "/v1/counters/refund", answer=RefundAnswer, body=RefundOfDecision, refusals=(404, 409))
async def _refund_decision(request: Request, actor: Writer, context: Shared, how: Writing) -> Response:
    """Give back what a decision charged, by its id; good once, for an hour."""
    body = converted(await read_data(request), RefundOfDecision)
    told = await context.service.counters.refund(actor, body.decision_id, **how.because(body.reason))
    return ok(RefundAnswer(**told))


@COUNTERS.add("POST", "/v1/explain", answer=ExplainAnswer, body=RequestToExplain)
async def _explain_request(request: Request, actor: Viewer, context: Shared) -> Response:
    """Why a request would be decided as it is now: every rule, how its counters stand, the verdict. Charges nothing."""
    body = converted(await read_data(request), RequestToExplain)
    told = await context.service.counters.explain(actor, {"facts": body.facts, "cost": body.cost})
    return ok(msgspec.convert(told, ExplainAnswer))


def _question(body: WhichCounters | GrantOfTokens | ResetOfCounters) -> Question:
    """The body as nodes take it."""
    named = {name: getattr(body, name) for name in ("facts", "rule", "subject", "tier")}
    return {name: value for name, value in named.items() if value is not None}
