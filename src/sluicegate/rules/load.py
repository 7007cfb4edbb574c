"""Rules files: YAML text to an immutable rule set, or to the list of everything that is wrong with it.

Reading never stops at the first problem, so one run of ``sluicegate rules check`` shows all of them. Whatever the text,
the result is a rule set or problems, never another exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from sluicegate.bounds import RULES_MAX, SUBJECTS_MAX, TIERS_MAX
from sluicegate.errors import InternalError
from sluicegate.rules.check import check_rule_set
from sluicegate.rules.digest import digest_of
from sluicegate.rules.fields import Block, Place, kind_of, text_of
from sluicegate.rules.identity import IdentityConfig, parse_identity
from sluicegate.rules.model import SUBJECT_KINDS, Rule, RuleSet, Tiers
from sluicegate.rules.notation import on_line, shown, suggest
from sluicegate.rules.problems import Problem, Problems, RulesInvalid
from sluicegate.rules.quota import NUMBER_FIELDS
from sluicegate.rules.read_rule import NAME, name_problem, name_suggestion, read_rule
from sluicegate.rules.yaml_tree import Item, plain, read_yaml

__all__ = ["FORMAT_VERSION", "check_rules", "load_rules", "read_tree"]

FORMAT_VERSION: Final = 1
"""The version of the file format: what ``version:`` at the top of a file must say."""

_FIELDS: Final = ("version", "identity", "subjects", "tiers", "rules")


def check_rules(text: str | bytes, source: str) -> tuple[RuleSet | None, tuple[Problem, ...]]:
    """The rule set a text means and every problem found in it, in order of lines.

    ``source`` is the file's name, for messages. The rule set is None where any problem is an error; with warnings only, it
    is usable. Bytes must be UTF-8.
    """
    problems = Problems(source)
    root = read_yaml(text, problems)
    ruleset = None if root is None else read_tree(root, problems, source)
    return (None if problems.errors else ruleset), problems.result()


def load_rules(text: str | bytes, source: str, version: int = 1) -> RuleSet:
    """The rule set a text means, as revision ``version``; raises RulesInvalid with all problems. Warnings are dropped."""
    ruleset, problems = check_rules(text, source)
    if any(problem.severity == "error" for problem in problems):
        raise RulesInvalid(source, problems)
    if ruleset is None:
        raise InternalError(f"{source} was refused without a problem")
    return replace(ruleset, version=version)


def read_tree(root: Item, problems: Problems, source: str, *, rules_needed: bool = False) -> RuleSet | None:
    """The rule set that the values of a file mean, as far as they can be read; what is wrong is noted in ``problems``.

    ``rules_needed``: a set without rules is an error in any case, and not only a warning where it says whom to believe.
    """
    place = Place(problems)
    if not isinstance(root.value, dict):
        place.add(root.line, f"expected a mapping with {', '.join(_FIELDS)}, got {kind_of(root)}")
        return None
    file = Block(root.value, place, _FIELDS)
    _check_version(file)
    tiers = _read_tiers(file)
    identity = _read_identity(file)
    subjects = _read_subjects(file, tiers)
    rules, sound = _read_rules(file, tiers, problems, rules_needed=rules_needed)
    check_rule_set(sound, tiers, subjects, identity, lines=partial(_line_at, file), problems=problems)
    ruleset = RuleSet(rules=rules, tiers=tiers, subjects=subjects, identity=identity, source=source)
    return replace(ruleset, digest=digest_of(ruleset))


def _check_version(file: Block) -> None:
    item = file.take("version")
    if item is None:
        if "version" not in file:
            file.place.add(0, f"the file must say version: {FORMAT_VERSION}")
    elif item.value != FORMAT_VERSION or isinstance(item.value, bool):
        file.add("version", f"the only format version is {FORMAT_VERSION}, got {kind_of(item)}")


def _read_tiers(file: Block) -> Tiers:
    item = file.take("tiers")
    if item is None:
        return Tiers()
    place = file.place.child("tiers")
    block = Block.of(item, place, ("default", "names"), "{default: free, names: [free, paid]}")
    if block is None:
        return Tiers()
    names: list[str] = []
    for name, line in block.texts("names"):
        if NAME.fullmatch(name) and name not in NUMBER_FIELDS:
            names.append(name)
        elif name in NUMBER_FIELDS:
            place.child("names").add(
                line, f"{shown(name)} is a field of a quota; a tier of that name would be confused with it"
            )
        else:
            place.child("names").add(line, name_problem(name), name_suggestion(name))
    if len(names) > TIERS_MAX:
        block.add("names", f"has {len(names)} tiers; at most {TIERS_MAX} are allowed")
    default = block.text("default")
    if "names" not in block:
        block.add("names", "missing: the list of all tiers")
    if default is None:
        if "default" not in block:
            block.add("default", "missing: the tier of requests that have none, or an unknown one")
        default = names[0] if names else None
    elif default not in names:
        if names:
            block.add("default", f"{shown(default)} is not among the names", suggest(default, names))
        default = names[0] if names else None
    return Tiers(tuple(names), default)


def _read_identity(file: Block) -> IdentityConfig | None:
    """The identity settings, or the defaults (nobody is believed) where the file has none."""
    item = file.take("identity")

    def problem(field: str, message: str, suggestion: str | None) -> None:
        file.place.problems.add(_line_at(file, field), None, field, message, suggestion)

    return parse_identity(None if item is None else plain(item), problem)


def _line_at(file: Block, field: str) -> int:
    """The line of the deepest value that exists on a path such as ``identity.trusted_peers[0]``."""
    item: Item | None = None
    children: object = file.items
    line = 0
    for step in field.replace("[", ".").replace("]", "").split("."):
        if isinstance(children, dict):
            item = children.get(step)
        elif isinstance(children, list) and step.isdigit() and int(step) < len(children):
            item = children[int(step)]
        else:
            item = None
        if item is None:
            break
        line, children = item.line, item.value
    return line


def _read_subjects(file: Block, tiers: Tiers) -> Mapping[str, str]:
    item = file.take("subjects")
    if item is None:
        return MappingProxyType({})
    place = file.place.child("subjects")
    if not isinstance(item.value, dict) or not item.value:
        got = "an empty mapping" if item.value == {} else kind_of(item)
        place.add(item.line, f'expected a mapping such as {{"api_key:k1": paid}}, got {got}')
        return MappingProxyType({})
    if len(item.value) > SUBJECTS_MAX:
        place.add(item.line, f"has {len(item.value)} entries; at most {SUBJECTS_MAX} belong in a rules file")
    subjects: dict[str, str] = {}
    for subject, child in item.value.items():
        at = place.child(shown(subject)[1:-1])
        kind, colon, name = subject.partition(":")
        if kind not in SUBJECT_KINDS or not colon or not name:
            hint = suggest(kind, SUBJECT_KINDS)
            meant = f"{hint}:{name}" if hint is not None and name else None
            at.add(child.line, "a subject is written api_key:NAME, user:NAME or tenant:NAME", meant)
            continue
        tier = text_of(child, at)
        if tier is None:
            continue
        if tier not in tiers.names:
            known = f"known are {', '.join(tiers.names)}" if tiers.names else "the file declares no tiers"
            at.add(child.line, f"unknown tier {shown(tier)}; {known}", suggest(tier, tiers.names))
        subjects[subject] = tier
    return MappingProxyType(subjects)


def _read_rules(
    file: Block, tiers: Tiers, problems: Problems, *, rules_needed: bool
) -> tuple[tuple[Rule, ...], tuple[Rule, ...]]:
    """All rules that could be read, and those among them that are right each for itself."""
    item = file.take("rules")
    if item is None:
        if "rules" not in file:
            _note_no_rules(file, file.place, 0, "the file has no rules: it", rules_needed=rules_needed)
        return (), ()
    if not isinstance(item.value, list):
        file.add("rules", f"expected a list of rules, got {kind_of(item)}")
        return (), ()
    if not item.value:
        _note_no_rules(file, file.place.child("rules"), item.line, "is empty: the file", rules_needed=rules_needed)
    if len(item.value) > RULES_MAX:
        file.add("rules", f"has {len(item.value)} rules; at most {RULES_MAX} are allowed")
        return (), ()
    found: list[Rule] = []
    sound: list[Rule] = []
    first_lines: dict[str, int] = {}
    for position, entry in enumerate(item.value, 1):
        errors_before = problems.errors
        _check_unique(entry, first_lines, problems)
        rule = read_rule(entry, position, tiers, problems)
        if rule is not None:
            found.append(rule)
            if problems.errors == errors_before:
                sound.append(rule)
    return tuple(found), tuple(sound)


def _note_no_rules(file: Block, place: Place, line: int, message: str, *, rules_needed: bool) -> None:
    """A program whose limits stand beside its routes needs a file all the same, to say which proxy it is behind."""
    identity = file.items.get("identity")
    if rules_needed or identity is None or not identity.value:
        place.add(line, f"{message} would limit nothing")
    else:
        place.warn(line, f"{message} limits nothing by itself; it says only who a client is")


def _check_unique(entry: Item, first_lines: dict[str, int], problems: Problems) -> None:
    name = entry.value.get("name") if isinstance(entry.value, dict) else None
    if name is None or not isinstance(name.value, str) or not NAME.fullmatch(name.value):
        return
    if name.value in first_lines:
        message = f"another rule{on_line(first_lines[name.value])} has this name; a name is a rule's identity"
        Place(problems, name.value, "name").add(name.line, message)
    first_lines.setdefault(name.value, name.line)
