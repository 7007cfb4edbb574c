"""The allow and the block list: entries one by one, and whole feeds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.bounds import CONTROL_NAME_CHARS_MAX, IMPORT_BYTES_MAX
from sluicegate.control.errors import AlreadyExists, Fault, PreconditionFailed
from sluicegate.control.http.answers import EntriesPage, ListsAnswer, ListSummary, Removed, ok, ok_unless_known
from sluicegate.control.http.bodies import converted, media_type, read_data, stream
from sluicegate.control.http.callers import Page, Viewer, Writer, Writing
from sluicegate.control.http.context import Shared
from sluicegate.control.http.inputs import EntrySettings, NewEntry, end_of
from sluicegate.control.http.operations import Operations
from sluicegate.control.http.preconditions import Expected, etag, stated
from sluicegate.control.http.problems import Refused
from sluicegate.control.list_values import key_of
from sluicegate.control.model import ABSENT, ImportResult, ListRow
from sluicegate.control.service import RulesService
from sluicegate.rules.feed import ListKind, ListName

__all__ = ["LISTS"]

LISTS: Final = Operations("lists")

List = Annotated[ListName, Path(alias="list", description="Which list.")]
Kind = Annotated[ListKind, Path(description="What the value names.")]
Force = Annotated[bool, Query(description="Take a network wider than /8 (IPv4) or /16 (IPv6).")]
Source = Annotated[str, Path(min_length=1, description="The name of a feed.")]

_ENTRY: Final = "/v1/lists/{list}/entries/{kind}/{value:path}"
_TEXT: Final = "text/plain"
_NDJSON: Final = "application/x-ndjson"
_FORMS: Final = {_TEXT: "text", _NDJSON: "ndjson"}
_ENDS: Final = ("expires_us", "expires_s")
_WRITES: Final = (409, 412, 428)


@LISTS.add("GET", "/v1/lists", answer=ListsAnswer)
async def _list_lists(_actor: Viewer, context: Shared) -> Response:
    """How many entries both lists have, by their sources."""
    allow, block = await _summary(context.service, "allow"), await _summary(context.service, "block")
    return ok(ListsAnswer(allow, block))


async def _summary(service: RulesService, name: ListName) -> ListSummary:
    sources = await service.lists.count(name)
    return ListSummary(sum(sources.values()), sources)


@LISTS.add("GET", "/v1/lists/{list}", answer=EntriesPage)
async def _list_entries(
    name: List,
    _actor: Viewer,
    context: Shared,
    page: Page,
    kind: Annotated[ListKind | None, Query(description="Only entries of this kind.")] = None,
    source: Annotated[str | None, Query(description="Only entries of this source.")] = None,
) -> Response:
    """Entries of a list, by kind and value."""
    found = await context.service.lists.page(name, **page.asked, kind=kind, source=source)
    return ok(EntriesPage(found.items, found.next_token))


@LISTS.add(
    "POST", "/v1/lists/{list}", answer=ListRow, status=201, also=(200,), body=NewEntry, refusals=(409,), tagged=True
)
async def _create_entry(
    request: Request, name: List, actor: Writer, context: Shared, how: Writing, force: Force = False
) -> Response:
    """Put somebody on a list who is not there yet; 200 where it was only tried."""
    body = converted(await read_data(request), NewEntry)
    settings = EntrySettings(body.expires_us, body.expires_s, body.source, body.reason)
    try:
        return await _put(context, actor, (name, body.kind, body.value), settings, how, ABSENT, 201, force=force)
    except PreconditionFailed:
        raise AlreadyExists("entry", f"{name}:{body.kind}:{body.value}") from None


@LISTS.add("GET", _ENTRY, answer=ListRow, refusals=(304, 404), tagged=True)
async def _get_entry(request: Request, name: List, kind: Kind, value: str, _actor: Viewer, context: Shared) -> Response:
    """One entry, by any spelling of its value."""
    row = await context.service.lists.get((name, kind, value))
    return ok_unless_known(request, row, etag(row.revision))


@LISTS.add("PUT", _ENTRY, answer=ListRow, body=EntrySettings, refusals=_WRITES, tagged=True)
async def _put_entry(
    request: Request,
    name: List,
    kind: Kind,
    value: str,
    actor: Writer,
    context: Shared,
    how: Writing,
    expect: Expected,
    force: Force = False,
) -> Response:
    """Put somebody on a list, or change the entry. A new one needs no `If-Match`; one that is there does."""
    settings = converted(await read_data(request), EntrySettings)
    with stated(expect, "entry", f"{name}:{kind}:{value}") as found:
        return await _put(context, actor, (name, kind, value), settings, how, found, 200, force=force)


async def _put(
    context: Shared,
    actor: Writer,
    key: tuple[ListName, ListKind, str],
    settings: EntrySettings,
    how: Writing,
    expect: Expected,
    status: int,
    *,
    force: bool,
) -> Response:
    ends_us = end_of(context.clock.now_us(), settings.expires_us, settings.expires_s, _ENDS)
    row = await context.service.lists.put(
        actor,
        *key,
        expires_us=ends_us,
        source=settings.source,
        expect=expect,
        force=force,
        **how.because(settings.reason),
    )
    if how.validate_only:
        return ok(row)
    place = f"/v1/lists/{row.list}/entries/{row.kind}/{quote(row.value, safe='')}"
    return ok(row, status, revision=row.revision, headers={"Location": place} if status == 201 else None)


@LISTS.add("DELETE", _ENTRY, answer={}, status=204, refusals=(404, *_WRITES))
async def _delete_entry(
    name: List, kind: Kind, value: str, actor: Writer, context: Shared, how: Writing, expect: Expected
) -> Response:
    """Take somebody off a list."""
    key = key_of(name, kind, value)
    with stated(expect, "entry", ":".join(key)) as found:
        await context.service.lists.remove(actor, key, expect=found, **how.because(None))
    return Response(status_code=204)


@LISTS.add(
    "POST",
    "/v1/lists/{list}/import",
    answer=ImportResult,
    media={_TEXT: {"type": "string"}, _NDJSON: {"type": "string"}},
    refusals=(409,),
)
async def _import_entries(
    request: Request,
    name: List,
    actor: Writer,
    context: Shared,
    how: Writing,
    source: Annotated[str, Query(min_length=1, max_length=CONTROL_NAME_CHARS_MAX, description="The name of the feed.")],
    kind: Annotated[ListKind, Query(description="What the values name, where a line does not say.")] = "ip",
    replace: Annotated[bool, Query(description="Remove entries of this source that are not among the lines.")] = False,
    expires_s: Annotated[float | None, Query(gt=0, description="Seconds until they end; left out: never.")] = None,
    force: Force = False,
) -> Response:
    """Take a feed into a list; nothing of it where a line is wrong.

    A large one is taken in steps: it is put first, what leaves goes last, and other changes are made in between. One that is cut off
    has been taken in part; the same feed again does the rest. Another import of the same source ends this one with 409.

    `text/plain`: a value a line; what follows `#` or `;` is a comment. `application/x-ndjson`: a line is
    `{"value": ..., "kind": ..., "expires_us": ...}`, of which only the value must be there. The body may have any length up to the
    bound and is never held in memory; an empty one is refused, and with `replace` one without any entry. A line that is wrong is told by its number.
    """
    form = _FORMS[media_type(request, _TEXT, _NDJSON)]
    result = await context.service.lists.import_entries(
        actor,
        name,
        _feed(request),
        form=form,  # type: ignore[arg-type]  # one of two words
        kind=kind,
        source=source,
        replace=replace,
        expires_us=end_of(context.clock.now_us(), None, expires_s, _ENDS),
        force=force,
        **how.because(None),
    )
    return ok(result)


async def _feed(request: Request) -> AsyncIterator[bytes]:
    """The lines as they come. No byte at all is more likely a feed that could not be fetched than an empty one."""
    empty = True
    async for chunk in stream(request, IMPORT_BYTES_MAX):
        empty = empty and not chunk
        yield chunk
    if empty:
        raise Refused(422, "the body is empty; to remove a feed, delete its source", [Fault("the body is empty")])


@LISTS.add("DELETE", "/v1/lists/{list}/sources/{source:path}", answer=Removed, refusals=(409,))
async def _delete_source(name: List, source: Source, actor: Writer, context: Shared, how: Writing) -> Response:
    """Remove all entries of a feed."""
    return ok(Removed(await context.service.lists.remove_source(actor, name, source, **how.because(None))))
