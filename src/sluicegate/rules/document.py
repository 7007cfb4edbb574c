"""A rule set as JSON data: what the rules service keeps and what its API takes, with the meaning of a rules file and the same checks.

A document has no lines. Its values are numbered in the order they stand, with numbers below 1 in place of lines, so that a problem
leads back to the value it is about: to a JSON pointer (RFC 6901).

Numbers are what JSON makes of them elsewhere, doubles. One that a double does not hold exactly is a problem, never rounded.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import msgspec

from sluicegate.bounds import RULE_TEXT_CHARS_MAX, RULES_BYTES_MAX, RULES_DEPTH_MAX, RULES_VALUES_MAX
from sluicegate.rules.load import read_tree
from sluicegate.rules.model import RuleSet
from sluicegate.rules.notation import shown
from sluicegate.rules.problems import Problem, Problems, RulesInvalid
from sluicegate.rules.yaml_tree import Item, Value, read_yaml

__all__ = [
    "NotJson",
    "canonical",
    "check_document",
    "document_of_yaml",
    "load_document",
    "pointer_of",
    "read_json",
]

_ENCODER: Final = msgspec.json.Encoder(order="deterministic", decimal_format="number")


class NotJson(ValueError):
    """Bytes that are not JSON as we take it: UTF-8, no key twice in an object, numbers that are finite, no half characters."""


def read_json(content: bytes) -> Any:
    """The data of a JSON text; raises NotJson. A number that a double does not hold exactly comes as Decimal."""
    try:
        text = content.decode()
        data = json.loads(text, parse_float=_number, parse_constant=_no_constant, object_pairs_hook=_unique)
        if _HALF.search(text):
            # Half a character is written as an escape only, and can be told from a whole one by trying to write it.
            json.dumps(data, ensure_ascii=False, default=str).encode()
        return data
    except NotJson:
        raise
    except UnicodeEncodeError as error:
        raise NotJson("a text holds half a character") from error
    except RecursionError as error:
        raise NotJson("nested too deep") from error
    except ValueError as error:
        # Bad syntax, bytes that are not UTF-8, an integer of thousands of digits.
        raise NotJson(str(error)) from error


def canonical(data: object) -> str:
    """One text for the same data: keys sorted, no spaces."""
    return _ENCODER.encode(data).decode()


def document_of_yaml(text: str | bytes, source: str) -> dict[str, Any]:
    """The document that says what a rules file says. Raises RulesInvalid where the text is no mapping of plain values.

    What its fields mean is not looked at; that is what ``check_rules`` and ``check_document`` do.
    """
    problems = Problems(source)
    root = read_yaml(text, problems)
    if root is not None and not isinstance(root.value, dict):
        problems.add(root.line, None, None, "a rules file is a mapping")
    data = None if root is None else _data(root, problems)
    if problems.errors or not isinstance(data, dict):
        raise RulesInvalid(source, problems.result())
    return data


def check_document(data: object, source: str) -> tuple[RuleSet | None, tuple[Problem, ...]]:
    """The rule set a document means and every problem found in it; as ``check_rules``, with pointers in place of lines.

    ``source`` names the document, for messages. The rule set is None where any problem is an error. One without rules always is:
    documents are for servers, which would limit nothing.
    """
    problems = Problems(source)
    tree = _Tree(problems)
    try:
        root = tree.item(data, "", 1)
    except _Refused:
        root = None
    ruleset = None if root is None else read_tree(root, problems, source, rules_needed=True)
    found = tuple(_placed(problem, tree.pointers, data) for problem in problems.result())
    if problems.errors or ruleset is None:
        return None, found
    return replace(ruleset, rules=tuple(replace(rule, line=0) for rule in ruleset.rules)), found


def load_document(data: object, source: str, version: int) -> RuleSet:
    """The rule set a document means, as revision ``version``; raises RulesInvalid with all problems. Warnings are dropped."""
    ruleset, problems = check_document(data, source)
    if ruleset is None:
        raise RulesInvalid(source, problems)
    return replace(ruleset, version=version)


def pointer_of(problem: Problem) -> str:
    """Where a problem is in its document, as a JSON pointer (``/rules/3/match/path``); "" for the whole, and for a file."""
    return problem.pointer or ""


_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")
"""How half a character begins, and each half of a whole one that is written as escapes."""


def _number(text: str) -> float | Decimal:
    try:
        exact = Decimal(text)
    except ArithmeticError as error:
        raise NotJson(f"the number {shown(text)[1:-1]} is beyond all that can be kept") from error
    nearest = float(text)
    return nearest if Decimal(repr(nearest)) == exact else exact


def _no_constant(word: str) -> None:
    raise NotJson(f"{word} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotJson(f"the key {shown(twice)} is twice in one object")
    return found


def _data(item: Item, problems: Problems) -> Any:
    value = item.value
    if isinstance(value, list):
        return [_data(child, problems) for child in value]
    if isinstance(value, dict):
        return {name: _data(child, problems) for name, child in value.items()}
    if isinstance(value, Decimal):
        number = _number(item.text or "")
        if isinstance(number, Decimal):
            problems.add(item.line, None, None, _too_exact(item.text))
        return number
    return value


def _too_exact(text: object) -> str:
    return f"the number {shown(text)[1:-1]} has more digits than JSON keeps; 15 are always safe"


class _Refused(Exception):
    """The document is refused as a whole; the problem has been noted."""


class _Tree:
    """Makes the tree that rules are read from. ``pointers``: from a number that stands for a line to the value's JSON pointer."""

    def __init__(self, problems: Problems) -> None:
        self.pointers: dict[int, str] = {}
        self._problems = problems
        self._chars = 0

    def item(self, data: object, pointer: str, depth: int) -> Item:
        line = len(self.pointers) - RULES_VALUES_MAX
        self.pointers[line] = pointer
        if line >= 0:
            self._refuse(line, f"more than {RULES_VALUES_MAX} values")
        if depth > RULES_DEPTH_MAX:
            self._refuse(line, f"nested deeper than {RULES_DEPTH_MAX} levels")
        if isinstance(data, list | tuple):
            return Item([self.item(child, f"{pointer}/{at}", depth + 1) for at, child in enumerate(data)], line)
        if isinstance(data, dict):
            return Item(self._members(data, pointer, depth, line), line)
        value, text = self._scalar(data, line)
        # Not quoted: what a rules file may say without quotes (``on``) is said so in JSON.
        return Item(value, line, text)

    def _members(self, data: dict[Any, Any], pointer: str, depth: int, line: int) -> dict[str, Item]:
        items = {}
        for name, child in data.items():
            if not isinstance(name, str) or len(name) > RULE_TEXT_CHARS_MAX or not name.isprintable():
                self._problems.add(line, None, None, f"the key {shown(name)} is too long, or not plain text")
                continue
            self._count(name, line)
            items[name] = self.item(child, f"{pointer}/{_escaped(name)}", depth + 1)
        return items

    def _scalar(self, data: object, line: int) -> tuple[Value, str]:
        if data is None:
            return None, ""
        if isinstance(data, bool):
            return data, "true" if data else "false"
        if isinstance(data, str):
            self._count(data, line)
            return data, data
        if isinstance(data, int):
            return data, shown(data)
        if isinstance(data, float) and data - data == 0:
            return Decimal(repr(data)), repr(data)
        what = _too_exact(str(data)) if isinstance(data, Decimal) else f"{shown(data)} is no value of JSON"
        self._problems.add(line, None, None, what)
        return None, ""

    def _count(self, text: str, line: int) -> None:
        self._chars += len(text)
        if self._chars > RULES_BYTES_MAX:
            self._refuse(line, f"more than {RULES_BYTES_MAX} characters; rules have at most so many bytes")
        try:
            text.encode()
        except UnicodeEncodeError:
            self._problems.add(line, None, None, f"{shown(text)} holds half a character")

    def _refuse(self, line: int, message: str) -> None:
        self._problems.add(line, None, None, message)
        raise _Refused


def _placed(problem: Problem, pointers: dict[int, str], data: object) -> Problem:
    """The problem with its pointer: the value its number stands for, or the field it names, whichever says more."""
    blamed = pointers.get(problem.line, "")
    base, rest = "", data
    in_rules = _RULE.match(blamed)
    if problem.rule is not None and in_rules is not None:
        base = in_rules[0]
        rest = data["rules"][int(in_rules[1])] if isinstance(data, dict) else None
    named = base + _follow(problem.field, rest)
    return replace(problem, line=0, pointer=blamed if blamed.startswith(named) else named)


_RULE: Final = re.compile(r"/rules/([0-9]+)")
_STEP: Final = re.compile(r"\[([0-9]+)\]|\.?([^.\[]+)")


def _follow(field: str | None, data: object) -> str:
    """The pointer of a path such as ``match.not.path`` or ``trusted_peers[0]``; keys may hold dots. Its end may be missing in the data."""
    pointer, path = "", field or ""
    while path:
        if isinstance(data, dict):
            # The longest key first: ``X.Y`` before ``X``.
            known = [name for name in data if path == name or path.startswith((f"{name}.", f"{name}["))]
            if known:
                name = max(known, key=len)
                pointer, path, data = f"{pointer}/{_escaped(name)}", path[len(name) :].removeprefix("."), data[name]
                continue
        step = _STEP.match(path)
        if step is None or (isinstance(data, list) != bool(step[1])):
            # What a value is not made of, such as a part of a quota's text: the value itself.
            return pointer if not isinstance(data, dict) else f"{pointer}/{_escaped(path)}"
        name = step[1] or step[2]
        pointer, path = f"{pointer}/{_escaped(name)}", path[step.end() :].removeprefix(".")
        data = data[int(name)] if isinstance(data, list) and int(name) < len(data) else None
    return pointer


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
