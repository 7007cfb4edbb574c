"""Who comes most."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Query
from starlette.responses import Response

from sluicegate.bounds import TOP_ROWS_MAX
from sluicegate.control.errors import Fault, Invalid
from sluicegate.control.http.answers import ok
from sluicegate.control.http.callers import Viewer
from sluicegate.control.http.context import Shared
from sluicegate.control.http.operations import Operations
from sluicegate.control.http.traffic import Since, Until, Window, span_of, traffic_of
from sluicegate.control.offenders import OffendersAnswer, OffendersQuestion
from sluicegate.errors import InvalidRequest

__all__ = ["OFFENDERS"]

OFFENDERS: Final = Operations("traffic")


@OFFENDERS.add("GET", "/v1/offenders", answer=OffendersAnswer, refusals=(409,))
async def _list_offenders(
    _actor: Viewer,
    context: Shared,
    window: Window = "",
    since_us: Since = None,
    until_us: Until = None,
    rule: Annotated[
        str, Query(max_length=256, description="Only of this rule; `*`: counted over all rules; empty: of each rule.")
    ] = "",
    kind: Annotated[
        Literal["refused", "asked"], Query(description="Who was refused most, or who asked most.")
    ] = "refused",
    subject: Annotated[
        str,
        Query(
            max_length=1024,
            description="Only this client: as it is told, or as itself, such as `user:8123`, which is looked up by its digest.",
        ),
    ] = "",
    limit: Annotated[
        int, Query(ge=1, le=TOP_ROWS_MAX, description="Rows at most; `more` says whether there are others.")
    ] = 20,
) -> Response:
    """Who was refused most, or asked most, in the last 15 minutes or another window: merged over nodes, with the error stated.

    A client came at most `times` and at least `times - error` times; who is not known came at most `error` times. The window is widened to whole minutes, to whole
    hours where minutes are past their retention. Clients are digests unless the nodes are set otherwise.
    """
    since, until = span_of(context, window, since_us, until_us, "15m")
    try:
        question = OffendersQuestion(until - since, until, rule, kind, subject, limit)
    except InvalidRequest as error:
        raise Invalid([Fault(str(error), f"/{error.field}")]) from error
    return ok(await traffic_of(context).offenders(question, context.clock.now_us()))
