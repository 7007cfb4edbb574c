"""What a change of the rules makes of a document. Nothing here looks into a database, or whether the result is a valid rule set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from sluicegate.control.errors import (
    AlreadyExists,
    Fault,
    Invalid,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
)
from sluicegate.control.model import ABSENT, ANY, IDENTITY, TIERS, Expect, Version
from sluicegate.rules.document import canonical
from sluicegate.rules.load import FORMAT_VERSION

__all__ = [
    "Document",
    "Edit",
    "Edited",
    "check_expected",
    "create_rule",
    "delete_rule",
    "differences",
    "merge_patch",
    "patch_rule",
    "put_all",
    "put_part",
    "put_rule",
    "revisions_of",
]

Document: TypeAlias = dict[str, Any]

Edited: TypeAlias = tuple[Any, str]
"""The new document, and the pointer to what was sent within it ("": all of it was sent)."""

Edit: TypeAlias = Callable[[Version | None], Edited]

SUBJECTS: Final = "[subjects]"
ORDER: Final = "[order]"


def put_all(document: Any, expect: Expect, *, always: bool = False) -> Edit:
    """The document in place of the one there is; ``always``: whatever its revision."""

    def edit(current: Version | None) -> Edited:
        if not always:
            _check(expect, 0 if current is None else current.info.version, required=current is not None)
        return document, ""

    return edit


def put_part(part: str, value: Any, expect: Expect) -> Edit:
    """``tiers`` or ``identity``; None takes it out."""
    name = {"tiers": TIERS, "identity": IDENTITY}[part]

    def edit(current: Version | None) -> Edited:
        revision = 0 if current is None else current.revisions.get(name, 0)
        _check(expect, revision, required=revision != 0)
        document = _opened(current)
        if value is None:
            document.pop(part, None)
        else:
            document[part] = value
        return document, f"/{part}"

    return edit


def create_rule(rule: Any) -> Edit:
    """A new rule at the end."""

    def edit(current: Version | None) -> Edited:
        name = _name_of(rule)
        document = _opened(current)
        if current is not None and name in current.revisions:
            raise AlreadyExists("rule", name)
        document["rules"].append(rule)
        return document, f"/rules/{len(document['rules']) - 1}"

    return edit


def put_rule(name: str, rule: Any, expect: Expect) -> Edit:
    """A rule in place of the one of this name; a new one with ABSENT."""
    named = {"name": name, **rule} if isinstance(rule, dict) else rule
    if expect != ABSENT:
        return _in_place(name, expect, lambda _old: named)

    def edit(current: Version | None) -> Edited:
        if current is not None and name in current.revisions:
            raise PreconditionFailed(current.revisions[name])
        if _name_of(named) != name:
            raise Invalid([Fault("a new rule has the name it is put under", "/name")])
        return create_rule(named)(current)

    return edit


def patch_rule(name: str, patch: Any, expect: Expect) -> Edit:
    """A JSON merge patch of a rule."""

    def patched(old: Document) -> Any:
        if not isinstance(patch, dict):
            raise Invalid([Fault("a merge patch of a rule is an object")])
        return merge_patch(old, patch)

    return _in_place(name, expect, patched)


def delete_rule(name: str, expect: Expect) -> Edit:
    """All rules but this one."""

    def edit(current: Version | None) -> Edited:
        at = _found(current, name, expect)
        document = _opened(current)
        del document["rules"][at]
        return document, "/rules"

    return edit


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: objects are merged, null takes out, everything else takes the place of what is there."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def revisions_of(document: Mapping[str, Any], current: Version | None, version: int) -> dict[str, int]:
    """The revision of each part of a document that becomes ``version``: its own where it is new or differs, else the one it had."""
    before = {} if current is None else _parts(current.document)
    kept = {} if current is None else current.revisions
    return {
        name: kept[name] if name in before and canonical(before[name]) == canonical(value) else version
        for name, value in _parts(document).items()
    }


def differences(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> dict[str, list[Any]]:
    """``{NAME: [before, after]}`` of rules and parts that differ, None where there is none; the order of rules last."""
    before, after = {} if old is None else _parts(old), _parts(new)
    found: dict[str, list[Any]] = {
        name: [before.get(name), after.get(name)]
        for name in [*before, *(name for name in after if name not in before)]
        if canonical(before.get(name)) != canonical(after.get(name))
    }
    orders: list[Any] = [[name for name in part if name in before and name in after] for part in (before, after)]
    if orders[0] != orders[1]:
        found[ORDER] = orders
    return found


def _parts(document: Mapping[str, Any]) -> dict[str, Any]:
    parts = {rule["name"]: rule for rule in document["rules"]}
    for field, name in (("tiers", TIERS), ("identity", IDENTITY), ("subjects", SUBJECTS)):
        if field in document:
            parts[name] = document[field]
    return parts


def _opened(current: Version | None) -> Document:
    """A copy of the document, so far as edits change it."""
    if current is None:
        return {"version": FORMAT_VERSION, "rules": []}
    return {**current.document, "rules": list(current.document["rules"])}


def _name_of(rule: Any) -> str:
    name = rule.get("name") if isinstance(rule, dict) else None
    if not isinstance(name, str) or not name:
        raise Invalid([Fault('a rule is an object with a name, such as {"name": "api", "quota": "100/minute"}')])
    return name


def _in_place(name: str, expect: Expect, made: Callable[[Document], Any]) -> Edit:
    def edit(current: Version | None) -> Edited:
        at = _found(current, name, expect)
        document = _opened(current)
        document["rules"][at] = made(document["rules"][at])
        return document, f"/rules/{at}"

    return edit


def _found(current: Version | None, name: str, expect: Expect) -> int:
    rules = [] if current is None else current.document["rules"]
    at = next((at for at, rule in enumerate(rules) if rule["name"] == name), None)
    if current is None or at is None:
        if expect in (None, ANY):
            raise NotFound("rule", name, (rule["name"] for rule in rules))
        raise PreconditionFailed(0)
    _check(expect, current.revisions[name], required=True)
    return at


def check_expected(expect: Expect, before: Any) -> None:
    """Raises PreconditionFailed where a row (None: none) has not the revision that is expected; None: whatever is there."""
    _check(expect, 0 if before is None else before.revision, required=False)


def _check(expect: Expect, revision: int, *, required: bool) -> None:
    if expect is None:
        if required:
            raise PreconditionRequired(revision)
    elif (expect == ANY and revision == 0) or expect not in (ANY, revision):
        raise PreconditionFailed(revision)
