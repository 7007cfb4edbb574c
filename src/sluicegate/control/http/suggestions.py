"""What limits would suit the traffic."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query
from starlette.responses import Response

from sluicegate.control.errors import Conflict, Fault, Invalid
from sluicegate.control.http.answers import ok
from sluicegate.control.http.callers import Viewer
from sluicegate.control.http.context import Shared
from sluicegate.control.http.operations import Operations
from sluicegate.control.http.traffic import Since, Until, Window, span_of, traffic_of
from sluicegate.control.suggestions import SuggestionsAnswer, SuggestionsQuestion
from sluicegate.errors import InvalidRequest

__all__ = ["SUGGESTIONS"]

SUGGESTIONS: Final = Operations("traffic")


@SUGGESTIONS.add("GET", "/v1/suggestions", answer=SuggestionsAnswer, refusals=(409,))
async def _list_suggestions(
    _actor: Viewer,
    context: Shared,
    window: Window = "",
    since_us: Since = None,
    until_us: Until = None,
    rule: Annotated[str | None, Query(max_length=256, description="Only for this rule.")] = None,
    tier: Annotated[
        str | None, Query(max_length=256, description="Only for this tier; empty: quotas that are of no tier.")
    ] = None,
    floor: Annotated[
        str,
        Query(
            max_length=10_000,
            description="Quotas below which nothing is proposed, with commas between: `api:free=60/minute,login=5/minute`.",
        ),
    ] = "",
    target: Annotated[float, Query(description="Share of the clients that shall never be refused.")] = 0.995,
) -> Response:
    """Quotas proposed for the rules in service by the traffic of the last week, or another span, with the evidence.

    Nothing is applied. A proposal becomes a draft by a rollout that begins with nobody, and is applied by a person.
    """
    since, until = span_of(context, window, since_us, until_us, "7d")
    floors = tuple(part.strip() for part in floor.split(",") if part.strip())
    try:
        question = SuggestionsQuestion(since, until, rule, tier, floors, target)
    except InvalidRequest as error:
        raise Invalid([Fault(str(error), f"/{error.field}")]) from error
    current = await context.service.rulesets.current()
    if current is None:
        raise Conflict("there are no rules in service that numbers could be proposed for")
    made = await traffic_of(context).suggestions(question, current.document)
    return ok(SuggestionsAnswer(current.info.version, since, until, made))
