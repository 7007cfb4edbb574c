"""One rule set in several files: ``rules`` of all of them in order, everything else in one file at most.

Each file is read and checked as a rules file is, and a problem has the file and the line it is in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from sluicegate.bounds import RULES_BYTES_MAX
from sluicegate.rules.document import document_of_yaml
from sluicegate.rules.load import FORMAT_VERSION, check_rules, read_tree
from sluicegate.rules.model import RuleSet
from sluicegate.rules.problems import Problem, Problems
from sluicegate.rules.yaml_tree import Item, read_yaml

__all__ = ["Files", "check_files", "document_of_files"]

Files: TypeAlias = Sequence[tuple[str, bytes]]
"""Names, for messages, and contents."""

_STRIDE: Final = 10**9
"""What the lines of one file are apart from those of the next, in the tree of all: more than any file has lines."""

_ON_LINE: Final = re.compile(r" on line ([0-9]{10,})")


def check_files(files: Files, source: str) -> tuple[RuleSet | None, tuple[Problem, ...]]:
    """The rule set that files mean together and every problem found in them; as ``check_rules``.

    ``source`` names all of them. One file is checked by its own name.
    """
    if len(files) == 1:
        return check_rules(files[0][1], files[0][0])
    problems = Problems(source)
    size = sum(len(content) for _, content in files)
    if size > RULES_BYTES_MAX:
        problems.add(0, None, None, f"the files have {size} bytes; a rule set has at most {RULES_BYTES_MAX}")
        return None, problems.result()
    trees: list[Item] = []
    unreadable: list[Problem] = []
    for at, (name, content) in enumerate(files, 1):
        own = Problems(name)
        root = read_yaml(content, own)
        unreadable += own.result()
        if root is not None:
            trees.append(_moved(root, at * _STRIDE))
    ruleset = None
    if not unreadable:
        ruleset = read_tree(_together(trees, problems), problems, source)
    found = (*unreadable, *(_placed(problem, files) for problem in problems.result()))
    if ruleset is None or any(problem.severity == "error" for problem in found):
        return None, found
    rules = tuple(replace(rule, line=rule.line % _STRIDE) for rule in ruleset.rules)
    return replace(ruleset, rules=rules), found


def document_of_files(files: Files) -> dict[str, Any]:
    """The document that says what files say together, of which ``check_files`` has found no error."""
    document: dict[str, Any] = {}
    rules: list[Any] = []
    for name, content in files:
        part = document_of_yaml(content, name)
        rules += part.pop("rules", None) or []
        document |= part
    return {**document, "rules": rules}


def _moved(item: Item, by: int) -> Item:
    """The same tree with its lines ``by`` further down."""
    value = item.value
    if isinstance(value, list):
        value = [_moved(child, by) for child in value]
    elif isinstance(value, dict):
        value = {name: _moved(child, by) for name, child in value.items()}
    return replace(item, value=value, line=item.line + by)


def _together(trees: Sequence[Item], problems: Problems) -> Item:
    """One tree of all."""
    fields: dict[str, Item] = {}
    rules: list[Item] = []
    for tree in trees:
        if not isinstance(tree.value, dict):
            problems.add(tree.line, None, None, "a rules file is a mapping")
            continue
        if "version" not in tree.value:
            problems.add(tree.line, None, None, f"each file must say version: {FORMAT_VERSION}")
        for name, item in tree.value.items():
            if name == "rules" and isinstance(item.value, list):
                rules += item.value
                fields["rules"] = Item(rules, item.line)
            elif name not in fields:
                fields[name] = item
            elif name != "version":
                message = f"only one file may have this block; the other is on line {fields[name].line}"
                problems.add(item.line, None, name, message)
            elif item.value != FORMAT_VERSION or isinstance(item.value, bool):
                problems.add(item.line, None, name, f"the only format version is {FORMAT_VERSION}")
    if not any(isinstance(tree.value, dict) and "version" in tree.value for tree in trees):
        # Said above, of each file.
        fields["version"] = Item(FORMAT_VERSION, 0)
    return Item(fields, 0)


def _placed(problem: Problem, files: Files) -> Problem:
    """A problem in the file that its line is in; other lines that it mentions are named with their files."""

    def place(line: int) -> tuple[str, int]:
        return files[line // _STRIDE - 1][0], line % _STRIDE

    def told(found: re.Match[str]) -> str:
        number = int(found[1])
        if number // _STRIDE > len(files):
            # Not a line of ours, but a text of the file that the message quotes.
            return found[0]
        name, line = place(number)
        return f" at {name}:{line}"

    message = _ON_LINE.sub(told, problem.message)
    if problem.line < _STRIDE:
        return replace(problem, message=message)
    name, line = place(problem.line)
    return replace(problem, file=name, line=line, message=message)
