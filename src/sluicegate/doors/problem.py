"""Problem documents (RFC 9457, ``application/problem+json``): what went wrong, in words and in fields.

The two rate-limit types are those of draft-ietf-httpapi-ratelimit-headers-11, section 5. Plain errors have no type of their
own (``about:blank``), so their title is the status phrase and the detail carries the news.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from sluicegate.doors.headers import seconds_up
from sluicegate.limiter.decision import Decision

__all__ = ["CONTENT_TYPE", "FieldError", "problem", "quota_exceeded", "temporary_reduced_capacity"]

CONTENT_TYPE: Final = "application/problem+json"

_PROBLEM_TYPES: Final = "https://iana.org/assignments/http-problem-types#"


class FieldError(msgspec.Struct, frozen=True):
    """What is wrong with one member of the request body.

    ``pointer``: a JSON pointer in URI-fragment form (``#/policy/capacity``); ``#`` is the whole body.
    """

    detail: str
    pointer: str

    @classmethod
    def of(cls, field: str, detail: str) -> FieldError:
        """From a dotted field name such as ``policy.capacity``; "" is the whole body."""
        escaped = field.replace("~", "~0").replace("/", "~1")
        return cls(detail, "#" + "".join(f"/{part}" for part in escaped.split(".") if part))


def problem(status: int, detail: str, errors: Sequence[FieldError] = (), **members: object) -> bytes:
    """A plain problem. ``detail`` must name the field and value at fault; ``members`` are extension members."""
    document: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        **members,
    }
    if errors:
        document["errors"] = errors
    return msgspec.json.encode(document)


def quota_exceeded(decision: Decision) -> bytes:
    """The body of a 429: which rules refused and, unless waiting is useless, when to come back (``retry-after``, s)."""
    names = [result.rule for result in decision.results if result.refuses]
    document: dict[str, object] = {"type": f"{_PROBLEM_TYPES}quota-exceeded", "title": "Quota Exceeded", "status": 429}
    retry_us = decision.retry_after_us
    named = ", ".join(repr(name) for name in names)
    if retry_us is None:
        document["detail"] = f"This request can never pass: refused by {named}."
    else:
        retry_s = max(1, seconds_up(retry_us))
        document["detail"] = f"Refused by {named}. Try again in {retry_s} s."
        document["retry-after"] = retry_s
    document["violated-policies"] = names
    return msgspec.json.encode(document)


def temporary_reduced_capacity(decision: Decision) -> bytes:
    """The body of a 503: a rule that fails closed could not be decided, because its counters are out of reach."""
    names = [result.rule for result in decision.results if result.refuses]
    return msgspec.json.encode(
        {
            "type": f"{_PROBLEM_TYPES}temporary-reduced-capacity",
            "title": "Temporary Reduced Capacity",
            "status": 503,
            "detail": "The counters that decide this request are out of reach for the moment.",
            "violated-policies": names,
        }
    )
