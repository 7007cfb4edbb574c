"""What handlers ask for by type: who calls with which role, why, and whether it is only tried."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Header, Query, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import Request

from sluicegate.bounds import CONTROL_TEXT_CHARS_MAX, PAGE_SIZE_MAX
from sluicegate.control.errors import Fault, Invalid, NotAuthenticated
from sluicegate.control.http.context import Shared
from sluicegate.control.http.edge import request_id_of
from sluicegate.control.model import Actor, Role
from sluicegate.rules.notation import shown, suggest

__all__ = ["Admin", "How", "Node", "Page", "Paging", "Viewer", "Writer", "Writing"]

_BEARER: Final = HTTPBearer(
    scheme_name="token", description="A token of the rules service; `tokens create` makes one.", auto_error=False
)


async def _caller(
    request: Request, context: Shared, given: Annotated[HTTPAuthorizationCredentials | None, Security(_BEARER)]
) -> Actor:
    """Who calls, known by its token; then the query is looked at, which nobody else need know anything of."""
    if given is None:
        raise NotAuthenticated
    source = "" if request.client is None else request.client.host
    actor = await context.access.identify(given.credentials, source, request_id_of(request.scope))
    request.state.token = actor.auth
    _check_query(request)
    return actor


def _check_query(request: Request) -> None:
    """Raises Invalid for parameters that the operation does not have, or that are there twice."""
    known: set[str] = request.app.state.queries[request.scope["route"].operation_id]
    faults = []
    for name, times in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            hint = suggest(name, known)
            meant = "" if hint is None else f" (did you mean {hint!r}?)"
            faults.append(Fault(f"{shown(name)}: unknown query parameter{meant}", f"/{name}"))
        elif times > 1:
            faults.append(Fault(f"{name}: is there {times} times", f"/{name}"))
    if faults:
        raise Invalid(faults)


async def _viewer(context: Shared, actor: Annotated[Actor, Depends(_caller)]) -> Actor:
    context.service.allow(actor, Role.VIEWER)
    return actor


async def _admin(context: Shared, actor: Annotated[Actor, Depends(_caller)]) -> Actor:
    context.service.allow(actor, Role.ADMIN)
    return actor


async def _node(context: Shared, actor: Annotated[Actor, Depends(_caller)]) -> Actor:
    context.service.allow(actor, Role.NODE)
    return actor


async def _writer(context: Shared, actor: Annotated[Actor, Depends(_caller)]) -> Actor:
    # Whether the role reaches is asked by the service, which notes in the audit trail where it does not.
    context.access.count_write(actor)
    return actor


Viewer = Annotated[Actor, Depends(_viewer)]
Admin = Annotated[Actor, Depends(_admin)]
Node = Annotated[Actor, Depends(_node)]
Writer = Annotated[Actor, Depends(_writer)]


@dataclass(frozen=True, slots=True)
class How:
    """``reason``: from the header, "" where it is not there. ``validate_only``: say what would happen, and change nothing."""

    reason: str
    validate_only: bool

    def because(self, reason: object) -> dict[str, Any]:
        """Keywords for the service; ``reason`` is the field of the body, for where the header is not there."""
        given = self.reason or ("" if reason is None else reason)
        if not isinstance(given, str):
            raise Invalid([Fault("reason: expected text", "/reason")])
        return {"reason": given, "validate_only": self.validate_only}

    def taken_from(self, body: Any) -> dict[str, Any]:
        """As ``because``, with the field ``reason`` taken out of a body, which otherwise has none."""
        return self.because(body.pop("reason", None) if isinstance(body, dict) else None)


async def _how(
    x_reason: Annotated[
        str, Header(description=f"Why, for the audit trail; at most {CONTROL_TEXT_CHARS_MAX} characters.")
    ] = "",
    validate_only: Annotated[bool, Query(description="Answer what would happen, and change nothing.")] = False,
) -> How:
    # Header values are bytes; most who send more than ASCII send UTF-8.
    raw = x_reason.encode("latin-1", "replace")
    try:
        reason = raw.decode()
    except UnicodeDecodeError:
        reason = x_reason
    return How(reason, validate_only)


Writing = Annotated[How, Depends(_how)]


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page of a longer list."""

    size: int
    token: str

    @property
    def asked(self) -> dict[str, Any]:
        """Keywords for the service."""
        return {"page_size": self.size, "page_token": self.token}


async def _paging(
    page_size: Annotated[
        int, Query(ge=1, description=f"Rows of a page; more than {PAGE_SIZE_MAX} are {PAGE_SIZE_MAX}.")
    ] = 100,
    page_token: Annotated[str, Query(description="`next_page_token` of the page before; empty: the first page.")] = "",
) -> Paging:
    return Paging(min(page_size, PAGE_SIZE_MAX), page_token)


Page = Annotated[Paging, Depends(_paging)]
