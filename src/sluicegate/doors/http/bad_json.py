"""What is wrong with a JSON body, in words that name the field.

The decoder stops at the first fault and describes it in its own terms; here they become terms of the API. Duplicate
member names, which JSON leaves undefined and two programs may read differently, are looked for separately.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

import msgspec

from sluicegate.errors import InvalidRequest
from sluicegate.rules.notation import suggest

__all__ = ["BadJson", "decode", "refuse_duplicates"]

T = TypeVar("T")

_BOM: Final = b"\xef\xbb\xbf"
_WHERE: Final = re.compile(r"(.*?)(?: - at `(?:key in )?\$([^`]*)`)?", re.DOTALL)
_EXPECTED: Final = re.compile(r"Expected `([^`]*)`(?:, got `([^`]*)`)?")
_NAMED: Final = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)
_BYTE: Final = re.compile(r"\(byte ([0-9]+)\)")
_LAST_NAME: Final = re.compile(rb'"([A-Za-z_]{1,32})"[ \t\r\n]*:[^"\[\]{},:]{0,64}\Z')
_WORDS: Final = {
    "int": "an integer",
    "float": "a number that is no integer",
    "str": "a string",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_SHOWN_MAX: Final = 64


class BadJson(InvalidRequest):
    """The body is no JSON at all; ``field`` is "" unless the fault is in the value of a known member."""


def decode(decoder: Callable[[bytes], T], raw: bytes, fields: Mapping[str, str]) -> T:
    """Decode; raises InvalidRequest naming the field, or BadJson.

    ``fields``: the members that may occur, by name, with their dotted path; used for suggestions.
    """
    try:
        return decoder(raw)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), fields) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise _malformed(error, raw, fields) from None


def refuse_duplicates(raw: bytes) -> None:
    """Raise InvalidRequest where an object of this valid JSON text names a member twice.

    Strings are cut out by their quotes; where no name occurs twice in the whole text, which is nearly always, that is
    the end of it. Otherwise, and where escapes could disguise a name, the standard library's parser decides.
    """
    if b"\\" not in raw:
        parts = raw.split(b'"')
        strings_and_what_follows = zip(parts[1::2], parts[2::2], strict=True)
        names = [name for name, after in strings_and_what_follows if after[:1] == b":" or after.lstrip()[:1] == b":"]
        if len(set(names)) == len(names):
            return
    try:
        json.loads(raw, object_pairs_hook=_unique, parse_int=_no_number, parse_float=_no_number)
    except RecursionError:
        raise BadJson("", "nested too deeply") from None


def _unique(pairs: Iterable[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidRequest(_shown(name), "occurs twice")
        seen.add(name)


def _no_number(_text: str) -> int:
    """Numbers are not looked at, however long."""
    return 0


def _invalid(message: str, fields: Mapping[str, str]) -> InvalidRequest:
    match = _WHERE.fullmatch(message)
    text, where = (match[1], match[2] or "") if match else (message, "")
    path = where.replace("[...]", "").strip(".")
    named = _NAMED.fullmatch(text)
    if named is not None:
        name = _shown(named[1])
        field = f"{path}.{name}" if path else name
        if "missing" in text:
            return InvalidRequest(field, "missing")
        hint = suggest(name, [own for own, whole in fields.items() if whole == (f"{path}.{own}" if path else own)])
        return InvalidRequest(field, "unknown field" + (f"; did you mean {hint!r}?" if hint else ""))
    expected = _EXPECTED.match(text)
    if expected is None:
        return InvalidRequest(path, text[:1].lower() + text[1:])
    want = " or ".join(_WORDS.get(word, word) for word in expected[1].split(" | "))
    got = f", got {_WORDS.get(expected[2], expected[2])}" if expected[2] else text[expected.end() :]
    return InvalidRequest(path, f"must be {want}{got}")


def _malformed(error: Exception, raw: bytes, fields: Mapping[str, str]) -> BadJson:
    if isinstance(error, RecursionError):
        return BadJson("", "nested too deeply")
    if not raw:
        return BadJson("", "the body is empty; send a JSON object")
    if raw.startswith(_BOM):
        return BadJson("", "the body begins with a byte order mark; send plain UTF-8")
    text = str(error)
    field = ""
    at = _BYTE.search(text)
    if at is not None:
        last = _LAST_NAME.search(raw[: int(at[1])])
        if last is not None:
            field = fields.get(last[1].decode("ascii"), "")
    return BadJson(field, text[:1].lower() + text[1:] if not text.startswith("JSON") else text)


def _shown(name: str) -> str:
    return name if len(name) <= _SHOWN_MAX else name[:_SHOWN_MAX] + "…"
