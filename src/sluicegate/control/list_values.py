"""Entries of lists as they are kept: one spelling for one meaning, so that an entry is found and removed by any spelling."""

from __future__ import annotations

import json
from typing import Any, Final, cast, get_args

import msgspec

from sluicegate.bounds import IMPORT_LINE_BYTES_MAX, LIST_IPV4_PREFIX_MIN, LIST_IPV6_PREFIX_MIN, LIST_VALUE_CHARS_MAX
from sluicegate.control.errors import Fault, Invalid
from sluicegate.rules.feed import ListKey, ListKind, ListName
from sluicegate.rules.identity.addresses import IPV4_BITS, IPV6_BITS, Block, read_block
from sluicegate.rules.notation import shown

__all__ = ["ImportedEntry", "NotAnEntry", "check_width", "covering", "key_of", "read_line", "value_of"]

_NAMES: Final = get_args(ListName)
_KINDS: Final = get_args(ListKind)
_NDJSON: Final = "ndjson"
_FIELDS: Final = (b'"value"', b'"kind"', b'"expires_us"')


class NotAnEntry(ValueError):
    """A value that no entry can have; the message says why."""


class ImportedEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A line of an import in NDJSON. ``kind`` and ``expires_us`` None: those of the import."""

    value: str
    kind: str | None = None
    expires_us: int | None = None


def key_of(name: str, kind: str, value: str) -> ListKey:
    """The key of an entry, whatever the spelling of its value. Raises Invalid."""
    if name not in _NAMES:
        raise Invalid([Fault(f"list: {shown(name)} is not one of {', '.join(_NAMES)}", "/list")])
    if kind not in _KINDS:
        raise Invalid([Fault(f"kind: {shown(kind)} is not one of {', '.join(_KINDS)}", "/kind")])
    try:
        return cast(ListName, name), cast(ListKind, kind), value_of(kind, value)
    except NotAnEntry as error:
        raise Invalid([Fault(f"value: {error}", "/value")]) from error


def value_of(kind: str, value: object) -> str:
    """The one spelling of a value: for ``ip`` an address, or a network where it is more than one; else the identity as it is."""
    if not isinstance(value, str):
        raise NotAnEntry("expected text")
    if kind == "ip":
        return _network(value)
    if not 0 < len(value) <= LIST_VALUE_CHARS_MAX:
        raise NotAnEntry(f"has {len(value)} characters; 1 to {LIST_VALUE_CHARS_MAX} are allowed")
    if not value.isprintable():
        raise NotAnEntry(f"{shown(value)} holds a character that cannot be printed")
    return value


def check_width(kind: str, value: str) -> None:
    """Raises NotAnEntry for a network so large that it is nearly always a slip. ``value``: as ``value_of`` gives it."""
    prefix = value.partition("/")[2] if kind == "ip" else ""
    least = LIST_IPV6_PREFIX_MIN if ":" in value else LIST_IPV4_PREFIX_MIN
    if prefix and int(prefix) < least:
        raise NotAnEntry(f"{value} is a network wider than /{least}; it is taken with force only")


def covering(value: str) -> tuple[str, ...]:
    """All wider networks that hold an address or a network, which is spelled as ``value_of`` does; the narrowest first."""
    is_v6, shift, prefix = read_block(value)
    bits = (IPV6_BITS if is_v6 else IPV4_BITS) - shift
    return tuple(str(Block(is_v6, shift + more, prefix >> more)) for more in range(1, bits + 1))


def _network(value: str) -> str:
    try:
        block = read_block(value)
    except ValueError as error:
        raise NotAnEntry(f"{shown(value)} is neither an address nor a network with its host bits zero") from error
    # An IPv4 address has one spelling only, so the text need not be made again.
    plain = not block.is_v6 and block.shift == 0 and value.count(".") == 3 and "/" not in value and ":" not in value
    return value if plain else str(block)


def read_line(line: bytes, form: str, kind: str, expires_us: int | None) -> tuple[str, str, int | None] | None:
    """Kind, value and end of a line of an import; None for an empty one or a comment. Raises NotAnEntry."""
    if len(line) > IMPORT_LINE_BYTES_MAX:
        raise NotAnEntry(f"has {len(line)} bytes; at most {IMPORT_LINE_BYTES_MAX} are allowed")
    if form == _NDJSON:
        if not line.strip():
            return None
        try:
            entry = msgspec.json.decode(line, type=ImportedEntry)
            if b"\\" in line or any(line.count(field) > 1 for field in _FIELDS):
                json.loads(line, object_pairs_hook=_check_once)
        except (msgspec.DecodeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise NotAnEntry(str(error)) from error
        kind = entry.kind or kind
        if kind not in _KINDS:
            raise NotAnEntry(f"kind {shown(kind)} is not one of {', '.join(_KINDS)}")
        expires_us = expires_us if entry.expires_us is None else entry.expires_us
        return kind, value_of(kind, entry.value), expires_us
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise NotAnEntry("is not UTF-8 text") from error
    if kind == "ip" or text.lstrip().startswith(("#", ";")):
        # In feeds of addresses a comment may follow on the same line; an identity may hold these characters.
        text = text.partition("#")[0].partition(";")[0]
    text = text.strip()
    return (kind, value_of(kind, text), expires_us) if text else None


def _check_once(pairs: list[tuple[str, Any]]) -> None:
    """Raises NotAnEntry for a key that is there twice: readers differ in which of the values they take."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise NotAnEntry(f"{name}: is there {names.count(name)} times")
