"""The conditions of ``match`` as functions.

Conditions on method, path, host and tier are *static*: they are answered once per distinct request line and remembered.
The others (headers, identity, address, descriptors) are *guards*: functions of the facts, called per request.

A condition on a fact that is not known does not hold; an empty identity or address counts as not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.addresses import Networks
from sluicegate.rules.labels import Label
from sluicegate.rules.model import Entry, Match
from sluicegate.rules.paths import PathPattern, parse_pattern

__all__ = ["METHODS", "Conditions", "Guard", "HostPatterns", "Seen", "canonical_host", "canonical_method"]

Guard: TypeAlias = Callable[[Facts], bool]

# RFC 9110, PATCH (RFC 5789), QUERY (draft), WebDAV (RFC 4918, 3253, 5323).
METHODS = frozenset(
    (
        *("GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY", "PURGE"),
        *("PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH"),
    )
)
"""Methods that a standard names."""

_PORT = re.compile(r":[0-9]*\Z", re.ASCII)


class Seen(msgspec.Struct, frozen=True, gc=False):
    """What the static conditions look at, each in its one form; None: not known."""

    method: str | None
    path: str | None
    """The normal form."""
    readings: Sequence[Sequence[str]]
    """The segments of every reading, the normal form's first; empty where the path is not known."""
    host: str | None
    tier: str | None
    labels: tuple[Label, ...] = ()
    """What rules are filed under that this request may match."""


def canonical_method(method: str) -> str:
    """A method as a dimension: upper case, and ``OTHER`` for what no standard names.

    A client can invent methods without end; each would be a new endpoint with a full quota.
    """
    upper = method.upper()
    return upper if upper in METHODS else "OTHER"


def canonical_host(host: str) -> str:
    """A host without port, blanks and final dots, in lower case."""
    name = host.strip(" \t").lower()
    if ":" in name:
        name = _PORT.sub("", name)
    return name.rstrip(".")


class HostPatterns:
    """``example.com`` and ``*.example.com`` (any name below it, not itself)."""

    __slots__ = ("_exact", "_suffixes")

    def __init__(self, patterns: tuple[str, ...]) -> None:
        hosts = [pattern.lower().removesuffix(".") for pattern in patterns]
        self._exact = frozenset(host for host in hosts if not host.startswith("*."))
        self._suffixes = tuple(host[1:] for host in hosts if host.startswith("*."))

    @property
    def names(self) -> frozenset[str]:
        """The hosts this matches, where it can name them all; else none."""
        return frozenset() if self._suffixes else self._exact

    def match(self, host: str | None) -> bool:
        """``host`` in canonical form."""
        if host is None:
            return False
        return host in self._exact or host.endswith(self._suffixes)


class Conditions:
    """One ``match`` (or ``not``) block.

    ``exclude`` is True inside ``not``. There a path condition holds only if *every* reading matches: a path that
    some server reads as the limited one must not be taken out because another reads it as the free one.
    ``only_path``: there are no other conditions than on the path.
    """

    __slots__ = ("_guard", "_hosts", "_methods", "_negate", "_tiers", "exclude", "only_path", "patterns")

    def __init__(self, match: Match, ip_key: Callable[[str], str], *, exclude: bool = False) -> None:
        self.exclude = exclude
        self.patterns: tuple[PathPattern, ...] = tuple(parse_pattern(text) for text in match.path)
        self._hosts = HostPatterns(match.host) if match.host else None
        self._methods = frozenset(method.upper() for method in match.methods)
        self._tiers = frozenset(match.tier)
        self._guard = _all_of(_guards(match, ip_key))
        self._negate = None if match.negate is None else Conditions(match.negate, ip_key, exclude=not exclude)
        self.only_path = not (self._methods or self._tiers or self._hosts or match.negate or self._guard is not True)

    @property
    def exact_hosts(self) -> frozenset[str]:
        """The hosts these conditions can hold for; empty: others too."""
        return frozenset() if self._hosts is None else self._hosts.names

    def holds(self, seen: Seen, *, path_known_to_match: bool = False) -> bool | Guard:
        """True or False where the static conditions settle it, else the guard that does."""
        if not self._static(seen, path_known_to_match):
            return False
        if self._negate is None:
            return self._guard
        inner = self._negate.holds(seen)
        if inner is True:
            return False
        if inner is False:
            return self._guard
        return _both(self._guard, _not(inner))

    def reason(self, seen: Seen, facts: Facts) -> str | None:
        """The first condition that does not hold, for people; None where all hold. Slow."""
        if self._methods and seen.method not in self._methods:
            return f"method {_shown(seen.method)} is none of {', '.join(sorted(self._methods))}"
        if self.patterns and not self._path_holds(seen):
            return f"path {_shown(seen.path)} does not match {' or '.join(p.text for p in self.patterns)}"
        if self._hosts is not None and not self._hosts.match(seen.host):
            return f"host {_shown(seen.host)} does not match"
        if self._tiers and seen.tier not in self._tiers:
            return f"tier {_shown(seen.tier)} is none of {', '.join(sorted(self._tiers))}"
        if self._guard is not True and not (self._guard is not False and self._guard(facts)):
            return "a condition on headers, identity, address or descriptors does not hold"
        if self._negate is not None and self._negate.reason(seen, facts) is None:
            return "its 'not' block holds"
        return None

    def _static(self, seen: Seen, path_known_to_match: bool) -> bool:
        if self._methods and seen.method not in self._methods:
            return False
        if self._tiers and seen.tier not in self._tiers:
            return False
        if self._hosts is not None and not self._hosts.match(seen.host):
            return False
        return path_known_to_match or not self.patterns or self._path_holds(seen)

    def _path_holds(self, seen: Seen) -> bool:
        if not seen.readings:
            return False
        matched = [any(pattern.matches(reading) for pattern in self.patterns) for reading in seen.readings]
        return all(matched) if self.exclude else any(matched)


def _guards(match: Match, ip_key: Callable[[str], str]) -> list[Guard]:
    """One guard per condition, cheapest first."""
    guards: list[Guard] = []
    if match.user:
        users = frozenset(match.user)
        guards.append(lambda facts: facts.user in users)
    if match.tenant:
        tenants = frozenset(match.tenant)
        guards.append(lambda facts: facts.tenant in tenants)
    if match.domain:
        domains = frozenset(match.domain)
        guards.append(lambda facts: facts.domain in domains)
    if match.authenticated is not None:
        wanted = match.authenticated
        guards.append(lambda facts: facts.authenticated is wanted)
    headers = {name.lower(): value for name, value in match.headers.items()}
    guards += [_entry_guard(lambda facts: facts.headers, name, value) for name, value in headers.items()]
    if match.entries:
        guards.append(_entries_guard(match.entries))
    guards += [_entry_guard(lambda facts: facts.descriptors, name, value) for name, value in match.descriptors.items()]
    if match.ip:
        guards.append(_ip_guard(match.ip, ip_key))
    return guards


def _entry_guard(mapping_of: Callable[[Facts], Mapping[str, str] | None], name: str, value: str | None) -> Guard:
    def present(facts: Facts) -> bool:
        mapping = mapping_of(facts)
        return mapping is not None and name in mapping

    def equal(facts: Facts) -> bool:
        mapping = mapping_of(facts)
        return mapping is not None and mapping.get(name) == value

    return present if value is None else equal


def _entries_guard(entries: tuple[Entry, ...]) -> Guard:
    """Holds where the descriptor has just these entries, in this order."""
    keys = tuple(entry.key for entry in entries)
    tests = [
        (
            entry.key,
            None if entry.value is None else _value_test((entry.value,)),
            _value_test(entry.excluded) if entry.excluded else None,
        )
        for entry in entries
        if entry.value is not None or entry.excluded
    ]

    def just_these(facts: Facts) -> bool:
        descriptors = facts.descriptors
        if descriptors is None or tuple(descriptors) != keys:
            return False
        for key, wanted, excluded in tests:
            value = descriptors[key]
            if (wanted is not None and not wanted(value)) or (excluded is not None and excluded(value)):
                return False
        return True

    return just_these


def _value_test(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a value is one of these, in which an asterisk stands for any text."""
    exact = frozenset(pattern for pattern in patterns if "*" not in pattern)
    globs = [tuple(pattern.split("*")) for pattern in patterns if "*" in pattern]
    return lambda value: value in exact or any(_glob_matches(parts, value) for parts in globs)


def _glob_matches(parts: tuple[str, ...], value: str) -> bool:
    """Each part where it stands first after the one before it, which finds a place for all where there is one; linear in practice."""
    first, *middle, last = parts
    if len(value) < len(first) + len(last) or not (value.startswith(first) and value.endswith(last)):
        return False
    pos, end = len(first), len(value) - len(last)
    for part in middle:
        found = value.find(part, pos, end)
        if found < 0:
            return False
        pos = found + len(part)
    return True


def _ip_guard(cidrs: tuple[str, ...], ip_key: Callable[[str], str]) -> Guard:
    contains = Networks.parse(cidrs).contains

    def inside(facts: Facts) -> bool:
        ip = facts.ip
        if ip is None or ip == "":
            return False
        ip_key(ip)  # raises for what is no address: a typo must not slip past a rule
        return contains(ip)

    return inside


def _all_of(guards: list[Guard]) -> bool | Guard:
    if not guards:
        return True
    if len(guards) == 1:
        return guards[0]
    first, *rest = guards
    return _both(first, _all_of(rest))


def _both(first: bool | Guard, second: bool | Guard) -> bool | Guard:
    if first is True:
        return second
    if second is True:
        return first
    if first is False or second is False:
        return False
    one, other = first, second
    return lambda facts: one(facts) and other(facts)


def _not(guard: bool | Guard) -> bool | Guard:
    if isinstance(guard, bool):
        return not guard
    return lambda facts: not guard(facts)


def _shown(value: str | None) -> str:
    return "(not known)" if value is None else repr(value[:64])
