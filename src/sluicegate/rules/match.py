r"""Which rules apply to a request, in order of evaluation, without a look at the others.

    request line --memo (in the engine)--> rules          the usual case: one dict lookup
                 \--> Seen --> path trie, by label --> static conditions --> guards left for each request

Order of evaluation: scope (global, endpoint, identity), then the order of the file. Every matching rule applies; no
pattern is more special than another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sluicegate.errors import InvalidRequest
from sluicegate.rules.conditions import Conditions, Guard, Seen, canonical_host
from sluicegate.rules.facts import Facts
from sluicegate.rules.labels import Label, Labels, host_label
from sluicegate.rules.model import Rule, Scope
from sluicegate.rules.paths import readings, segments_of
from sluicegate.rules.trie import Entries, PathTrie

__all__ = ["EVERY_PATH", "Candidate", "Matcher", "in_order", "see"]

EVERY_PATH = "/**"
"""The pattern of a rule that has none."""

_SCOPE_ORDER = {Scope.GLOBAL: 0, Scope.ENDPOINT: 1, Scope.IDENTITY: 2}


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A rule, by its place in order of evaluation, whose static conditions hold. ``guard`` None: it applies; else it applies where the guard says so."""

    rule_index: int
    pattern: str
    guard: Guard | None


def in_order(rules: Sequence[Rule]) -> list[Rule]:
    """Rules in order of evaluation."""
    return sorted(rules, key=lambda rule: _SCOPE_ORDER[rule.scope])


def see(
    method: str | None, path: str | None, host: str | None, tier: str | None, labels: tuple[Label, ...] = ()
) -> Seen:
    """Bring the static facts to their one form; ``labels`` are ``Matcher.labels_of`` the request. Raises InvalidRequest for a path that is too long."""
    try:
        read = () if path is None else readings(path)
    except ValueError as error:
        raise InvalidRequest("facts.path", str(error)) from None
    name = canonical_host(host) if host else None
    return Seen(
        method.upper() if method else None,
        read[0] if read else None,
        [segments_of(reading) for reading in read],
        name,
        tier,
        labels if name is None else (*labels, host_label(name)),
    )


class Matcher:
    """Compiled ``match`` blocks of rules, given in order of evaluation. Immutable; safe from any thread.

    ``ip_key`` canonicalises an address and raises InvalidRequest for what is none. ``labelled``: requests must be seen
    with ``labels_of`` them; where it is False there are none.
    """

    __slots__ = ("_conditions", "_pathless", "_trie", "labelled", "labels_of")

    def __init__(self, rules: Sequence[Rule], ip_key: Callable[[str], str]) -> None:
        self._conditions = [Conditions(rule.match, ip_key) for rule in rules]
        exact = [conditions.exact_hosts for conditions in self._conditions]
        labels = Labels([rule.match for rule in rules], exact)
        self.labels_of: Callable[[Facts], tuple[Label, ...]] = labels.of
        self.labelled = labels.fields > 0
        self._trie = PathTrie()
        self._pathless = Entries()
        for index, conditions in enumerate(self._conditions):
            filed = labels.of_rule(index)
            for place, pattern in enumerate(conditions.patterns):
                self._trie.add(pattern, (index, place), filed)
            if not conditions.patterns:
                self._pathless.add((index, 0), filed)

    def candidates(self, seen: Seen) -> list[Candidate]:
        """The rules whose static conditions hold, in order of evaluation."""
        found: dict[int, int] = {}
        self._pathless.collect(seen.labels, found)
        for segments in seen.readings:
            self._trie.collect(segments, seen.labels, found)
        candidates = []
        for index in sorted(found):
            conditions = self._conditions[index]
            holds = conditions.only_path or conditions.holds(seen, path_known_to_match=True)
            if holds is not False:
                pattern = conditions.patterns[found[index]].text if conditions.patterns else EVERY_PATH
                candidates.append(Candidate(index, pattern, None if holds is True else holds))
        return candidates

    def reason(self, index: int, seen: Seen, facts: Facts) -> str | None:
        """Why the rule at ``index`` does not apply; None where it does. Slow, for ``explain``."""
        return self._conditions[index].reason(seen, facts)
