"""Bodies of requests: bounded, in the type that was asked for, read strictly."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from sluicegate.bounds import (
    API_BODIES_PER_TOKEN_MAX,
    API_BODY_BYTES_MAX,
    API_BODY_BYTES_PER_S_MIN,
    API_BODY_S_MAX,
    API_JSON_DEPTH_MAX,
)
from sluicegate.control.errors import Fault, Invalid
from sluicegate.control.http.context import Context
from sluicegate.control.http.problems import Refused
from sluicegate.rules.document import NotJson, read_json
from sluicegate.rules.notation import suggest

__all__ = ["JSON", "MERGE_PATCH", "converted", "media_type", "read_body", "read_data", "read_object", "stream"]

T = TypeVar("T")

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"

_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def media_type(request: Request, *accepted: str) -> str:
    """The media type of the body, one of ``accepted``; raises Refused (415). A body without one is taken for the first."""
    given = request.headers.get("content-type", accepted[0]).partition(";")[0].strip().lower()
    if given not in accepted:
        named = " or ".join(accepted)
        name = "Accept-Patch" if request.method == "PATCH" else "Accept"
        raise Refused(415, f"the body must be {named}, not {given!r:.100}", headers={name: ", ".join(accepted)})
    return given


async def stream(request: Request, most: int) -> AsyncIterator[bytes]:
    """The body as it comes; raises Refused where it has more than ``most`` bytes (413), stops coming or is slower than anybody's link (408).

    Only after it is known who asks. While the next piece is waited for the request is no work; how many a token may have so is bounded (429).
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > most):
        raise _too_large(most)
    size, waited_s = 0, 0.0
    loop = asyncio.get_running_loop()
    chunks = aiter(request.stream())
    while True:
        begun_s = loop.time()
        # A piece every now and then keeps nobody here: what came has earned the time it took.
        left_s = API_BODY_S_MAX + size / API_BODY_BYTES_PER_S_MIN - waited_s
        try:
            with _waiting(request):
                async with asyncio.timeout(min(API_BODY_S_MAX, left_s)):
                    chunk = await anext(chunks, None)
        except TimeoutError:
            raise Refused(
                408, "the body stopped coming, or comes too slowly", headers={"Connection": "close"}
            ) from None
        waited_s += loop.time() - begun_s
        if chunk is None:
            return
        size += len(chunk)
        if size > most:
            raise _too_large(most)
        yield chunk


@contextlib.contextmanager
def _waiting(request: Request) -> Iterator[None]:
    context: Context = request.app.state.context
    numbers, token = context.numbers, request.state.token
    if numbers.bodies[token] >= API_BODIES_PER_TOKEN_MAX:
        detail = f"{API_BODIES_PER_TOKEN_MAX} requests with this token have not sent their bodies yet"
        raise Refused(429, detail, headers={"Retry-After": "1", "Connection": "close"})
    numbers.bodies[token] += 1
    numbers.at_work -= 1
    try:
        yield
    finally:
        numbers.at_work += 1
        numbers.bodies[token] -= 1
        if not numbers.bodies[token]:
            del numbers.bodies[token]


async def read_body(request: Request, most: int = API_BODY_BYTES_MAX) -> bytes:
    """All of the body."""
    return b"".join([chunk async for chunk in stream(request, most)])


async def read_data(request: Request, media: str = JSON) -> Any:
    """The JSON of the body; raises Refused (400, 413, 415), and Invalid for one that is nested too deep."""
    media_type(request, media)
    try:
        data = read_json(await read_body(request))
    except NotJson as error:
        raise Refused(400, f"the body is not JSON: {error}") from error
    _check_depth(data)
    return data


async def read_object(request: Request, kind: type[T]) -> T:
    """The body as a value of a type; an empty one as ``{}``. Raises as ``read_data``, and Invalid."""
    if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
        return converted({}, kind)
    return converted(await read_data(request), kind)


def converted(data: Any, kind: type[T]) -> T:
    """Plain data as a value of a type; raises Invalid with a pointer to the fault."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        pointer = path.rstrip("`").replace("[", "/").replace("]", "").replace(".", "/")
        unknown = _UNKNOWN.fullmatch(message)
        if unknown is None:
            raise Invalid([Fault(message, pointer)]) from None
        names = [field.encode_name for field in msgspec.structs.fields(kind)] if not pointer else []  # type: ignore[arg-type]  # all are structs
        hint = suggest(unknown[1], names)
        meant = "" if hint is None else f" (did you mean {hint!r}?)"
        raise Invalid([Fault(f"{unknown[1]:.100}: unknown field{meant}", f"{pointer}/{unknown[1]}")]) from None


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(API_JSON_DEPTH_MAX):
        level = [
            child
            for value in level
            if isinstance(value, dict | list)
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise Invalid([Fault(f"nested deeper than {API_JSON_DEPTH_MAX} levels")])


def _too_large(most: int) -> Refused:
    return Refused(413, f"the body has more than {most} bytes", headers={"Connection": "close"})
