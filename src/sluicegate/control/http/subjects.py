"""Subjects: their tier, and limits that differ for a while."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.control.http.answers import SubjectsPage, ok, ok_unless_known
from sluicegate.control.http.bodies import read_data
from sluicegate.control.http.callers import Page, Viewer, Writer, Writing
from sluicegate.control.http.context import Shared
from sluicegate.control.http.operations import Operations
from sluicegate.control.http.preconditions import Expected, etag, stated
from sluicegate.control.model import SubjectRow

__all__ = ["SUBJECTS"]

SUBJECTS: Final = Operations("subjects")

_PATH: Final = "/v1/subjects/{subject:path}"
_WRITES: Final = (409, 412, 428)


@SUBJECTS.add("GET", "/v1/subjects", answer=SubjectsPage)
async def _list_subjects(
    _actor: Viewer,
    context: Shared,
    page: Page,
    prefix: Annotated[str, Query(description="Only subjects whose names begin so, such as `user:`.")] = "",
) -> Response:
    """Subjects by their names."""
    found = await context.service.subjects.page(**page.asked, prefix=prefix)
    return ok(SubjectsPage(found.items, found.next_token))


@SUBJECTS.add("GET", _PATH, answer=SubjectRow, refusals=(304, 404), tagged=True)
async def _get_subject(request: Request, subject: str, _actor: Viewer, context: Shared) -> Response:
    """One subject, such as `user:8123`."""
    row = await context.service.subjects.get(subject)
    return ok_unless_known(request, row, etag(row.revision))


@SUBJECTS.add("PUT", _PATH, answer=SubjectRow, body="PutSubject", refusals=_WRITES, tagged=True)
async def _put_subject(
    request: Request, subject: str, actor: Writer, context: Shared, how: Writing, expect: Expected
) -> Response:
    """Set the tier of a subject, or a factor of its limits, until a time or for good.

    A new one needs no `If-Match`; one that is there does.
    """
    body = await read_data(request)
    options = how.taken_from(body)
    with stated(expect, "subject", subject) as found:
        row = await context.service.subjects.put(actor, subject, body, expect=found, **options)
    return ok(row, revision=None if how.validate_only else row.revision)


@SUBJECTS.add("DELETE", _PATH, answer={}, status=204, refusals=(404, *_WRITES))
async def _delete_subject(subject: str, actor: Writer, context: Shared, how: Writing, expect: Expected) -> Response:
    """Forget a subject."""
    with stated(expect, "subject", subject) as found:
        await context.service.subjects.remove(actor, subject, expect=found, **how.because(None))
    return Response(status_code=204)
