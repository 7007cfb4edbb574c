"""A document as the text of a rules file: what ``document_of_yaml`` reads, written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from sluicegate.rules.read_rule import RULE_FIELDS
from sluicegate.rules.yaml_tree import PLAIN_NUMBER, PLAIN_WORDS

__all__ = ["arranged", "yaml_of"]

_WIDTH: Final = 120
_FILE_ORDER: Final = ("version", "identity", "tiers", "subjects", "rules")


def arranged(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document, or a rule of one, with its fields in the order people write them; what is stored has none."""
    order = _FILE_ORDER if "rules" in document else RULE_FIELDS
    ranks = {name: rank for rank, name in enumerate(order)}
    made = {name: document[name] for name in sorted(document, key=lambda name: ranks.get(name, len(ranks)))}
    if isinstance(made.get("rules"), list):
        made["rules"] = [arranged(rule) if isinstance(rule, dict) else rule for rule in made["rules"]]
    return made


def yaml_of(document: Mapping[str, Any]) -> str:
    """The text of a rules file that says what a document says, or a part of one, arranged.

    A text is in quotes only where it would be read as something else, so that ``on`` in a document stays what it is: a text, and a
    yes where a field wants one.
    """
    text: str = yaml.dump(arranged(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text


class _Dumper(yaml.SafeDumper):
    """Indents lists under their key, repeats values in place of aliases, and takes plain scalars as our reader does, by YAML 1.2."""

    yaml_implicit_resolvers: Any = {}  # noqa: RUF012 - the name and the form are the base's

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the signature of the base
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - the signature of the base
        super().increase_indent(flow, indentless=False)


_TAGS: Final = (
    ("tag:yaml.org,2002:null", tuple(word for word, value in PLAIN_WORDS.items() if value is None)),
    ("tag:yaml.org,2002:bool", tuple(word for word, value in PLAIN_WORDS.items() if value is not None)),
)
for _tag, _words in _TAGS:
    _Dumper.add_implicit_resolver(_tag, re.compile(f"(?:{'|'.join(map(re.escape, _words))})$"), None)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("<<$"), None)
for _kind in ("int", "float"):
    _pattern = re.compile(r"[-+]?[0-9]+$") if _kind == "int" else re.compile(f"(?:{PLAIN_NUMBER.pattern})$")
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _pattern, None)
