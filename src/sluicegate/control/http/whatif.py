"""What proposed rules would have decided."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from sluicegate.bounds import API_BODY_BYTES_MAX, SAMPLES_KEPT_US, WHATIF_LOG_BYTES_MAX
from sluicegate.clock import US_PER_S
from sluicegate.control.http.answers import ok
from sluicegate.control.http.bodies import JSON, converted, media_type, read_data, stream
from sluicegate.control.http.callers import Viewer
from sluicegate.control.http.context import Shared
from sluicegate.control.http.operations import Operations, ref
from sluicegate.control.http.problems import Refused
from sluicegate.control.whatif import WhatIfAnswer
from sluicegate.rules.document import NotJson, read_json

__all__ = ["WHATIF", "ProposedRules"]

WHATIF: Final = Operations("what-if")

_LOG: Final = "application/octet-stream"
_MINUTES: Final = SAMPLES_KEPT_US // (60 * US_PER_S)


class ProposedRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``document``: a rules file as JSON. ``minutes``: of sampled traffic that it is tried on, the last ones."""

    document: dict[str, Any]
    minutes: int = _MINUTES


@WHATIF.add(
    "POST",
    "/v1/whatif",
    answer=WhatIfAnswer,
    media={JSON: ref(ProposedRules), _LOG: {"type": "string", "format": "binary"}},
    refusals=(409,),
)
async def _try_rules(
    request: Request,
    actor: Viewer,
    context: Shared,
    log_format: Annotated[
        Literal["auto", "combined", "common", "json"], Query(description="Of a log; auto looks at its first line.")
    ] = "auto",
    window_s: Annotated[
        float, Query(ge=0, le=86_400, description="How far out of order the lines of a log may be, in seconds.")
    ] = 120,
) -> Response:
    """What proposed rules would have decided, next to those in service; nothing is changed.

    As JSON, on the requests that nodes drew at random in the last minutes. As `application/octet-stream`, on a log: the first line
    of the body is the rules as JSON, all after it the log, plain or gzip.
    """
    whatif = context.service.whatif
    if media_type(request, JSON, _LOG) == JSON:
        body = converted(await read_data(request), ProposedRules)
        return ok(await whatif.on_samples(actor, body.document, body.minutes))
    pieces = stream(request, WHATIF_LOG_BYTES_MAX)
    document, rest = await _first_line(pieces)
    window_us = round(window_s * US_PER_S)
    return ok(await whatif.on_log(actor, document, _after(rest, pieces), log_format=log_format, window_us=window_us))


async def _first_line(pieces: AsyncIterator[bytes]) -> tuple[Any, bytes]:
    """The rules, and what came of the log with them. Raises Refused."""
    found = b""
    async for piece in pieces:
        found += piece
        if b"\n" in piece or len(found) > API_BODY_BYTES_MAX:
            break
    line, _, rest = found.partition(b"\n")
    if len(line) > API_BODY_BYTES_MAX:
        raise Refused(413, f"the rules have more than {API_BODY_BYTES_MAX} bytes")
    try:
        return read_json(line), rest
    except NotJson as error:
        raise Refused(400, f"the first line is not the rules as JSON: {error}") from error


async def _after(rest: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if rest:
        yield rest
    async for piece in pieces:
        yield piece
