"""The audit trail, tokens, nodes, and a database that was set back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from sluicegate.control.http.answers import AuditPage, NewTokenAnswer, NodesPage, TokensPage, encoded, ok
from sluicegate.control.http.bodies import converted, read_data, read_object
from sluicegate.control.http.callers import Admin, Page, Viewer, Writer, Writing
from sluicegate.control.http.context import Shared
from sluicegate.control.http.inputs import NewToken, Reason, end_of
from sluicegate.control.http.operations import Operations
from sluicegate.control.model import AuditRow, AuditVerdict, TokenRow
from sluicegate.rules.feed import Revisions

__all__ = ["OPERATING"]

OPERATING: Final = Operations("operating")

_NDJSON: Final = "application/x-ndjson"
TokenNumber = Annotated[int, Path(alias="token", ge=1, description="Its number.")]


@OPERATING.add("GET", "/v1/audit", answer=AuditPage)
async def _list_audit(
    actor: Viewer,
    context: Shared,
    page: Page,
    action: Annotated[str, Query(description="Only this action, such as `rule.put`.")] = "",
    by: Annotated[str, Query(description="Only by this actor.")] = "",
    resource: Annotated[str, Query(description="Only about this, such as `rule:login`.")] = "",
    outcome: Annotated[Literal["", "accepted", "refused"], Query(description="Only with this outcome.")] = "",
    since_us: Annotated[int, Query(ge=0, lt=2**63, description="Only of this time and later.")] = 0,
) -> Response:
    """The audit trail, the newest line first."""
    found = await context.service.audit.page(
        actor, **page.asked, action=action, by=by, resource=resource, outcome=outcome, since_us=since_us
    )
    return ok(AuditPage(found.items, found.next_token))


@OPERATING.add("GET", "/v1/audit/verify", answer=AuditVerdict)
async def _verify_audit(
    actor: Viewer,
    context: Shared,
    head: Annotated[str, Query(description="`ID:HASH` noted elsewhere, which must be in the trail.")] = "",
) -> Response:
    """Walk the audit trail and say whether it is whole."""
    return ok(await context.service.audit.verify(actor, head))


@OPERATING.add("GET", "/v1/audit/export", answer={_NDJSON: {"schema": {"type": "string"}}})
async def _export_audit(
    actor: Admin,
    context: Shared,
    after: Annotated[int, Query(ge=0, lt=2**63, description="Only lines above this number.")] = 0,
) -> Response:
    """The audit trail, the oldest line first, a JSON object a line.

    The export itself is its last line.
    """
    rows = context.service.audit.export(actor, after=after)
    # The first row is asked for here, so that what goes wrong still has a status.
    first = await anext(rows, None)
    return StreamingResponse(_lines(first, rows), media_type=_NDJSON)


@OPERATING.add("GET", "/v1/audit/{line}", answer=AuditRow, refusals=(404,))
async def _get_audit_line(
    line: Annotated[int, Path(ge=1, lt=2**63, description="Its number.")], actor: Viewer, context: Shared
) -> Response:
    """One line of the audit trail."""
    return ok(await context.service.audit.get(actor, line))


async def _lines(first: AuditRow | None, rows: AsyncIterator[AuditRow]) -> AsyncIterator[bytes]:
    if first is None:
        return
    yield encoded(first) + b"\n"
    async for row in rows:
        yield encoded(row) + b"\n"


@OPERATING.add("GET", "/v1/tokens", answer=TokensPage)
async def _list_tokens(actor: Admin, context: Shared, page: Page) -> Response:
    """Tokens, the newest first, without their texts."""
    found = await context.service.tokens.page(actor, **page.asked)
    return ok(TokensPage(found.items, found.next_token))


@OPERATING.add("POST", "/v1/tokens", answer=NewTokenAnswer, status=201, also=(200,), body=NewToken, refusals=(409,))
async def _create_token(request: Request, actor: Writer, context: Shared, how: Writing) -> Response:
    """Make a token. Its text is in this answer and nowhere else.

    200, without a text, where it was only tried.
    """
    body = converted(await read_data(request), NewToken)
    ends_us = end_of(context.clock.now_us(), body.expires_us, body.expires_s, ("expires_us", "expires_s"))
    row, text = await context.service.tokens.create(
        actor,
        body.name,
        body.role,
        namespaces=body.namespaces,
        expires_us=ends_us,
        node=body.node,
        **how.because(body.reason),
    )
    if how.validate_only:
        return ok(NewTokenAnswer(row, ""))
    return ok(NewTokenAnswer(row, text), 201, headers={"Location": f"/v1/tokens/{row.id}"})


@OPERATING.add("GET", "/v1/tokens/{token}", answer=TokenRow, refusals=(404,))
async def _get_token(token: TokenNumber, actor: Admin, context: Shared) -> Response:
    """One token, without its text."""
    return ok(await context.service.tokens.get(actor, token))


@OPERATING.add("DELETE", "/v1/tokens/{token}", answer=TokenRow, refusals=(404, 409))
async def _revoke_token(token: TokenNumber, actor: Writer, context: Shared, how: Writing) -> Response:
    """Revoke a token, at once. The last one of an admin cannot be."""
    return ok(await context.service.tokens.revoke(actor, token, **how.because(None)))


@OPERATING.add("GET", "/v1/nodes", answer=NodesPage)
async def _list_nodes(_actor: Viewer, context: Shared, page: Page) -> Response:
    """Nodes by their names: what each decides by, and how far it is behind."""
    found = await context.service.nodes.page(**page.asked)
    return ok(NodesPage(found.items, found.next_token))


@OPERATING.add("DELETE", "/v1/nodes/{node:path}", answer={}, status=204, refusals=(404,))
async def _forget_node(node: str, actor: Writer, context: Shared, how: Writing) -> Response:
    """Forget a node. One that lives is back with its next report."""
    await context.service.nodes.forget(actor, node, **how.because(None))
    return Response(status_code=204)


@OPERATING.add("POST", "/v1/adopt", answer=Revisions, body=Reason, body_required=False)
async def _adopt(request: Request, actor: Writer, context: Shared, how: Writing) -> Response:
    """Begin a new life of a database that was set back: nodes take what it says, whatever they had."""
    options = how.because((await read_object(request, Reason)).reason)
    return ok(await context.service.adopt(actor, **options))
