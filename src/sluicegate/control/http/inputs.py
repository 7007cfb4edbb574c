"""Bodies that are objects of a few fields."""

from __future__ import annotations

import msgspec

from sluicegate.clock import US_PER_S
from sluicegate.control.errors import Fault, Invalid
from sluicegate.control.model import Role
from sluicegate.rules.feed import ListKind

__all__ = ["EntrySettings", "NewEntry", "NewPause", "NewToken", "Reason", "Share", "end_of"]


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why, for the audit trail."""

    reason: str = ""


class Share(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of the clients, of 10,000, that a rollout is to apply to."""

    basis_points: int
    reason: str = ""


class NewPause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rule`` null: every rule. Its end: ``until_us``, or ``for_s`` seconds from now, or neither: until it is resumed."""

    rule: str | None = None
    until_us: int | None = None
    for_s: float | None = None
    reason: str = ""


class EntrySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its end: ``expires_us``, or ``expires_s`` seconds from now, or neither: never."""

    expires_us: int | None = None
    expires_s: float | None = None
    source: str = ""
    reason: str = ""


class NewEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``value``: an address or a network for ``ip``, else the name of the user, key or tenant. The rest as in ``EntrySettings``."""

    kind: ListKind
    value: str
    expires_us: int | None = None
    expires_s: float | None = None
    source: str = ""
    reason: str = ""


class NewToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``namespaces`` null: all. Its end as in ``EntrySettings``. ``node``: the only one that may report with it; null: any."""

    name: str
    role: Role
    namespaces: list[str] | None = None
    expires_us: int | None = None
    expires_s: float | None = None
    node: str | None = None
    reason: str = ""


def end_of(now_us: int, at_us: int | None, after_s: float | None, names: tuple[str, str]) -> int | None:
    """When something ends that is given as a time, as seconds from now, or not at all. ``names``: of the two fields."""
    if after_s is None:
        return at_us
    if at_us is not None:
        raise Invalid([Fault(f"{names[1]}: give it or {names[0]}, not both", f"/{names[1]}")])
    if not 0 < after_s < 2**40:
        raise Invalid([Fault(f"{names[1]}: {after_s:g} is no number of seconds above 0", f"/{names[1]}")])
    return now_us + round(after_s * US_PER_S)
