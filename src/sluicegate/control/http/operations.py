"""How operations are declared: with everything that the OpenAPI document says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from fastapi import APIRouter
from starlette.responses import Response

from sluicegate.control.http.bodies import JSON
from sluicegate.control.http.problems import CONTENT_TYPE

__all__ = ["TYPES", "Operations", "ref"]

Handler = TypeVar("Handler", bound=Callable[..., Any])

TYPES: dict[str, Any] = {}
"""Types that operations mention, by the names of their schemas."""

_PROBLEM: Final = {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}

_ETAG: Final = {"ETag": {"description": "The entity tag of what is there now.", "schema": {"type": "string"}}}
_SECONDS: Final = {"schema": {"type": "integer", "minimum": 0}}
_REFUSALS: Final[dict[int, dict[str, Any]]] = {
    304: {"description": "Not changed since the entity tag of `If-None-Match`.", "headers": _ETAG},
    400: {"description": "The body is not JSON, or has a key twice.", "content": _PROBLEM},
    401: {
        "description": "No token, or none that is valid.",
        "content": _PROBLEM,
        "headers": {"WWW-Authenticate": {"description": "`Bearer`", "schema": {"type": "string"}}},
    },
    403: {"description": "The role or the namespaces of the token do not reach.", "content": _PROBLEM},
    404: {"description": "It does not exist.", "content": _PROBLEM},
    408: {"description": "The body stopped coming.", "content": _PROBLEM},
    409: {"description": "It cannot be done as things are; `file` or `managed_by` name an owner.", "content": _PROBLEM},
    412: {"description": "It has changed since the entity tag that was sent.", "content": _PROBLEM, "headers": _ETAG},
    413: {"description": "The body is too large.", "content": _PROBLEM},
    415: {"description": "The body has another media type.", "content": _PROBLEM},
    422: {"description": "What was sent is wrong; `errors` has a pointer to each fault.", "content": _PROBLEM},
    428: {
        "description": "Say in `If-Match` which state the change was made from.",
        "content": _PROBLEM,
        "headers": _ETAG,
    },
    429: {
        "description": "Too many wrong tokens from this address, or changes or unfinished bodies with this token.",
        "content": _PROBLEM,
        "headers": {
            "Retry-After": {"description": "Seconds after which to try again.", **_SECONDS},
            "X-RateLimit-Limit": {"description": "How many there may be at once.", **_SECONDS},
            "X-RateLimit-Remaining": {"description": "How many there may be now.", **_SECONDS},
            "X-RateLimit-Reset": {"description": "Seconds until all may be made again.", **_SECONDS},
        },
    },
    503: {
        "description": "The database does not answer, or too many requests are at work.",
        "content": _PROBLEM,
        "headers": {"Retry-After": {"description": "Seconds after which to try again.", **_SECONDS}},
    },
}
_ALWAYS: Final = (401, 403, 422, 429, 503)
_WITH_BODY: Final = (400, 408, 413, 415)
_STATUS_TEXT: Final = {200: "Done.", 201: "Made.", 204: "Done; there is nothing to say."}


def ref(kind: Any) -> dict[str, Any]:
    """The schema of a type of ours, or of a name that ``schemas`` has."""
    if isinstance(kind, str):
        return {"$ref": f"#/components/schemas/{kind}"}
    TYPES[kind.__name__] = kind
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


class Operations:
    """The operations of one part of the interface. ``open``: they need no token."""

    def __init__(self, tag: str, *, open: bool = False) -> None:  # noqa: A002 - the word for it
        self.router = APIRouter(tags=[tag])
        self._open = open

    def add(
        self,
        method: str,
        path: str,
        *,
        answer: Any,
        status: int = 200,
        also: tuple[int, ...] = (),
        refusals: tuple[int, ...] = (),
        body: Any = None,
        media: Mapping[str, Any] | None = None,
        body_required: bool = True,
        tagged: bool = False,
        unready: Mapping[str, Any] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declares the operation that is called as its handler, without the underscore before it.

        ``answer``: its type, or the name of its schema, or a content map. ``also``: statuses that answer the same, such as 200 beside
        201. ``refusals``: besides those that all have. ``body``: its type, or the name of its schema; or ``media``: schemas by media
        type. ``tagged``: has an ETag. ``unready``: the content of a 503 that says the same.
        """
        content = answer if isinstance(answer, dict) else {JSON: {"schema": ref(answer)}}
        told: dict[int | str, dict[str, Any]] = {}
        for each in (status, *also):
            told[each] = {"description": _STATUS_TEXT[each]}
            if content:
                told[each]["content"] = content
            if tagged:
                told[each]["headers"] = _ETAG
        bodies = media or ({JSON: ref(body)} if body is not None else {})
        always = () if self._open else _ALWAYS
        for each in (*always, *refusals, *(_WITH_BODY if bodies else ())):
            told[each] = _REFUSALS[each]
        if unready is not None:
            told[503] = {"description": "Not ready.", "content": unready}
        extra: dict[str, Any] = {}
        if bodies:
            kinds = {name: {"schema": schema} for name, schema in bodies.items()}
            extra["requestBody"] = {"required": body_required, "content": kinds}

        def declare(handler: Handler) -> Handler:
            words = (handler.__doc__ or "").strip().split("\n\n", 1)
            self.router.add_api_route(
                path,
                handler,
                methods=[method],
                operation_id=handler.__name__.removeprefix("_"),
                summary=" ".join(words[0].split()).rstrip("."),
                description=" ".join(words[1].split()) if len(words) > 1 else "",
                status_code=status,
                response_class=Response,
                response_model=None,
                responses=told,
                openapi_extra=extra,
            )
            return handler

        return declare
