"""Pauses and rollouts: what the rules are for a while, or for a few."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.control.http.answers import Outcome, PausesPage, RolloutsPage, ok
from sluicegate.control.http.bodies import converted, read_data, read_object
from sluicegate.control.http.callers import Page, Viewer, Writer, Writing
from sluicegate.control.http.context import Shared
from sluicegate.control.http.inputs import NewPause, Reason, Share, end_of
from sluicegate.control.http.operations import Operations
from sluicegate.control.http.rules import Force, outcome
from sluicegate.control.model import PauseRow
from sluicegate.control.rollout_model import RolloutReport, RolloutRow

__all__ = ["PAUSES", "ROLLOUTS"]

PAUSES: Final = Operations("pauses")
ROLLOUTS: Final = Operations("rollouts")

Number = Annotated[int, Path(ge=1, description="Its number.")]
_ENDS: Final = (404, 409)


@PAUSES.add("GET", "/v1/pauses", answer=PausesPage)
async def _list_pauses(
    _actor: Viewer,
    context: Shared,
    page: Page,
    ended: Annotated[bool, Query(description="Also those that have ended.")] = False,
) -> Response:
    """Pauses, the newest first."""
    found = await context.service.pauses.page(**page.asked, ended=ended)
    return ok(PausesPage(found.items, found.next_token))


@PAUSES.add("POST", "/v1/pauses", answer=PauseRow, status=201, also=(200,), body=NewPause, refusals=_ENDS)
async def _pause(request: Request, actor: Writer, context: Shared, how: Writing) -> Response:
    """Pause a rule, or all: the kill switch.

    In place of a pause of the same rule that holds. 200 where it was only tried.
    """
    body = converted(await read_data(request), NewPause)
    until_us = end_of(context.clock.now_us(), body.until_us, body.for_s, ("until_us", "for_s"))
    row = await context.service.pauses.pause(actor, body.rule, until_us=until_us, **how.because(body.reason))
    if how.validate_only:
        return ok(row)
    return ok(row, 201, headers={"Location": f"/v1/pauses/{row.id}"})


@PAUSES.add("GET", "/v1/pauses/{pause}", answer=PauseRow, refusals=(404,))
async def _get_pause(number: Annotated[int, Path(alias="pause", ge=1)], _actor: Viewer, context: Shared) -> Response:
    """One pause."""
    return ok(await context.service.pauses.get(number))


@PAUSES.add("DELETE", "/v1/pauses/{pause}", answer=PauseRow, refusals=_ENDS)
async def _resume(
    number: Annotated[int, Path(alias="pause", ge=1)], actor: Writer, context: Shared, how: Writing
) -> Response:
    """End a pause. It stays in the list of those that have ended."""
    return ok(await context.service.pauses.resume(actor, number, **how.because(None)))


@ROLLOUTS.add("GET", "/v1/rollouts", answer=RolloutsPage)
async def _list_rollouts(_actor: Viewer, context: Shared, page: Page) -> Response:
    """Rollouts, the newest first."""
    found = await context.service.rollouts.page(**page.asked)
    return ok(RolloutsPage(found.items, found.next_token))


@ROLLOUTS.add("POST", "/v1/rollouts", answer=RolloutRow, status=201, also=(200,), body="NewRollout", refusals=(409,))
async def _create_rollout(request: Request, actor: Writer, context: Shared, how: Writing) -> Response:
    """Try rules as a shadow, or on a share of the clients.

    200 where it was only tried.
    """
    body = await read_data(request)
    options = how.taken_from(body)
    row = await context.service.rollouts.create(actor, body, **options)
    if how.validate_only:
        return ok(row)
    return ok(row, 201, headers={"Location": f"/v1/rollouts/{row.id}"})


@ROLLOUTS.add("GET", "/v1/rollouts/{rollout}", answer=RolloutRow, refusals=(404,))
async def _get_rollout(rollout: Number, _actor: Viewer, context: Shared) -> Response:
    """One rollout, without its rules."""
    return ok(await context.service.rollouts.get(rollout))


@ROLLOUTS.add(
    "GET",
    "/v1/rollouts/{rollout}/candidate",
    answer="Ruleset",
    refusals=(404,),
)
async def _get_candidate(rollout: Number, _actor: Viewer, context: Shared) -> Response:
    """The rules on trial: a rules file as JSON."""
    candidate: dict[str, Any] = await context.service.rollouts.candidate(rollout)
    return ok(candidate)


@ROLLOUTS.add("GET", "/v1/rollouts/{rollout}/report", answer=RolloutReport, refusals=(404,))
async def _report_rollout(rollout: Number, _actor: Viewer, context: Shared) -> Response:
    """How a rollout does: what old and new rules did, and whom the new ones refuse most."""
    return ok(await context.service.rollouts.report(rollout))


@ROLLOUTS.add("POST", "/v1/rollouts/{rollout}/advance", answer=RolloutRow, body=Share, refusals=_ENDS)
async def _advance_rollout(request: Request, rollout: Number, actor: Writer, context: Shared, how: Writing) -> Response:
    """Go to another share of the clients, larger or smaller."""
    body = converted(await read_data(request), Share)
    return ok(await context.service.rollouts.advance(actor, rollout, body.basis_points, **how.because(body.reason)))


@ROLLOUTS.add(
    "POST",
    "/v1/rollouts/{rollout}/promote",
    answer=Outcome,
    body=Reason,
    body_required=False,
    refusals=_ENDS,
    tagged=True,
)
async def _promote_rollout(
    request: Request, rollout: Number, actor: Writer, context: Shared, how: Writing, force: Force = False
) -> Response:
    """Put the rules on trial into service for everybody."""
    options = how.because((await read_object(request, Reason)).reason)
    applied = await context.service.rollouts.promote(actor, rollout, force=force, **options)
    return outcome(applied, how, applied.version.info.version)


@ROLLOUTS.add(
    "POST", "/v1/rollouts/{rollout}/abort", answer=RolloutRow, body=Reason, body_required=False, refusals=_ENDS
)
async def _abort_rollout(request: Request, rollout: Number, actor: Writer, context: Shared, how: Writing) -> Response:
    """End a rollout; all clients are back with the rules in service."""
    options = how.because((await read_object(request, Reason)).reason)
    return ok(await context.service.rollouts.abort(actor, rollout, **options))
