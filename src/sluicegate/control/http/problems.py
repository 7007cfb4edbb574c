"""Everything that is not done as a problem document (RFC 9457), with the status and the headers that say what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import Response

from sluicegate.control.errors import (
    AlreadyExists,
    Conflict,
    ControlError,
    Fault,
    FileOwned,
    Invalid,
    ManagedBy,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    Unavailable,
)
from sluicegate.control.http.preconditions import etag

__all__ = ["CONTENT_TYPE", "FieldError", "Problem", "Refused", "of_control_error", "problem"]

CONTENT_TYPE: Final = "application/problem+json"

_STATUSES: Final[tuple[tuple[type[ControlError], int], ...]] = (
    (NotAuthenticated, 401),
    (NotAllowed, 403),
    (NotFound, 404),
    (AlreadyExists, 409),
    (Conflict, 409),
    (PreconditionFailed, 412),
    (Invalid, 422),
    (PreconditionRequired, 428),
    (Unavailable, 503),
)


class FieldError(msgspec.Struct, frozen=True):
    """One thing that is wrong with what was sent. ``pointer``: a JSON pointer (RFC 6901) as a URI fragment; ``#`` is the whole."""

    detail: str
    pointer: str

    @classmethod
    def of(cls, fault: Fault) -> FieldError:
        """A fault, as it is told."""
        return cls(fault.detail, f"#{fault.pointer}")


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem document. ``etag``: the entity tag of what is there now; ``file`` or ``managed_by``: who owns the rules.

    ``role``: the one that is needed. ``covered_by``: networks of the list that hold an address without an entry of its own.
    """

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    errors: list[FieldError] = []
    etag: str | None = None
    file: str | None = None
    managed_by: str | None = None
    role: str | None = None
    covered_by: list[str] = []


class Refused(Exception):
    """A request that the HTTP interface itself does not take. ``headers`` go with the answer."""

    def __init__(
        self,
        status: int,
        detail: str,
        faults: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
        kind: str = "about:blank",
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.faults = tuple(faults)
        self.headers = dict(headers or {})
        self.kind = kind

    def response(self) -> Response:
        """The answer."""
        return problem(self.status, self.detail, self.faults, self.headers, type=self.kind)


def problem(
    status: int,
    detail: str,
    faults: Sequence[Fault] = (),
    headers: Mapping[str, str] | None = None,
    **members: str | list[str] | None,
) -> Response:
    """An answer that says what went wrong. ``members``: further fields of ``Problem``."""
    told = Problem(
        HTTPStatus(status).phrase,
        status,
        detail,
        errors=[FieldError.of(fault) for fault in faults],
        **members,  # type: ignore[arg-type]  # the names are those of fields
    )
    document = {"type": told.type, **msgspec.to_builtins(told)}
    return Response(msgspec.json.encode(document), status, dict(headers or {}), CONTENT_TYPE)


def of_control_error(error: ControlError) -> Response:
    """The answer for what the service has refused."""
    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
    headers: dict[str, str] = {}
    members: dict[str, str | list[str] | None] = {}
    if isinstance(error, NotAuthenticated):
        headers["WWW-Authenticate"] = "Bearer"
    elif isinstance(error, NotAllowed):
        members["role"] = error.needed
    elif isinstance(error, NotFound):
        members["covered_by"] = list(error.covered_by)
    elif isinstance(error, FileOwned):
        members["file"] = error.path
    elif isinstance(error, ManagedBy):
        members["managed_by"] = error.manager
    elif isinstance(error, PreconditionFailed | PreconditionRequired) and error.current:
        members["etag"] = headers["ETag"] = etag(error.current)
    elif isinstance(error, Unavailable):
        headers["Retry-After"] = "1"
    faults = error.faults if isinstance(error, Invalid) else ()
    return problem(status, str(error), faults, headers, **members)
