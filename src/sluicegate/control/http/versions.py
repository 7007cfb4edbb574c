"""Versions of the rules: what was in service, what differs, and going back."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.control.http.answers import Outcome, VersionsPage, ok
from sluicegate.control.http.bodies import read_object
from sluicegate.control.http.callers import Page, Viewer, Writer, Writing
from sluicegate.control.http.context import Shared
from sluicegate.control.http.inputs import Reason
from sluicegate.control.http.operations import Operations
from sluicegate.control.http.preconditions import Expected
from sluicegate.control.http.rules import Force, outcome
from sluicegate.control.model import Version, VersionDiff

__all__ = ["VERSIONS"]

VERSIONS: Final = Operations("versions")

Number = Annotated[int, Path(ge=1, description="The number of a version.")]


@VERSIONS.add("GET", "/v1/versions", answer=VersionsPage)
async def _list_versions(_actor: Viewer, context: Shared, page: Page) -> Response:
    """Versions of the rules, the newest first, without the rules themselves."""
    found = await context.service.rulesets.versions(**page.asked)
    return ok(VersionsPage(found.items, found.next_token))


@VERSIONS.add("GET", "/v1/versions/{version}", answer=Version, refusals=(404,))
async def _get_version(version: Number, _actor: Viewer, context: Shared) -> Response:
    """A version with its rules."""
    return ok(await context.service.rulesets.version(version))


@VERSIONS.add("GET", "/v1/versions/{old}/diff/{new}", answer=VersionDiff, refusals=(404,))
async def _diff_versions(old: Number, new: Number, _actor: Viewer, context: Shared) -> Response:
    """What lies between two versions, in meaning and in text."""
    return ok(await context.service.rulesets.diff(old, new))


@VERSIONS.add(
    "POST",
    "/v1/versions/{version}/rollback",
    answer=Outcome,
    body=Reason,
    body_required=False,
    refusals=(404, 409, 412, 428),
    tagged=True,
)
async def _rollback(
    request: Request,
    version: Number,
    actor: Writer,
    context: Shared,
    how: Writing,
    expect: Expected,
    force: Force = False,
) -> Response:
    """Put the rules of an earlier version into service, as a new version.

    `If-Match` names the version in service, as `/v1/ruleset` tells it.
    """
    options = how.because((await read_object(request, Reason)).reason)
    applied = await context.service.rulesets.rollback(actor, version, expect=expect, force=force, **options)
    return outcome(applied, how, applied.version.info.version)
