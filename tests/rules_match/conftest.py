"""Rules built by hand, and the matcher asked as the engine asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from sluicegate.algorithms import TokenBucket
from sluicegate.rules.facts import Facts
from sluicegate.rules.identity.addresses import canonical_ip
from sluicegate.rules.match import Matcher, see
from sluicegate.rules.model import Match, Per, Quota, Rule, Scope

QUOTA = {None: Quota((TokenBucket(5, 5, 60_000_000),), "5/minute")}


@pytest.fixture
def make_rule() -> Callable[..., Rule]:
    """A rule with the given match; the rest does not matter."""

    def make(name: str, match: Match, scope: Scope = Scope.ENDPOINT) -> Rule:
        return Rule(name, scope, match, Per(), QUOTA)

    return make


@pytest.fixture
def applying(make_rule: Callable[..., Rule]) -> Callable[[Sequence[Match], Facts], list[int]]:
    """Which of some match blocks apply to facts, by the compiled matcher."""

    def ask(matches: Sequence[Match], facts: Facts) -> list[int]:
        matcher = Matcher([make_rule(f"r{index}", match) for index, match in enumerate(matches)], canonical_ip)
        seen = see(facts.method, facts.path, facts.host, facts.tier, matcher.labels_of(facts))
        found = matcher.candidates(seen)
        return [one.rule_index for one in found if one.guard is None or one.guard(facts)]

    return ask
