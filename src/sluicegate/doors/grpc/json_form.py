"""The messages of Envoy's rate limit service as JSON, by the rules of proto3's JSON mapping.

A request is read strictly, as generated code reads it: members have the names of the .proto file or their camelCase forms, unknown and
doubled members are errors, 64-bit numbers may be texts, ``null`` is the same as absent. It becomes the bytes of a RateLimitRequest, so that
what is true of those (what is empty, too large, no such unit) is said in one place. Answers omit what has its default, as generated code does.

Source: the ProtoJSON format guide.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sluicegate.doors.grpc.codec import OVER_LIMIT, UINT32_MAX
from sluicegate.doors.grpc.protobuf import LENGTH, VARINT, delimited, fields, varint
from sluicegate.errors import InvalidRequest

__all__ = ["is_over_limit", "request_of_json", "response_as_json"]

_UINT64_MAX: Final = 2**64 - 1
_UINT64_DIGITS: Final = 20
_UNITS: Final = ("UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK")
_CODES: Final = ("UNKNOWN", "OK", "OVER_LIMIT")
_NANOS: Final = 1_000_000_000
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")

_Object = Mapping[str, Any]


def request_of_json(body: bytes) -> bytes:
    """The bytes of the RateLimitRequest that ``body`` describes; raises InvalidRequest naming the member at fault."""
    try:
        document = json.loads(body.decode(), object_pairs_hook=_once, parse_constant=_no_constant)
        return _request(_Members(document, ""))
    except InvalidRequest:
        raise
    except (ValueError, RecursionError) as error:
        # UnicodeError is a ValueError, too: half of a surrogate pair is no text.
        raise InvalidRequest("", f"is no JSON of a rate limit request: {error}") from None


def response_as_json(message: bytes) -> bytes:
    """The JSON of a RateLimitResponse that this program encoded."""
    document: dict[str, Any] = {}
    for number, _, value, content in fields(message, "response"):
        if number == 1:
            document["overallCode"] = _CODES[value]
        elif number == 2:
            document.setdefault("statuses", []).append(_status(content))
        elif number == 3:
            document.setdefault("responseHeadersToAdd", []).append(_header(content))
        elif number == 5:
            document["rawBody"] = b64encode(content).decode()
        elif number == 6:
            document["dynamicMetadata"] = _struct(content)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def is_over_limit(message: bytes) -> bool:
    """Whether a RateLimitResponse refuses."""
    return any(number == 1 and value == OVER_LIMIT for number, _, value, _ in fields(message, "response"))


# ---------------------------------------------------------------------- requests


class _Members:
    """The members of one object, taken by their names; what is left is unknown."""

    def __init__(self, document: object, place: str) -> None:
        if not isinstance(document, dict):
            raise InvalidRequest(place, "must be an object")
        self._left = dict(document)
        self._place = place

    def place(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def take(self, name: str) -> Any:
        """The value of a member, by its name in the .proto file or in camelCase; None where it is absent or null."""
        first, *rest = name.split("_")
        camel = first + "".join(word.capitalize() for word in rest)
        if name != camel and name in self._left and camel in self._left:
            raise InvalidRequest(self.place(name), "occurs twice")
        return self._left.pop(name, None) if name in self._left else self._left.pop(camel, None)

    def text(self, name: str) -> bytes:
        value = self.take(name)
        if not (value is None or isinstance(value, str)):
            raise InvalidRequest(self.place(name), "must be a string")
        return (value or "").encode()

    def number(self, name: str, most: int) -> int | None:
        """A whole number, which may be written with a fraction of zero, and as a text that is a number in JSON."""
        value = self.take(name)
        if value is None:
            return None
        number: Any = value
        if isinstance(value, str):
            number = _spelled(value)
        try:
            whole = int(number)
        except (ValueError, OverflowError, TypeError):
            whole = -1
        if isinstance(value, bool) or whole != number or not 0 <= whole <= most:
            raise InvalidRequest(self.place(name), f"must be a whole number from 0 to {most}")
        return whole

    def truth(self, name: str) -> bool:
        value = self.take(name)
        if not (value is None or isinstance(value, bool)):
            raise InvalidRequest(self.place(name), "must be true or false")
        return bool(value)

    def each(self, name: str) -> Iterable[_Members]:
        value = self.take(name)
        if not (value is None or isinstance(value, list)):
            raise InvalidRequest(self.place(name), "must be an array")
        return [_Members(item, f"{self.place(name)}[{place}]") for place, item in enumerate(value or ())]

    def end(self) -> None:
        for name in self._left:
            raise InvalidRequest(self.place(name[:64]), "unknown member")


def _request(members: _Members) -> bytes:
    out = [delimited(1, members.text("domain"))]
    out += [delimited(2, _descriptor(each)) for each in members.each("descriptors")]
    out.append(b"\x18" + varint(members.number("hits_addend", UINT32_MAX) or 0))
    members.end()
    return b"".join(out)


def _descriptor(members: _Members) -> bytes:
    out = [delimited(1, _entry(each)) for each in members.each("entries")]
    limit = members.take("limit")
    if limit is not None:
        out.append(delimited(2, _limit(_Members(limit, members.place("limit")))))
    hits = members.number("hits_addend", _UINT64_MAX)
    if hits is not None:
        out.append(delimited(3, b"\x08" + varint(hits)))
    out.append(b"\x20" + varint(members.truth("is_negative_hits")))
    members.end()
    return b"".join(out)


def _entry(members: _Members) -> bytes:
    entry = delimited(1, members.text("key")) + delimited(2, members.text("value"))
    members.end()
    return entry


def _limit(members: _Members) -> bytes:
    count = members.number("requests_per_unit", UINT32_MAX) or 0
    unit = members.take("unit")
    if isinstance(unit, str) and unit in _UNITS:
        unit = _UNITS.index(unit)
    if unit is None:
        unit = 0
    if type(unit) is not int or not 0 <= unit < len(_UNITS):
        raise InvalidRequest(members.place("unit"), f"must be one of {', '.join(_UNITS[1:])}")
    members.end()
    return b"\x08" + varint(count) + b"\x10" + varint(unit)


def _spelled(text: str) -> float | None:
    """The number that a text spells as JSON does, exact where it fits 64 bits; None where it spells none."""
    if not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.isdecimal() and len(text) <= _UINT64_DIGITS else float(text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidRequest(next(name for name in names if names.count(name) > 1)[:64], "occurs twice")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


# ---------------------------------------------------------------------- answers


def _status(data: bytes) -> _Object:
    document: dict[str, Any] = {}
    for number, _, value, content in fields(data, "status"):
        if number == 1:
            document["code"] = _CODES[value]
        elif number == 2:
            document["currentLimit"] = _current_limit(content)
        elif number == 3:
            document["limitRemaining"] = value
        elif number == 4:
            document["durationUntilReset"] = _duration(content)
    return document


def _current_limit(data: bytes) -> _Object:
    document: dict[str, Any] = {}
    for number, _, value, content in fields(data, "limit"):
        if number == 1:
            document["requestsPerUnit"] = value
        elif number == 2:
            document["unit"] = _UNITS[value]
        elif number == 3:
            document["name"] = content.decode()
    return document


def _duration(data: bytes) -> str:
    numbers = {number: value for number, _, value, _ in fields(data, "duration")}
    nanos = numbers.get(2, 0)
    return f"{numbers.get(1, 0)}.{nanos:09d}s" if nanos else f"{numbers.get(1, 0)}s"


def _header(data: bytes) -> _Object:
    names = {1: "key", 2: "value"}
    return {names[number]: content.decode() for number, _, _, content in fields(data, "header")}


def _struct(data: bytes) -> _Object:
    return dict(_member(content) for _, _, _, content in fields(data, "struct"))


def _member(data: bytes) -> tuple[str, Any]:
    parts = {number: content for number, _, _, content in fields(data, "member")}
    return parts[1].decode(), _value(parts[2])


def _value(data: bytes) -> Any:
    kinds: dict[tuple[int, int], Callable[[int, bytes], Any]] = {
        (3, LENGTH): lambda _, content: content.decode(),
        (4, VARINT): lambda value, _: bool(value),
        (6, LENGTH): lambda _, content: [_value(each) for _, _, _, each in fields(content, "list")],
    }
    for number, wire_type, value, content in fields(data, "value"):
        return kinds[number, wire_type](value, content)
    return None
