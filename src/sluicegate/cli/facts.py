"""What is known of a request, on the command line: ``--facts JSON``, or a flag for each of the usual facts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from sluicegate.cli.options import option
from sluicegate.doors.http.bad_json import refuse_duplicates
from sluicegate.errors import InvalidRequest
from sluicegate.rules.facts import Facts

__all__ = ["facts_options", "taken_facts"]

Function = TypeVar("Function", bound=Callable[..., Any])

_FLAGS: Final = {
    "method": "Method of the request.",
    "path": "Its path.",
    "host": "The host that it asked.",
    "ip": "Address of the client.",
    "user": "Who asks, as a user.",
    "api-key": "The key that it came with.",
    "tenant": "The tenant that it belongs to.",
    "tier": "The tier, where the request says it.",
}

_NAMED_ALONE: Final = ("user", "api_key", "tenant")


def facts_options(function: Function) -> Function:
    """``--facts`` and its short forms."""
    for name, text in reversed(_FLAGS.items()):
        function = option(name, metavar=name.upper().replace("-", "_"), help=text)(function)
    whole = option(
        "facts",
        metavar="JSON",
        help='All that is known of the request, as in \'{"method": "POST", "path": "/login", "ip": "203.0.113.9"}\'; - reads it.',
    )
    return whole(function)


def taken_facts(values: dict[str, Any]) -> dict[str, Any] | None:
    """The facts out of the values of a command, from which they are removed; None where none was given. Raises InvalidRequest."""
    text = values.pop("facts")
    single = {name.replace("-", "_"): values.pop(name.replace("-", "_")) for name in _FLAGS}
    facts = {name: value for name, value in single.items() if value is not None}
    for name in _NAMED_ALONE:
        if facts.get(name, "").startswith(f"{name}:"):
            bare = facts[name].removeprefix(f"{name}:")
            raise InvalidRequest(
                f"--{name.replace('_', '-')}",
                f"takes the name alone, {bare!r}; where {name}: belongs to the name, say so with --facts",
            )
    if text is None:
        if not facts:
            return None
        return facts
    whole = msgspec.json.decode(_checked(text))
    twice = next((name for name in facts if name in whole), None)
    if twice is not None:
        raise InvalidRequest(twice, "is among --facts as well")
    return {**whole, **facts}


def _checked(text: str) -> str:
    raw = sys.stdin.read() if text == "-" else text
    try:
        msgspec.json.decode(raw, type=Facts)
        refuse_duplicates(raw.encode())
    except msgspec.ValidationError as error:
        raise InvalidRequest("--facts", str(error)) from error
    except msgspec.DecodeError as error:
        raise InvalidRequest("--facts", f"not JSON: {error}") from error
    except InvalidRequest as error:
        raise InvalidRequest("--facts", str(error)) from error
    return raw
