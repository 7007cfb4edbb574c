"""What nodes ask for and say. They bring a token of the role node."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Final

import msgspec
from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.bounds import API_POLLS_MAX, POLL_WAIT_S_MAX, REPORT_BODY_BYTES_MAX
from sluicegate.control.errors import Fault, Invalid
from sluicegate.control.http.answers import ok, ok_unless_known
from sluicegate.control.http.bodies import JSON, media_type, read_body
from sluicegate.control.http.callers import Node
from sluicegate.control.http.context import Context, Shared
from sluicegate.control.http.operations import Operations
from sluicegate.control.http.problems import Refused
from sluicegate.rules.feed import ListChanges, NodeReport, ReportAnswer, Revisions, Snapshot, SubjectChanges

__all__ = ["FEED"]

FEED: Final = Operations("feed")

_WAIT: Final = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?([0-9]{1,9})\"?\s*(?:$|[,;])", re.ASCII | re.IGNORECASE)
_REPORT: Final = msgspec.json.Decoder(NodeReport)

Since = Annotated[int, Query(ge=0, lt=2**63, description="The revision that is known; 0: nothing is.")]
Cursor = Annotated[str, Query(description="`cursor` of the page before.")]


@FEED.add("GET", "/v1/feed/revisions", answer=Revisions, refusals=(304,), tagged=True)
async def _get_revisions(
    request: Request,
    _actor: Node,
    context: Shared,
    prefer: Annotated[
        str, Header(description="`wait=25`: with `If-None-Match`, how many seconds to wait for a change.")
    ] = "",
) -> Response:
    """Where the service stands.

    With `If-None-Match` and `Prefer: wait=SECONDS` the answer comes when something changes: 200 then, 304 at the end of the time.
    """
    latest = await context.service.revisions()
    given = request.headers.get("if-none-match", "")
    wait = _WAIT.search(prefer)
    if latest.etag == given.strip().removeprefix("W/") and wait is not None:
        latest = await _changed(request, context, latest.etag, min(int(wait[1]), POLL_WAIT_S_MAX))
    return ok_unless_known(request, latest, latest.etag)


@FEED.add("GET", "/v1/feed/snapshot", answer=Snapshot, refusals=(304,), tagged=True)
async def _get_snapshot(request: Request, _actor: Node, context: Shared) -> Response:
    """Rules, rollout and pauses of one moment."""
    snapshot = await context.service.snapshot()
    return ok_unless_known(request, snapshot, snapshot.revisions.etag)


@FEED.add("GET", "/v1/feed/lists", answer=ListChanges)
async def _get_list_changes(_actor: Node, context: Shared, since: Since = 0, cursor: Cursor = "") -> Response:
    """What has changed in the lists since a revision."""
    return ok(await context.service.lists.changes(since, cursor))


@FEED.add("GET", "/v1/feed/subjects", answer=SubjectChanges)
async def _get_subject_changes(_actor: Node, context: Shared, since: Since = 0, cursor: Cursor = "") -> Response:
    """What has changed in the subjects since a revision."""
    return ok(await context.service.subjects.changes(since, cursor))


@FEED.add("POST", "/v1/feed/report", answer=ReportAnswer, body=NodeReport, refusals=(409,))
async def _report(request: Request, actor: Node, context: Shared) -> Response:
    """What a node says of itself. Counts may be forgotten by the node once this is answered.

    403 where the token is that of another node; 409 where a node of this name reported with another token, still valid, in the last
    minute.
    """
    media_type(request, JSON)
    content = await read_body(request, REPORT_BODY_BYTES_MAX)
    try:
        told = _REPORT.decode(content)
    except msgspec.ValidationError as error:
        raise Invalid([Fault(str(error))]) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    return ok(await context.service.nodes.report(actor, told))


async def _changed(request: Request, context: Context, etag: str, wait_s: float) -> Revisions:
    """The revisions when they change, at the end of the time, when the server is to end, or the client has gone."""
    numbers = context.numbers
    if numbers.polls >= API_POLLS_MAX:
        return await context.service.revisions()
    numbers.polls += 1
    # While it waits it is no work.
    numbers.at_work -= 1
    changed = asyncio.ensure_future(context.service.changed(etag, wait_s))
    others = [asyncio.ensure_future(context.closing.wait()), asyncio.ensure_future(_gone(request))]
    try:
        await asyncio.wait([changed, *others], return_when=asyncio.FIRST_COMPLETED)
    finally:
        numbers.polls -= 1
        numbers.at_work += 1
        for task in (changed, *others):
            task.cancel()
        await asyncio.gather(changed, *others, return_exceptions=True)
    return await context.service.revisions()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
