"""Why the rules service did not do what it was asked, by whose fault it is. None of these changed anything.

ControlError
├── NotAuthenticated      nobody known asks: no token, an unknown, expired or revoked one
├── NotAllowed            who asks is known and may not do this
├── NotFound              what is named does not exist
├── AlreadyExists         what is to be made is there
├── Conflict              it cannot be done as things are
│   ├── FileOwned         a file owns the rules; edit that
│   └── ManagedBy         something else manages the rules, and would undo it
├── PreconditionRequired  the caller must say which revision it has seen
├── PreconditionFailed    it has seen an older revision, or another
├── Invalid               what it sends is wrong; every fault with a pointer to it
└── Unavailable           the database does not answer in time
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluicegate.errors import SluicegateError
from sluicegate.rules.notation import suggest
from sluicegate.rules.problems import Problem

__all__ = [
    "AlreadyExists",
    "Conflict",
    "ControlError",
    "Fault",
    "FileOwned",
    "Invalid",
    "ManagedBy",
    "NotAllowed",
    "NotAuthenticated",
    "NotFound",
    "PreconditionFailed",
    "PreconditionRequired",
    "Unavailable",
]


class ControlError(SluicegateError):
    """Base of the refusals of the rules service. Nothing was changed; the audit trail holds the attempt where it was one to write."""


class NotAuthenticated(ControlError):
    """No token, or one that is unknown, expired or revoked. Which of them is not told."""

    def __init__(self) -> None:
        super().__init__("a valid bearer token is needed")


class NotAllowed(ControlError):
    """The role or the namespaces of who asks do not reach so far. ``needed`` is the role that does, None where the namespace is missing."""

    def __init__(self, message: str, needed: str | None = None) -> None:
        super().__init__(message)
        self.needed = needed


class NotFound(ControlError):
    """``kind`` (``rule``, ``version``, ``token``) and ``name`` of what does not exist. The message names the one of ``known`` that may be meant.

    ``covered_by``: networks of the same list that hold the address or network that has no entry of its own, the narrowest first.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str] = (), covered_by: Sequence[str] = ()) -> None:
        hint = suggest(name, known)
        meant = "" if hint is None else f" (did you mean {hint!r}?)"
        covered = f"; {', '.join(covered_by)}, which is on the list, covers it" if covered_by else ""
        super().__init__(f"there is no {kind} {name!r}{meant}{covered}")
        self.kind = kind
        self.name = name
        self.covered_by = tuple(covered_by)


class AlreadyExists(ControlError):
    """``kind`` and ``name`` of what was to be made and is there."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is {'an' if kind[:1] in 'aeiou' else 'a'} {kind} {name!r} already")
        self.kind = kind
        self.name = name


class Conflict(ControlError):
    """It cannot be done as things are: a rollout is over, a rule is on trial."""


class FileOwned(Conflict):
    """The rules belong to the file ``path``; every accepted edit of it is a version."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the rules are owned by the file {path}; edit that file")
        self.path = path


class ManagedBy(Conflict):
    """The rules are managed by ``manager``, which would undo this edit; give the same name, or force it."""

    def __init__(self, manager: str) -> None:
        super().__init__(
            f"the rules are managed by {manager!r}; change them there, or force the edit (--force, force=true)"
        )
        self.manager = manager


class PreconditionRequired(ControlError):
    """A change of something that exists must name the revision it was made from. ``current`` is that of now."""

    def __init__(self, current: int) -> None:
        super().__init__(f'say which revision the change was made from; it is "r{current}" now')
        self.current = current


class PreconditionFailed(ControlError):
    """The change was made from another revision than ``current``, that of now; 0: it does not exist."""

    def __init__(self, current: int) -> None:
        super().__init__(f'the revision is "r{current}" now' if current else "it does not exist")
        self.current = current


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with what was sent. ``pointer`` is a JSON pointer (RFC 6901) into it, "" for the whole."""

    detail: str
    pointer: str = ""


class Invalid(ControlError):
    """What was sent is wrong. ``faults`` is never empty; ``problems`` are the same as findings of a rules file, where they are some."""

    def __init__(self, faults: Sequence[Fault], problems: Sequence[Problem] = ()) -> None:
        shown = "; ".join(fault.detail for fault in faults[:5])
        more = len(faults) - 5
        super().__init__(f"{shown}; and {more} more" if more > 0 else shown)
        self.faults = tuple(faults)
        self.problems = tuple(problems)


class Unavailable(ControlError):
    """The database did not answer, or was busy too long. Whether a change was made is not known; the audit trail tells."""
