"""Entity tags: which state of a thing a change was made from, and whether a reader has it already.

The tag of a thing is ``"rN"``, where N is the revision at which it last changed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Annotated, Final

from fastapi import Depends, Header
from starlette.requests import Request

from sluicegate.control.errors import Fault, Invalid, NotFound, PreconditionFailed, PreconditionRequired
from sluicegate.control.model import ABSENT, ANY, Expect

__all__ = ["Expected", "etag", "has_it", "stated"]

_TAG: Final = re.compile(r'"r([1-9][0-9]{0,17})"', re.ASCII)
_TAGS: Final = re.compile(r'(?:W/)?("[^"]*")')
_NONE_OF_OURS: Final = 2**62
"""A revision that nothing has: what somebody else's tag stands for."""


def etag(revision: int) -> str:
    """The entity tag of a revision."""
    return f'"r{revision}"'


async def _expected(
    if_match: Annotated[
        str | None, Header(description='The entity tag that the change was made from, such as `"r42"`; `*`: any.')
    ] = None,
    if_none_match: Annotated[str | None, Header(description="`*`: it must not exist yet.")] = None,
) -> Expect:
    """What a change expects to find; raises Invalid for headers that say nothing, or two things."""
    if if_match is not None and if_none_match is not None:
        raise Invalid([Fault("If-Match and If-None-Match: give one of them")])
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise Invalid([Fault("If-None-Match: only * can be said of a change")])
        return ABSENT
    if if_match is None:
        return None
    tag = if_match.strip()
    if tag == "*":
        return ANY
    if "," in tag:
        raise Invalid([Fault("If-Match: name one entity tag, that of the state the change was made from")])
    found = _TAG.fullmatch(tag)
    revision = 0 if found is None else int(found[1])
    return revision or _NONE_OF_OURS


Expected = Annotated[Expect, Depends(_expected)]


@contextlib.contextmanager
def stated(expect: Expect, kind: str, name: str) -> Iterator[Expect]:
    """What to expect of a thing that may be new: where nothing was said it must be, else PreconditionRequired is raised.

    Where it is to be removed, and was not there, that is NotFound.
    """
    try:
        yield ABSENT if expect is None else expect
    except PreconditionFailed as error:
        if expect is None and error.current:
            raise PreconditionRequired(error.current) from None
        if not error.current and expect is None:
            raise NotFound(kind, name) from None
        raise


def has_it(request: Request, tag: str) -> bool:
    """Whether a reader says that it has the state with this tag."""
    given = request.headers.get("if-none-match", "")
    return given.strip() == "*" or tag in _TAGS.findall(given)
