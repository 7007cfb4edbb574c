"""Subjects: from the dimensions of a rule's ``per`` to a function of the facts.

The function is put together once, from parts made for their dimension, so that a request pays for reading one attribute
and one dict lookup per dimension. A dimension that is not known gives None, never an empty or shared subject; the empty text
counts as not known. Not so in a descriptor: a proxy that makes an entry says that it is there, whatever its client sent, and a client
that sends an empty field must not be rid of a limit by it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sluicegate.errors import InvalidRequest
from sluicegate.rules.conditions import Seen, canonical_method
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.addresses import IpKeyer
from sluicegate.rules.model import OnMissing, Per
from sluicegate.stores.keys import EVERYBODY, PartMemo, join_parts

__all__ = ["SubjectOf", "Subjects"]

SubjectOf: TypeAlias = Callable[[Facts], str | None]
"""The subject of a request, or None where a dimension it needs is not known."""

STATIC_DIMENSIONS = frozenset(("endpoint", "host", "method", "path", "tier"))
"""Dimensions that depend on what a request line is seen as, not only on the facts."""

_ATTRIBUTES: dict[str, Callable[[PartMemo], SubjectOf]] = {
    "ip": lambda memo: lambda facts: memo[facts.ip],
    "user": lambda memo: lambda facts: memo[facts.user],
    "api_key": lambda memo: lambda facts: memo[facts.api_key],
    "tenant": lambda memo: lambda facts: memo[facts.tenant],
    "domain": lambda memo: lambda facts: memo[facts.domain],
}
_MAPPINGS: dict[str, Callable[[PartMemo, str], SubjectOf]] = {
    "header": lambda memo, name: lambda facts: memo[facts.headers.get(name)] if facts.headers else None,
    "descriptor": lambda memo, name: lambda facts: memo[facts.descriptors.get(name)] if facts.descriptors else None,
    "attrs": lambda memo, name: lambda facts: memo[facts.attrs.get(name)] if facts.attrs else None,
}


class Subjects:
    """Makes subject functions; all that it makes share its memos. Safe from any thread."""

    __slots__ = ("_keyer", "_memos", "_parts", "ip_key")

    ip_key: Callable[[str], str]
    """The key of an address; raises InvalidRequest("facts.ip") for what is none."""

    def __init__(self, ipv4_prefix: int = 32, ipv6_prefix: int = 64) -> None:
        key = IpKeyer(ipv4_prefix, ipv6_prefix).key

        def ip_key(text: str) -> str:
            try:
                return key(text)
            except ValueError as error:
                raise InvalidRequest("facts.ip", str(error)) from None

        self.ip_key = ip_key
        self._memos: dict[str, PartMemo] = {"ip": PartMemo("ip", ip_key)}
        self._parts: dict[str, SubjectOf] = {}

    def subject_of(self, per: Per, seen: Seen, pattern: str) -> SubjectOf:
        """The function for one rule. ``pattern`` is the path pattern by which it matched.

        Where ``per`` holds none of ``STATIC_DIMENSIONS`` the result does not depend on ``seen`` and ``pattern``.
        """
        parts = [self._part(dimension, seen, pattern) for dimension in per.dimensions]
        subject_of = _first_of(parts) if per.first_of else _all_of(parts)
        if per.on_missing is OnMissing.IP:
            return _first_of([subject_of, self._part("ip", seen, pattern)])
        return subject_of

    def _part(self, dimension: str, seen: Seen, pattern: str) -> SubjectOf:
        if dimension == "endpoint":
            return self._endpoint(seen, pattern)
        if dimension in STATIC_DIMENSIONS:
            return _constant(self._memo(dimension)[_static_value(dimension, seen)])
        if dimension.startswith("header."):
            dimension = dimension.lower()
        part = self._parts.get(dimension)
        if part is None:
            part = self._parts[dimension] = self._dynamic_part(dimension)
        return part

    def _dynamic_part(self, dimension: str) -> SubjectOf:
        memo = self._memo(dimension)
        if dimension in _ATTRIBUTES:
            return _ATTRIBUTES[dimension](memo)
        kind, _, name = dimension.partition(".")
        return _MAPPINGS[kind](memo, name)

    def _endpoint(self, seen: Seen, pattern: str) -> SubjectOf:
        """Method and route template; the pattern that matched where no route is known, never the raw path."""
        memo = self._memo("endpoint")
        method = "ANY" if seen.method is None else canonical_method(seen.method)
        start = f"{method} "
        by_pattern = memo[start + pattern]

        def endpoint(facts: Facts) -> str | None:
            route = facts.route
            return memo[start + route] if route else by_pattern

        return endpoint

    def _memo(self, dimension: str) -> PartMemo:
        memo = self._memos.get(dimension)
        if memo is None:
            memo = PartMemo(dimension, empty_is_known=dimension.startswith("descriptor."))
            # Threads may make one at the same time; all are to use the same.
            memo = self._memos.setdefault(dimension, memo)
        return memo


def _static_value(dimension: str, seen: Seen) -> str | None:
    if dimension == "method":
        return None if seen.method is None else canonical_method(seen.method)
    return {"host": seen.host, "path": seen.path, "tier": seen.tier}[dimension]


def _constant(part: str | None) -> SubjectOf:
    def constant(_facts: Facts) -> str | None:
        return part

    return constant


def _first_of(parts: list[SubjectOf]) -> SubjectOf:
    """The first that is known; a part is never empty, so ``or`` is enough."""
    if len(parts) == 1:
        return parts[0]
    first, *others = parts
    second = _first_of(others)
    return lambda facts: first(facts) or second(facts)


def _all_of(parts: list[SubjectOf]) -> SubjectOf:
    """All of them, or None."""
    if not parts:
        return _constant(EVERYBODY)
    if len(parts) == 1:
        return parts[0]

    def composite(facts: Facts) -> str | None:
        known: list[str] = []
        for part in parts:
            text = part(facts)
            if text is None:
                return None
            known.append(text)
        return join_parts(known)

    return composite
