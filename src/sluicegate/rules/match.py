r"""Which rules apply to a request, in order of evaluation, without a look at the others.

    request line --memo (in the engine)--> rules          the usual case: one dict lookup
                 \--> Seen --> path trie, by host --> static conditions --> guards left for each request

Order of evaluation: scope (global, endpoint, identity), then the order of the file. Every matching rule applies; no
pattern is more special than another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sluicegate.errors import InvalidRequest
from sluicegate.rules.conditions import Conditions, Guard, Seen, canonical_host
from sluicegate.rules.facts import Facts
from sluicegate.rules.model import Rule, Scope
from sluicegate.rules.paths import readings, segments_of
from sluicegate.rules.trie import Entries, PathTrie

__all__ = ["EVERY_PATH", "Candidate", "Matcher", "in_order", "see"]

EVERY_PATH = "/**"
"""The pattern of a rule that has none."""

_SCOPE_ORDER = {Scope.GLOBAL: 0, Scope.ENDPOINT: 1, Scope.IDENTITY: 2}


class Candidate(NamedTuple):
    """A rule, by its place in order of evaluation, whose static conditions hold. ``guard`` None: it applies; else it applies where the guard says so."""

    rule_index: int
    pattern: str
    guard: Guard | None


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Rules in order of evaluation."""
    return sorted(rules, key=lambda rule: _SCOPE_ORDER[rule.scope])


def see(method: str | None, path: str | None, host: str | None, tier: str | None) -> Seen:
    """Bring the static facts to their one form; raises InvalidRequest for a path that is too long."""
    try:
        read = () if path is None else readings(path)
    except ValueError as error:
        raise InvalidRequest("facts.path", str(error)) from None
    return Seen(
        method.upper() if method else None,
        read[0] if read else None,
        tuple(tuple(segments_of(reading)) for reading in read),
        canonical_host(host) if host else None,
        tier,
    )


class Matcher:
    """Compiled ``match`` blocks of rules, given in order of evaluation. Immutable; safe from any thread.

    ``ip_key`` canonicalises an address and raises InvalidRequest for what is none.
    """

    __slots__ = ("_conditions", "_pathless", "_trie")

    def __init__(self, rules: Sequence[Rule], ip_key: Callable[[str], str]) -> None:
        self._conditions = [Conditions(rule.match, ip_key) for rule in rules]
        self._trie = PathTrie()
        self._pathless = Entries()
        for index, conditions in enumerate(self._conditions):
            hosts = conditions.hosts.exact if conditions.hosts is not None and conditions.hosts.only_exact else ()
            for place, pattern in enumerate(conditions.patterns):
                self._trie.add(pattern, (index, place), hosts)
            if not conditions.patterns:
                self._pathless.add((index, 0), hosts)

    def candidates(self, seen: Seen) -> list[Candidate]:
        """The rules whose static conditions hold, in order of evaluation."""
        found: dict[int, int] = {}
        self._pathless.collect(seen.host, found)
        for segments in seen.readings:
            self._trie.collect(segments, seen.host, found)
        candidates = []
        for index in sorted(found):
            conditions = self._conditions[index]
            holds = conditions.holds(seen, path_known_to_match=True)
            if holds is not False:
                pattern = conditions.patterns[found[index]].text if conditions.patterns else EVERY_PATH
                candidates.append(Candidate(index, pattern, None if holds is True else holds))
        return candidates

    def reason(self, index: int, seen: Seen, facts: Facts) -> str | None:
        """Why the rule at ``index`` does not apply; None where it does. Slow, for ``explain``."""
        return self._conditions[index].reason(seen, facts)
