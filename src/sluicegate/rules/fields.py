"""Typed reading of one mapping of a rules file: every field is asked for by name, the rest is unknown.

Each method notes a problem and returns its default where the value is of the wrong type, so that reading goes on and
the file's other problems are found too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from sluicegate.bounds import MATCH_VALUES_MAX, RULE_TEXT_CHARS_MAX
from sluicegate.rules.notation import shown, suggest
from sluicegate.rules.problems import Problems, Severity
from sluicegate.rules.yaml_tree import Item

__all__ = ["Block", "Place", "as_boolean", "kind_of", "text_of", "texts_of"]

E = TypeVar("E", bound=StrEnum)

_YES: Final = {"yes": True, "on": True, "no": False, "off": False}


def kind_of(item: Item) -> str:
    """What a value is, as an error message says it: ``the list``, ``the number 5``."""
    value = item.value
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {shown(item.text)[1:-1]}"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, str):
        return f"the text {shown(value)}"
    return f"the number {shown(item.text)[1:-1]}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where problems are noted: a file and, inside it, a rule and a path of fields."""

    problems: Problems
    rule: str | None = None
    path: str = ""

    def child(self, name: str) -> Place:
        return Place(self.problems, self.rule, f"{self.path}.{name}" if self.path else name)

    def add(self, line: int, message: str, suggestion: str | None = None, severity: Severity = "error") -> None:
        self.problems.add(line, self.rule, self.path or None, message, suggestion, severity)

    def warn(self, line: int, message: str, suggestion: str | None = None) -> None:
        self.add(line, message, suggestion, "warning")


class Block:
    """One mapping with its known field names; unknown ones are noted at once, with a did-you-mean."""

    def __init__(self, items: Mapping[str, Item], place: Place, known: Iterable[str], line: int = 0) -> None:
        self.items = items
        self.place = place
        self.line = line
        names = tuple(known)
        for name, item in items.items():
            if name not in names:
                place.child(shown(name)[1:-1]).add(item.line, "unknown field", suggest(name, names))

    @classmethod
    def of(cls, item: Item, place: Place, known: Iterable[str], example: str) -> Block | None:
        """The block a value holds; None and a problem where it is not a mapping or has no entry."""
        if not isinstance(item.value, dict):
            place.add(item.line, f"expected a mapping such as {example}, got {kind_of(item)}")
            return None
        if not item.value:
            place.add(item.line, f"is empty; leave it out, or write for instance {example}")
            return None
        return cls(item.value, place, known, item.line)

    def __contains__(self, name: str) -> bool:
        return name in self.items

    def line_of(self, name: str) -> int:
        """The line of a field, or of the block where the field is absent."""
        return self.items[name].line if name in self.items else self.line

    def add(self, name: str, message: str, suggestion: str | None = None) -> None:
        self.place.child(name).add(self.line_of(name), message, suggestion)

    def warn(self, name: str, message: str, suggestion: str | None = None) -> None:
        self.place.child(name).warn(self.line_of(name), message, suggestion)

    def take(self, name: str) -> Item | None:
        """The field's value, None where it is absent. A field without a value is a problem and counts as absent."""
        item = self.items.get(name)
        if item is not None and item.value is None:
            self.add(name, "has no value; give one or remove the field")
            return None
        return item

    def text(self, name: str) -> str | None:
        item = self.take(name)
        return None if item is None else text_of(item, self.place.child(name))

    def boolean(self, name: str, *, default: bool) -> bool:
        item = self.take(name)
        if item is None:
            return default
        value = as_boolean(item)
        if value is None:
            self.add(name, f"expected true or false, got {kind_of(item)}")
            return default
        return value

    def integer(self, name: str, *, default: int, least: int, most: int) -> int:
        item = self.take(name)
        if item is None:
            return default
        value = item.value
        if isinstance(value, bool) or not isinstance(value, int):
            self.add(name, f"expected a whole number, got {kind_of(item)}", _number_meant(item))
            return default
        if not least <= value <= most:
            self.add(name, f"{shown(item.text)[1:-1]} is out of range: {least} to {most}")
            return default
        return value

    def choice(self, name: str, options: type[E], default: E) -> E:
        word = self.word(name, [str(option) for option in options], str(default))
        return options(word)

    def word(self, name: str, options: list[str], default: str) -> str:
        """One of a few words; ``false`` counts as ``off`` where that is one of them (YAML 1.1 writes it so)."""
        item = self.take(name)
        if item is None:
            return default
        value = "off" if item.value is False and "off" in options else item.value
        if isinstance(value, str) and value in options:
            return value
        hint = suggest(value, options) if isinstance(value, str) else None
        said = shown(value) if isinstance(value, str) else kind_of(item)
        self.add(name, f"{said} is not one of {', '.join(options)}", hint)
        return default

    def texts(self, name: str, *, numbers: bool = False, most: int = MATCH_VALUES_MAX) -> list[tuple[str, int]]:
        """A text or a list of at most ``most`` texts, each with its line; ``numbers`` lets plain numbers stand for their digits."""
        item = self.take(name)
        if item is None:
            return []
        return texts_of(item, self.place.child(name), numbers=numbers, most=most)


def as_boolean(item: Item) -> bool | None:
    """True or false, also as yes, no, on, off without quotes; None where the value is neither."""
    if isinstance(item.value, bool):
        return item.value
    if isinstance(item.value, str) and not item.quoted:
        return _YES.get(item.value.lower())
    return None


def text_of(item: Item, place: Place, *, numbers: bool = False) -> str | None:
    """The text of a scalar, never empty and never longer than RULE_TEXT_CHARS_MAX; else None and a problem."""
    value = item.value
    if numbers and not isinstance(value, bool | str | list | dict) and value is not None:
        value = item.text
    if not isinstance(value, str):
        scalar = isinstance(value, list | dict) or value is None
        place.add(item.line, f"expected text, got {kind_of(item)}" + ("" if scalar else "; put it in quotes"))
        return None
    if not value:
        place.add(item.line, "is an empty text")
        return None
    if len(value) > RULE_TEXT_CHARS_MAX:
        place.add(item.line, f"has {len(value)} characters; at most {RULE_TEXT_CHARS_MAX} are allowed")
        return None
    if not value.isprintable():
        place.add(item.line, f"{shown(value)} holds a character that cannot be printed")
        return None
    return value


def texts_of(item: Item, place: Place, *, numbers: bool = False, most: int = MATCH_VALUES_MAX) -> list[tuple[str, int]]:
    """The texts of a list, or of one scalar; problems for empty lists, repeated values and what is not text."""
    entries = item.value if isinstance(item.value, list) else [item]
    if not entries:
        place.add(item.line, "is an empty list; leave the field out instead")
    if len(entries) > most:
        place.add(item.line, f"has {len(entries)} values; at most {most} are allowed")
        entries = entries[:most]
    found: dict[str, int] = {}
    for entry in entries:
        text = text_of(entry, place, numbers=numbers)
        if text is None:
            continue
        if text in found:
            place.add(entry.line, f"{shown(text)} is here twice")
        found.setdefault(text, entry.line)
    return list(found.items())


def _number_meant(item: Item) -> str | None:
    """The number behind 1_000, 1,000, "5" or 012, for a did-you-mean."""
    digits = (item.text or "").replace("_", "").replace(",", "").lstrip("0")
    return digits if digits.isascii() and digits.isdigit() and len(digits) <= 15 else None
