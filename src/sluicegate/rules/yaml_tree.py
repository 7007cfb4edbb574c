"""YAML text to a tree of values that remember their lines, safely and with did-not-expect-that as problems.

Only plain data is accepted: no tags (and so no objects), no merge keys, one document, no key twice in a mapping.
Aliases are written out, under a bound on the values of the whole file, so a "billion laughs" file fails at once.

Scalars follow the YAML 1.2 core schema rather than 1.1, because 1.1 changes what operators mean: there ``off`` is
false, ``012`` is ten and ``1:30`` is ninety. Here a plain scalar is null, true or false, a decimal number, or else text;
fields that want a yes or no take ``yes``, ``no``, ``on`` and ``off`` as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import yaml

from sluicegate.bounds import RULE_TEXT_CHARS_MAX, RULES_BYTES_MAX, RULES_DEPTH_MAX, RULES_VALUES_MAX
from sluicegate.rules.notation import shown
from sluicegate.rules.problems import Problems

__all__ = ["PLAIN_NUMBER", "PLAIN_WORDS", "Item", "Value", "plain", "read_yaml"]

Value: TypeAlias = "bool | int | Decimal | str | list[Item] | dict[str, Item] | None"


@dataclass(slots=True)
class Item:
    """One value and the line it starts on. ``text`` is a scalar as it was written, None for lists and mappings.

    ``quoted`` marks a scalar in quotes, which is text whatever it looks like.
    """

    value: Value
    line: int
    text: str | None = None
    quoted: bool = False


def plain(item: Item) -> object:
    """The value as ordinary Python objects, without lines."""
    if isinstance(item.value, list):
        return [plain(child) for child in item.value]
    if isinstance(item.value, dict):
        return {name: plain(child) for name, child in item.value.items()}
    return item.value


def read_yaml(text: str | bytes, problems: Problems) -> Item | None:
    """The root value of the text. None where it cannot be read at all; ``problems`` then says why."""
    decoded = _decode(text, problems)
    if decoded is None:
        return None
    reader = _Reader(decoded, problems)
    try:
        return reader.document()
    except _Refused:
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 0 if mark is None else mark.line + 1
        problems.add(line, None, None, _explain(error, decoded, line))
    except yaml.reader.ReaderError as error:
        at = error.position if isinstance(error.position, int) else 0
        problems.add(decoded.count("\n", 0, at) + 1, None, None, "the file holds a control character YAML forbids")
    return None


def _decode(text: str | bytes, problems: Problems) -> str | None:
    try:
        raw = text.encode("utf-8") if isinstance(text, str) else text
        decoded = text if isinstance(text, str) else raw.decode("utf-8")
    except UnicodeError as error:
        before = error.object[: error.start]  # type: ignore[attr-defined]
        line = before.count("\n" if isinstance(before, str) else b"\n") + 1
        problems.add(line, None, None, "the file is not UTF-8 text")
        return None
    if len(raw) > RULES_BYTES_MAX:
        problems.add(0, None, None, f"the file has {len(raw)} bytes; a rules file has at most {RULES_BYTES_MAX}")
        return None
    # Checked here because the two YAML parsers (C and Python) disagree on it.
    found = _FORBIDDEN.search(decoded)
    if found is not None:
        line = decoded.count("\n", 0, found.start()) + 1
        problems.add(line, None, None, f"the file holds the control character {shown(found[0])}")
        return None
    return decoded


_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff]")


def _explain(error: yaml.MarkedYAMLError, text: str, line: int) -> str:
    """The parser's complaint in words that help someone who does not know YAML by heart."""
    lines = text.splitlines()
    source = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\t" in source[: len(source) - len(source.lstrip())]:
        return "a tab indents this line; YAML wants spaces"
    problem = str(error.problem or error.context or "unreadable").strip()
    since = ""
    if error.context and error.context_mark is not None and error.context_mark.line + 1 != line:
        since = f" ({error.context} that starts on line {error.context_mark.line + 1})"
    return f"not YAML: {problem}{since}{_quoting_hint(source)}"


def _quoting_hint(source: str) -> str:
    """The two ways in which an unquoted value of a rules file usually breaks YAML."""
    braces = _BRACES.search(source)
    if braces is not None:
        return f'; inside [ ] or {{ }} a path with braces needs quotes: "{braces[0]}"'
    star = _STAR.search(source)
    if star is not None:
        return f'; a value that begins with * needs quotes: "{star[1]}"'
    return ""


_BRACES: Final = re.compile(r"(?<![\"'])/[^\s\"',\[\]]*\{[A-Za-z_][A-Za-z0-9_.-]*\}[^\s\"',\[\]}]*")
_STAR: Final = re.compile(r"(?:^|[\s\[,:{-])(\*[^\s\"',\]}]*)")


class _Refused(Exception):
    """The file is refused as a whole; the problem has been noted."""


_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INT: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
PLAIN_NUMBER: Final = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,9})?")
"""How a number looks that is not in quotes."""

PLAIN_WORDS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
"""Words that are no text where they are not in quotes, with what they are."""

# A longer run of digits is left as text: it is no number any field takes, and CPython refuses to convert 4,300 digits.
_NUMBER_CHARS_MAX: Final = 40


def _scalar(text: str) -> bool | int | Decimal | str | None:
    if text in PLAIN_WORDS:
        return PLAIN_WORDS[text]
    if len(text) <= _NUMBER_CHARS_MAX:
        if _INT.fullmatch(text):
            return int(text)
        if PLAIN_NUMBER.fullmatch(text):
            return Decimal(text)
    return text


@dataclass(slots=True)
class _Anchor:
    """A value that aliases may repeat: how many values it holds and how many levels deep it is."""

    item: Item
    size: int
    height: int


class _Reader:
    """Builds the tree from parse events; recursion is bounded by RULES_DEPTH_MAX."""

    def __init__(self, text: str, problems: Problems) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        self._problems = problems
        self._anchors: dict[str, _Anchor] = {}
        self._values = 0
        self._deepest = 0

    def document(self) -> Item:
        next(self._events)
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            self._refuse(0, "the file is empty")
        root = self._value(next(self._events), 1)
        next(self._events)
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            self._refuse(event.start_mark.line + 1, "a second document starts here; a rules file holds one")
        return root

    def _refuse(self, line: int, message: str) -> None:
        self._problems.add(line, None, None, message)
        raise _Refused

    def _count(self, values: int, depth: int, line: int) -> None:
        self._values += values
        self._deepest = max(self._deepest, depth)
        if self._values > RULES_VALUES_MAX:
            self._refuse(line, f"more than {RULES_VALUES_MAX} values with all aliases written out")
        if depth > RULES_DEPTH_MAX:
            self._refuse(line, f"nested deeper than {RULES_DEPTH_MAX} levels")

    def _value(self, event: Any, depth: int) -> Item:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), depth, line)
        self._count(1, depth, line)
        if event.tag not in (None, "!"):
            self._problems.add(line, None, None, f"the tag {shown(event.tag)} is not allowed; write the value plainly")
        size_before, deepest_before = self._values, self._deepest
        self._deepest = depth
        if isinstance(event, yaml.ScalarEvent):
            quoted = bool(event.style)
            item = Item(event.value if quoted else _scalar(event.value), line, event.value, quoted)
        elif isinstance(event, yaml.SequenceStartEvent):
            item = Item(self._list(depth), line)
        else:
            item = Item(self._mapping(depth), line)
        if event.anchor is not None:
            size = self._values - size_before + 1
            self._anchors[event.anchor] = _Anchor(item, size, self._deepest - depth)
        self._deepest = max(self._deepest, deepest_before)
        return item

    def _alias(self, name: str, depth: int, line: int) -> Item:
        anchor = self._anchors.get(name)
        if anchor is None:
            self._problems.add(line, None, None, f"the alias {shown('*' + name)} repeats nothing that stands before it")
            return Item(None, line)
        self._count(anchor.size, depth + anchor.height, line)
        return anchor.item

    def _list(self, depth: int) -> list[Item]:
        items: list[Item] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, Item]:
        items: dict[str, Item] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            line = event.start_mark.line + 1
            key = self._key(event, depth, line)
            value_event = next(self._events)
            item = self._value(value_event, depth + 1)
            if key is None:
                continue
            if not isinstance(value_event, yaml.AliasEvent):
                # A problem with a whole block is shown where its name stands, not at its first line.
                item.line = line
            if key in items:
                message = f"{shown(key)} is here twice; the first is on line {lines[key]}"
                self._problems.add(line, None, None, message)
                continue
            items[key] = item
            lines[key] = line
        return items

    def _key(self, event: Any, depth: int, line: int) -> str | None:
        if not isinstance(event, yaml.ScalarEvent):
            self._value(event, depth + 1)
            self._problems.add(line, None, None, "a key must be a plain word")
            return None
        self._count(1, depth, line)
        if event.value == "<<" and not event.style:
            self._problems.add(
                line, None, None, "merge keys (<<) are not supported; repeat the fields, or alias whole blocks"
            )
            return None
        if len(event.value) > RULE_TEXT_CHARS_MAX:
            self._problems.add(line, None, None, f"the key {shown(event.value)} is too long")
            return None
        return str(event.value)
